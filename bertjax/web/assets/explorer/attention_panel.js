// The attention of the selected head, without and with the heads that are off.

import { readAttention } from "../shared/attention.js";
import { attentionViewer } from "../shared/attention_viewer.js";
import { element, fillSelect } from "../shared/dom.js";

// The panel. props: onView({layer, head, view}); onWeights(weights); onToggle(layer, head).
// show(texts): attention of the server, a promise; fail(message): a line in its place, or nothing; update(state): draw again.
export function attentionPanel({ onView, onWeights, onToggle }) {
  const byId = id => document.getElementById(`attention-${id}`);
  const weights = element("select", {
    id: "weights", "aria-label": "Weights", onchange: () => onWeights(weights.value),
  });
  fillSelect(weights, [["attention", "attention weights"], ["norms", "norm-weighted attention"]]);
  const toggle = element("button", { type: "button", id: "switch", onclick: () => onToggle(state.layer, state.head) });
  const text = element("select", { id: "attention-text", "aria-label": "Text", hidden: true, onchange: chooseText });
  let state = null, readings = [], chosen = 0, viewer = null, calls = 0;
  byId("controls").append(toggle, weights, text);

  function chooseText() {
    chosen = Number(text.value);
    draw();
  }

  async function show(texts) {
    calls += 1;
    const call = calls;
    const read = await Promise.all(texts.map(({ base, ablated }) =>
      Promise.all([readAttention(base), ablated && readAttention(ablated)])));
    if (call !== calls) return;
    readings = read;
    chosen = Math.min(chosen, read.length - 1);
    fillSelect(text, read.map((_, index) => [index, ["first text", "second text"][index]]), chosen);
    text.hidden = read.length === 1;
    byId("note").textContent = "";
    draw();
  }

  function fail(message) {
    calls += 1;
    readings = [];
    byId("note").textContent = message;
    draw();
  }

  function update(changed) {
    state = changed;
    weights.value = state.weights;
    draw();
  }

  function draw() {
    const [layer, head] = [state.layer ?? 0, state.head ?? 0], name = `${layer}.${head}`;
    const isOff = state.off.includes(name);
    document.getElementById("attention-title").textContent = `Attention of head ${name}${isOff ? " (off)" : ""}`;
    toggle.textContent = isOff ? `Switch head ${name} on` : `Switch head ${name} off`;
    toggle.disabled = state.layer === null;
    byId("body").hidden = !readings.length;
    if (!readings.length) return;
    const [base, ablated] = readings[chosen];
    const which = state.off.length === 1 ? `head ${state.off[0]}` : `${state.off.length} heads`;
    const captions = ["Before", `After: ${which} off`];
    const quantity = state.weights === "norms" ? "share of norms" : "weight";
    const props = { base, ablated, layer, head, view: state.view, captions, off: new Set(state.off), quantity };
    if (viewer) {
      viewer.update(props);
      return;
    }
    viewer = attentionViewer({ ...props, name: "bertjax-attention", onChange: onView });
    byId("body").replaceChildren(viewer.node);
  }

  return { show, fail, update };
}
