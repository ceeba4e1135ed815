// Attention of one head as a matrix: a row for each query, a column for each key.

import { largestOf } from "./attention.js";
import { element, onWidth, setAttributes, shortened, svgElement, textWidth } from "./dom.js";
import { weightText } from "./numbers.js";
import { hideTooltip, showTooltip } from "./tooltip.js";

const MATRIX_SHADES = 48; // cells of about the same weight are one path
const MATRIX_FONT = "12px system-ui, sans-serif";

// Props: tokens, matrix, caption, description, limit as in `headView`. The strength of the colour is the square root of the
// weight, so that small weights can be seen.
export function matrixView(props) {
  const state = { caption: "", description: "Attention weights", limit: null, ...props };
  const caption = element("figcaption", {});
  const scroll = element("div", { class: "matrix-scroll" });
  const live = element("span", { class: "only-heard", "aria-live": "polite" });
  const view = { node: element("figure", { class: "matrix-view" }, caption, scroll, live), update, svg: () => svg };
  let svg = null, parts = null, grid = null, width = 0, chosen = null; // [query, key]

  function update(changed = {}) {
    if ("tokens" in changed && changed.tokens !== state.tokens) chosen = null;
    Object.assign(state, changed);
    caption.textContent = state.caption;
    caption.hidden = !state.caption;
    if (!width) return;
    if (!svg) build();
    paint();
  }

  function build() {
    parts = {
      names: svgElement("g", {}), cells: svgElement("g", {}), lines: svgElement("g", { class: "matrix-cross" }),
      area: svgElement("rect", {
        class: "matrix-area", tabindex: 0, role: "application",
        onpointermove: onPoint, onpointerdown: onPoint, onpointerleave: () => choose(null),
        onkeydown: onKey, onfocus: () => choose(chosen ?? [0, 0]), onblur: () => choose(null),
      }),
    };
    svg = svgElement("svg", { class: "matrix-svg", role: "group" }, parts.names, parts.cells, parts.area, parts.lines);
    scroll.replaceChildren(svg);
  }

  function paint() {
    const count = state.tokens.length;
    grid = matrixLayout(state.tokens, width);
    setAttributes(svg, {
      width: grid.width, height: grid.height, viewBox: `0 0 ${grid.width} ${grid.height}`,
      "aria-label": state.description,
    });
    const size = grid.cell * count;
    setAttributes(parts.area, {
      x: grid.left, y: grid.top, width: size, height: size,
      "aria-label": `${state.description}; arrow keys move over the weights`,
    });
    parts.names.replaceChildren(...matrixNames(state.tokens, grid));
    parts.cells.replaceChildren(...matrixCells(state, grid));
    drawCross();
  }

  function onPoint(event) {
    const box = svg.getBoundingClientRect(), last = state.tokens.length - 1;
    const index = (position, start) => Math.max(0, Math.min(last, Math.floor((position - start) / grid.cell)));
    choose([index(event.clientY - box.top, grid.top), index(event.clientX - box.left, grid.left)]);
  }

  function onKey(event) {
    const [query, key] = chosen ?? [0, 0], last = state.tokens.length - 1;
    const to = {
      ArrowUp: [query - 1, key], ArrowDown: [query + 1, key], ArrowLeft: [query, key - 1], ArrowRight: [query, key + 1],
      Home: [query, 0], End: [query, last], PageUp: [0, key], PageDown: [last, key],
    }[event.key];
    if (!to) return;
    event.preventDefault();
    choose(to.map(index => Math.max(0, Math.min(last, index))));
  }

  function choose(found) {
    chosen = found;
    drawCross();
    if (!chosen) { hideTooltip(); live.textContent = ""; return; }
    const [query, key] = chosen, { tokens, matrix } = state, box = svg.getBoundingClientRect();
    const text = `${tokens[query]} → ${tokens[key]}: ${weightText(matrix[query * tokens.length + key])}`;
    const [x, y] = [box.left + grid.left + key * grid.cell, box.top + grid.top + query * grid.cell];
    showTooltip(text, { left: x, right: x + grid.cell, top: y, bottom: y + grid.cell }, "below");
    if (document.activeElement === parts.area) live.textContent = text;
  }

  function drawCross() {
    if (!chosen || !grid) { parts?.lines.replaceChildren(); return; }
    const [query, key] = chosen, x = grid.left + key * grid.cell, y = grid.top + query * grid.cell;
    const { cell, left, top } = grid;
    parts.lines.replaceChildren(
      svgElement("rect", { x, y, width: cell, height: cell }),
      svgElement("path", { d: `M${left - 4} ${y}v${cell}M${x} ${top - 4}h${cell}` }));
    parts.names.querySelectorAll("text[data-query]").forEach(one =>
      one.classList.toggle("is-chosen", Number(one.dataset.query) === query));
    parts.names.querySelectorAll("text[data-key]").forEach(one =>
      one.classList.toggle("is-chosen", Number(one.dataset.key) === key));
  }

  onWidth(scroll, found => { width = found; update(); });
  update();
  return view;
}

// Sizes in pixels. Names of tokens are left of the rows and, turned, above the columns.
function matrixLayout(tokens, width) {
  const longest = Math.max(...tokens.map(token => textWidth(token, MATRIX_FONT)));
  const names = Math.ceil(Math.min(longest, 110, width / 4)) + 10;
  const cell = Math.max(2, Math.min(22, (width - names - 17) / tokens.length));
  const top = names + 18, left = names + 14;
  const size = cell * tokens.length;
  return { names: names - 10, cell, left, top, width: left + size + 2, height: top + size + 6 };
}

function matrixNames(tokens, grid) {
  const every = Math.ceil(13 / grid.cell), middle = (grid.cell * tokens.length) / 2;
  const shown = tokens.map((token, index) => [token, index]).filter(([, index]) => index % every === 0);
  const at = index => (index + 0.5) * grid.cell;
  const rows = shown.map(([token, index]) => svgElement("text", {
    class: "matrix-name", "data-query": index, x: grid.left - 6, y: grid.top + at(index), "text-anchor": "end",
    "dominant-baseline": "central",
  }, shortened(token, grid.names, MATRIX_FONT)));
  const columns = shown.map(([token, index]) => svgElement("text", {
    class: "matrix-name", "data-key": index, "dominant-baseline": "central",
    transform: `translate(${grid.left + at(index)} ${grid.top - 6}) rotate(-90)`,
  }, shortened(token, grid.names, MATRIX_FONT)));
  const titles = [
    svgElement("text", { class: "matrix-title", x: grid.left + middle, y: 11, "text-anchor": "middle" }, "attended to"),
    svgElement("text", {
      class: "matrix-title", "text-anchor": "middle", transform: `translate(10 ${grid.top + middle}) rotate(-90)`,
    }, "attending"),
  ];
  return [...rows, ...columns, ...titles];
}

function matrixCells(state, grid) {
  const count = state.tokens.length, limit = state.limit ?? largestOf(state.matrix);
  const paths = Array.from({ length: MATRIX_SHADES }, () => []);
  const side = grid.cell > 8 ? grid.cell - 1 : grid.cell, round = number => Number(number.toFixed(2));
  state.matrix.forEach((weight, index) => {
    const shade = Math.min(MATRIX_SHADES - 1, Math.floor(Math.sqrt(weight / limit) * MATRIX_SHADES));
    if (!(shade >= 0)) return;
    const [x, y] = [grid.left + (index % count) * grid.cell, grid.top + Math.floor(index / count) * grid.cell];
    paths[shade].push(`M${round(x)} ${round(y)}h${round(side)}v${round(side)}h${round(-side)}z`);
  });
  const frame = svgElement("rect", {
    class: "matrix-frame", x: grid.left, y: grid.top, width: grid.cell * count, height: grid.cell * count,
  });
  return [frame, ...paths.flatMap((cells, shade) => cells.length ? [svgElement("path", {
    class: "matrix-cell", d: cells.join(""), "fill-opacity": ((shade + 0.5) / MATRIX_SHADES).toFixed(3),
  })] : [])];
}
