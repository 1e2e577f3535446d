// One plotly figure. plotly.js arrives once per page, by custom message from the kernel.

const HEX = /#[0-9A-F]{6}/g;

// Whoever is on the page first asks; the others ask again where no answer comes, since a kernel may
// be busy for long, or be another one by now.
const ASK_AGAIN_MS = 30000;
function loadPlotly(model, wanted) {
  if (window.Plotly?.react) return Promise.resolve(window.Plotly);
  return new Promise((resolve) => {
    let again = null;
    const ask = () => {
      if (!wanted()) clearInterval(again);
      const since = performance.now() - (window.__faPlotlyAsked ?? -Infinity);
      if (!wanted() || since < ASK_AGAIN_MS) return;
      window.__faPlotlyAsked = performance.now();
      model.send({ need: "plotly.js" });
    };
    const heard = (content, buffers) => {
      if (content?.have !== "plotly.js") return;
      if (!window.Plotly?.react) run(new TextDecoder().decode(buffers[0]));
      window.dispatchEvent(new Event("fa-plotly"));
    };
    window.addEventListener("fa-plotly", () => {
      clearInterval(again);
      model.off("msg:custom", heard);
      resolve(window.Plotly);
    }, { once: true });
    model.on("msg:custom", heard);
    again = setInterval(ask, ASK_AGAIN_MS / 10);
    ask();
  });
}

function run(code) {
  // The bundle is UMD: with an AMD loader on the page it would register there instead of on window.
  const define = window.define;
  const script = document.createElement("script");
  script.textContent = code;
  try {
    window.define = undefined;
    document.head.append(script);
  } finally {
    window.define = define;
    script.remove();
  }
}

const isDark = () => document.body.dataset.jpThemeLight === "false";

function cssColour(style, name, fallback) {
  return style.getPropertyValue(name).trim() || fallback;
}

// Every font, and what is measured in lines of text, grows with the page's own text; so do lines
// and markers, which would be hair beside large letters.
const SCALED = { size: /(font|^marker)$/, minsize: /./, width: /^line$/, standoff: /^title$/,
  xshift: /^annotations$/, yshift: /^annotations$/ };
function scaleText(node, factor, key = "") {
  if (Array.isArray(node)) node.forEach((item) => scaleText(item, factor, key));
  else if (node && typeof node === "object") {
    for (const [name, value] of Object.entries(node)) {
      if (SCALED[name]?.test(key)) {
        node[name] = Array.isArray(value) ? value.map((v) => v * factor) : value * factor;
      } else scaleText(value, factor, name);
    }
  }
}

// What the page's theme says; reading it makes the browser lay out the page, so it is read once.
function readTheme(el) {
  const style = getComputedStyle(el);
  const dark = isDark();
  const px = parseFloat(style.fontSize) || 14;
  return {
    dark,
    paper: cssColour(style, "--jp-layout-color0", dark ? "#111111" : "#FFFFFF"),
    grid: cssColour(style, "--jp-border-color2", dark ? "#3A3A3A" : "#E3E3E3"),
    factor: Math.max(1, px / 14),
    // The app: the figure takes the room that its place has, and text follows it and the zoom.
    fill: style.getPropertyValue("--falab-fill").trim() === "1",
    zoom: parseFloat(style.getPropertyValue("--fa-zoom")) || 1,
  };
}

// Size of a figure in a place of `room` px: {factor of its text, width, height}. A figure that
// fills its place has the largest text with which its panels fit there, times the zoom. In a low
// window it is pressed together a little before it scrolls.
const LEAST_HEIGHT = 0.88;
function sizeOf(room, own, theme) {
  if (!theme.fill) {
    // Larger text only as far as the figure need not be scrolled sideways for it, with some room
    // to spare: in its least width the longest words just fit beside each other.
    const factor = Math.max(1, Math.min(theme.factor, room.width / own.width / 1.1));
    return { factor, width: Math.max(room.width, Math.floor(own.width * factor)),
      height: own.height * factor };
  }
  const fits = Math.min(room.width / own.width, room.height / own.height);
  const factor = Math.max(1, fits) * theme.zoom;
  return { factor, width: Math.max(room.width, Math.floor(own.width * factor)),
    height: Math.max(room.height, Math.floor(LEAST_HEIGHT * own.height * factor)) };
}

function themed(spec, colours, theme, size) {
  const { dark, paper, grid } = theme;
  let text = JSON.stringify({ data: spec.data ?? [], layout: spec.layout ?? {} });
  if (dark) text = text.replace(HEX, (hex) => colours[hex] ?? hex);
  const { data, layout } = JSON.parse(text);
  layout.paper_bgcolor = paper;
  for (const [name, value] of Object.entries(layout)) {
    if (/^[xy]axis/.test(name)) value.gridcolor = grid;
  }
  if (size.factor !== 1) {
    scaleText(layout, size.factor);
    scaleText(data, size.factor);
    for (const side of Object.keys(layout.margin ?? {})) layout.margin[side] *= size.factor;
  }
  layout.width = size.width;
  layout.height = size.height;
  return { data, layout };
}

// Plotly draws all panels of a plot anew whatever has changed. A figure whose layout.meta.below
// names some of its x axes is drawn as two plots, those panels and, over them, all the rest; a move
// redraws the one that it changes.
function layersOf({ data, layout }) {
  const below = layout.meta?.below;
  if (!below) return [{ data, layout }];
  const isBelow = (axis) => below.includes((axis ?? "x").replace(" domain", ""));
  return [true, false].map((wanted) => {
    const has = (axis) => isBelow(axis) === wanted;
    const own = { ...layout };
    for (const name of Object.keys(own)) {
      if (/^[xy]axis/.test(name) && !has(`x${name.slice(5)}`)) delete own[name];
    }
    for (const name of ["shapes", "annotations"]) {
      if (own[name]) own[name] = own[name].filter((item) => has(item.xref));
    }
    if (!wanted) own.paper_bgcolor = "rgba(0,0,0,0)";
    return { data: data.filter((trace) => has(trace.xaxis)), layout: own };
  });
}

// No mode bar: its buttons would cover the legend, and one of them offers to share the figure.
const CONFIG = { displayModeBar: false, displaylogo: false, responsive: false };

async function render({ model, el: whole }) {
  const el = document.createElement("div");
  whole.classList.add("falab-figure");
  const stopLine = pinnedLine(model, whole);
  whole.append(el);
  const stopRow = figureRow(model, whole);
  el.classList.add("falab-live-figure");
  el.dataset.faWidget = "live-figure";
  el.dataset.faRedraws = "0";
  el.setAttribute("role", "img");
  const place = document.createElement("div");
  place.className = "falab-live-figure-place";
  el.append(place);

  let Plotly = null;
  let alive = true;
  let drawing = false;
  let again = false;
  let plots = []; // {node, drawn}: each layer's place, and as text what is drawn there
  let reported = model.get("input_stamp"); // a page that is reloaded has seen no movement yet

  const describe = () => {
    el.setAttribute("aria-label", model.get("alt"));
    if (!Plotly) place.textContent = model.get("alt");
  };

  // One layer is the place itself; several lie over one another in it.
  function makePlots(count) {
    if (plots.length === count) return;
    for (const { node } of plots) Plotly.purge(node);
    place.replaceChildren();
    place.classList.toggle("falab-layered", count > 1);
    plots = Array.from({ length: count }, () => {
      const node = count > 1 ? document.createElement("div") : place;
      if (node !== place) place.append(node);
      return { node, drawn: "" };
    });
  }
  async function drawLayers(layers) {
    makePlots(layers.length);
    for (const [number, { data, layout }] of layers.entries()) {
      const wanted = layers.length > 1 ? JSON.stringify([data, layout]) : null;
      if (wanted !== null && wanted === plots[number].drawn) continue;
      plots[number].drawn = "";
      await Plotly.react(plots[number].node, data, layout, CONFIG);
      plots[number].drawn = wanted;
    }
  }

  let theme = null;
  let width = 0; // of el, in px; 0 while it is out of sight
  let height = 0; // the same, where the figure fills it

  async function draw() {
    if (!alive || !Plotly || width === 0) return;
    if (drawing) {
      again = true; // the newest spec wins, those between are not drawn
      return;
    }
    drawing = true;
    const start = performance.now();
    const stamp = model.get("input_stamp");
    try {
      theme ??= readTheme(el);
      // Narrower, the panels' words would collide: the figure scrolls sideways instead.
      const own = { width: model.get("least_width"), height: model.get("spec").layout?.height };
      const size = sizeOf({ width, height: el.clientHeight }, own, theme);
      // The place is as wide as what is in it: it contains its own paint, and would clip the rest.
      const least = size.width > width ? `${size.width}px` : "";
      if (place.style.minWidth !== least) {
        place.style.minWidth = least;
        // Scrolled by keyboard, too; Lab's command mode would take the arrows for itself.
        el.toggleAttribute("tabindex", Boolean(least));
        if (least) el.tabIndex = 0;
        el.dataset.lmSuppressShortcuts = String(Boolean(least));
      }
      const { data, layout } = themed(
        model.get("spec"), model.get("dark_colours"), theme, size);
      await drawLayers(layersOf({ data, layout }));
      const end = performance.now();
      el.dataset.faRedraws = String(Number(el.dataset.faRedraws) + 1);
      el.dataset.faRedrawMs = (end - start).toFixed(1);
      const report = { redraw_ms: end - start, input_ms: 0 };
      if (stamp && stamp !== reported) {
        report.input_ms = performance.timeOrigin + end - stamp;
        reported = stamp;
        el.dataset.faInputMs = report.input_ms.toFixed(1);
        model.send(report);
      }
    } finally {
      drawing = false;
    }
    if (again) {
      again = false;
      draw();
    }
  }

  describe();
  const fade = () => place.classList.toggle("falab-stale", model.get("stale"));
  fade();
  model.on("change:alt", describe);
  model.on("change:spec", draw);
  model.on("change:stale", fade);

  const themeWatch = new MutationObserver(() => {
    theme = null;
    draw();
  });
  themeWatch.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-name"] });
  const main = document.getElementById("main");
  if (main) themeWatch.observe(main, { attributes: true, attributeFilter: ["class"] });
  const sizeWatch = new ResizeObserver(() => {
    const fill = el.clientWidth > 0 && getComputedStyle(el).getPropertyValue("--falab-fill");
    const high = fill && fill.trim() === "1" ? el.clientHeight : 0;
    if (el.clientWidth === width && high === height) return;
    [width, height] = [el.clientWidth, high];
    theme = null; // the size of text may follow the window's
    draw();
  });
  sizeWatch.observe(el);

  const late = setTimeout(() => {
    place.textContent = `${model.get("alt")} (Not drawn yet: the kernel has not answered.)`;
  }, 2 * ASK_AGAIN_MS);
  loadPlotly(model, () => alive).then((loaded) => {
    clearTimeout(late);
    if (!alive) return;
    Plotly = loaded;
    place.textContent = "";
    draw();
  });

  return () => {
    alive = false;
    clearTimeout(late);
    stopLine();
    stopRow();
    themeWatch.disconnect();
    sizeWatch.disconnect();
    model.off("change:alt", describe);
    model.off("change:spec", draw);
    model.off("change:stale", fade);
    for (const { node } of plots) Plotly.purge(node);
  };
}

export default { render };
