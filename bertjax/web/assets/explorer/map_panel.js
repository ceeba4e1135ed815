// The map of the explorer: what switching each head off does to the target.

import { element, fillSelect } from "../shared/dom.js";
import { savePng, saveSvg } from "../shared/export.js";
import { headsMap } from "../shared/heads_map.js";
import { plain, share, signed } from "../shared/numbers.js";

const MODE_NAMES = {
  uniform: "attends to all tokens equally", zero: "outputs zero", mean: "outputs its mean over the examples",
};
const LOG_PROBABILITY = "log-probability";
const WITHIN_SCALE = 0.97; // share of the cells that the scale of colours covers; larger changes have its last colour
const HELP = "Select a cell to see the attention of its head. To switch a head off or on: double-click it, Shift-click it, "
  + "or press Space. Select the number of a layer to switch the whole layer.";

// A map that has no values yet. Fields:
//   base: the quantity with the heads that are off.
//   values[layer][head]: the quantity with this head off too; null if it is off already, or not known yet.
//   layers: how many are known. seconds: of the computation, null until it ends.
export function emptyMap({ layers, heads }) {
  const values = Array.from({ length: layers }, () => Array(heads).fill(null));
  return { base: null, quantity: null, values, layers: 0, seconds: null };
}

// A map with one more line of the server's stream.
export function withLine(map, line) {
  if ("base" in line) return { ...map, base: line.base, quantity: line.quantity };
  if ("layer" in line) {
    const values = map.values.map((row, layer) => (layer === line.layer ? line.values : row));
    return { ...map, layers: map.layers + 1, values };
  }
  return { ...map, seconds: line.seconds ?? map.seconds };
}

// What a value of a map changes: the difference, or per cent of probability if `change` is "probability".
export function changeOf(map, value, change) {
  if (value === null || value === undefined || map.base === null) return null;
  const asPoints = map.quantity === LOG_PROBABILITY && change === "probability";
  return asPoints ? 100 * (Math.exp(value) - Math.exp(map.base)) : value - map.base;
}

// The head whose change is largest: [layer, head], or null.
export function largestChange(map) {
  let best = null, most = -1;
  map.values.forEach((row, layer) => row.forEach((value, head) => {
    const size = value === null || map.base === null ? -1 : Math.abs(value - map.base);
    if (size > most) [best, most] = [[layer, head], size];
  }));
  return best;
}

// The panel. props: model; onSelect, onToggle(layer, head); onToggleLayer(layer); onMode(mode); onChange(change).
// update(props): map, or null if there is none yet; baseMap, that of the same question with no head off, or null; state;
// target, as text; message, in place of a map; stale, whether the map is older than the state; failed, whether it could
// not be computed.
export function mapPanel({ model, onSelect, onToggle, onToggleLayer, onMode, onChange }) {
  const mode = element("select", { id: "mode", onchange: () => onMode(mode.value) });
  const change = element("select", { id: "change", onchange: () => onChange(change.value) });
  const changeLabel = element("label", {}, "Show the change of ", change);
  const status = element("span", { class: "map-status note", role: "status" });
  const note = document.getElementById("map-note"), body = document.getElementById("map-body");
  const controls = document.getElementById("map-controls"), help = document.getElementById("map-help");
  let view = null, last = null;

  fillSelect(mode, model.modes.map(name => [name, `${name}: ${MODE_NAMES[name]}`]));
  fillSelect(change, [[LOG_PROBABILITY, "log-probability"], ["probability", "probability"]]);
  const save = (text, action) => element("button", {
    type: "button", id: `save-map-${text.toLowerCase()}`, "aria-label": `Save the map as ${text}`,
    onclick: () => { if (view) action(view.svg(), "bertjax-map"); },
  }, text);
  const saving = element("span", { class: "viewer-save" }, "Save as", save("SVG", saveSvg), save("PNG", savePng));
  controls.append(element("label", {}, "A head that is off ", mode), changeLabel, saving);
  help.append(HELP);

  function toggleAtDoubleClick(event) {
    const name = event.target.closest?.("[data-head]")?.dataset.head;
    if (name && !(event.shiftKey || event.ctrlKey || event.metaKey)) onToggle(...name.split(".").map(Number));
  }

  function update(shown) {
    last = { ...shown, map: shown.map ?? emptyMap(model) };
    const { map, state, message } = last;
    mode.value = state.mode;
    change.value = state.change;
    const hasMap = message === null, isScore = model.kind === "score" || model.kind === "similarity";
    changeLabel.hidden = !hasMap || isScore;
    saving.hidden = help.hidden = body.hidden = !hasMap;
    note.textContent = message ?? (isScore || shown.target ? noteOfMap(last, isScore ? model.kind : null) : "");
    if (!hasMap) return;
    const props = mapProps(last, model);
    if (view) view.update(props);
    else build(props);
    body.classList.toggle("is-stale", Boolean(shown.stale));
    status.textContent = statusOf(last, model);
  }

  function build(props) {
    view = headsMap({
      layers: model.layers, heads: model.heads, label: "Effect of each head", onSelect, onToggle, onToggleLayer,
      describe: (layer, head) => describeHead(last, layer, head), ...props,
    });
    view.node.addEventListener("dblclick", toggleAtDoubleClick);
    body.replaceChildren(view.node, status);
  }

  return { update };
}

// Small changes are written times 100, so that the numbers fit into the cells.
function mapProps({ map, state }, { kind }) {
  const changes = map.values.map(row => row.map(value => changeOf(map, value, state.change)));
  const name = kind === "score" || kind === "similarity" ? kind : state.change;
  const asPoints = name === "probability";
  const found = limitOfMap(changes.flat(), { probability: 0.1, [LOG_PROBABILITY]: 0.01 }[name] ?? 0.001);
  const small = name === LOG_PROBABILITY ? 0.1 : 0.5;
  const factor = !asPoints && found < small ? 100 : 1, limit = found * factor;
  const values = changes.map(row => row.map(value => (value === null ? null : value * factor)));
  const selected = state.layer === null ? null : [state.layer, state.head];
  return {
    values, limit, digits: limit >= (factor === 1 && !asPoints ? 10 : 1) ? 1 : 2, unit: asPoints ? "points" : "",
    quantity: `change of ${name}${factor === 1 ? "" : " × 100"}`, selected, off: new Set(state.off),
  };
}

// The end of the scale: 1, 2 or 5 times a power of ten that covers most of the values.
function limitOfMap(values, least) {
  const sizes = values.filter(value => value !== null).map(Math.abs).sort((a, b) => a - b);
  const most = Math.max(least, sizes[Math.floor(WITHIN_SCALE * (sizes.length - 1))] ?? 0);
  const power = 10 ** Math.floor(Math.log10(most) + 1e-9);
  return [1, 2, 5, 10].map(step => step * power).find(step => step >= most * 0.999);
}

function statusOf({ map, failed }, model) {
  if (failed) return "Not computed";
  if (map.seconds !== null) {
    const count = map.values.flat().filter(value => value !== null).length;
    return `${count} heads, switched off one at a time, in ${map.seconds.toFixed(map.seconds < 10 ? 2 : 0)} s`;
  }
  const first = "Computing (a new length of text takes longer once)";
  return map.layers ? `Computing: ${map.layers} of ${model.layers} layers` : first;
}

function noteOfMap({ state, target }, number) {
  const colours = target ? "Red: less likely. Blue: more likely." : "Red: lower. Blue: higher.";
  const off = state.off.length;
  if (!off) {
    return target
      ? `How much more or less likely ${target} becomes when this head alone is switched off. ${colours}`
      : `How the ${number} changes when this head alone is switched off. ${colours}`;
  }
  const which = off === 1 ? "One head is off already (hatched)" : `${off} heads are off already (hatched)`;
  return `${which}: each cell shows what switching this head off as well changes. A head that matters only now is a `
    + `backup head. ${colours}`;
}

// A tooltip: the head, its quantity before and after, and its change with no other head off.
function describeHead(shown, layer, head) {
  const { map, baseMap, state, target } = shown, name = `head ${layer}.${head}`;
  if (state.off.includes(`${layer}.${head}`)) return `${name} is off`;
  const value = map.values[layer]?.[head] ?? null;
  if (value === null) return `${name}: not computed yet`;
  const lines = [name];
  if (map.quantity === LOG_PROBABILITY) {
    const likely = target || "probability";
    lines.push(`${likely}: ${share(Math.exp(map.base))} → ${share(Math.exp(value))}`);
  }
  lines.push(`${map.quantity}: ${plain(map.base, 3)} → ${plain(value, 3)} (${signed(value - map.base, 3)})`);
  const alone = baseMap?.values[layer]?.[head];
  if (alone !== null && alone !== undefined) {
    lines.push(`change with no other head off: ${signed(alone - baseMap.base, 3)}`);
  }
  return lines.join("\n");
}
