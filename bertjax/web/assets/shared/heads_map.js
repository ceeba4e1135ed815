// A map of numbers: one cell for each attention head, layers x heads.

import { divergingScale, inkOn, onTheme } from "./colours.js";
import { element, onWidth, setAttributes, svgElement, textWidth, uniqueId } from "./dom.js";
import { plain, signed, withUnit } from "./numbers.js";
import { hideTooltip, showTooltip } from "./tooltip.js";

const MAP_LEFT = 44; // pixels for the numbers of the layers
const MAP_TOP = 38; // for the numbers of the heads
const MAP_FONT = "system-ui, sans-serif";

// Props:
//   layers, heads: the size of the grid.
//   values: values[layer][head], a number or null (pending, or no value).
//   limit: the size of a value at the end of the scale of colours.
//   unit, digits: how values are written. quantity: what they are, below the scale ("change of log-probability").
//   selected: [layer, head] or null. off: a Set of "layer.head" that are switched off (hatched).
//   marks: a Set of "layer.head" that are significant; they have a dot if `tested`.
//   lossIsNegative: whether negative values are losses (true) or positive ones are. fromZero: values are never
//     negative, and the scale begins at no value.
//   describe(layer, head): text of the tooltip; by default the head and its value.
//   onSelect(layer, head): click or Enter. onToggle(layer, head): Space, or a click with Shift, Ctrl or Cmd.
//   clickToggles: whether a plain click calls onToggle too.
//   onToggleLayer(layer): click on the number of a layer; without it the numbers are no buttons.
//   label: name of the map for people who hear the page.
export function headsMap(props) {
  const state = {
    values: [], limit: 1, unit: "", digits: 2, quantity: "", selected: null, off: new Set(), marks: new Set(),
    tested: false, lossIsNegative: true, fromZero: false, clickToggles: false, label: "Map of heads", ...props,
  };
  const view = { node: element("div", { class: "heads-map" }), update, svg: () => svg };
  const hatch = uniqueId("hatch");
  let svg = null, cells = [], width = 0, current = state.selected ?? [0, 0];

  const isSelected = (layer, head) => state.selected?.[0] === layer && state.selected?.[1] === head;
  const valueOf = (layer, head) => state.values[layer]?.[head] ?? null;
  const describe = (layer, head) => state.describe?.(layer, head) ?? defaultText(state, layer, head, valueOf(layer, head));

  function update(changed = {}) {
    const resized = ["layers", "heads", "onToggleLayer"].some(name => name in changed && changed[name] !== state[name]);
    Object.assign(state, changed);
    if (changed.selected) current = [...changed.selected];
    if (!width) return;
    if (resized || !svg) build();
    paint();
  }

  function build() {
    current = [Math.min(current[0], state.layers - 1), Math.min(current[1], state.heads - 1)];
    svg = svgElement("svg", { role: "grid", "aria-label": state.label, class: "heads-map-svg" });
    cells = Array.from({ length: state.layers }, (_, layer) =>
      Array.from({ length: state.heads }, (_, head) => mapCell(layer, head, events(layer, head))));
    const rows = cells.map((row, layer) => svgElement("g", { role: "row" },
      layerLabel(layer, state.onToggleLayer), row.map(cell => cell.node)));
    const top = svgElement("g", { class: "map-heads", "aria-hidden": "true" });
    svg.append(hatchPattern(hatch), top, ...rows, svgElement("rect", { class: "map-selected" }),
      svgElement("g", { class: "map-scale" }));
    view.node.replaceChildren(svg);
  }

  function events(layer, head) {
    return {
      onclick: event => {
        current = [layer, head];
        const toggles = event.shiftKey || event.ctrlKey || event.metaKey;
        if (!toggles) state.onSelect?.(layer, head);
        if (toggles || state.clickToggles) state.onToggle?.(layer, head);
        paint();
      },
      onkeydown: event => onKey(event, layer, head),
      onfocus: event => { current = [layer, head]; rove(); show(event, layer, head); },
      onblur: hideTooltip,
      onpointerenter: event => show(event, layer, head),
      onpointerleave: hideTooltip,
    };
  }

  function show(event, layer, head) {
    showTooltip(describe(layer, head), event.currentTarget.getBoundingClientRect());
  }

  function onKey(event, layer, head) {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const ends = { Home: [layer, 0], End: [layer, state.heads - 1], PageUp: [0, head], PageDown: [state.layers - 1, head] };
    const move = moves[event.key];
    const to = move ? [layer + move[0], head + move[1]] : ends[event.key];
    if (to) cells[to[0]]?.[to[1]]?.node.focus();
    else if (event.key === "Enter") state.onSelect?.(layer, head);
    else if (event.key === " ") state.onToggle?.(layer, head);
    else if (event.key === "Escape") hideTooltip();
    else return;
    event.preventDefault();
  }

  function rove() {
    for (const row of cells) for (const cell of row) {
      cell.node.setAttribute("tabindex", cell.layer === current[0] && cell.head === current[1] ? 0 : -1);
    }
  }

  function paint() {
    const grid = mapLayout(state, width);
    const end = grid.left + grid.cell * state.heads, bottom = MAP_TOP + grid.height * state.layers;
    drawHeads(svg.querySelector(".map-heads"), state, grid);
    svg.querySelectorAll(".map-layer").forEach((label, layer) =>
      setAttributes(label, { x: grid.left - 8, y: MAP_TOP + (layer + 0.5) * grid.height }));
    const colourOf = mapColours(state);
    for (const cell of cells.flat()) {
      const { node, layer, head } = cell;
      paintCell(cell, grid, state, { value: valueOf(layer, head), colourOf, hatch });
      node.setAttribute("aria-label", describe(layer, head));
      node.setAttribute("aria-selected", String(isSelected(layer, head)));
    }
    paintSelected(svg.querySelector(".map-selected"), state, grid);
    const scale = { left: grid.left, end, top: bottom + 10, width, colourOf };
    const height = drawScale(svg.querySelector(".map-scale"), state, scale);
    const whole = Math.max(width, end + 2); // a map that does not fit scrolls
    setAttributes(svg, { width: whole, height, viewBox: `0 0 ${whole} ${height}` });
    rove();
  }

  onWidth(view.node, found => { width = found; update(); });
  onTheme(() => update());
  return view;
}

function defaultText(state, layer, head, value) {
  const off = state.off.has(`${layer}.${head}`) ? " (off)" : "";
  const text = value === null ? "no value" : withUnit(value, state.digits, state.unit);
  return `head ${layer}.${head}${off}: ${text}`;
}

// Sizes in pixels: cells are at most 64 wide, and 26 to 34 high.
function mapLayout(state, width) {
  const cell = Math.max(14, Math.min(64, (width - MAP_LEFT - 4) / state.heads));
  const height = Math.max(22, Math.min(34, 0.75 * cell + 6));
  return { left: MAP_LEFT, cell, height, size: cell >= 50 ? 12 : cell >= 38 ? 11 : 10 };
}

function mapCell(layer, head, listeners) {
  const parts = {
    box: svgElement("rect", { class: "map-box" }),
    hatch: svgElement("rect", { class: "map-hatch" }),
    text: svgElement("text", { class: "map-value", "text-anchor": "middle", "dominant-baseline": "central" }),
    dot: svgElement("circle", { class: "map-dot" }),
  };
  const attributes = { role: "gridcell", tabindex: -1, class: "map-cell", "data-head": `${layer}.${head}`, ...listeners };
  const node = svgElement("g", attributes, parts.box, parts.hatch, parts.text, parts.dot);
  return { layer, head, node, ...parts };
}

function layerLabel(layer, onToggleLayer) {
  const attributes = { class: "map-layer", "text-anchor": "end", "dominant-baseline": "central", role: "rowheader" };
  if (onToggleLayer) {
    const press = event => { event.preventDefault(); onToggleLayer(layer); };
    Object.assign(attributes, {
      class: "map-layer map-button", tabindex: 0, "aria-label": `Switch layer ${layer} off or on`, onclick: press,
      onkeydown: event => { if (event.key === "Enter" || event.key === " ") press(event); },
    });
  }
  return svgElement("text", attributes, String(layer));
}

function hatchPattern(id) {
  const size = 6;
  return svgElement("defs", {}, svgElement("pattern", {
    id, width: size, height: size, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)",
  }, svgElement("line", { class: "map-hatch-line", x1: 0, y1: 0, x2: 0, y2: size })));
}

function drawHeads(group, state, grid) {
  const every = Math.ceil(20 / grid.cell);
  const numbers = Array.from({ length: state.heads }, (_, head) => head).filter(head => head % every === 0);
  const middle = grid.left + (grid.cell * state.heads) / 2;
  group.replaceChildren(
    svgElement("text", { class: "map-title", x: middle, y: 12, "text-anchor": "middle" }, "head"),
    svgElement("text", {
      class: "map-title", "text-anchor": "middle",
      transform: `translate(12 ${MAP_TOP + (grid.height * state.layers) / 2}) rotate(-90)`,
    }, "layer"),
    ...numbers.map(head => svgElement("text", {
      class: "map-number", "text-anchor": "middle", x: grid.left + (head + 0.5) * grid.cell, y: MAP_TOP - 8,
    }, String(head))));
}

// The colour of a value.
function mapColours(state) {
  const scale = divergingScale();
  return value => {
    const fraction = value / (state.limit || 1);
    return scale(state.fromZero ? Math.max(0, fraction) : state.lossIsNegative ? fraction : -fraction);
  };
}

function paintCell(cell, grid, state, { value, colourOf, hatch }) {
  const x = grid.left + cell.head * grid.cell, y = MAP_TOP + cell.layer * grid.height;
  const name = `${cell.layer}.${cell.head}`, off = state.off.has(name);
  const box = { x: x + 0.75, y: y + 0.75, width: grid.cell - 1.5, height: grid.height - 1.5, rx: 2 };
  const drawn = value !== null && !off;
  const fill = drawn ? colourOf(value) : null;
  setAttributes(cell.box, { ...box, fill: fill ?? "none", class: drawn ? "map-box" : "map-box map-empty" });
  setAttributes(cell.hatch, { ...box, fill: off ? `url(#${hatch})` : "none" });
  const text = drawn ? (state.fromZero ? plain : signed)(value, state.digits) : "";
  const fits = grid.cell >= 30 && textWidth(text, `${grid.size}px ${MAP_FONT}`) <= grid.cell - 6;
  const ink = drawn ? inkOn(fill) : null;
  setAttributes(cell.text, { x: x + grid.cell / 2, y: y + grid.height / 2, "font-size": grid.size, fill: ink });
  cell.text.textContent = fits ? text : "";
  const marked = state.tested && drawn && state.marks.has(name);
  const corner = { cx: x + grid.cell - 6.5, cy: y + 6.5, r: 2.5 };
  const at = fits ? corner : { cx: x + grid.cell / 2, cy: y + grid.height / 2, r: 3 };
  setAttributes(cell.dot, { ...at, fill: marked ? ink : "none" });
}

function paintSelected(outline, state, grid) {
  const [layer, head] = state.selected ?? [0, 0];
  setAttributes(outline, {
    x: grid.left + head * grid.cell - 0.5, y: MAP_TOP + layer * grid.height - 0.5, rx: 3,
    width: grid.cell + 1, height: grid.height + 1, visibility: state.selected ? "visible" : "hidden",
  });
}

// The scale of colours, with what the dot means: beside it, or below if the map is narrow. Returns the lowest pixel.
function drawScale(group, state, { left, end, top, width, colourOf }) {
  const long = Math.min(220, end - left), steps = 44, start = state.fromZero ? 0 : -state.limit;
  const boxes = Array.from({ length: steps }, (_, step) => svgElement("rect", {
    x: left + (step * long) / steps, y: top, width: long / steps + 0.5, height: 9,
    fill: colourOf(start + ((step + 0.5) / steps) * (state.limit - start)),
  }));
  const seen = state.values.flat().filter(value => value !== null && value !== undefined);
  const low = !state.fromZero && seen.some(value => value < -state.limit * 1.001);
  const high = seen.some(value => value > state.limit * 1.001);
  const text = (x, y, words, anchor = "start") =>
    svgElement("text", { class: "map-number", x, y, "text-anchor": anchor }, words);
  const numbers = [
    text(left, top + 23, state.fromZero ? "0" : (low ? "≤ " : "") + signed(-state.limit, state.digits)),
    text(left + long, top + 23, (high ? "≥ " : "") + (state.fromZero ? plain : signed)(state.limit, state.digits), "end"),
    ...(state.fromZero ? [] : [text(left + long / 2, top + 23, "0", "middle")]),
  ];
  const unit = state.unit && state.quantity ? `(${state.unit})` : state.unit;
  const quantity = [state.quantity, unit].filter(Boolean).join(" ");
  const words = [quantity, state.tested ? "● significant (q < 0.05)" : ""].filter(Boolean);
  const beside = left + long + 14 + Math.max(0, ...words.map(one => textWidth(one, `12px ${MAP_FONT}`))) <= width;
  const [x, y, step] = beside ? [left + long + 14, top + 9, 15] : [left, top + 41, 16];
  group.replaceChildren(...boxes, ...numbers, ...words.map((one, index) => text(x, y + step * index, one)));
  return top + (beside || !words.length ? 30 : 30 + 16 * words.length);
}
