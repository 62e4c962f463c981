// What is certified and accepted, counted as trajectories.py and bootstrap.py of analysis/statistics.
"use strict";

const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const CODES = new Uint8Array(128);
for (let at = 0; at < ALPHABET.length; at++) CODES[ALPHABET.charCodeAt(at)] = at;

/** What an element of the page holds: JSON, deflated, in base64. */
async function unpack(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (one) => one.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}

/** One flag a step: 1 where its character stands for more than a level. */
function flagsOf(packed, level = 0) {
  const flags = new Uint8Array(packed.length);
  for (let at = 0; at < packed.length; at++) flags[at] = CODES[packed.charCodeAt(at)] > level ? 1 : 0;
  return flags;
}

/** The most calls any drafter can cause along one answer; gamma 0 is drafts of any length. */
function mostCalls(certain, begin, end, gamma) {
  if (begin >= end) return 0;
  if (gamma === 0) {
    let calls = 1;
    for (let step = begin; step < end - 1; step++) if (!certain[step]) calls++;
    return calls;
  }
  const size = end - begin;
  const calls = new Int32Array(size + gamma + 2);
  for (let at = size - 1; at >= 0; at--) {
    let most = calls[at + gamma + 1];
    for (let next = at; next < Math.min(at + gamma, size); next++) {
      if (!certain[begin + next] && calls[next + 1] > most) most = calls[next + 1];
    }
    calls[at] = 1 + most;
  }
  return calls[0];
}

/** The calls that were made along one answer whose steps were accepted or not. */
function callsMade(accepted, begin, end, gamma) {
  const longest = gamma === 0 ? end - begin : gamma;
  let calls = 0;
  for (let step = begin; step < end; calls++) {
    const last = Math.min(step + longest, end);
    while (step < last && accepted[step]) step++;
    step++; // the corrected or bonus token
  }
  return calls;
}

/** A number of each answer, from where it begins and ends among the steps. */
function eachAnswer(lengths, count) {
  let begin = 0;
  return lengths.map((length) => {
    begin += length;
    return count(begin - length, begin);
  });
}

const sumsOf = (flags, lengths) =>
  eachAnswer(lengths, (begin, end) => flags.subarray(begin, end).reduce((sum, flag) => sum + flag, 0));
// The prompt's pass emits the first token of an answer: the first draft is for the second.
const callsOf = (count, flags, lengths, gamma) =>
  eachAnswer(lengths, (begin, end) => count(flags, begin + 1, end, gamma));

/** A ratio of sums over prompts, and its interval over the study's resamples of them. */
function ratio(above, below) {
  const prompts = above.length;
  const { weights: all, confidence } = PAGE.resamples;
  const weights = all[prompts];
  const resamples = weights.length / prompts;
  const draws = new Float64Array(resamples);
  for (let draw = 0; draw < resamples; draw++) {
    let over = 0;
    let under = 0;
    for (let at = 0; at < prompts; at++) {
      const weight = CODES[weights.charCodeAt(draw * prompts + at)];
      over += weight * above[at];
      under += weight * below[at];
    }
    draws[draw] = over / under;
  }
  draws.sort();
  const cut = Math.max(1, Math.ceil(((1 - confidence) / 2) * resamples - 1e-9));
  const total = (values) => values.reduce((sum, value) => sum + value, 0);
  return { value: total(above) / total(below), low: draws[cut - 1], high: draws[resamples - cut] };
}

/** All that one rule gives at a level of eps and a draft length: shares and tokens a call. */
function evaluate(target, rule, level, gamma) {
  const { lengths, levels, accepted, certified } = target;
  const certain = flagsOf(levels[rule], level);
  const emitted = lengths.map((length) => length - 1);
  const found = {
    share: ratio(sumsOf(certain, lengths), lengths),
    tokens: ratio(emitted, callsOf(mostCalls, certain, lengths, gamma)),
  };
  if (accepted[rule] !== null) {
    const kept = flagsOf(accepted[rule]);
    found.accepted = ratio(sumsOf(kept, lengths), lengths);
    found.certified = ratio(sumsOf(flagsOf(certified[rule]), lengths), lengths);
    found.promised = ratio(emitted, callsOf(mostCalls, flagsOf(certified[rule]), lengths, gamma));
    found.realised = ratio(emitted, callsOf(callsMade, kept, lengths, gamma));
  }
  return found;
}

/** The share of steps that a rule accepts for certain of any drafter within a level. */
function certifiedShare(target, rule, level) {
  const certain = flagsOf(target.levels[rule], level);
  return certain.reduce((sum, flag) => sum + flag, 0) / certain.length;
}
