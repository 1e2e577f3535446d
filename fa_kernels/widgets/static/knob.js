// A native slider over a list of values, with the value as text beside it, which can be edited.

function render({ model, el }) {
  // Every widget runs this module anew, so the counter belongs to the page. crypto.randomUUID is
  // not there where a notebook server is reached without encryption under another name.
  globalThis.falabIds = (globalThis.falabIds ?? 0) + 1;
  const id = `falab-knob-${globalThis.falabIds}`;
  el.classList.add("falab-knob");
  el.dataset.faWidget = "knob";
  el.dataset.faKnob = model.get("label");
  el.innerHTML = `
    <div class="falab-knob-row">
      <label for="${id}"></label>
      <input type="range" id="${id}" min="0" step="1" aria-describedby="${id}-error">
      <input type="text" inputmode="numeric" spellcheck="false" autocomplete="off"
        aria-describedby="${id}-error">
      <span class="falab-knob-unit"></span>
    </div>
    <div class="falab-knob-error" id="${id}-error" role="alert"></div>`;
  const label = el.querySelector("label");
  const slider = el.querySelector("input[type=range]");
  const box = el.querySelector("input[type=text]");
  const unit = el.querySelector(".falab-knob-unit");
  const error = el.querySelector(".falab-knob-error");

  // Lab's command mode would take the arrow keys. It asks the focused element first, so the mark
  // has to be on the inputs themselves.
  for (const input of [slider, box]) input.dataset.lmSuppressShortcuts = "true";

  const nearest = (values, value) => {
    let best = 0;
    values.forEach((v, i) => {
      if (Math.abs(Math.log(v / value)) < Math.abs(Math.log(values[best] / value))) best = i;
    });
    return best;
  };

  function showText() {
    label.textContent = model.get("label");
    label.title = model.get("description");
    unit.textContent = model.get("unit");
    slider.max = String(model.get("values").length - 1);
    box.setAttribute("aria-label", `${model.get("description")}, ${model.get("unit")}`);
    slider.setAttribute("aria-label", model.get("description"));
  }

  function showValue() {
    const value = model.get("value");
    slider.value = String(nearest(model.get("values"), value));
    slider.setAttribute("aria-valuetext", `${value} ${model.get("unit")}`.trim());
    box.value = String(value);
    el.dataset.faValue = String(value);
  }

  function showError() {
    error.textContent = model.get("error");
    box.setAttribute("aria-invalid", model.get("error") ? "true" : "false");
  }

  slider.addEventListener("input", () => {
    model.set("stamp", performance.timeOrigin + performance.now());
    model.set("error", "");
    model.set("value", model.get("values")[Number(slider.value)]);
    model.save_changes();
    showValue();
  });
  let sent = null;
  function typed() {
    const text = box.value.trim();
    if (text === String(model.get("value"))) {
      model.set("error", "");
      model.save_changes();
    } else if (text !== sent || !model.get("error")) model.send({ typed: text });
    sent = text;
  }
  box.addEventListener("blur", typed);
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter") typed();
    if (event.key === "Escape") {
      showValue();
      typed();
    }
  });

  model.on("change:label change:description change:unit change:values", showText);
  model.on("change:value change:values", showValue);
  model.on("change:error", showError);
  showText();
  showValue();
  showError();
}

export default { render };
