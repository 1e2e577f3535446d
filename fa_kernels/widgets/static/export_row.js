// The row that writes a figure into files, folded away; the kernel writes them and says which.

function exportRow(model, whole) {
  const { words = {}, venues = [], formats = [] } = model.get("export_offer");
  const row = document.createElement("details");
  row.className = "falab-export";
  row.dataset.faExport = "";
  const summary = document.createElement("summary");
  summary.textContent = words.summary;
  const content = document.createElement("div");
  row.append(summary, content);
  whole.append(row);

  const choice = (name, options) => {
    const label = document.createElement("label");
    const select = document.createElement("select");
    select.dataset.faExport = name;
    select.append(...options.map(([value, text]) => new Option(text, value)));
    select.addEventListener("change", () => {
      model.set(`export_${name}`, select.value);
      model.save_changes();
    });
    label.append(words[name], select);
    return label;
  };
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = words.button;
  // Not `disabled`: the focus would be lost to whoever pressed it by key. The kernel refuses a
  // second export while one is being written. What is chosen goes with the message: a change of
  // it may be held back until the kernel has answered the one before.
  button.addEventListener("click", () => {
    const chosen = { venue: model.get("export_venue"), format: model.get("export_format") };
    model.send({ export: chosen });
  });
  const said = document.createElement("span");
  said.setAttribute("role", "status");

  const follow = () => {
    for (const select of content.querySelectorAll("select")) {
      select.value = model.get(`export_${select.dataset.faExport}`);
    }
    button.setAttribute("aria-disabled", String(model.get("export_busy")));
    said.textContent = model.get("export_said");
  };
  // Closed, it costs a figure nothing but its summary.
  row.addEventListener("toggle", () => {
    if (!row.open || content.childElementCount) return;
    content.append(choice("venue", venues), choice("format", formats), button, said);
    // Lab's command mode would take their keys; it asks the focused element itself.
    for (const node of content.querySelectorAll("select, button")) {
      node.dataset.lmSuppressShortcuts = "true";
    }
    follow();
  });
  summary.dataset.lmSuppressShortcuts = "true";
  const changes = "change:export_venue change:export_format change:export_busy change:export_said";
  model.on(changes, follow);
  return () => model.off(changes, follow);
}
