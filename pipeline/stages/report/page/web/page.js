// What the reader chose, and what follows from it on the page.
"use strict";

const PAGE = JSON.parse(document.getElementById("page-data").textContent);
const TIMINGS = JSON.parse(document.getElementById("page-timings").textContent);
const state = { target: 0, rule: 0, level: PAGE.levels.indexOf(0.1), gamma: 5, answer: 0, token: 0, curves: new Set() };
const byId = (id) => document.getElementById(id);

/** The rules by family, each from strict to relaxed. */
function families() {
  const found = {};
  PAGE.rules.forEach((rule, at) => (found[rule.family] ??= []).push(at));
  return found;
}

const epsMark = () => [{ x: PAGE.levels[state.level], text: `ε = ${PAGE.levels[state.level]}` }];

function drawCurves() {
  const { eps, rules } = PAGE.curves[state.target];
  const rows = [];
  const ceilings = {};
  const chosen = [...state.curves];
  const ends = chosen.map((at) => PAGE.rules[at].ceiling * 1.06);
  const last = Math.max(...ends, 0.1);
  for (const at of chosen) {
    const rule = PAGE.rules[at];
    ceilings[rule.ceiling] = rule.ceiling_text;
    eps.forEach((x, place) => {
      if (x > last) return;
      const { share, low, high } = rules[at];
      rows.push({ rule: rule.title, eps: x, share: share[place], low: low[place], high: high[place] });
    });
  }
  const marks = Object.entries(ceilings).map(([x, text]) => ({ x: Number(x), text }));
  drawChart("survival", { curves: rows, ceilings: marks, eps: epsMark() });
}

function drawDial() {
  const rows = PAGE.pairs[state.target].dial;
  const [dial, measure] = [byId("dial-choice").value, byId("measure-choice").value];
  drawChart("dial", { dial: rows.filter((row) => row.dial === dial && row.measure === measure) });
}

function drawProfile() {
  const rows = PAGE.pairs[state.target].profile;
  const [rule, by] = [byId("profile-rule").value, byId("profile-by").value];
  drawChart("profile", { profile: rows.filter((row) => row.rule === rule && row.by === by) });
}

function drawPublished() {
  const [paper, statistic] = [byId("paper-choice").value, byId("statistic-choice").value];
  const rows = PAGE.published[state.target];
  drawChart("published", { published: rows.filter((row) => row.paper === paper && row.statistic === statistic) });
}

/** Everything that depends on the target. */
function showTarget() {
  for (const part of document.querySelectorAll("[data-target]")) {
    part.hidden = Number(part.dataset.target) !== state.target;
  }
  const pair = PAGE.pairs[state.target];
  if (pair) {
    drawChart("plane", { rules: pair.rules });
    drawDial();
    drawProfile();
    drawChart("distance", { distance: pair.distance, eps: epsMark() });
  }
  drawChart("top", { top: PAGE.top[state.target] });
  if (TIMINGS.speed[state.target]) drawChart("speed", { speed: TIMINGS.speed[state.target], alone: [{ x: 1 }] });
  if (PAGE.published[state.target]) drawPublished();
  listAnswers();
  drawCurves();
  showRule();
}

/** Everything that depends on rule, eps and draft length. */
function showRule() {
  byId("eps-shown").textContent = `${PAGE.levels[state.level]} nats`;
  byId("gamma-shown").textContent = state.gamma ? `${state.gamma} tokens` : "any length";
  byId("setting-shown").textContent = PAGE.rules[state.rule].title;
  for (const twin of document.querySelectorAll("[data-eps]")) twin.value = state.level;
  for (const twin of document.querySelectorAll("[data-rule]")) twin.value = state.rule;
  for (const twin of document.querySelectorAll("[data-eps-shown]")) twin.textContent = byId("eps-shown").textContent;
  if (PAGE.steps.length) {
    showCalculator();
    showExplorer();
  }
}

function moveEps() {
  showRule();
  drawCurves();
  if (PAGE.pairs[state.target]) drawChart("distance", { distance: PAGE.pairs[state.target].distance, eps: epsMark() });
}

function chooseRule(at) {
  state.rule = at;
  const rules = families()[PAGE.rules[at].family];
  byId("family").value = PAGE.rules[at].family;
  byId("setting").max = rules.length - 1;
  byId("setting").value = rules.indexOf(at);
  byId("setting").disabled = rules.length < 2;
  showRule();
}

function fillChoices() {
  for (const family of Object.keys(families())) byId("family").append(new Option(family, family));
  for (const choice of document.querySelectorAll("select[data-rule]")) {
    PAGE.rules.forEach((rule, at) => choice.append(new Option(rule.title, at)));
    choice.addEventListener("change", () => chooseRule(Number(choice.value)));
  }
  const boxes = byId("curve-choices");
  PAGE.rules.forEach((rule, at) => {
    const box = Object.assign(document.createElement("input"), { type: "checkbox", value: at });
    box.checked = PAGE.shown_curves.includes(rule.label);
    if (box.checked) state.curves.add(at);
    box.addEventListener("change", () => {
      if (box.checked) state.curves.add(at);
      else state.curves.delete(at);
      drawCurves();
    });
    const label = document.createElement("label");
    label.append(box, ` ${rule.title}`);
    boxes.append(label);
  });
  for (const range of document.querySelectorAll("[data-eps]")) {
    range.max = PAGE.levels.length - 1;
    range.addEventListener("input", () => {
      state.level = Number(range.value);
      moveEps();
    });
  }
}

function listen() {
  const on = (id, kind, act) => byId(id)?.addEventListener(kind, act);
  on("target", "change", () => {
    state.target = Number(byId("target").value);
    state.token = 0;
    showTarget();
  });
  on("family", "change", () => chooseRule(families()[byId("family").value][0]));
  on("setting", "input", () => chooseRule(families()[byId("family").value][Number(byId("setting").value)]));
  on("gamma", "input", () => {
    state.gamma = Number(byId("gamma").value) % 13; // the right end: drafts of any length
    showRule();
  });
  on("wanted", "input", showRule);
  for (const id of ["dial-choice", "measure-choice"]) on(id, "change", drawDial);
  for (const id of ["profile-rule", "profile-by"]) on(id, "change", drawProfile);
  for (const id of ["paper-choice", "statistic-choice"]) on(id, "change", drawPublished);
  on("theme", "click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    restyleCharts();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restyleCharts);
}

fillChoices();
listen();
startExplorer();
chooseRule(Math.max(0, PAGE.rules.findIndex((rule) => rule.label === PAGE.first_rule)));
showTarget();
