// A deck: figures, knobs and stepper without a kernel, light and dark. Opened from disk, so there
// are no modules and no requests; everything comes from <script id="fa-data">.
(() => {
  const { figures, dark, stepper } = JSON.parse(document.getElementById("fa-data").textContent);
  const query = new URLSearchParams(location.search);
  const printing = query.has("print-pdf");
  const HEX = /#[0-9A-F]{6}/g;
  // The figures' smallest words have 12 px; on a slide of 1080 lines they need 18.
  const LEAST_SCALE = 1.5;
  const MOST_STRETCH = 1.3;
  const CONFIG = { displayModeBar: false, displaylogo: false, responsive: false };

  const isDark = () => document.body.dataset.jpThemeLight === "false";
  const at = new Map(Object.entries(figures).map(([name, { start }]) => [name, start]));

  function themed(spec) {
    let text = JSON.stringify(spec);
    if (isDark()) text = text.replace(HEX, (hex) => dark[hex] ?? hex);
    return JSON.parse(text);
  }

  // Drawn in the px it is made for, then scaled as a whole: lines, marks and offsets grow, too.
  function size(el, { least }, height) {
    const [wide, high] = [el.clientWidth, el.clientHeight];
    const scale = Math.min(wide / least, Math.max(high / height, LEAST_SCALE));
    const drawn = Math.min(high / scale, height * MOST_STRETCH);
    return { scale, width: wide / scale, height: drawn, top: (high - drawn * scale) / 2 };
  }

  async function draw(el) {
    const name = el.dataset.faFigure;
    const figure = figures[name];
    const stop = figure.stops[at.get(name)];
    const { data, layout } = themed(stop.spec);
    const { scale, width, height, top } = size(el, figure, layout.height ?? 420);
    Object.assign(layout, { width, height, paper_bgcolor: "rgba(0,0,0,0)" });
    const place = el.firstElementChild;
    place.style.cssText = `width:${width}px;height:${height}px;top:${top}px;transform:scale(${scale})`;
    el.setAttribute("aria-label", stop.alt);
    el.dataset.faScale = scale.toFixed(3);
    await Plotly.react(place, data, layout, CONFIG);
    el.dataset.faDrawn = `${at.get(name)} ${isDark()}`;
  }

  // A figure is drawn when its slide is in sight: before that, nothing in it can be measured.
  function drawIn(root) {
    const stale = [...root.querySelectorAll("[data-fa-figure]")].filter((el) =>
      el.dataset.faDrawn !== `${at.get(el.dataset.faFigure)} ${isDark()}`);
    return Promise.all(stale.map(draw));
  }

  function turn(knob) {
    const name = knob.dataset.faKnob;
    const value = knob.dataset.faValues.split("|")[knob.value];
    at.set(name, Number(knob.value));
    const shown = knob.closest(".fa-shown");
    knob.setAttribute("aria-valuetext", value);
    shown.querySelector("output").textContent = value;
    shown.querySelector(".fa-sentence").innerHTML = figures[name].stops[knob.value].sentence;
    drawIn(shown);
  }

  // What the stepper asks a notebook's model for; edits stay in the page.
  function modelOf(traits) {
    const state = structuredClone(traits);
    return {
      get: (name) => state[name],
      set: (name, value) => {
        Object.assign(state, typeof name === "string" ? { [name]: value } : name);
      },
      save_changes() {}, on() {}, off() {}, send() {},
    };
  }

  function setTheme(name) {
    document.body.dataset.jpThemeLight = String(name !== "dark");
    document.body.dataset.jpThemeName = name;
    const slide = Reveal.isReady() && Reveal.getCurrentSlide();
    if (slide) drawIn(slide);
  }

  for (const knob of document.querySelectorAll("[data-fa-knob]")) {
    knob.addEventListener("input", () => turn(knob));
    // Up and Down turn it as well; the deck must not leave the slide for it.
    knob.addEventListener("keydown", (event) => event.stopPropagation());
  }
  // A click beside a control gives the keys back to the deck.
  document.addEventListener("pointerdown", ({ target }) => {
    if (!target.closest(".fa-knob, .fa-stepper")) document.activeElement?.blur();
  });
  for (const el of document.querySelectorAll("[data-fa-stepper]")) {
    falabStepper.render({ model: modelOf(stepper), el: el.appendChild(document.createElement("div")) });
  }

  setTheme(query.get("theme"));
  Reveal.on("ready", ({ currentSlide }) => {
    Reveal.addKeyBinding({ keyCode: 68, key: "D", description: "Light or dark" },
      () => setTheme(isDark() ? "light" : "dark"));
    drawIn(currentSlide);
  });
  Reveal.on("slidechanged", ({ currentSlide }) => drawIn(currentSlide));
  Reveal.on("pdf-ready", async () => {
    await drawIn(document);
    document.documentElement.dataset.faReady = "true";
  });
  Reveal.initialize({
    width: 1920, height: 1080, margin: 0, minScale: 0.1, maxScale: 4, center: false,
    hash: true, controls: false, progress: true, slideNumber: "c/t", transition: "none",
    backgroundTransition: "none", navigationMode: "linear", pdfSeparateFragments: false,
    pdfMaxPagesPerSlide: 1, plugins: [RevealNotes],
  });
  if (printing) document.documentElement.classList.add("fa-print");
})();
