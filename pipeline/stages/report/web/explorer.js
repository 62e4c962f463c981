// Answers, token by token, in colours. All text is set as text, never as HTML.
"use strict";

const wordOf = (words, token) => (String(token) in words ? words[token] : `#${token}`);
const shownWord = (word) => JSON.stringify(word).slice(1, -1);
const middle = () => Math.floor((PAGE.answers[state.target].answers.length - 1) / 2);

/** What became of a step under the chosen rule: its colour, and whether it is outlined. */
const fateOf = (step) => ({
  within: step.within[state.rule] > state.level,
  fate: ["open", "rejected", "accepted", "certified"][step.fates[state.rule]],
});

/** Write an answer into a place, every token with its colour. */
function paint(place, answer, words) {
  place.replaceChildren();
  answer.steps.forEach((step, at) => {
    const { fate, within } = fateOf(step);
    const token = document.createElement("span");
    token.textContent = wordOf(words, step.t);
    token.className = within ? `${fate} within` : fate;
    token.dataset.step = at;
    place.append(token);
  });
}

/** The answer in the middle, on the first screen. */
function showFirst() {
  const { answers, words } = PAGE.answers[state.target];
  const answer = answers[middle()];
  paint(byId("first-text"), answer, words);
  byId("first-share").textContent = answer.share;
  const begin = answer.prompt.length > 100 ? `${answer.prompt.slice(0, 100).replace(/\s+\S*$/, "")} …` : answer.prompt;
  byId("first-prompt").textContent = begin && `Its prompt: ${begin}`;
}

/** The chosen answer, whose tokens can be walked through. */
function showAnswer() {
  const { answers, words, chosen_by: chosenBy } = PAGE.answers[state.target];
  const answer = answers[state.answer];
  byId("chosen-by").textContent = chosenBy;
  byId("answer-prompt").textContent = answer.prompt;
  byId("answer-choice").value = state.answer;
  const place = byId("answer-text");
  paint(place, answer, words);
  for (const token of place.children) {
    token.setAttribute("role", "option");
    if (!token.textContent.trim()) token.setAttribute("aria-label", `white space ${shownWord(token.textContent)}`);
  }
  showToken(Math.min(state.token, answer.steps.length - 1));
}

/** Say all of one token: its candidates, its certificate, and what became of the draft. */
function showToken(at) {
  state.token = at;
  const { answers, words } = PAGE.answers[state.target];
  const answer = answers[state.answer];
  const step = answer.steps[at];
  const { fate, within } = fateOf(step);
  for (const token of byId("answer-text").children) {
    const here = Number(token.dataset.step) === at;
    token.tabIndex = here ? 0 : -1;
    token.setAttribute("aria-selected", here);
  }
  const certificate = step.r[state.rule];
  const lines = [
    ["Token", `${at + 1} of ${answer.steps.length}: “${shownWord(wordOf(words, step.t))}”`],
    ["Certificate", `R = ${certificate === null ? "∞, nothing can be rejected" : `${certificate} nats`}, ${PAGE.rules[state.rule].title}`],
    ["Any drafter", `within ε = ${PAGE.levels[state.level]}: ${within ? "certified: accepted" : "may be rejected"}`],
  ];
  if ("d" in step) {
    const said = { open: "not judged by this rule", certified: "accepted and certified" }[fate] ?? fate;
    lines.push(["This drafter", `${PAGE.targets[state.target].kl} = ${step.kl ?? "∞"} nats: ${said}`]);
    lines.push(["It drafted", `“${shownWord(wordOf(words, step.d))}”: ${step.q} under ${PAGE.drafter}, ${step.p_draft} under the target`]);
  }
  byId("token-facts").replaceChildren(
    ...lines.flatMap(([name, text]) => [
      Object.assign(document.createElement("dt"), { textContent: name }),
      Object.assign(document.createElement("dd"), { textContent: text }),
    ]),
  );
  byId("token-candidates").replaceChildren();
  step.c.forEach((token, rank) => {
    const notes = [token === step.t && "emitted", token === step.d && "drafted"].filter(Boolean).join(", ");
    const row = addRow("token-candidates", [`p${"₀₁₂₃₄"[rank]}`, shownWord(wordOf(words, token)), step.p[rank].toPrecision(3), notes]);
    const bar = Object.assign(document.createElement("i"), { className: "bar" });
    bar.style.width = `${Math.max(1, 60 * step.p[rank])}px`;
    row.cells[2].append(" ", bar);
  });
}

/** Let the pointer and the arrow keys choose a token. */
function startExplorer() {
  const place = byId("answer-text");
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
    const next = Math.max(0, Math.min(place.children.length - 1, state.token + moves[event.key]));
    showToken(next);
    place.children[next].focus();
  });
}

/** List the answers of the chosen target. */
function listAnswers() {
  const { answers } = PAGE.answers[state.target];
  byId("answer-choice").replaceChildren(
    ...answers.map((answer, at) => new Option(`${at + 1}: ${answer.share}. ${answer.prompt.slice(0, 60)} …`, at)),
  );
  state.answer = Math.min(state.answer, answers.length - 1);
}
