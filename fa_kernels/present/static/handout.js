// The handout's figures, drawn once, at the size that they have on paper.
(() => {
  const { figures } = JSON.parse(document.getElementById("fa-data").textContent);
  // More than the least width: labels that just fit a notebook would touch the edge of the paper.
  const ROOM = 1.15;
  // The figures' smallest words have 12 px: 6 to 7 pt on paper, as in exported figures.
  const [LEAST, MOST] = [6, 7].map((pt) => ((pt / 72) * 96) / 12);
  const CONFIG = { staticPlot: true, displayModeBar: false, responsive: false };

  function draw(el) {
    const { stops: [{ spec }], least } = figures[el.dataset.faFigure];
    const { data, layout } = spec;
    const scale = Math.min(MOST, Math.max(LEAST, el.clientWidth / (least * ROOM)));
    const height = layout.height ?? 420;
    // Words beside a mark may stand in the margin; words at an axis' end would vanish so.
    for (const trace of data) if (/^(markers\+)?text$/.test(trace.mode)) trace.cliponaxis = false;
    Object.assign(layout, { width: el.clientWidth / scale, height, paper_bgcolor: "rgba(0,0,0,0)" });
    el.style.height = `${height * scale}px`;
    el.firstElementChild.style.cssText = `transform:scale(${scale})`;
    return Plotly.newPlot(el.firstElementChild, data, layout, CONFIG);
  }

  const all = [...document.querySelectorAll("[data-fa-figure]")].map(draw);
  Promise.all(all).then(() => { document.documentElement.dataset.faReady = "true"; });
})();
