// The token explorer: one answer, token by token. All text is set as text, never as HTML.
"use strict";

const wordOf = (words, token) => (String(token) in words ? words[token] : `#${token}`);
const shownWord = (word) => JSON.stringify(word).slice(1, -1);

/** Write the chosen answer, every token coloured by its certificate. */
function showExplorer() {
  const place = document.getElementById("answer-text");
  if (!place) return;
  const { answers, words, chosen_by: chosenBy } = PAGE.answers[state.target];
  const target = PAGE.steps[state.target];
  const answer = answers[Math.min(state.answer, answers.length - 1)];
  document.getElementById("chosen-by").textContent = chosenBy;
  document.getElementById("answer-prompt").textContent = answer.prompt;
  const certain = certifiedSteps(target.certificates[state.rule], state.level);
  const accepted =
    target.accepted[state.rule] === null ? null : unpackFlags(target.accepted[state.rule], certain.length);
  place.replaceChildren();
  let run = 0;
  answer.steps.forEach((step, at) => {
    const index = answer.begin + at;
    const token = document.createElement("span");
    token.textContent = wordOf(words, step.t);
    token.className = certain[index] ? "certified" : accepted === null ? "open" : accepted[index] ? "accepted" : "rejected";
    token.tabIndex = at === state.token ? 0 : -1;
    token.setAttribute("role", "option");
    if (!token.textContent.trim()) token.setAttribute("aria-label", `white space ${shownWord(token.textContent)}`);
    token.dataset.step = at;
    run = certain[index] ? run + 1 : 0;
    place.append(token);
    const goesOn = at + 1 < answer.steps.length && certain[index + 1];
    if (run > 1 && !goesOn) {
      const length = document.createElement("sub");
      length.textContent = run;
      length.title = `${run} certified tokens in a row`;
      length.setAttribute("aria-hidden", "true"); // no option of the list
      place.append(length);
    }
  });
  showToken(Math.min(state.token, answer.steps.length - 1));
}

/** Say all of one token: its candidates, its certificate, and what became of the draft. */
function showToken(at) {
  state.token = at;
  const { answers, words } = PAGE.answers[state.target];
  const answer = answers[Math.min(state.answer, answers.length - 1)];
  const step = answer.steps[at];
  const rule = PAGE.rules[state.rule];
  const eps = PAGE.levels[state.level];
  const target = PAGE.steps[state.target];
  const packed = target.certificates[state.rule];
  const certain = CODES[packed.charCodeAt(answer.begin + at)] > state.level;
  const certificate = step.r[state.rule];
  for (const token of document.querySelectorAll("#answer-text span")) {
    const here = Number(token.dataset.step) === at;
    token.tabIndex = here ? 0 : -1;
    token.setAttribute("aria-selected", here);
  }
  const lines = [
    ["Token", `${at + 1} of ${answer.steps.length}: “${shownWord(wordOf(words, step.t))}”`],
    [
      "Certificate",
      `R = ${certificate === null ? "∞, nothing is rejected" : `${certificate} nats`} (${rule.title}): ` +
        `${certain ? "certified" : "not certified"} at ε = ${eps}`,
    ],
  ];
  if ("d" in step) {
    const accepted = target.accepted[state.rule];
    const flags = accepted === null ? null : unpackFlags(accepted, packed.length);
    const fate = flags === null ? "not judged by this rule" : flags[answer.begin + at] ? "accepted" : "rejected";
    lines.push(["KL(p‖q)", `${step.kl === null ? "∞" : step.kl} nats`]);
    lines.push([
      "Draft",
      `“${shownWord(wordOf(words, step.d))}”: ${step.q} under ${PAGE.drafter}, ${step.pd} under the target; ${fate}`,
    ]);
  }
  const facts = document.getElementById("token-facts");
  facts.replaceChildren();
  for (const [name, text] of lines) {
    facts.append(Object.assign(document.createElement("dt"), { textContent: name }));
    facts.append(Object.assign(document.createElement("dd"), { textContent: text }));
  }
  const body = document.getElementById("token-candidates");
  body.replaceChildren();
  step.c.forEach((token, rank) => {
    const row = body.insertRow();
    const notes = [];
    if (token === step.t) notes.push("emitted");
    if (token === step.d) notes.push("drafted");
    const texts = [`p${"₀₁₂₃₄"[rank]}`, shownWord(wordOf(words, token)), step.p[rank].toPrecision(3), notes.join(", ")];
    for (const text of texts) row.insertCell().textContent = text;
    const bar = document.createElement("i");
    bar.className = "bar";
    bar.style.width = `${Math.max(1, 60 * step.p[rank])}px`;
    row.cells[2].append(" ", bar);
  });
}

/** Let the pointer and the arrow keys choose a token. */
function startExplorer() {
  const place = document.getElementById("answer-text");
  if (!place) return;
  const choose = document.getElementById("answer-choice");
  choose.addEventListener("change", () => {
    state.answer = Number(choose.value);
    state.token = 0;
    showExplorer();
  });
  const step = (event) => event.target.dataset?.step;
  for (const kind of ["mouseover", "focusin", "click"]) {
    place.addEventListener(kind, (event) => {
      if (step(event) !== undefined && Number(step(event)) !== state.token) showToken(Number(step(event)));
    });
  }
  place.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const tokens = place.querySelectorAll("span");
    const next = Math.max(0, Math.min(tokens.length - 1, state.token + moves[event.key]));
    showToken(next);
    tokens[next].focus();
  });
}

/** List the answers of the chosen target. */
function listAnswers() {
  const choose = document.getElementById("answer-choice");
  if (!choose) return;
  choose.replaceChildren();
  PAGE.answers[state.target].answers.forEach((answer, at) => {
    const begin = answer.prompt.slice(0, 60);
    const text = `${at + 1}: ${answer.share}. ${begin}${answer.prompt.length > 60 ? " …" : ""}`;
    choose.append(new Option(text, at));
  });
  state.answer = Math.min(state.answer, PAGE.answers[state.target].answers.length - 1);
  choose.value = state.answer;
}
