// The app's bar. It runs the page around it, too: which view is on screen, keys, light or dark,
// size of text, and the address that keeps the state. Nothing here waits for the kernel.

const VIEWS = ["explorer", "stepper", "story"];
// The buttons of the stepper, and how far N moves elsewhere, by key; a remote has the Page keys.
const DRIVE = { ArrowRight: ["forward", 1], PageDown: ["forward", 1], ArrowLeft: ["back", -1],
  PageUp: ["back", -1], Home: ["first", -99], End: ["last", 99], " ": ["play", 0] };

function markup(text) {
  const tabs = VIEWS.map((name, i) => `<button type="button" data-fa-view="${name}"><kbd>${i + 1
  }</kbd> ${text[name]}</button>`).join("");
  const tool = (name) =>
    `<button type="button" data-fa-do="${name}" title="${text[`${name}_why`]}">${text[name]}</button>`;
  const keys = text.keys.map(({ keys, does }) =>
    `<dt>${keys.map((key) => `<kbd>${key}</kbd>`).join(" ")}</dt><dd>${does}</dd>`).join("");
  return `<strong class="falab-app-name">${text.title}</strong>
    <nav aria-label="${text.views}">${tabs}</nav>
    <div class="falab-app-banner" role="note" aria-label="${text.sources}" data-fa-banner></div>
    <div class="falab-app-tools">${["smaller", "larger"].map(tool).join("")}<button type="button"
      data-fa-do="theme" title="${text.theme_why}"></button>${["full", "help"].map(tool).join("")}
    </div>
    <div class="falab-app-notes"><div role="alert" data-fa-notes></div><button type="button"
      data-fa-do="dismiss">${text.help_close}</button></div>
    <dialog class="falab-app-help" aria-label="${text.help_title}"><h2>${text.help_title}</h2>
      <dl>${keys}</dl><p>${text.help_link}<br><code></code></p>
      <form method="dialog"><button>${text.help_close}</button></form></dialog>`;
}

function render({ model, el }) {
  const text = model.get("text");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  // Served by Voila the page is the app's alone; a notebook's address and theme are not its own.
  const alone = Boolean(document.body.dataset.voila);
  let root = null;
  el.classList.add("falab-bar");
  el.dataset.faWidget = "app-bar";
  el.innerHTML = markup(text);
  const find = (selector) => el.querySelector(selector);
  const help = find("dialog");
  find("[data-fa-do=theme]").hidden = !alone;

  // -- what the page looks like ---------------------------------------------------------------

  const isDark = () => (model.get("theme") || (system.matches ? "dark" : "light")) === "dark";

  let shown = "";
  function show() {
    const view = model.get("view");
    for (const tab of el.querySelectorAll("[data-fa-view]")) {
      tab.setAttribute("aria-current", String(tab.dataset.faView === view));
    }
    find("[data-fa-do=theme]").textContent = isDark() ? text.light : text.dark;
    if (!root) return;
    root.dataset.faView = view;
    root.style.setProperty("--fa-zoom", String(model.get("size") / 100));
    if (!alone) return;
    const look = `JupyterLab ${isDark() ? "Dark" : "Light"}`;
    if (shown === look + model.get("size")) return;
    shown = look + model.get("size");
    document.body.dataset.jpThemeLight = String(!isDark());
    document.body.dataset.jpThemeName = look; // figures watch this one, and follow
  }

  function say() {
    const parts = model.get("banner").map((part) => {
      const span = document.createElement("span");
      span.textContent = part;
      return span;
    });
    find("[data-fa-banner]").replaceChildren(...parts);
    find("[data-fa-notes]").textContent = model.get("notes").join(" ");
    find(".falab-app-notes").hidden = model.get("notes").length === 0;
  }

  let writing = null;
  function write() {
    find(".falab-app-help code").textContent = `?${model.get("query")}`;
    if (!alone) return;
    clearTimeout(writing); // browsers refuse a page that rewrites its address at every move
    writing = setTimeout(() => {
      const url = new URL(location.href);
      for (const key of model.get("query_keys")) url.searchParams.delete(key);
      const rest = url.searchParams.toString();
      url.search = [model.get("query"), rest].filter(Boolean).join("&");
      history.replaceState(history.state, "", url);
    }, 250);
  }

  // -- what a speaker does --------------------------------------------------------------------

  function set(name, value) {
    model.set(name, value);
    model.save_changes();
  }

  function resize(by) {
    const sizes = model.get("sizes");
    const at = sizes.findIndex((size) => size >= model.get("size"));
    set("size", by === 0 ? 100 : sizes[Math.max(0, Math.min(sizes.length - 1, at + by))]);
  }

  const nextView = () => set("view", VIEWS[(VIEWS.indexOf(model.get("view")) + 1) % VIEWS.length]);

  function toggleFull() {
    if (document.fullscreenElement) document.exitFullscreen();
    else (alone ? document.documentElement : root)?.requestFullscreen?.();
  }

  const ACTS = {
    smaller: () => resize(-1),
    larger: () => resize(1),
    theme: () => set("theme", isDark() ? "light" : "dark"),
    full: toggleFull,
    dismiss: () => set("notes", []),
    help: () => (help.open ? help.close() : help.showModal()),
  };
  const KEYS = { "+": ACTS.larger, "=": ACTS.larger, "-": ACTS.smaller, "0": () => resize(0),
    d: () => alone && ACTS.theme(), f: ACTS.full, "?": ACTS.help, b: nextView, ".": nextView };

  function drive(key) {
    const [act, by] = DRIVE[key];
    const view = root.querySelector(`.falab-view-${model.get("view")}`);
    if (model.get("view") === "stepper") return view.querySelector(`[data-fa-do=${act}]`)?.click();
    const slider = view.querySelector("[data-fa-knob=N] input[type=range]");
    if (!slider || !by) return;
    slider.value = String(Number(slider.value) + by);
    slider.dispatchEvent(new Event("input", { bubbles: true }));
  }

  function onKey(event) {
    const { key, target } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || help.open && key !== "?") return;
    if (target.matches?.("input[type=text], textarea, select, [contenteditable]")) return;
    const view = VIEWS[Number(key) - 1];
    const act = view ? () => set("view", view) : KEYS[key.toLowerCase()];
    // What has the focus keeps its own keys, but for the Page keys: a remote sends those.
    const free = !target.closest?.("button, input, summary, [tabindex], a") || el.contains(target)
      && key !== " " && target.tagName === "BUTTON";
    if (act) act();
    else if (root && key in DRIVE && (free || key.startsWith("Page"))) drive(key);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  el.addEventListener("click", (event) => {
    const tab = event.target.closest("[data-fa-view]");
    const act = event.target.closest("[data-fa-do]");
    if (tab) set("view", tab.dataset.faView);
    if (act) ACTS[act.dataset.faDo]();
  });

  // The bar stands in the page only after it was made: then the app around it is found.
  const attached = new ResizeObserver(() => {
    if (root || !(root = el.closest(".falab-app"))) return;
    root.classList.toggle("falab-alone", alone);
    document.body.classList.toggle("falab-app-page", alone);
    keys = alone ? document : root;
    keys.addEventListener("keydown", onKey, true);
    show();
  });
  let keys = null;
  attached.observe(el);
  system.addEventListener("change", show);
  model.on("change:view change:theme change:size", show);
  model.on("change:banner change:notes", say);
  model.on("change:query", write);
  show();
  say();
  write();
  return () => {
    clearTimeout(writing);
    attached.disconnect();
    keys?.removeEventListener("keydown", onKey, true);
    system.removeEventListener("change", show);
    model.off("change:view change:theme change:size", show);
    model.off("change:banner change:notes", say);
    model.off("change:query", write);
  };
}

export default { render };
