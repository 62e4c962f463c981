// What is certified and accepted, counted as analysis/statistics/calls.py and bootstrap.py count.
"use strict";

const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const CODES = new Uint8Array(128);
for (let at = 0; at < ALPHABET.length; at++) CODES[ALPHABET.charCodeAt(at)] = at;

/** Steps certified at a level of the grid: 1 where a packed certificate exceeds it. */
function certifiedSteps(packed, level) {
  const flags = new Uint8Array(packed.length);
  for (let at = 0; at < packed.length; at++) flags[at] = CODES[packed.charCodeAt(at)] > level ? 1 : 0;
  return flags;
}

/** The first `count` flags, packed six a character. */
function unpackFlags(packed, count) {
  const flags = new Uint8Array(count);
  for (let at = 0; at < count; at++) {
    flags[at] = (CODES[packed.charCodeAt(Math.floor(at / 6))] >> (5 - (at % 6))) & 1;
  }
  return flags;
}

/** The most calls any drafter can cause along one answer; gamma 0 is drafts of any length. */
function mostCalls(certain, begin, end, gamma) {
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

/** Sums of flags over each answer. */
function sumsOf(flags, lengths) {
  let step = 0;
  return lengths.map((length) => {
    let sum = 0;
    for (const end = step + length; step < end; step++) sum += flags[step];
    return sum;
  });
}

/** Calls along each answer, by one of the two functions above. */
function callsOf(count, flags, lengths, gamma) {
  let begin = 0;
  return lengths.map((length) => {
    begin += length;
    return count(flags, begin - length, begin, gamma);
  });
}

/** A ratio of sums over prompts, and its interval over the study's resamples of them. */
function ratio(above, below, weights, confidence) {
  const prompts = above.length;
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

/** Tokens a call of independent drafts of length gamma, each accepted with probability a. */
function tokensPerCall(a, gamma) {
  let tokens = 0;
  for (let power = 0; power <= gamma; power++) tokens += a ** power;
  return tokens;
}

/** The acceptance rate at which calls of this cost pay; null where no rate is enough. */
function breakEven(cost, gamma) {
  if (cost > gamma + 1) return null;
  let low = 0;
  let high = 1;
  for (let halving = 0; halving < 60; halving++) {
    const middle = (low + high) / 2;
    if (tokensPerCall(middle, gamma) < cost) low = middle;
    else high = middle;
  }
  return high;
}
