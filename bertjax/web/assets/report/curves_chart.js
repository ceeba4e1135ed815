// Curves of a score against a number that falls from left to right, with intervals as bands.

import { onWidth, svgElement, textWidth } from "../shared/dom.js";
import { axisTitle, reactTo, roundTicks, valueAxis } from "./axes.js";

const CURVE_FONT = "600 12px system-ui, sans-serif";
const CURVE_HEIGHT = 320, CURVE_LEFT = 64, CURVE_TOP = 12, CURVE_BELOW = 44, CURVE_LINE = 16;
// Colours that colour-blind people can distinguish; lines and markers differ without colours, too.
const CURVE_SHADES = ["--curve-1", "--curve-2", "--curve-3", "--curve-4", "--curve-5", "--curve-6"];
const CURVE_DASHES = ["", "7 3", "2 2", "7 3 2 3", "4 2", "9 2 2 2 2 2"];
const CURVE_SHAPES = [
  "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0", "M-3.6 -3.6h7.2v7.2h-7.2z", "M0 -4.6L4.4 3.4H-4.4z", "M0 -5L5 0L0 5L-5 0z",
  "M0 4.6L4.4 -3.4H-4.4z", "M-1.5 -4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
];

// curves: [{name, isRange: whether low and high are a band, points: [{x, y, low, high, index, text}]}];
// base: {x, y}, where all curves begin; bounds: the lowest and the highest possible y, null if there is none;
// title, below: of the axes; selected: an index.
export function curvesChart(props) {
  let given = props, width = 0;
  const node = document.createElement("div");
  const draw = () => { if (width) node.replaceChildren(drawCurves(given, width)); };
  onWidth(node, wide => { width = wide; draw(); });
  return { node, update: changed => { given = { ...given, ...changed }; draw(); } };
}

// Number and shade of a curve: draws of a random order are grey.
export const styleOf = (curve, number) => ({
  shade: curve.isRange ? "var(--grey)" : `var(${CURVE_SHADES[number % CURVE_SHADES.length]})`,
  dash: CURVE_DASHES[number % CURVE_DASHES.length], shape: CURVE_SHAPES[number % CURVE_SHAPES.length],
});

function drawCurves({ curves, base, bounds, title, below, selected, onSelect }, width) {
  const isWide = width >= 620, names = Math.max(...curves.map(curve => textWidth(curve.name, CURVE_FONT))) + 52;
  const right = isWide ? names : 14, key = isWide ? 0 : CURVE_LINE * curves.length + 10;
  const least = bounds[0] ?? -Infinity, most = bounds[1] ?? Infinity;
  const clipped = value => value === null || value === undefined ? value : Math.min(most, Math.max(least, value));
  const known = curves.map(curve => ({
    ...curve, points: curve.points.filter(point => point.y !== null)
      .map(point => ({ ...point, low: clipped(point.low), high: clipped(point.high) })),
  }));
  const values = known.flatMap(curve => curve.points.flatMap(point => [point.y, point.low, point.high]));
  const ends = [base.y, ...values].filter(value => value !== null && value !== undefined);
  const room = 0.05 * (Math.max(...ends) - Math.min(...ends) || 1);
  const low = clipped(Math.min(...ends) - room), high = clipped(Math.max(...ends) + room);
  const x = count => CURVE_LEFT + (base.x - count) / base.x * (width - CURVE_LEFT - right);
  const y = value => CURVE_TOP + (high - value) / (high - low) * CURVE_HEIGHT, bottom = CURVE_TOP + CURVE_HEIGHT;
  const svg = svgElement("svg", {
    width, height: bottom + CURVE_BELOW + key, class: "curves", role: "img", "aria-label": title,
  });
  svg.append(...valueAxis(roundTicks(low, high, 6), y, CURVE_LEFT, width - right),
    axisTitle(title, 14, CURVE_TOP + CURVE_HEIGHT / 2),
    ...countAxis([...new Set(known.flatMap(curve => curve.points.map(point => point.x)))], base.x, x, bottom),
    svgElement("text", {
      x: (CURVE_LEFT + width - right) / 2, y: bottom + 38, class: "axis-title", "text-anchor": "middle",
    }, below),
    svgElement("line", {
      x1: CURVE_LEFT, x2: width - right, y1: y(base.y), y2: y(base.y), stroke: "var(--ink)", "stroke-dasharray": "5 4",
    }));
  const lines = known.filter(curve => !curve.isRange);
  known.filter(curve => curve.isRange).forEach(curve => svg.append(bandOf(curve, base, x, y)));
  lines.forEach((curve, number) => svg.append(
    ...intervalsOf(curve, x, y, styleOf(curve, number), 4 * (number - (lines.length - 1) / 2))));
  known.forEach((curve, number) => svg.append(...curveNodes(curve, base, x, y, styleOf(curve, number), selected)));
  const place = isWide ? { left: width - right, bottom } : { left: CURVE_LEFT, top: bottom + CURVE_BELOW };
  svg.append(...namesOf(known, x, y, place));
  const texts = new Map(known.flatMap(curve => curve.points.map(point => [point.index, point.text])));
  reactTo(svg, index => texts.get(index), onSelect);
  return svg;
}

// Counts below the axis, as many as fit.
function countAxis(counts, most, x, bottom) {
  const shown = [], order = [most, ...counts.sort((a, b) => b - a)];
  for (const count of order) {
    if (!shown.length || x(count) - x(shown[shown.length - 1]) >= 24) shown.push(count);
  }
  return shown.map(count =>
    svgElement("text", { x: x(count), y: bottom + 18, class: "tick", "text-anchor": "middle" }, count));
}

// Intervals of curves stand beside each other.
function intervalsOf(curve, x, y, { shade }, shift) {
  return curve.points.filter(point => point.low !== null && point.high !== null).map(point => {
    const at = x(point.x) + shift;
    return svgElement("line", {
      x1: at, x2: at, y1: y(point.low), y2: y(point.high), stroke: shade, "stroke-width": 1.5, opacity: 0.55,
      class: "interval",
    });
  });
}

// The range of random orders.
function bandOf(curve, base, x, y) {
  const points = curve.points.filter(point => point.low !== null && point.high !== null);
  const path = points.length ? [
    `M${x(base.x)} ${y(base.y)}`, ...points.map(point => `L${x(point.x)} ${y(point.high)}`),
    ...points.reverse().map(point => `L${x(point.x)} ${y(point.low)}`), "Z",
  ].join("") : "";
  return svgElement("path", { d: path, fill: "var(--grey)", opacity: 0.13, class: "band" });
}

function curveNodes(curve, base, x, y, { shade, dash, shape }, selected) {
  const path = [`M${x(base.x)} ${y(base.y)}`, ...curve.points.map(point => `L${x(point.x)} ${y(point.y)}`)].join("");
  return [
    svgElement("path", {
      d: path, fill: "none", stroke: shade, "stroke-width": 2, "stroke-dasharray": dash, class: "curve",
    }),
    ...curve.points.map(point => svgElement("path", {
      d: shape, fill: shade,
      transform: `translate(${x(point.x)} ${y(point.y)}) scale(${point.index === selected ? 1.9 : 1})`,
      stroke: point.index === selected ? "var(--ink)" : shade,
    })),
    ...curve.points.map(point => svgElement("circle", {
      cx: x(point.x), cy: y(point.y), r: 9, fill: "transparent", class: "clickable", "data-index": point.index,
    })),
  ];
}

// Names at the ends of the curves if there is room at the right, else in a list below; they do not overlap.
function namesOf(curves, x, y, { left, bottom, top }) {
  const ends = curves.map((curve, number) => {
    const last = curve.points[curve.points.length - 1];
    const below = () => top + CURVE_LINE * (number + 0.5);
    return { number, x: last ? x(last.x) : left, y: top !== undefined ? below() : last ? y(last.y) : bottom };
  });
  if (top === undefined) {
    ends.sort((a, b) => a.y - b.y);
    let free = -Infinity;
    for (const end of ends) free = (end.line = Math.max(end.y, free)) + CURVE_LINE;
    let most = bottom;
    for (const end of [...ends].reverse()) most = (end.line = Math.min(end.line, most)) - CURVE_LINE;
  }
  return ends.flatMap(end => {
    const { shade, dash, shape } = styleOf(curves[end.number], end.number), line = end.line ?? end.y;
    return [
      top === undefined ?
        svgElement("path", { d: `M${end.x} ${end.y}L${left + 8} ${line}`, stroke: shade, "stroke-width": 0.6 }) : null,
      svgElement("path", { d: `M${left + 8} ${line}h28`, stroke: shade, "stroke-width": 2, "stroke-dasharray": dash }),
      svgElement("path", { d: shape, fill: shade, transform: `translate(${left + 22} ${line})` }),
      svgElement("text", {
        x: left + 42, y: line, class: "name", "dominant-baseline": "central", fill: shade,
      }, curves[end.number].name),
    ].filter(Boolean);
  });
}
