// Attention of one text: one head as lines or as a matrix, or all heads; base and ablated beside each other.

import { largestOf } from "./attention.js";
import { element, fillSelect } from "./dom.js";
import { sideBySide, savePng, saveSvg } from "./export.js";
import { headView } from "./head_view.js";
import { matrixView } from "./matrix_view.js";
import { modelView } from "./model_view.js";
import { hideTooltip } from "./tooltip.js";

const VIEWER_TABS = [["head", "Lines"], ["matrix", "Matrix"], ["model", "All heads"]];

// Props:
//   base: attention as `readAttention` returns it. ablated: the same with heads ablated, or null.
//   layer, head: the selected head. view: "head", "matrix" or "model".
//   captions: [of base, of ablated]. off: a Set of "layer.head" that are switched off in `ablated`.
//   name: of files that are saved, without suffix.
//   quantity: what the weights are: "weight", or "share of norms".
//   tools: more nodes beside the buttons that save.
//   onChange({layer, head, view}): the user selected another head or view.
export function attentionViewer(props) {
  const state = {
    ablated: null, layer: 0, head: 0, view: "head", captions: ["Base", "Ablated"], off: new Set(), name: "attention",
    quantity: "weight", tools: [], ...props,
  };
  const layers = element("select", { onchange: () => select({ layer: Number(layers.value) }) });
  const heads = element("select", { onchange: () => select({ head: Number(heads.value) }) });
  const tabs = VIEWER_TABS.map(([view, text]) => element("button", {
    type: "button", role: "tab", "data-view": view, onclick: () => select({ view }), onkeydown: onTabKey,
  }, text));
  const panels = element("div", { class: "viewer-panels", role: "tabpanel" });
  const note = element("p", { class: "note viewer-note" });
  const save = (text, action) => element("button", {
    type: "button", "aria-label": `Save as ${text}`, title: `Save as ${text}`, onclick: () => saveAll(action),
  }, text);
  const node = element("div", { class: "attention-viewer" },
    element("div", { class: "controls viewer-controls" },
      element("div", { class: "viewer-tabs", role: "tablist", "aria-label": "View" }, tabs),
      element("label", { class: "viewer-select" }, "Layer ", layers),
      element("label", { class: "viewer-select" }, "Head ", heads),
      element("div", { class: "viewer-save" }, "Save as", save("SVG", saveSvg), save("PNG", savePng), state.tools)),
    panels, note);
  const made = new Map(); // views by kind and number, which are kept
  let views = [], kind = null, last = state.view === "matrix" ? "matrix" : "head";

  function select(changed) {
    update(changed);
    state.onChange?.({ layer: state.layer, head: state.head, view: state.view });
  }

  function onTabKey(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const index = (VIEWER_TABS.findIndex(([view]) => view === state.view) + step + 3) % 3;
    select({ view: VIEWER_TABS[index][0] });
    tabs[index].focus();
  }

  function saveAll(action) {
    const what = { head: "lines", matrix: "matrix", model: "all-heads" }[state.view];
    const name = [state.name, ...(state.view === "model" ? [] : [`${state.layer}.${state.head}`]), what].join("-");
    action(sideBySide(views.map(view => view.svg()), state.ablated ? state.captions : [""]), name);
  }

  function update(changed = {}) {
    Object.assign(state, changed);
    const { base } = state;
    node.hidden = !base;
    if (!base) return;
    state.layer = Math.min(state.layer, base.layers - 1);
    state.head = Math.min(state.head, base.heads - 1);
    if (state.view !== "model") last = state.view;
    drawControls();
    const shown = [base, ...(state.ablated ? [state.ablated] : [])];
    const requested = `${state.view} ${shown.length}`;
    if (made.has(requested)) {
      views = made.get(requested);
      views.forEach((view, index) => view.update(viewProps(shown[index], index)));
    } else {
      views = shown.map((attention, index) => makeView(attention, index));
      if (state.view === "head") scrollTogether(views.map(view => view.scroll));
      made.set(requested, views);
    }
    if (requested !== kind) showViews();
    kind = requested;
  }

  function showViews() {
    const hadFocus = panels.contains(document.activeElement);
    hideTooltip();
    panels.replaceChildren(...views.map(view => view.node));
    if (hadFocus) tabs.find(tab => tab.dataset.view === state.view).focus();
  }

  function drawControls() {
    const numbers = count => Array.from({ length: count }, (_, index) => [index, String(index)]);
    fillSelect(layers, numbers(state.base.layers), state.layer);
    fillSelect(heads, numbers(state.base.heads), state.head);
    for (const tab of tabs) {
      const selected = tab.dataset.view === state.view;
      tab.setAttribute("aria-selected", String(selected));
      tab.setAttribute("tabindex", selected ? 0 : -1);
    }
    for (const select of node.querySelectorAll(".viewer-select")) select.hidden = state.view === "model";
    note.textContent = noteOf(state);
  }

  function makeView(attention, index) {
    const make = { head: headView, matrix: matrixView, model: modelView }[state.view];
    return make(viewProps(attention, index));
  }

  function viewProps(attention, index) {
    const caption = state.ablated ? state.captions[index] : "", { layer, head } = state;
    if (state.view === "model") {
      const onSelect = (chosenLayer, chosenHead) => select({ layer: chosenLayer, head: chosenHead, view: last });
      return { attention, layer, head, caption, off: index ? state.off : new Set(), onSelect };
    }
    const onToken = (side, token) => views.forEach((view, other) => {
      if (other !== index) view.showToken?.(side === null ? null : [side, token]);
    });
    return {
      tokens: attention.tokens, matrix: attention.matrix(layer, head), caption, limit: limitOf(state), onToken,
      description: `Attention of head ${layer}.${head}${caption && `, ${caption}`}`,
    };
  }

  update();
  return { node, update, state: () => ({ layer: state.layer, head: state.head, view: state.view }) };
}

// Long texts: base and ablated show the same tokens.
function scrollTogether(nodes) {
  for (const node of nodes) node.addEventListener("scroll", () => {
    for (const other of nodes) if (other !== node) other.scrollTop = node.scrollTop;
  });
}

// The largest weight of the selected head, in base and ablated together: both are drawn on one scale.
function limitOf({ base, ablated, layer, head }) {
  return Math.max(...[base, ablated].filter(Boolean).map(attention => largestOf(attention.matrix(layer, head)))) || 1;
}

function noteOf(state) {
  if (state.view === "model") {
    return "Rows attend to columns. Colours are relative to each head's largest weight (at least 0.2). Select a head to "
      + "see its weights.";
  }
  const limit = limitOf(state), [full, half] = [limit.toFixed(2), (limit / 4).toPrecision(2)];
  return state.view === "head"
    ? `The strongest line is a ${state.quantity} of ${full}. Point at a token to see its weights.`
    : `Full colour is a ${state.quantity} of ${full}, half colour ${half}. Point at a cell to see its weight.`;
}
