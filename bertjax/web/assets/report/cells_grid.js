// Grids of cells with one colour scale: rows by columns, such as layers by tokens, or heads by heads.

import { diverging, inkOn, onTheme } from "../shared/colours.js";
import { element, onWidth, setAttributes, shortened, svgElement, textWidth } from "../shared/dom.js";
import { signed } from "../shared/numbers.js";
import { reactTo, tickText } from "./axes.js";

const CELL_FONT = "11px system-ui, sans-serif", CELL_SMALL = "10px system-ui, sans-serif";
const CELL_LEAST = 16, CELL_MOST = 64; // pixels of a column
const CELLS_MANY = 60, CELL_SMALLEST = 6; // with more columns they are narrower
const CELL_LINE = 12; // pixels of a name
const CELL_CAPTION = 24, CELL_BAR = 34; // pixels above a grid, and of the colour scale
const CELL_LONGEST = 150; // pixels of a name
const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

// columns: names; panels: [{title, rows: names, cells: [row][column] index or null}]; values, significant: by index;
// limit: where colours end; measure: of the values; tested: whether significant cells have a dot; selected: an index;
// describe(index): text of a cell; label: of the whole; hasGaps:
// whether cells without an index are drawn; onSelect(index, byKey).
export function cellsGrid(props) {
  let given = props, width = 0, chart = null;
  const node = element("div", { class: "cells", tabindex: 0, role: "application", "aria-label": props.label });
  const draw = () => {
    if (!width) return;
    chart = drawCells(given, width);
    chart.select(given.selected);
    node.replaceChildren(chart.svg);
  };
  node.addEventListener("keydown", event => {
    const step = ARROWS[event.key];
    if (!step) return;
    event.preventDefault();
    const next = neighbour(given.panels.flatMap(panel => panel.cells), given.selected, step);
    if (next !== null) given.onSelect(next, true);
  });
  onWidth(node, wide => { width = wide; draw(); });
  onTheme(draw);
  // If another cell is selected, and nothing else changes, only the outline moves.
  function update(changed) {
    const isSame = chart && Object.keys(changed).every(name => name === "selected" || given[name] === changed[name]);
    given = { ...given, ...changed };
    if (isSame) chart.select(given.selected); else draw();
  }
  return { node, update };
}

// The next cell in a direction; null at the edge.
export function neighbour(rows, selected, [down, right]) {
  let row = rows.findIndex(cells => cells.includes(selected));
  if (row < 0) return rows.flat().find(index => index !== null) ?? null;
  let column = rows[row].indexOf(selected);
  do {
    row += down;
    column += right;
  } while (rows[row]?.[column] === null);
  return rows[row]?.[column] ?? null;
}

function sizesOf({ columns, panels, limit, measure }, width) {
  const names = panels.flatMap(panel => panel.rows), count = names.length / panels.length;
  const left = Math.min(CELL_LONGEST, Math.max(...names.map(name => textWidth(name, CELL_FONT)))) + 10;
  const least = columns.length > CELLS_MANY ? CELL_SMALLEST : CELL_LEAST;
  const step = Math.max(least, Math.min(CELL_MOST, Math.floor((width - left - 8) / columns.length)));
  const isTurned = columns.some(name => textWidth(name, CELL_FONT) > step - 4);
  const texts = columns.map(name => shortened(name, CELL_LONGEST, CELL_FONT));
  const below = isTurned ? Math.max(...texts.map(name => textWidth(name, CELL_FONT))) + 12 : 20;
  const height = count > CELLS_MANY ? Math.max(7, Math.min(13, step)) : count > 40 ? 13 : 22;
  const digits = limit >= 10 ? Math.min(1, measure.digits) : measure.digits;
  const isWritten = height >= 18 && step >= textWidth(signed(-limit, digits), CELL_SMALL) + 4;
  return { left, step, height, isTurned, texts, below, digits, isWritten };
}

function drawCells(given, width) {
  const { columns, panels, hasGaps } = given, sizes = sizesOf(given, width);
  const { left, step, height, below } = sizes, wide = left + step * columns.length + 8;
  const captions = panels.length > 1 || panels[0].title ? CELL_CAPTION : 6;
  const high = panels.reduce((sum, panel) => sum + captions + height * panel.rows.length, 0) + below + CELL_BAR;
  const svg = svgElement("svg", { width: Math.max(wide, Math.min(width, left + 400)), height: high, class: "grid" });
  const outline = svgElement("rect", {
    width: step, height, fill: "none", stroke: "var(--ink)", "stroke-width": 3, class: "selected-cell",
  });
  const corners = new Map(), everyRow = Math.ceil(CELL_LINE / height), everyColumn = Math.ceil(CELL_LINE / step);
  let top = 0;
  for (const panel of panels) {
    if (captions === CELL_CAPTION) {
      svg.append(svgElement("text", { x: left, y: top + 16, class: "panel-title" }, panel.title));
    }
    top += captions;
    svg.append(...panel.rows.map((name, row) => row % everyRow ? "" : svgElement("text", {
      x: left - 6, y: top + (row + 0.5) * height, class: "tick", "text-anchor": "end", "dominant-baseline": "central",
    }, shortened(name, CELL_LONGEST, CELL_FONT))));
    panel.cells.forEach((cells, row) => cells.forEach((index, column) => {
      const x = left + column * step, y = top + row * height;
      if (index === null) {
        const box = { x: x + 0.5, y: y + 0.5, width: step - 1, height: height - 1 };
        if (hasGaps) svg.append(svgElement("rect", { ...box, class: "no-cell" }));
        return;
      }
      corners.set(index, { x, y });
      svg.append(...cellOf(given, sizes, index, x, y));
    }));
    top += height * panel.rows.length;
  }
  svg.append(outline, ...sizes.texts.map((name, column) => column % everyColumn ? "" :
    columnName(name, left + (column + 0.5) * step, top, sizes.isTurned)));
  svg.append(...scaleOf(given, left, top + below));
  reactTo(svg, given.describe, index => given.onSelect(index, false));
  const select = index => setAttributes(outline, {
    ...corners.get(index), visibility: corners.has(index) ? null : "hidden",
  });
  return { svg, select };
}

function cellOf(given, sizes, index, x, y) {
  const { values, significant, limit, measure, tested, isFromZero } = given;
  const { step, height, digits, isWritten } = sizes;
  const value = values[index];
  const fill = value === null ? "var(--pale)" : diverging(measure.sign * value / limit);
  const parts = [svgElement("rect", {
    x: x + 0.5, y: y + 0.5, width: step - 1, height: height - 1, fill, class: "cell", "data-index": index,
    "data-significant": tested ? String(Boolean(significant[index])) : null,
  })];
  const ink = inkOn(fill.startsWith("var") ? "#ffffff" : fill), isWithText = isWritten && value !== null;
  if (isWithText) parts.push(svgElement("text", {
    x: x + step / 2, y: y + height / 2 + 1, class: "cell-text", fill: ink,
    "text-anchor": "middle", "dominant-baseline": "central",
  }, isFromZero ? value.toFixed(digits) : signed(value, digits)));
  if (tested && value !== null && significant[index]) parts.push(svgElement("circle", {
    ...(isWithText ? { cx: x + step - 5, cy: y + 5 } : { cx: x + step / 2, cy: y + height / 2 }),
    r: isWithText || height < 12 ? 2 : 2.5, fill: ink, class: "dot",
  }));
  return parts;
}

const columnName = (name, x, top, isTurned) => isTurned ?
  svgElement("text", {
    x, y: top + 6, class: "tick column", "text-anchor": "end", "dominant-baseline": "central",
    transform: `rotate(-90 ${x} ${top + 6})`,
  }, name) :
  svgElement("text", { x, y: top + 14, class: "tick column", "text-anchor": "middle" }, name);

// The colour scale, from the least to the most, with its unit.
function scaleOf({ limit, measure, isFromZero, tested }, left, top) {
  const steps = 40, wide = 200, low = isFromZero ? 0 : -limit;
  const cells = Array.from({ length: steps }, (_, step) => svgElement("rect", {
    x: left + step * wide / steps, y: top + 2, width: wide / steps + 0.5, height: 10,
    fill: diverging(measure.sign * (low + (step + 0.5) / steps * (limit - low)) / limit),
  }));
  const ticks = isFromZero ? [0, limit] : [-limit, 0, limit];
  const texts = ticks.map((tick, index) => svgElement("text", {
    x: left + (tick - low) / (limit - low) * wide, y: top + 25, class: "tick",
    "text-anchor": index ? "middle" : "start",
  }, tickText(tick, [0, limit / 10])));
  const beside = (y, text) => svgElement("text", { x: left + wide + 24, y: top + y, class: "tick" }, text);
  return [...cells, ...texts, beside(11, measure.unit), ...(tested ? [beside(25, "● significant (q < 0.05)")] : [])];
}
