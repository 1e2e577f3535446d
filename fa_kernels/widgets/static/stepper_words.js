// The stepper's numbers as text, and each operation as MathML, as formula and with its numbers.

// -- numbers as text --------------------------------------------------------------------------

const PLACES = 4;

function shown(x, places = PLACES) {
  if (Number.isNaN(x)) return "NaN";
  if (!Number.isFinite(x)) return x < 0 ? "\u2212\u221e" : "\u221e";
  const size = Math.abs(x);
  const text = size !== 0 && (size < 1e-3 || size >= 1e5)
    ? x.toExponential(places - 2)
    : String(Number(x.toPrecision(places)));
  return text.replace("e+", "e").replaceAll("-", "\u2212");
}
const pair = (xs, places = 3) => `(${xs.map((x) => shown(x, places)).join(", ")})`;
const fill = (text, words) => text.replace(/\{(\w+)\}/g, (_, name) => words[name]);

// -- MathML -----------------------------------------------------------------------------------

const mi = (name) => `<mi>${name}</mi>`;
const mo = (sign) => `<mo>${sign}</mo>`;
const mn = (x) => `<mn>${shown(x)}</mn>`;
const sub = (a, b) => `<msub>${mi(a)}<mrow>${b}</mrow></msub>`;
const power = (inside) => `<msup>${mi("e")}<mrow>${inside}</mrow></msup>`;
const call = (name, inside) => `${mi(name)}${mo("(")}${inside}${mo(")")}`;
const vector = (xs) => xs.map((x) => `<mn>${shown(x, 3)}</mn>`).join(mo(","))
  .replace(/^/, mo("(")).concat(mo(")"));
const sumOver = (inside) => `<munder>${mo("\u2211")}${mi("j")}</munder>${inside}`;
const bracket = (x) => (x < 0 ? `${mo("(")}${mn(x)}${mo(")")}` : mn(x));
const math = (inside) => `<math display="block"><mrow>${inside}</mrow></math>`;

const M_OLD = sub("m", mi("i"));
const M_NEW = sub("m", mi("new"));
const L = sub("l", mi("i"));
const ACC = mi("acc");
const ALPHA = mi("\u03b1");
const TIMES = mo("\u00b7");

// Each operation as formula and with its numbers: a list of lines.
const EQUATIONS = {
  start: () => [M_OLD + mo("=") + mn(-Infinity), L + mo("=") + mn(0),
    ACC + mo("=") + vector([0, 0])],
  max: ({ s, before, m }) => [
    M_NEW + mo("=") + call("max", M_OLD + mo(",") + sub("s", mi("j"))),
    mo("=") + call("max", [before.m, ...s].map(mn).join(mo(","))) + mo("=") + mn(m),
    ...(m === -Infinity ? [sub("m", mi("safe")) + mo("=") + mn(0)] : []),
  ],
  alpha: ({ before, safe, alpha, m }) => [
    ALPHA + mo("=") + power(M_OLD + mo("\u2212") + (m === safe ? M_NEW : sub("m", mi("safe")))),
    mo("=") + power(mn(before.m) + mo("\u2212") + bracket(safe)) + mo("=") + mn(alpha),
  ],
  p: ({ from, s, safe, p, m }) => [
    sub("p", mi("j")) + mo("=")
      + power(sub("s", mi("j")) + mo("\u2212") + (m === safe ? M_NEW : sub("m", mi("safe")))),
    ...s.map((x, j) => sub("p", `<mn>${from + j + 1}</mn>`) + mo("=")
      + power(mn(x) + mo("\u2212") + bracket(safe)) + mo("=") + mn(p[j])),
  ],
  l: ({ before, alpha, pSum, after }) => [
    L + mo("\u2190") + L + TIMES + ALPHA + mo("+") + sumOver(sub("p", mi("j"))),
    mo("=") + mn(before.l) + TIMES + mn(alpha) + mo("+") + mn(pSum) + mo("=") + mn(after.l),
  ],
  acc: ({ before, alpha, pv, after }) => [
    ACC + mo("\u2190") + ACC + TIMES + ALPHA + mo("+")
      + sumOver(sub("p", mi("j")) + sub("v", mi("j"))),
    mo("=") + vector(before.acc) + TIMES + mn(alpha) + mo("+") + vector(pv),
    mo("=") + vector(after.acc),
  ],
  out: ({ after }) => [
    `${mi("out")}${mo("=")}<mfrac>${ACC}${L}</mfrac>`,
    after.l === 0 ? mo("=") + vector([0, 0])
      : `${mo("=")}<mfrac><mrow>${vector(after.acc)}</mrow>${mn(after.l)}</mfrac>${mo("=")}`
        + vector(divided(after)),
  ],
};
