// The charts as Vega-Lite specifications. A specification names its data and holds none: the page
// fills the names for what the reader chose. Colours are the page's and those of the rules.
"use strict";

const shownBy = (field) => ({ field, type: "nominal", sort: null, legend: { symbolType: "circle", title: null } });
const dashedBy = (field) => ({ field, type: "nominal", sort: null, legend: null });
const text = (field, title) => ({ field, title, type: "nominal" });
const number = (field, more) => ({ field, type: "quantitative", ...more });
const short = (field, title) => number(field, { title, format: ".3~g" });
const PERCENT = { format: "%" };
const NOT_FROM_ZERO = { zero: false };

/** All rules: what they accept against the target probability that they give up. */
function plane() {
  const x = number("given_up", {
    title: ["target probability given up a step", "(square-root axis)"],
    scale: { type: "sqrt", nice: false },
    axis: { format: ".3~g", tickCount: 5 },
  });
  const y = number("accepted", { title: "accepted, share of steps", scale: NOT_FROM_ZERO, axis: PERCENT });
  const tooltip = [
    text("title", "rule"), text("accepted_text", "accepted"), text("certified_text", "certified for this drafter"),
    text("departure_text", "other tokens than the first choice"), text("given_up_text", "probability given up"),
  ];
  const color = shownBy("family");
  const size = { condition: { test: "datum.name", value: 170 }, value: 60 };
  // two names at most: the rule that is chosen and the one beside it
  const name = {
    type: "text", fontWeight: "bold", fontSize: 12,
    align: { expr: "datum.right ? 'right' : 'left'" },
    dx: { expr: "datum.right ? -10 : 10" },
    dy: { expr: "datum.second ? 16 : -16" },
  };
  return {
    data: { name: "rules" },
    height: 340,
    layer: [
      { mark: { type: "rule", opacity: 0.35 }, encoding: { x, y: number("low"), y2: { field: "high" }, color, tooltip } },
      { mark: { type: "point", shape: "circle", filled: true, opacity: 0.9 }, encoding: { x, y, color, size, tooltip } },
      { mark: name, encoding: { x, y, text: { field: "name" }, color: { value: "currentColor" }, tooltip } },
    ],
  };
}

/** Tokens a call over the length of drafts: certified, and of this drafter. */
function lengths() {
  const x = number("length", { title: "draft length γ", axis: { tickMinStep: 1 } });
  const low = number("low", { title: "tokens a call", scale: NOT_FROM_ZERO });
  const tooltip = [text("kind", "of"), short("length", "γ"), short("tokens", "tokens a call"), short("low", "from"), short("high", "to")];
  const color = shownBy("kind");
  return {
    data: { name: "lengths" },
    height: 280,
    layer: [
      { mark: { type: "area", opacity: 0.18 }, encoding: { x, y: low, y2: { field: "high" }, color, tooltip } },
      { mark: { type: "line", point: true }, encoding: { x, y: number("tokens"), color, strokeDash: dashedBy("kind"), tooltip } },
    ],
  };
}

/** Share of steps whose certificate exceeds eps, rule by rule. */
function survival() {
  const x = number("eps", { title: "ε (nats)", scale: { nice: false, zero: true } });
  const low = number("low", { title: "share of steps with R > ε", scale: { domain: [0, 1] }, axis: PERCENT });
  const tooltip = [text("rule", "rule"), short("eps", "ε"), short("share", "R > ε"), short("low", "from"), short("high", "to")];
  const color = shownBy("rule");
  const level = { data: { name: "eps" }, encoding: { x: number("x") } };
  return {
    data: { name: "curves" },
    height: 320,
    layer: [
      { mark: { type: "area", opacity: 0.18 }, encoding: { x, y: low, y2: { field: "high" }, color, tooltip } },
      { mark: { type: "line" }, encoding: { x, y: number("share"), color, strokeDash: dashedBy("rule"), tooltip } },
      { ...level, mark: { type: "rule", strokeDash: [6, 3], opacity: 0.75 } },
      {
        ...level,
        mark: { type: "text", align: "left", baseline: "top", dx: 4, fontSize: 11 },
        encoding: { ...level.encoding, text: { field: "text" }, y: { value: 2 } },
      },
    ],
  };
}

/** Accepted steps by the margin R - KL. */
function margins() {
  const x = { field: "margin", type: "ordinal", sort: null, title: "R − KL, nats", axis: { labelAngle: -35 } };
  const y = number("share", { title: "accepted, of the steps", scale: { domain: [0, 1.05] }, axis: { ...PERCENT, values: [0, 0.2, 0.4, 0.6, 0.8, 1] } });
  const color = { ...shownBy("certified"), scale: { domain: ["certified", "not certified"] } };
  const tooltip = [text("margin", "R − KL"), number("share", { title: "accepted", format: ".1%" }), number("steps", { title: "steps" })];
  return {
    data: { name: "margins" },
    height: 240,
    layer: [
      { mark: { type: "bar" }, encoding: { x, y, color, tooltip } },
      { mark: { type: "text", dy: -6, fontSize: 11 }, encoding: { x, y, text: { field: "steps", format: "," }, tooltip } },
    ],
  };
}

/** Measured speed-ups of all methods, with intervals over prompts: a row each. */
function speed() {
  const narrow = window.innerWidth < 600;
  const axis = { labelExpr: "split(datum.label, '\\n')", labelOverlap: false };
  const y = { field: narrow ? "lines" : "name", type: "nominal", sort: null, title: null, axis };
  const x = number("speedup", { title: "times as fast as the target alone", scale: NOT_FROM_ZERO, axis: { tickCount: 6 } });
  const low = number("low", { scale: NOT_FROM_ZERO });
  const tooltip = [text("name", "method"), short("speedup", "speed-up"), short("low", "from"), short("high", "to"), short("tokens", "a call")];
  const color = shownBy("drafter");
  return {
    data: { name: "speed" },
    layer: [
      { mark: { type: "rule", strokeWidth: 2 }, encoding: { x: low, x2: { field: "high" }, y, color, tooltip } },
      { mark: { type: "point", shape: "circle", filled: true, size: 55 }, encoding: { x, y, color, tooltip } },
      { data: { name: "alone" }, mark: { type: "rule", strokeDash: [4, 3], opacity: 0.7 }, encoding: { x: number("x") } },
    ],
  };
}

const CHARTS = { margins: margins(), plane: plane(), lengths: lengths(), survival: survival(), speed: speed() };
