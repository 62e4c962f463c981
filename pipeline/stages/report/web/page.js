// What the reader chose, which is in the address behind #, and what follows from it on the page.
"use strict";

const state = { target: 0, rule: 0, value: null, beside: 0, level: 0, gamma: 5, answer: 0, token: 0, curves: [] };
let PAGE, TIMINGS;
const byId = (id) => document.getElementById(id);
const all = (selector) => document.querySelectorAll(selector);
const asShare = (x) => `${(100 * x).toFixed(1)}\u00a0%`;
const asNumber = (x) => x.toFixed(2);
const withInterval = (found, shown) =>
  `${shown(found.value)} [${shown(found.low)},\u00a0${shown(found.high)}]`.replace(/\u00a0%(?=[,\]])/g, "");
const epsText = () => `${PAGE.levels[state.level]} nats`;

function addRow(id, texts) {
  const row = byId(id).insertRow();
  const whole = (text) => String(text).replaceAll(" = ", "\u00a0=\u00a0").replace(/, (?=[\d.]+\])/g, ",\u00a0");
  for (const text of texts) row.insertCell().textContent = whole(text);
  return row;
}

/** The rules by family, each from strict to relaxed. */
function families() {
  const found = {};
  PAGE.rules.forEach((rule, at) => (found[rule.family] ??= []).push(at));
  return found;
}

// ---- the address

function writeAddress() {
  const known = {
    target: state.target, rule: PAGE.rules[state.rule].label, beside: PAGE.rules[state.beside].label,
    eps: PAGE.levels[state.level], gamma: state.gamma, answer: state.answer,
    ...(state.value === null ? {} : { value: state.value }),
  };
  history.replaceState(null, "", `#${new URLSearchParams(known)}`);
}

/** Take from the address what is known of the study; the rest stays. */
function readAddress() {
  const asked = new URLSearchParams(location.hash.slice(1));
  const place = (name, among) => asked.has(name) && among.findIndex((one) => String(one) === asked.get(name));
  const labels = PAGE.rules.map((rule) => rule.label);
  const found = {
    target: place("target", PAGE.targets.map((_, at) => at)),
    rule: place("rule", labels),
    beside: place("beside", labels),
    level: place("eps", PAGE.levels),
    answer: place("answer", PAGE.answers[0].answers.map((_, at) => at)),
    gamma: Number(asked.get("gamma")) >= 1 && Number(asked.get("gamma")) <= longest() && Math.floor(asked.get("gamma")),
  };
  state.value = asked.has("value") && Number.isFinite(Number(asked.get("value"))) ? Number(asked.get("value")) : null;
  for (const [name, value] of Object.entries(found)) if (value !== false && value >= 0) state[name] = value;
}

// ---- the parts

/** What an element of the page holds: JSON, deflated, in base64. */
async function unpack(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (one) => one.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}

/** The longest draft of the calculator. */
const longest = () => PAGE.targets[0].rules[0].tokens[0].length;

/** All that one rule gives at a level of eps and a draft length: shares and tokens a call. */
function evaluate(target, rule, level, gamma) {
  const { steps, rules } = PAGE.targets[target];
  const { share: shares, tokens: lengths } = PAGE.units;
  const share = ([value, low, high], at) => ({ value: value[at] / steps, low: low[at] / shares, high: high[at] / shares });
  const tokens = (ends, at) => {
    const [value, low, high] = ends.map((end) => end[gamma - 1][at] / lengths);
    return { value, low, high };
  };
  const found = { share: share(rules[rule].share, level), tokens: tokens(rules[rule].tokens, level) };
  if (rules[rule].shares) {
    [found.accepted, found.certified] = [0, 1].map((at) => share(rules[rule].shares, at));
    [found.measured, found.promised] = [0, 1].map((at) => tokens(rules[rule].calls, at));
  }
  return found;
}

/** What was decoded with a rule: at the chosen draft length if it was, else at all. */
function decodedText(label) {
  const runs = (TIMINGS.speed[state.target] ?? []).filter((run) => run.rule === label && run.drafter === "drafter");
  const same = runs.filter((run) => run.gamma === state.gamma);
  return (same.length ? same : runs).map((run) => `${asNumber(run.tokens)} tokens a call, ${asNumber(run.speedup)}× (γ = ${run.gamma})`).join("; ") || "not decoded";
}

/** The settings of a rule's family on one line, [value, place among the rules] from strict to relaxed; or null. */
function lineOf(rule) {
  const { family, line } = PAGE.rules[rule];
  return line && [...(line.greedy === null ? [] : [[line.greedy, PAGE.rules.findIndex((one) => one.label === "greedy")]]),
    ...families()[family].map((at) => [PAGE.rules[at].line.value, at])].filter(([, at]) => at >= 0);
}

/** The two neighbours of the chosen value, and how far it lies from the first to the second. */
function between() {
  const line = state.value === null ? null : lineOf(state.rule);
  if (!line) return [state.rule, state.rule, 0];
  const [first, last] = [line[0], line.at(-1)];
  const up = Math.sign(last[0] - first[0]);
  const next = line.findIndex(([value]) => up * value >= up * state.value);
  if (next <= 0) return next < 0 ? [last[1], last[1], 0] : [first[1], first[1], 0];
  const [[a, from], [b, to]] = [line[next - 1], line[next]];
  return [from, to, (state.value - a) / (b - a)];
}

/** As `evaluate` for the chosen value of a parameter: interpolated between the settings of the study. */
function evaluateChosen(level, gamma) {
  const [from, to, share] = between();
  const [a, b] = [from, to].map((rule) => evaluate(state.target, rule, level, gamma));
  const mix = (x, y) => x && y && Object.fromEntries(Object.keys(x).map((end) => [end, (1 - share) * x[end] + share * y[end]]));
  return Object.fromEntries(Object.keys(a).map((name) => [name, mix(a[name], b[name])]));
}

function showExact() {
  const line = lineOf(state.rule);
  byId("exact").hidden = !line;
  if (!line) return;
  const [from, to, share] = between();
  byId("exact-name").textContent = PAGE.rules[state.rule].line.parameter;
  if (state.value === null) byId("exact-value").value = PAGE.rules[state.rule].line.value;
  if (share > 0 && share < 1) {
    const text = `${PAGE.rules[state.rule].line.parameter} = ${state.value}, between ${PAGE.rules[from].title} and ${PAGE.rules[to].title}`;
    for (const one of all("#calculator [data-setting-shown]")) one.textContent = text;
  }
}

function showCalculator() {
  const found = evaluateChosen(state.level, state.gamma);
  const about = between()[2] > 0 && between()[2] < 1 ? "≈ " : "";
  const shown = { share: asShare, tokens: asNumber, accepted: asShare, certified: asShare, promised: asNumber, measured: asNumber };
  for (const [name, how] of Object.entries(shown)) {
    const place = byId(`found-${name}`);
    if (place) place.textContent = found[name] ? about + withInterval(found[name], how) : "not judged by this rule";
  }
  const within = PAGE.targets[state.target].drafter_within?.[state.level];
  byId("found-within").textContent = within === undefined ? ""
    : `${PAGE.drafter} is within ${epsText()} at ${asShare(within)} of the steps${within < 1 ? ": not promised for it" : ""}`;
  if (byId("found-decoded")) byId("found-decoded").textContent = decodedText(PAGE.rules[state.rule].label);
  const rows = [];
  for (let length = 1; length <= longest(); length++) {
    const each = evaluateChosen(state.level, length);
    const kinds = { [`any drafter within ${epsText()}, guaranteed`]: each.tokens };
    if (each.measured) kinds[PAGE.drafter] = each.measured;
    for (const [kind, { value, low, high }] of Object.entries(kinds)) rows.push({ kind, length, tokens: value, low, high });
  }
  drawChart("lengths", { lengths: rows });
  showExact();
}

/** The share of steps that a range certifies at one of its settings, between them interpolated. */
function certifiedAt({ values, steps }, value) {
  const share = (at) => steps[at][state.level] / PAGE.targets[state.target].steps;
  const up = Math.sign(values.at(-1) - values[0]);
  const next = values.findIndex((one) => up * one >= up * value);
  if (next < 0) return share(values.length - 1);
  if (next === 0 || values[next] === value) return share(next);
  const far = (value - values[next - 1]) / (values[next] - values[next - 1]);
  return (1 - far) * share(next - 1) + far * share(next);
}

/** The strictest setting of a range that certifies a share of the steps; null if none does. */
function strictest({ values, steps, whole }, wanted) {
  const needed = wanted * PAGE.targets[state.target].steps - 1e-9;
  const next = steps.findIndex((row) => row[state.level] >= needed);
  if (next <= 0) return next < 0 ? null : values[0];
  if (whole) return values[next];
  const [before, after] = [steps[next - 1][state.level], steps[next][state.level]];
  return values[next - 1] + ((needed - before) / (after - before)) * (values[next] - values[next - 1]);
}

/** Of every range the setting that certifies the wanted share of the steps, and the share of any other. */
function showSettings() {
  const wanted = Number(byId("wanted").value) / 100;
  byId("settings").replaceChildren();
  for (const range of PAGE.solved[state.target]) {
    const { name, rule, parameter, values, whole } = range;
    const best = strictest(range, wanted);
    const shown = best === null ? `none up to ${parameter} = ${values.at(-1)}` : `${parameter} = ${Number(best.toPrecision(3))}`;
    const certified = certifiedAt(range, best ?? values.at(-1));
    const row = addRow("settings", [name, shown, `${best === null ? "at most " : ""}${asShare(certified)}`, "", ""]);
    const other = Object.assign(document.createElement("input"), {
      type: "number", step: whole ? 1 : "any", ariaLabel: `${parameter} of ${rule}`, value: Number((best ?? values.at(-1)).toPrecision(3)),
    });
    const show = () => { row.cells[4].textContent = other.value === "" ? "" : asShare(certifiedAt(range, Number(other.value))); };
    other.addEventListener("input", show);
    row.cells[3].append(`${parameter} = `, other);
    show();
  }
}

function showMargins() {
  const counts = PAGE.margins[state.target][state.rule];
  const rows = (counts ?? []).map(([steps, accepted], at) => {
    const [margin, certified] = PAGE.bins[at];
    return { margin, steps, share: accepted / steps, certified: certified ? "certified" : "not certified" };
  });
  drawChart("margins", { margins: rows.filter((row) => row.steps) });
}

/** Two rules side by side, and both among all rules. */
function showRules() {
  const rows = PAGE.pairs[state.target];
  if (!rows) return;
  const two = [state.rule, state.beside];
  const names = two.map((at) => PAGE.rules[at].title.replaceAll(" = ", "\u00a0=\u00a0"));
  byId("compared-names").replaceChildren(
    document.createElement("td"),
    ...names.map((text) => Object.assign(document.createElement("th"), { textContent: text, scope: "col" })),
  );
  const known = two.map((at) => rows.find((row) => row.label === PAGE.rules[at].label) ?? {});
  const computed = two.map((at) => evaluate(state.target, at, state.level, state.gamma));
  const of = (name, shown) => computed.map((found) => (found[name] ? withInterval(found[name], shown) : "–"));
  byId("compared").replaceChildren();
  for (const [name, texts] of [
    ["accepted", of("accepted", asShare)],
    ["certified for this drafter", of("certified", asShare)],
    [`tokens a call, γ = ${state.gamma}`, of("measured", asNumber)],
    [`guaranteed tokens a call, γ = ${state.gamma}`, of("promised", asNumber)],
    ["departures from the first choice, of the steps", known.map((row) => row.departure_text ?? "–")],
    ["target probability given up a step", known.map((row) => row.given_up_text ?? "–")],
    [`certified for any drafter within ${epsText()}`, of("share", asShare)],
    ["decoded", two.map((at) => decodedText(PAGE.rules[at].label))],
  ]) addRow("compared", [name, ...texts]);
  const most = Math.sqrt(Math.max(...rows.map((row) => row.given_up)));
  const marked = rows.map((row) => {
    const at = two.findIndex((one) => PAGE.rules[one].label === row.label);
    return { ...row, name: at < 0 ? "" : row.title, second: at === 1, right: Math.sqrt(row.given_up) > 0.5 * most };
  });
  const shown = new Set(rows.map((row) => row.family));
  const hues = Object.entries(PAGE.hues).filter(([family]) => shown.has(family));
  drawChart("plane", { rules: marked }, Object.fromEntries(hues));
}

function showCurves() {
  const { eps, rules } = PAGE.curves[state.target];
  const last = Math.max(...state.curves.map((at) => PAGE.rules[at].ceiling), 0.1) * 1.06;
  const rows = state.curves.flatMap((at) =>
    eps.flatMap((x, place) => {
      const { share, low, high } = rules[at];
      return x > last ? [] : [{ rule: PAGE.rules[at].title, eps: x, share: share[place], low: low[place], high: high[place] }];
    }),
  );
  byId("curves-shown").replaceChildren(
    ...state.curves.map((at) => {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: `${PAGE.rules[at].title} ×` });
      button.addEventListener("click", () => {
        state.curves = state.curves.filter((one) => one !== at);
        showCurves();
      });
      return button;
    }),
  );
  const hues = Object.fromEntries(state.curves.map((at) => [PAGE.rules[at].title, PAGE.rules[at].hue]));
  drawChart("survival", { curves: rows, eps: [{ x: PAGE.levels[state.level], text: `ε = ${PAGE.levels[state.level]}` }] }, hues);
}

/** A name on three lines at most, for a narrow screen. */
function inLines(name) {
  const most = Math.max(22, Math.ceil(name.length / 3) + 4);
  const lines = [""];
  for (const word of name.split(" ")) {
    if (lines.length < 3 && lines.at(-1) && `${lines.at(-1)} ${word}`.length > most) lines.push(word);
    else lines.push(`${lines.pop()} ${word}`.trim());
  }
  return lines.join("\n");
}

function showSpeed() {
  const rows = TIMINGS.speed[state.target];
  if (!rows) return;
  drawChart("speed", { speed: rows.map((row) => ({ ...row, lines: inLines(row.name) })), alone: [{ x: 1 }] });
  byId("speeds").replaceChildren();
  const share = (x) => (x === null ? "–" : `${(100 * x).toFixed(0)}\u00a0%`);
  for (const row of rows) {
    const measured = `${asNumber(row.speedup)} [${asNumber(row.low)}, ${asNumber(row.high)}]`;
    addRow("speeds", [row.name, measured, row.predicted === null ? "–" : asNumber(row.predicted), asNumber(row.tokens), share(row.rate), share(row.least)]);
  }
}

// ---- what depends on what

function showTarget() {
  for (const part of all("[data-target]")) part.hidden = Number(part.dataset.target) !== state.target;
  if (byId("target")) byId("target").value = state.target;
  listAnswers();
  showSpeed();
  showChosen();
}

/** Everything that depends on rules, eps, draft length and answer. */
function showChosen() {
  const { family, title } = PAGE.rules[state.rule];
  const rules = families()[family];
  for (const one of all("[data-family]")) one.value = family;
  for (const one of all("[data-setting]")) {
    Object.assign(one, { max: rules.length - 1, disabled: rules.length < 2 });
    one.value = rules.indexOf(state.rule);
  }
  for (const one of all("[data-setting-shown]")) one.textContent = title;
  for (const one of all("[data-kl]")) one.textContent = PAGE.targets[state.target].kl;
  for (const one of all("[data-eps]")) one.value = state.level;
  for (const one of all("[data-eps-shown]")) one.textContent = epsText();
  for (const one of all("[data-rule]")) one.value = state[one.dataset.rule];
  byId("gamma").value = state.gamma;
  for (const one of all("[data-gamma-shown]")) one.textContent = `γ = ${state.gamma}`;
  showFirst();
  showMargins();
  showCalculator();
  showSettings();
  showRules();
  showCurves();
  showAnswer();
  writeAddress();
}

const choose = (changed) => {
  Object.assign(state, "rule" in changed ? { value: null } : {}, changed);
  showChosen();
};

function fillChoices() {
  const listed = Object.keys(families());
  for (const one of all("[data-family]")) {
    one.append(...listed.map((family) => new Option(family, family)));
    one.addEventListener("change", () => choose({ rule: families()[one.value][0] }));
  }
  for (const one of all("[data-setting]")) {
    one.addEventListener("input", () => choose({ rule: families()[PAGE.rules[state.rule].family][Number(one.value)] }));
  }
  for (const one of all("[data-eps]")) {
    one.max = PAGE.levels.length - 1;
    one.addEventListener("input", () => choose({ level: Number(one.value) }));
  }
  for (const one of all("[data-rule]")) {
    one.append(...PAGE.rules.map((rule, at) => new Option(rule.title, at)));
    one.addEventListener("change", () => choose({ [one.dataset.rule]: Number(one.value) }));
  }
  byId("curve-add").append(new Option("…", ""), ...PAGE.rules.map((rule, at) => new Option(rule.title, at)));
}

async function copy(button) {
  const text = (byId(button.dataset.copy) ?? document.querySelector("article:not([hidden]) [data-sentence]")).textContent;
  await navigator.clipboard.writeText(text).catch(() => {
    const area = document.body.appendChild(Object.assign(document.createElement("textarea"), { value: text }));
    area.select();
    document.execCommand("copy"); // without the permission, in a page that is a file
    area.remove();
  });
  for (const one of all("[data-copy]")) one.nextElementSibling.textContent = one === button ? "copied" : "";
}

function listen() {
  const on = (id, kind, act) => byId(id)?.addEventListener(kind, act);
  on("target", "change", () => {
    Object.assign(state, { target: Number(byId("target").value), token: 0 });
    showTarget();
  });
  on("gamma", "input", () => choose({ gamma: Number(byId("gamma").value) }));
  on("answer-choice", "change", () => choose({ answer: Number(byId("answer-choice").value), token: 0 }));
  on("wanted", "input", showSettings);
  on("exact-value", "input", () => {
    const given = byId("exact-value").value;
    choose({ value: given === "" ? null : Number(given) });
  });
  on("curve-add", "change", () => {
    const at = byId("curve-add").value;
    if (at !== "" && !state.curves.includes(Number(at))) state.curves.push(Number(at));
    byId("curve-add").value = "";
    showCurves();
  });
  on("theme", "click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    restyleCharts();
  });
  for (const one of all("[data-copy]")) one.addEventListener("click", () => copy(one));
  for (const one of all("[data-image]")) one.addEventListener("click", () => copyImage(one));
  for (const link of all("nav a")) {
    link.addEventListener("click", (event) => {
      event.preventDefault(); // the address holds the state
      byId(link.hash.slice(1)).scrollIntoView();
    });
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyleCharts);
  addEventListener("hashchange", () => {
    readAddress();
    showTarget();
  });
}

async function start() {
  let bundle;
  [PAGE, TIMINGS, bundle] = await Promise.all(["page-data", "page-timings", "page-bundle"].map(unpack));
  document.head.append(Object.assign(document.createElement("script"), { textContent: bundle }));
  const relaxed = PAGE.rules.findIndex((rule) => rule.label === PAGE.shown_curves[1]);
  state.level = PAGE.levels.indexOf(0.1);
  state.gamma = TIMINGS.gamma[0] ?? state.gamma;
  state.beside = Math.max(0, relaxed);
  state.curves = PAGE.shown_curves.map((label) => PAGE.rules.findIndex((rule) => rule.label === label));
  state.answer = middle();
  readAddress();
  fillChoices();
  listen();
  startExplorer();
  showTarget();
}

const started = start();
