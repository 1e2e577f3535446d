// A native list box with its label.

function render({ model, el }) {
  // Every widget runs this module anew, so the counter belongs to the page. crypto.randomUUID is
  // not there where a notebook server is reached without encryption under another name.
  globalThis.falabIds = (globalThis.falabIds ?? 0) + 1;
  const id = `falab-choice-${globalThis.falabIds}`;
  el.classList.add("falab-choice");
  el.dataset.faWidget = "choice";
  el.dataset.faChoice = model.get("label");
  el.innerHTML = `<label for="${id}"></label><select id="${id}"></select>`;
  const label = el.querySelector("label");
  const select = el.querySelector("select");
  // Lab's command mode would take the arrow keys, and letters as its shortcuts.
  select.dataset.lmSuppressShortcuts = "true";

  function showOptions() {
    label.textContent = model.get("label");
    select.replaceChildren(...model.get("texts").map((text) => new Option(text)));
    showValue();
  }

  function showValue() {
    select.selectedIndex = model.get("index");
    select.disabled = model.get("disabled");
    select.title = model.get("about");
    el.dataset.faValue = model.get("texts")[model.get("index")] ?? "";
  }

  select.addEventListener("change", () => {
    model.set("stamp", performance.timeOrigin + performance.now());
    model.set("index", select.selectedIndex);
    model.save_changes();
    showValue();
  });

  model.on("change:label change:texts", showOptions);
  model.on("change:index change:disabled change:about", showValue);
  showOptions();
}

export default { render };
