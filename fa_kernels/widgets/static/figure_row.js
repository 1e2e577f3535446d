// The row under a figure: Reset, Pin, Copy call and, folded away, the export; and above the figure
// what is pinned behind it.

function figureRow(model, whole) {
  const words = model.get("row_words");
  const row = document.createElement("div");
  row.className = "falab-row";
  row.setAttribute("role", "group");
  row.setAttribute("aria-label", words.label);
  whole.append(row);
  const said = document.createElement("span");
  said.setAttribute("role", "status");

  const buttons = {};
  const button = (name, act) => {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = words[name];
    made.title = words[`${name}_why`];
    made.dataset.faRow = name;
    // Lab's command mode would take their keys; it asks the focused element itself.
    made.dataset.lmSuppressShortcuts = "true";
    made.addEventListener("click", act);
    buttons[name] = made;
    row.append(made);
  };
  button("reset", () => model.send({ row: "reset" }));
  button("pin", () => model.send({ row: model.get("pinned") ? "unpin" : "pin" }));
  button("copy", copy);
  const stopExport = exportRow(model, row);
  row.append(said);

  let copied = ""; // the call that `said` speaks of
  async function copy() {
    const call = model.get("call");
    copied = call;
    try {
      // Without encryption the clipboard is there on this machine only; a page may also be refused it.
      await navigator.clipboard.writeText(call);
      said.replaceChildren(words.copied, " ", code(call));
    } catch {
      byHand(call);
    }
  }
  function code(call) {
    const shown = document.createElement("code");
    shown.textContent = call;
    return shown;
  }
  function byHand(call) {
    const label = document.createElement("label");
    const field = document.createElement("input");
    field.readOnly = true;
    field.value = call;
    field.dataset.lmSuppressShortcuts = "true";
    label.append(words.by_hand, field);
    said.replaceChildren(label);
    field.focus();
    field.select();
  }

  const follow = () => {
    const actions = model.get("actions");
    for (const [name, made] of Object.entries(buttons)) {
      // One that has the focus stays: it would be lost to whoever pressed it by key.
      made.hidden = !actions.includes(name) && made !== document.activeElement;
    }
    buttons.pin.setAttribute("aria-pressed", String(model.get("pinned")));
    if (model.get("row_said")) said.textContent = model.get("row_said");
    else if (copied !== model.get("call")) said.replaceChildren();
  };
  follow();
  const changes = "change:actions change:pinned change:call change:row_said";
  model.on(changes, follow);
  return () => {
    stopExport();
    model.off(changes, follow);
  };
}

function pinnedLine(model, whole) {
  const place = document.createElement("div");
  place.className = "falab-pinned";
  place.dataset.faPinned = "";
  whole.append(place);
  const follow = () => {
    const { line = "", numbers = [], rest = [] } = model.get("pinned_said");
    place.hidden = !line;
    const first = document.createElement("p");
    first.textContent = line;
    const list = document.createElement("ul");
    for (const [name, words] of [...numbers, ...rest]) {
      const item = document.createElement("li");
      const quantity = document.createElement("b");
      quantity.textContent = name;
      item.append(quantity, ` ${words}`);
      item.classList.toggle("falab-pinned-rest", list.childElementCount >= numbers.length);
      list.append(item);
    }
    place.replaceChildren(first, ...(list.childElementCount ? [list] : []));
  };
  follow();
  model.on("change:pinned_said", follow);
  return () => model.off("change:pinned_said", follow);
}
