// The stepper's picture: what one step looks like. `row` holds the numbers (stepper_steps.js) and
// the place `row.at`; a step changes styles and text of nodes that exist.

const FRAME = `
  <div class="fs-bar" role="toolbar">
    <button type="button" data-fa-do="first"></button><button type="button" data-fa-do="back">
    </button><button type="button" data-fa-do="play"></button><button type="button"
    data-fa-do="forward"></button><button type="button" data-fa-do="last"></button>
    <input type="range" min="0" step="1" data-fa-scrub>
    <span data-fa-at class="fs-at"></span>
    <label><span></span> <select data-fa-preset></select></label>
    <label><span></span> <select data-fa-block></select></label>
    <button type="button" data-fa-do="reset"></button>
  </div>
  <div class="fs-error" role="alert" data-fa-error></div>
  <div class="fs-note" data-fa-note></div>
  <div class="fs-sentence" data-fa-sentence aria-live="polite"></div>
  <div class="fs-main">
    <div class="fs-picture">
      <div class="fs-title" data-fa-title="scores"></div>
      <div class="fs-plot fs-scores" role="img" data-fa-picture><div class="fs-block"></div><div class="fs-zero"></div>
        <div class="fs-overflow"><span></span></div><div class="fs-bars"></div>
        <div class="fs-line fs-old"><span></span></div><div class="fs-line fs-new"><span></span></div>
      </div>
      <div class="fs-inputs"></div>
      <div class="fs-title" data-fa-title="terms"></div>
      <div class="fs-strip"><div class="fs-alpha" data-fa-alpha></div></div>
      <div class="fs-plot fs-terms" role="img"><div class="fs-block"></div><div class="fs-bars"></div>
        <div class="fs-sum"></div></div>
    </div>
    <div class="fs-words">
      <div class="fs-equation" data-fa-equation></div>
      <div class="fs-code"></div>
    </div>
  </div>
  <div class="fs-below">
    <div class="fs-results"><div class="fs-scroll"><table class="fs-state"></table></div>
      <div class="fs-check" data-fa-check></div><div class="fs-fp16" data-fa-fp16></div></div>
    <div class="fs-out"><div class="fs-title" data-fa-title="plane"></div>
      <div class="fs-plane" role="img"></div></div>
  </div>`;

const ROWS = ["m", "alpha", "l", "acc", "out"];
// Place of a row's number among the operations of a block: it appears with that operation.
const APPEARS = { m: 0, alpha: 1, l: 3, acc: 4, out: 4 };

function pictureOf(el, text, limit, row) {
  el.innerHTML = FRAME;
  const find = (selector) => el.querySelector(selector);
  const slider = find("[data-fa-scrub]");

  // -- built once, or again when the row is cut differently -----------------------------------

  const columns = (selector, make) => {
    find(selector).innerHTML = row.scores.map((_, j) => make(j)).join("");
    return [...find(selector).children];
  };
  let nodes = {};

  function build() {
    el.style.setProperty("--fs-keys", row.scores.length);
    find(".fs-state").classList.toggle("fs-many", row.blocks.length > 4);
    nodes = {
      bars: columns(".fs-scores .fs-bars", () => `<div><i></i><b>\u2212\u221e</b></div>`),
      terms: columns(".fs-terms .fs-bars", () => `<div><u></u><i></i><b></b></div>`),
      lines: [...el.querySelectorAll(".fs-code span")],
    };
    const heads = row.blocks.map((b, i) => `<th scope="col">${fill(text.block_head, {
      block: i + 1, keys: keysOf(b) })}</th>`).join("");
    const cells = `<td>\u2013</td>`.repeat(row.blocks.length);
    find(".fs-state").innerHTML = `<thead><tr><th></th><th scope="col">${text.start_head}</th>
      ${heads}</tr></thead><tbody>${ROWS.map((name) => `<tr data-fa-row="${name}">
      <th scope="row">${text[`row_${name}`]}</th><td></td>${cells}</tr>`).join("")}</tbody>`;
    nodes.cells = Object.fromEntries(ROWS.map((name) =>
      [name, [...el.querySelectorAll(`[data-fa-row=${name}] td`)]]));
    find(".fs-plane").innerHTML = `<svg viewBox="0 0 100 100" preserveAspectRatio="none">
      <path d="M0 50H100M50 0V100"></path><polyline></polyline></svg>${row.values.map((v, j) =>
      `<i style="left:${planeX(v)}%;top:${planeY(v)}%"></i><b style="left:${planeX(v, 1.36)}%;top:${
        planeY(v, 1.36)}%">v<sub>${j + 1}</sub></b>`).join("")}<em></em>`;
    nodes.points = [...el.querySelectorAll(".fs-plane i")];
    slider.max = String(row.steps.length - 1);
  }

  const planeX = (v, out = 1) => 50 + 33 * out * v[0];
  const planeY = (v, out = 1) => 50 - 33 * out * v[1];
  const keysOf = ({ from, to }) => (to - from === 1 ? fill(text.key, { key: to })
    : fill(text.keys, { from: from + 1, to }));

  // -- one step -------------------------------------------------------------------------------

  function draw() {
    const start = performance.now();
    const { op, block } = row.steps[row.at];
    const order = OPS.indexOf(op);
    const now = row.blocks[Math.max(block, 0)];
    const finished = op === "out" || op === "acc" ? block + 1 : block === -1 ? 0 : block;
    drawScores(op, block, now, order);
    drawTerms(op, block, now, order);
    drawTable(op, block, order, finished);
    drawPlane(finished);
    const said = sentence(op, block, now);
    find("[data-fa-sentence]").textContent = said;
    find("[data-fa-picture]").setAttribute("aria-label", fill(text.alt, {
      sentence: said, scores: row.scores.map((x) => shown(x)).join(", ") }));
    const lines = EQUATIONS[op](now);
    find("[data-fa-equation]").innerHTML = lines.map(math).join("");
    fitEquation(lines.length > 3 ? 1.05 : lines.length > 2 ? 1.4 : 1.7);
    for (const line of nodes.lines) line.classList.toggle("fs-now", line.dataset.op === op);
    drawChecks(finished);
    slider.value = String(row.at);
    find("[data-fa-at]").textContent = fill(text.at, { step: row.at, last: row.steps.length - 1 });
    slider.setAttribute("aria-valuetext", `${find("[data-fa-at]").textContent}. ${said}`);
    el.dataset.faStep = String(row.at);
    el.dataset.faOp = op;
    el.offsetHeight; // makes the browser lay the step out, so that its time is counted
    return performance.now() - start;
  }

  const place = (node, bottom, height) => {
    node.style.bottom = `${bottom}%`;
    node.style.height = `${height}%`;
  };

  function span() {
    if (row.held) return row.held;
    const finite = row.scores.filter(Number.isFinite);
    const [low, high] = [Math.min(0, ...finite), Math.max(0, ...finite)];
    const room = 0.12 * (high - low || 1);
    return { low: low < 0 ? low - room : low, high: high + room };
  }

  function drawScores(op, block, now, order) {
    const { low, high } = span();
    const y = (s) => (100 * (s - low)) / (high - low);
    const seen = op === "start" ? 0 : now.to;
    nodes.bars.forEach((node, j) => {
      const s = row.scores[j];
      const masked = s === -Infinity;
      node.className = j < seen ? (j < now.from || op === "out" ? "fs-seen" : "fs-here") : "";
      node.classList.toggle("fs-masked", masked);
      if (!masked) place(node.firstChild, y(Math.min(s, 0)), Math.abs(y(s) - y(0)));
    });
    find(".fs-zero").style.bottom = `${y(0)}%`;
    frame(op, now);
    const done = order >= OPS.indexOf("acc") || op === "out";
    const old = op === "start" || done ? -Infinity : now.before.m;
    const current = op === "start" ? -Infinity : now.m;
    const moved = old !== current;
    line(".fs-new", current, y, done || op === "out" ? "m" : "m<sub>new</sub>");
    line(".fs-old", moved ? old : -Infinity, y, "m",
      Math.abs(y(old) - y(current)) > 13 || current === -Infinity);
    const limit = Math.log(65520);
    find(".fs-overflow").style.display = high > 0.75 * limit && high > limit ? "" : "none";
    find(".fs-overflow").style.bottom = `${y(limit)}%`;
  }

  // In letters of `size` em, or smaller where its box is too narrow; from 0.9 em on it scrolls.
  function fitEquation(size) {
    const box = find("[data-fa-equation]");
    box.style.setProperty("--fs-size", `${size}em`);
    const fits = (box.clientWidth - 16) / (box.scrollWidth - 16);
    if (fits < 1) box.style.setProperty("--fs-size", `${Math.max(0.9, 0.98 * fits * size)}em`);
  }

  function line(selector, m, y, name, labelled = true) {
    const node = find(selector);
    node.style.display = m === -Infinity ? "none" : "";
    if (m === -Infinity) return;
    node.style.bottom = `${y(m)}%`;
    node.firstChild.innerHTML = labelled ? `${name} = ${shown(m, 3)}` : "";
  }

  // The current block as a band behind the bars of both plots.
  function frame(op, now) {
    const hidden = op === "start" || op === "out";
    for (const node of el.querySelectorAll(".fs-block")) {
      node.style.display = hidden ? "none" : "";
      node.style.left = `calc(var(--fs-width) * ${now.from / row.scores.length})`;
      node.style.width = `calc(var(--fs-width) * ${(now.to - now.from) / row.scores.length})`;
    }
  }

  function drawTerms(op, block, now, order) {
    const rescaled = op === "out" || order >= 1;
    const added = op === "out" || order >= 2;
    const base = rescaled ? now.safe : now.before.m;
    const shrunk = op !== "out" && rescaled && now.from > 0 && now.alpha < 1
      && now.before.m > -Infinity;
    nodes.terms.forEach((node, j) => {
      const [ghost, bar, label] = node.children;
      const there = op !== "start" && (j < now.from || (added && j < now.to));
      const height = there && base > -Infinity ? Math.exp(row.scores[j] - base) : 0;
      place(bar, 0, 100 * height);
      bar.style.opacity = there ? "1" : "0";
      // Beside each other the long numbers of bars too low to be seen would run together.
      label.textContent = there && (height === 0 || height >= 0.01) ? shown(height, 2) : "";
      label.style.bottom = `calc(${100 * height}% + 2px)`;
      node.className = j < now.from || op === "out" ? "fs-seen" : "fs-here";
      ghost.style.display = shrunk && j < now.from ? "" : "none";
      if (shrunk && j < now.from) place(ghost, 0, 100 * Math.exp(row.scores[j] - now.before.m));
    });
    const alpha = find("[data-fa-alpha]");
    alpha.style.width = `calc(var(--fs-width) * ${now.from / row.scores.length})`;
    alpha.innerHTML = op !== "out" && rescaled && now.before.m > -Infinity
      ? `\u00d7 \u03b1 = ${shown(now.alpha, 3)}` : "";
    const l = op === "start" ? 0 : op === "out" || order >= 3 ? now.after.l
      : rescaled ? now.before.l * now.alpha : now.before.l;
    find(".fs-terms").setAttribute("aria-label", fill(text.terms_alt, { l: shown(l) }));
    find(".fs-sum").innerHTML = `<span>${text.sum}</span> ${shown(l, 4)}`;
  }

  function drawTable(op, block, order, finished) {
    const last = op === "out" ? OPS.length : order;
    const digits = row.blocks.length > 4 ? 2 : 3;
    const tuple = (xs) => xs.map((x) => (x === 0 ? "0" : x.toFixed(digits)))
      .join(digits === 2 ? "\n" : ", ").replace(/^[^\n]*$/, "($&)").replaceAll("-", "\u2212");
    const set = (name, column, value, current) => {
      const node = nodes.cells[name][column];
      const vector = Array.isArray(value);
      node.textContent = value === null ? "\u2013" : vector ? tuple(value) : shown(value);
      node.classList.toggle("fs-now", current);
      if (value === null) delete node.dataset.value;
      else node.dataset.value = vector ? value.join(" ") : String(value);
      node.title = node.dataset.value ?? "";
    };
    const empty = { m: -Infinity, alpha: null, l: 0, acc: [0, 0], out: null };
    for (const name of ROWS) {
      set(name, 0, empty[name], op === "start" && empty[name] !== null);
      row.blocks.forEach((b, i) => {
        const ready = i < block || (i === block && last >= APPEARS[name]);
        const value = { m: b.m, alpha: b.alpha, l: b.after.l, acc: b.after.acc,
          out: divided(b.after) }[name];
        const current = i === block && (op === "out" ? name === "out"
          : name !== "out" && op === OPS[APPEARS[name]]);
        set(name, i + 1, ready ? value : null, current);
      });
    }
  }

  function drawPlane(finished) {
    const outs = row.blocks.slice(0, finished).map((b) => divided(b.after));
    const last = row.blocks[finished - 1];
    nodes.points.forEach((node, j) => {
      const seen = last && j < last.to && last.after.l > 0;
      const weight = seen ? Math.exp(row.scores[j] - last.safe) / last.after.l : 0;
      node.style.setProperty("--fs-size", seen ? `${0.5 + 1.6 * Math.sqrt(weight)}em` : "0.5em");
      node.classList.toggle("fs-seen", Boolean(seen && weight > 0));
    });
    find(".fs-plane polyline").setAttribute("points",
      outs.map((o) => `${planeX(o)},${planeY(o)}`).join(" "));
    const dot = find(".fs-plane em");
    dot.style.display = finished ? "" : "none";
    find(".fs-plane").setAttribute("aria-label", finished
      ? fill(text.plane_alt, { out: pair(outs.at(-1)), to: last.to }) : text.plane_none);
    if (!finished) return;
    dot.style.left = `${planeX(outs.at(-1))}%`;
    dot.style.top = `${planeY(outs.at(-1))}%`;
  }

  function drawChecks(finished) {
    const [line64, line16] = [find("[data-fa-check]"), find("[data-fa-fp16]")];
    if (finished === 0) {
      line64.textContent = text.check_none;
      line16.textContent = "";
      for (const name of ["faDifference", "faHolds", "faUnsafe"]) delete el.dataset[name];
      return;
    }
    const check = row.checks[finished - 1];
    const { to } = row.blocks[finished - 1];
    const holds = check.float64 <= limit;
    el.dataset.faDifference = String(check.float64);
    el.dataset.faHolds = String(holds);
    el.dataset.faUnsafe = String(check.unsafe);
    line64.classList.toggle("fs-bad", !holds);
    line64.textContent = fill(holds ? text.check : text.check_failed, {
      to, difference: shown(check.float64, 3), limit: shown(limit, 2) });
    line16.classList.toggle("fs-warn", !Number.isFinite(check.unsafe));
    const rounded = Math.max(check.unsafe, check.fp16) <= FP16_LAST_BIT; // false for NaN
    line16.textContent = fill(check.masked ? text.fp16_masked : rounded ? text.fp16_rounded
      : Number.isFinite(check.unsafe) ? text.fp16 : text.fp16_failed, {
      sum: shown(check.unsafeSum, 3), unsafe: shown(check.unsafe, 2),
      online: shown(check.fp16, 2), bit: shown(FP16_LAST_BIT, 2) });
  }

  function sentence(op, block, now) {
    const words = { block: block + 1, blocks: row.blocks.length, keys: keysOf(now), to: now.to,
      old: shown(now.before.m), m: shown(now.m), alpha: shown(now.alpha, 3),
      l: shown(now.after.l), percent: shown(100 * now.alpha, 2), out: pair(divided(now.after)) };
    const masked = now.s.every((x) => x === -Infinity);
    const variant = {
      max: now.m === -Infinity ? "say_max_masked"
        : now.m > now.before.m ? "say_max_up" : "say_max_same",
      alpha: now.before.m === -Infinity ? "say_alpha_first"
        : now.alpha === 1 ? "say_alpha_one" : "say_alpha",
      p: masked ? "say_p_masked" : "say_p",
      out: now.after.l === 0 ? "say_out_masked" : "say_out",
    }[op];
    return fill(text[variant ?? `say_${op}`], words);
  }

  return { build, draw, span };
}
