// Text behind a summary. The content is put in when it is opened: closed, it costs a redraw nothing.

function render({ model, el }) {
  el.innerHTML = "<details class='falab-fold'><summary></summary><div></div></details>";
  const details = el.firstElementChild;
  const [summary, content] = details.children;
  // Lab's command mode would take Enter for itself.
  summary.dataset.lmSuppressShortcuts = "true";

  const showSummary = () => {
    summary.textContent = model.get("summary");
  };
  const show = () => {
    if (details.open) content.innerHTML = model.get("value");
  };
  const follow = () => {
    details.open = model.get("opened");
  };
  details.addEventListener("toggle", () => {
    show();
    if (model.get("opened") !== details.open) {
      model.set("opened", details.open);
      model.save_changes();
    }
  });
  model.on("change:opened", follow);
  model.on("change:summary", showSummary);
  model.on("change:value", show);
  showSummary();
  follow();
  return () => {
    model.off("change:summary", showSummary);
    model.off("change:value", show);
    model.off("change:opened", follow);
  };
}

export default { render };
