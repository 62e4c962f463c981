// The calculator: what is certified and accepted at any eps, rule and draft length.
"use strict";

const LONGEST = 12; // draft lengths of the chart

/** All that one rule gives at the chosen level and draft length: tokens a call and shares. */
function evaluate(target, rule, level, gamma) {
  const { lengths, certificates, accepted } = target;
  const weights = PAGE.resamples.weights[lengths.length];
  const over = (above, below) => ratio(above, below, weights, PAGE.resamples.confidence);
  const certain = certifiedSteps(certificates[rule], level);
  const found = {
    share: over(sumsOf(certain, lengths), lengths),
    tokens: over(lengths, callsOf(mostCalls, certain, lengths, gamma)),
  };
  if (accepted[rule] !== null) {
    const kept = unpackFlags(accepted[rule], certain.length);
    found.accepted = over(sumsOf(kept, lengths), lengths);
    found.realised = over(lengths, callsOf(callsMade, kept, lengths, gamma));
  }
  return found;
}

/** The share of steps that a rule certifies, without its interval. */
function certifiedShare(target, rule, level) {
  const certain = certifiedSteps(target.certificates[rule], level);
  return certain.reduce((sum, flag) => sum + flag, 0) / certain.length;
}

const asShare = (x) => `${(100 * x).toFixed(1)}\u00a0%`;
const asNumber = (x) => x.toFixed(2);
const limits = (found, shown) => ` [${shown(found.low).replace("\u00a0%", "")}, ${shown(found.high)}]`;
const withInterval = (found, shown) => shown(found.value) + limits(found, shown);

/** Fill the results of the calculator, its table of settings and its chart. */
function showCalculator() {
  const target = PAGE.steps[state.target];
  const found = evaluate(target, state.rule, state.level, state.gamma);
  const results = { share: withInterval(found.share, asShare), tokens: withInterval(found.tokens, asNumber) };
  if (found.accepted) {
    results.accepted = withInterval(found.accepted, asShare);
    results.realised = withInterval(found.realised, asNumber);
  }
  for (const name of ["share", "tokens", "accepted", "realised"]) {
    const place = document.getElementById(`found-${name}`);
    if (place) place.textContent = results[name] ?? "not measured for this rule";
  }
  showSettings(target);
  showBreakEven(found);
  const rows = [];
  for (let length = 1; length <= LONGEST; length++) {
    const each = evaluate(target, state.rule, state.level, length);
    const kinds = { [`certified at ε = ${PAGE.levels[state.level]}`]: each.tokens };
    if (each.realised) kinds[`${PAGE.drafter}, in fact`] = each.realised;
    for (const [kind, { value, low, high }] of Object.entries(kinds)) {
      rows.push({ kind, length, tokens: value, low, high });
    }
  }
  drawChart("lengths", { lengths: rows });
}

/** The strictest setting of each family that certifies the wanted share of the steps. */
function showSettings(target) {
  const wanted = Number(document.getElementById("wanted").value) / 100;
  const body = document.getElementById("settings");
  body.replaceChildren();
  for (const [family, rules] of Object.entries(families())) {
    if (rules.length < 2) continue;
    const shares = rules.map((rule) => certifiedShare(target, rule, state.level));
    const reached = shares.findIndex((share) => share >= wanted - 1e-9);
    const at = reached < 0 ? rules.length - 1 : reached;
    const row = body.insertRow();
    const before = reached > 0 ? `; ${PAGE.rules[rules[at - 1]].title}: ${asShare(shares[at - 1])}` : "";
    const texts = [
      family,
      reached < 0 ? "none of this study" : PAGE.rules[rules[at]].title,
      `${reached < 0 ? "most: " : ""}${asShare(shares[at])}${before}`,
    ];
    for (const text of texts) row.insertCell().textContent = text;
  }
}

/** What a drafter has to reach before drafting pays, at the measured costs. */
function showBreakEven(found) {
  const place = document.getElementById("break-even");
  if (!place) return;
  const costs = TIMINGS.costs[state.target];
  if (!costs) {
    place.textContent = "No chains were decoded with this target: costs are not known.";
    return;
  }
  const gamma = state.gamma || costs.gamma;
  const cost = costs.calls[Math.min(gamma, costs.calls.length - 1)];
  const least = breakEven(cost, gamma);
  const measured =
    `Measured: a drafted token costs ρ = ${costs.rho} and a verification ${costs.verify} of a token of ` +
    `the target alone (${costs.method}, γ = ${costs.gamma}); a whole call with ${gamma} drafted tokens ` +
    `costs ${cost.toFixed(2)}. `;
  if (gamma >= costs.calls.length) {
    place.textContent = `${measured}Longer drafts than ${costs.calls.length - 1} were not measured.`;
    return;
  }
  const pays = least === null ? "No acceptance rate makes it pay. " : `It pays above an acceptance rate of ${asShare(least)}. `;
  let gain = "";
  if (state.gamma && found.realised) {
    gain = `With this rule, ${asNumber(found.realised.value)} tokens a call predict ${asNumber(found.realised.value / cost)} times the speed of the target alone.`;
  }
  place.textContent = measured + pays + gain;
}
