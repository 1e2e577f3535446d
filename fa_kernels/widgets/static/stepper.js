// The stepper: what a reader does. Everything per step happens here, without the kernel; edited
// scores, the block size and the step at which a reader stops are sent to it.

const PLAY_MS = 1600;
// The kernel hears where a reader stopped, for a reload of the page; not every step on the way.
const SAVE_MS = 300;

const toCell = (s) => (s === -Infinity ? "-inf" : String(s));
const toNumbers = (cells) => cells.map(parseScore);
const escaped = (s) => s.replace(/&/g, "&amp;").replace(/</g, "&lt;");

// Lab's command mode would take the keys; it asks the focused element itself.
function keepKeys(el) {
  for (const node of [el, ...el.querySelectorAll("input, select, button")]) {
    node.dataset.lmSuppressShortcuts = "true";
  }
}

// Last, median and longest time of a step, for tests and for the curious.
function clockOf(el) {
  const times = [];
  return (ms) => {
    times.push(ms);
    if (times.length > 500) times.shift();
    const sorted = [...times].sort((a, b) => a - b);
    el.dataset.faStepMs = ms.toFixed(2);
    el.dataset.faStepMsMedian = sorted[sorted.length >> 1].toFixed(2);
    el.dataset.faStepMsMax = sorted.at(-1).toFixed(2);
    el.dataset.faSteps = String(Number(el.dataset.faSteps ?? 0) + 1);
  };
}

function render({ model, el }) {
  const text = model.get("text");
  const limits = { difference: model.get("limit"), score: model.get("max_score") };
  const row = {
    scores: toNumbers(model.get("cells")),
    values: model.get("values"),
    blockN: model.get("block_n"),
    at: model.get("step"),
    held: null, // the scale of the scores while a bar is dragged
  };
  let base = model.get("cells"); // what Reset goes back to
  let timer = null;
  let saving = null;

  el.classList.add("falab-stepper");
  el.dataset.faWidget = "stepper";
  el.tabIndex = 0;
  el.setAttribute("role", "group");
  el.setAttribute("aria-label", text.group);
  const picture = pictureOf(el, text, limits.difference, row);
  const find = (selector) => el.querySelector(selector);
  const [slider, preset, size] = ["scrub", "preset", "block"].map((n) => find(`[data-fa-${n}]`));
  const note = find("[data-fa-note]");
  const complaint = find("[data-fa-error]");
  const keepTime = clockOf(el);
  buildControls();
  const inputs = [...el.querySelectorAll("[data-fa-score]")];

  function buildControls() {
    for (const name of ["first", "back", "forward", "last", "reset"]) {
      find(`[data-fa-do=${name}]`).textContent = text[name];
    }
    for (const name of ["scores", "terms", "plane"]) {
      find(`[data-fa-title=${name}]`).innerHTML = text[name];
    }
    find(".fs-overflow span").textContent = text.overflow;
    slider.setAttribute("aria-label", text.slider);
    find(".fs-bar").setAttribute("aria-label", text.controls);
    preset.previousElementSibling.textContent = text.preset;
    size.previousElementSibling.textContent = text.block;
    preset.innerHTML = model.get("presets").map((p) =>
      `<option value="${p.name}">${escaped(p.label)}</option>`).join("")
      + `<option value="" disabled>${text.edited}</option>`;
    size.innerHTML = model.get("block_sizes").map((n) => `<option>${n}</option>`).join("");
    size.value = String(row.blockN);
    find(".fs-code").innerHTML = model.get("code").map(([op, code]) =>
      `<span data-op="${op}">${escaped(code)}</span>`).join("");
    find(".fs-inputs").innerHTML = row.scores.map((_, j) => `<label>
      <span>s<sub>${j + 1}</sub></span><input type="text" spellcheck="false" autocomplete="off"
      data-fa-score="${j + 1}" aria-label="${fill(text.score, { number: j + 1 })}"></label>`)
      .join("");
    keepKeys(el);
  }

  // -- the row ----------------------------------------------------------------------------------

  function compute(rebuild = false) {
    row.blocks = blocksOf(row.scores, row.values, row.blockN);
    row.checks = checksOf(row.scores, row.values, row.blockN);
    row.steps = stepsOf(row.blocks);
    row.at = Math.min(row.at, row.steps.length - 1);
    if (rebuild) picture.build();
    const cells = row.scores.map(toCell).join();
    const found = model.get("presets").find((p) => p.cells.join() === cells);
    preset.value = found?.name ?? "";
    note.textContent = found?.note ?? text.edited_note;
    el.dataset.faPreset = preset.value;
    el.dataset.faCells = cells;
    picture.draw();
  }

  function showInputs() {
    inputs.forEach((input, j) => {
      input.value = toCell(row.scores[j]);
      input.setAttribute("aria-invalid", "false");
    });
    complaint.textContent = "";
  }

  function take(scores) {
    row.scores = scores;
    compute();
    model.set({ cells: scores.map(toCell), step: row.at });
    model.save_changes();
  }

  function edit(input) {
    const j = Number(input.dataset.faScore) - 1;
    const s = parseScore(input.value);
    const good = s === -Infinity || Math.abs(s) <= limits.score;
    input.setAttribute("aria-invalid", String(!good));
    if (!good) {
      complaint.textContent = fill(Number.isNaN(s) ? text.bad_text : text.bad_range, {
        number: j + 1, typed: input.value.trim() || text.nothing, most: shown(limits.score) });
      return;
    }
    if (!inputs.some((other) => other.getAttribute("aria-invalid") === "true")) {
      complaint.textContent = "";
    }
    input.value = toCell(s);
    if (s !== row.scores[j]) take(row.scores.map((x, i) => (i === j ? s : x)));
  }

  function restore(cells) {
    pause();
    row.at = 0;
    take(toNumbers(cells));
    showInputs();
  }

  // What another view of this widget did, or a cell.
  function follow() {
    const [cells, blockN, step] = ["cells", "block_n", "step"].map((name) => model.get(name));
    if (cells.join() === row.scores.map(toCell).join() && blockN === row.blockN) {
      const at = Math.min(step, row.steps.length - 1);
      // The kernel's echo of an earlier change may be late: it is no step back.
      if (at === row.at || saving) return;
      row.at = at;
      picture.draw();
      return;
    }
    row.at = step; // `compute` knows which is the last one
    row.scores = toNumbers(cells);
    row.blockN = blockN;
    size.value = String(blockN);
    compute(true);
    showInputs();
  }

  // -- steps ------------------------------------------------------------------------------------

  function go(to) {
    row.at = Math.max(0, Math.min(row.steps.length - 1, to));
    keepTime(picture.draw());
    model.set("step", row.at); // other views on this page follow at once
    clearTimeout(saving);
    saving = setTimeout(() => {
      saving = null;
      model.set("step", row.at); // an echo may have put an earlier one in its place
      model.save_changes();
    }, SAVE_MS);
  }

  // The steps at which a block is done.
  const blockEnds = () => row.steps.flatMap(({ op }, i) =>
    (["start", "acc", "out"].includes(op) ? [i] : []));

  function showPlaying() {
    find("[data-fa-do=play]").textContent = timer ? text.pause : text.play;
    el.dataset.faPlaying = String(Boolean(timer));
  }

  function pause() {
    clearInterval(timer);
    timer = null;
    showPlaying();
  }

  function toggle() {
    if (timer) return pause();
    if (row.at === row.steps.length - 1) go(0);
    timer = setInterval(() => {
      go(row.at + 1);
      if (row.at === row.steps.length - 1) pause();
    }, PLAY_MS);
    showPlaying();
  }

  const byHand = (act) => () => {
    pause();
    act();
  };
  const ACTS = {
    first: byHand(() => go(0)),
    back: byHand(() => go(row.at - 1)),
    play: toggle,
    forward: byHand(() => go(row.at + 1)),
    last: byHand(() => go(row.steps.length - 1)),
    nextBlock: byHand(() => go(blockEnds().find((i) => i > row.at) ?? row.at)),
    lastBlock: byHand(() => go(blockEnds().findLast((i) => i < row.at) ?? row.at)),
    reset: () => restore(base),
  };
  const KEYS = { ArrowLeft: "back", ArrowRight: "forward", Home: "first", End: "last",
    PageUp: "lastBlock", PageDown: "nextBlock", " ": "play" };

  // -- events -----------------------------------------------------------------------------------

  function typing(event) {
    if (event.key === "Enter") edit(event.target);
    if (event.key === "Escape") showInputs();
    const by = { ArrowUp: 0.5, ArrowDown: -0.5 }[event.key];
    const s = parseScore(event.target.value);
    if (!by || !Number.isFinite(s)) return;
    event.preventDefault();
    event.target.value = String(s + by);
    edit(event.target);
  }

  // With a mouse or pen only, because a finger scrolls the page.
  function drag(down) {
    const box = find(".fs-scores .fs-bars").getBoundingClientRect();
    const j = Math.floor(((down.clientX - box.left) / box.width) * row.scores.length);
    if (down.pointerType === "touch" || down.button !== 0 || !(j in row.scores)) return;
    const { low, high } = picture.span();
    const grid = high - low > 20 ? 0.5 : 0.1;
    const move = (event) => {
      if (!row.held && Math.abs(event.clientY - down.clientY) < 4) return; // a click
      row.held = { low, high };
      const at = low + ((box.bottom - event.clientY) / box.height) * (high - low);
      const inside = Math.max(-limits.score, Math.min(limits.score, at));
      const s = Number((Math.round(inside / grid) * grid).toFixed(1));
      row.scores = row.scores.map((x, i) => (i === j ? s : x));
      compute();
      showInputs();
    };
    const end = () => {
      window.removeEventListener("pointermove", move);
      if (!row.held) return;
      row.held = null;
      take(row.scores);
    };
    window.addEventListener("pointermove", move);
    for (const name of ["pointerup", "pointercancel"]) {
      window.addEventListener(name, end, { once: true });
    }
  }

  el.addEventListener("click", (event) => {
    const act = event.target.closest("[data-fa-do]")?.dataset.faDo;
    if (act) ACTS[act]();
  });
  el.addEventListener("keydown", (event) => {
    const { target, key } = event;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (target.matches("[data-fa-score]")) return typing(event);
    if (target.matches("select") || !(key in KEYS)) return;
    if (key === " " && target.matches("button")) return; // the button's own key
    event.preventDefault();
    event.stopPropagation();
    ACTS[KEYS[key]]();
  });
  el.addEventListener("change", (event) => {
    if (event.target.matches("[data-fa-score]")) edit(event.target);
  });
  find(".fs-scores").addEventListener("pointerdown", drag);
  slider.addEventListener("input", byHand(() => go(Number(slider.value))));
  preset.addEventListener("change", () => {
    const chosen = model.get("presets").find((p) => p.name === preset.value);
    if (chosen) restore((base = chosen.cells));
  });
  size.addEventListener("change", byHand(() => {
    row.blockN = Number(size.value);
    row.at = 0;
    compute(true);
    model.set({ block_n: row.blockN, step: 0 });
    model.save_changes();
  }));
  model.on("change:cells change:block_n change:step", follow);
  // The equation is set as large as its box allows: again where that becomes wider or narrower.
  let width = 0;
  const sizeWatch = new ResizeObserver(() => {
    if (el.clientWidth === width) return;
    width = el.clientWidth;
    picture.draw();
  });
  sizeWatch.observe(el);

  compute(true);
  showInputs();
  showPlaying();
  return () => {
    clearInterval(timer);
    sizeWatch.disconnect();
    model.off("change:cells change:block_n change:step", follow);
  };
}

export default { render };
