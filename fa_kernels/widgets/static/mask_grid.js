// A grid of blocks that a reader keeps or drops: by click, by drag, by keyboard.

function render({ model, el }) {
  const text = model.get("text");
  el.classList.add("falab-mask");
  el.dataset.faWidget = "mask-grid";
  el.innerHTML = `
    <div class="falab-mask-bar" role="toolbar"></div>
    <div class="falab-mask-keys"></div>
    <div class="falab-mask-frame">
      <div class="falab-mask-rows"></div>
      <div class="falab-mask-grid" tabindex="0" role="application"></div>
    </div>
    <div class="falab-mask-at" aria-live="polite"></div>`;
  const [bar, grid, at] = ["bar", "grid", "at"].map((n) => el.querySelector(`.falab-mask-${n}`));
  bar.setAttribute("aria-label", text.controls);
  grid.setAttribute("aria-label", text.grid);
  el.querySelector(".falab-mask-keys").textContent = text.keys;
  el.querySelector(".falab-mask-rows").textContent = text.rows;

  let kept = []; // kept[row][key], what is on screen
  let cells = [];
  let cursor = [0, 0];
  let painting = null; // the value that a drag or Shift + arrow spreads

  // What this page asked for and the kernel has not answered yet is not undone by an answer to what
  // was asked before: strokes may follow one another faster than a busy kernel.
  const view = Math.random().toString(36).slice(2);
  let asked = 0;
  let last = ""; // the rows that were sent last
  const waiting = () => (model.get("seen")[view] ?? 0) < asked;
  const tell = (message) => model.send({ ...message, view, stroke: (asked += 1) });
  const ask = (what) => {
    last = "";
    tell({ do: what });
  };
  const buttons = {};
  for (const name of ["undo", "redo", "reset", "copy"]) {
    const button = document.createElement("button");
    button.type = "button";
    button.dataset.faDo = name;
    button.textContent = text[name];
    button.title = text[`${name}_about`];
    button.addEventListener("click", () => (name === "copy" ? copy() : ask(name)));
    bar.append(button);
    buttons[name] = button;
  }
  const told = document.createElement("span");
  told.setAttribute("role", "status");
  told.dataset.faCopied = "";
  bar.append(told);
  // Lab's command mode would take arrows, letters and Ctrl+Z; it asks the focused element itself.
  for (const node of [grid, ...Object.values(buttons)]) node.dataset.lmSuppressShortcuts = "true";

  const number = (name, value) => text[name].replace("{number}", String(value));

  function draw() {
    if (cells.length && (waiting() || painting !== null)) return;
    kept = model.get("rows").map((row) => [...row].map((c) => c === "#"));
    const [rows, keys] = [kept.length, kept[0].length];
    if (cells.length !== rows || cells[0].length !== keys) build(rows, keys);
    kept.forEach((row, i) => row.forEach((value, j) => show(i, j, value)));
    buttons.undo.disabled = !model.get("can_undo");
    buttons.redo.disabled = !model.get("can_redo");
    el.dataset.faRows = model.get("rows").join(" ");
    describe();
  }

  function build(rows, keys) {
    grid.style.setProperty("--fm-keys", String(keys));
    cells = Array.from({ length: rows }, (_, i) => Array.from({ length: keys }, (_, j) => {
      const cell = document.createElement("i");
      cell.dataset.faCell = `${i},${j}`;
      return cell;
    }));
    grid.replaceChildren(...cells.flat());
  }

  function show(i, j, value) {
    kept[i][j] = value;
    cells[i][j].classList.toggle("falab-kept", value);
    cells[i][j].classList.toggle("falab-cursor", i === cursor[0] && j === cursor[1]);
  }

  function move(i, j) {
    const old = cursor;
    cursor = [
      Math.min(Math.max(i, 0), cells.length - 1), Math.min(Math.max(j, 0), cells[0].length - 1)];
    for (const [r, c] of [old, cursor]) show(r, c, kept[r][c]);
    describe();
  }

  function describe() {
    const [i, j] = cursor;
    const state = kept[i][j] ? text.kept : text.dropped;
    at.textContent = `${number("row", i)}, ${number("key", j)}: ${state}`;
  }

  // The kernel hears of a stroke as a whole: one step of undo.
  function send() {
    const rows = kept.map((row) => row.map((value) => (value ? "#" : ".")).join(""));
    if (rows.join() === (waiting() ? last : model.get("rows").join())) return;
    last = rows.join();
    tell({ rows });
  }

  const cellUnder = (event) => {
    const found = document.elementFromPoint(event.clientX, event.clientY)?.dataset?.faCell;
    return found && grid.contains(document.elementFromPoint(event.clientX, event.clientY))
      ? found.split(",").map(Number) : null;
  };
  grid.addEventListener("pointerdown", (event) => {
    const found = cellUnder(event);
    if (!found || event.button !== 0) return;
    event.preventDefault();
    grid.focus();
    grid.setPointerCapture(event.pointerId);
    painting = !kept[found[0]][found[1]];
    move(...found);
    show(...found, painting);
    describe();
  });
  grid.addEventListener("pointermove", (event) => {
    const found = painting === null ? null : cellUnder(event);
    if (!found || kept[found[0]][found[1]] === painting) return;
    move(...found);
    show(...found, painting);
    describe();
  });
  const lift = () => {
    if (painting === null) return;
    painting = null;
    send();
    draw(); // what came meanwhile
  };
  grid.addEventListener("pointerup", lift);
  grid.addEventListener("pointercancel", lift);

  const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  grid.addEventListener("keydown", (event) => {
    const key = event.key;
    if ((event.ctrlKey || event.metaKey) && /^[zy]$/i.test(key)) {
      ask(key.toLowerCase() === "y" || event.shiftKey ? "redo" : "undo");
    } else if (STEPS[key] && !event.ctrlKey && !event.altKey && !event.metaKey) {
      const value = kept[cursor[0]][cursor[1]];
      move(cursor[0] + STEPS[key][0], cursor[1] + STEPS[key][1]);
      if (event.shiftKey) {
        show(...cursor, value);
        describe();
        send();
      }
    } else if (key === " " || key === "Enter") {
      show(...cursor, !kept[cursor[0]][cursor[1]]);
      describe();
      send();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });

  async function copy() {
    const code = model.get("code");
    let done = true;
    try {
      await navigator.clipboard.writeText(code);
    } catch {
      // Not there where a server is reached without encryption, or not allowed.
      const box = document.createElement("textarea");
      box.value = code;
      el.append(box);
      box.select();
      done = document.execCommand("copy");
      box.remove();
    }
    told.textContent = done ? text.copied : text.not_copied;
  }

  model.on("change:rows change:can_undo change:can_redo change:seen", draw);
  model.on("change:code", () => { told.textContent = ""; });
  draw();
}

export default { render };
