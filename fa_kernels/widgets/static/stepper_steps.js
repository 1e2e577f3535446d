// The numbers of every step, in float64: `OnlineSoftmax.update` of the package, taken apart.
// No page in here: stepper.js draws what this computes.

const OPS = ["max", "alpha", "p", "l", "acc"];

// The last bit of an fp16 number from 1 to 2; the values v are up to 1 in size.
const FP16_LAST_BIT = 2 ** -10;

// The nearest fp16 number, ties to even.
function roundToFp16(x) {
  if (!Number.isFinite(x) || x === 0) return x;
  const size = Math.abs(x);
  if (size >= 65520) return Math.sign(x) * Infinity;
  const unit = 2 ** (Math.max(Math.floor(Math.log2(size)), -14) - 10);
  let count = Math.round(size / unit);
  if (Math.abs(size / unit - Math.floor(size / unit)) === 0.5 && count % 2) count -= 1;
  return Math.sign(x) * count * unit;
}

const exact = (x) => x;
const maximum = (xs) => xs.reduce((a, b) => Math.max(a, b), -Infinity);

// Sum of p_j v_j over a block, each operation rounded.
function weighted(p, v, round) {
  return [0, 1].map((axis) => p.reduce((sum, x, j) => round(sum + round(x * v[j][axis])), 0));
}

// One block: every number that the five lines produce from the state before it.
function blockOf(before, s, v, round) {
  const m = Math.max(before.m, maximum(s));
  const safe = m > -Infinity ? m : 0;
  const alpha = round(Math.exp(round(before.m - safe)));
  const p = s.map((x) => round(Math.exp(round(x - safe))));
  const pSum = p.reduce((a, b) => round(a + b), 0);
  const pv = weighted(p, v, round);
  const l = round(round(before.l * alpha) + pSum);
  const acc = before.acc.map((x, i) => round(round(x * alpha) + pv[i]));
  return { before, m, safe, alpha, p, pSum, pv, after: { m, l, acc } };
}

// All blocks of a row, with the keys [from, to) of each. `size` below 1 is taken as 1: with a block
// of no keys the loop would never end.
function blocksOf(scores, values, size, round = exact) {
  const step = Math.max(1, Math.trunc(size) || 1);
  let state = { m: -Infinity, l: 0, acc: [0, 0] };
  const blocks = [];
  for (let from = 0; from < scores.length; from += step) {
    const to = Math.min(from + step, scores.length);
    const [s, v] = [scores.slice(from, to), values.slice(from, to)];
    const block = blockOf(state, s.map(round), v.map((x) => x.map(round)), round);
    blocks.push({ from, to, s, ...block });
    state = block.after;
  }
  return blocks;
}

const divided = (state, round = exact) =>
  state.acc.map((x) => (state.l === 0 ? 0 : round(x / state.l)));

// softmax(s) v over all keys at once: with the maximum subtracted, or `unsafe` without.
function softmaxAtOnce(scores, values, { unsafe = false, round = exact } = {}) {
  const s = scores.map(round);
  const most = maximum(s);
  const shift = unsafe || most === -Infinity ? 0 : most;
  const e = s.map((x) => round(Math.exp(round(x - shift))));
  const l = e.reduce((a, b) => round(a + b), 0);
  const acc = weighted(e, values.map((x) => x.map(round)), round);
  return { l, out: acc.map((x) => round(x / l)) };
}

const difference = (a, b) => Math.max(...a.map((x, i) => Math.abs(x - b[i])));

// How far acc / l is from the softmax of the keys seen, in float64 and in fp16, and what a softmax
// without the maximum gives in fp16.
function checksOf(scores, values, size) {
  const double = blocksOf(scores, values, size);
  const half = blocksOf(scores, values, size, roundToFp16);
  return double.map((block, b) => {
    const [s, v] = [scores.slice(0, block.to), values.slice(0, block.to)];
    const masked = block.m === -Infinity;
    const truth = masked ? [0, 0] : softmaxAtOnce(s, v).out;
    const unsafe = softmaxAtOnce(s, v, { unsafe: true, round: roundToFp16 });
    return {
      float64: difference(divided(block.after), truth),
      fp16: difference(divided(half[b].after, roundToFp16), truth),
      unsafe: difference(unsafe.out, truth),
      unsafeSum: unsafe.l,
      masked,
    };
  });
}

// The list a slider walks over: start, five operations per block, the division at the end.
function stepsOf(blocks) {
  const steps = [{ op: "start", block: -1 }];
  blocks.forEach((_, block) => OPS.forEach((op) => steps.push({ op, block })));
  steps.push({ op: "out", block: blocks.length - 1 });
  return steps;
}

// A typed score as a number; NaN for what is none.
function parseScore(typed) {
  const text = typed.trim().replace("\u2212", "-").toLowerCase();
  if (["-inf", "-infinity", "-\u221e"].includes(text)) return -Infinity;
  return /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/.test(text) ? Number(text) : NaN;
}
