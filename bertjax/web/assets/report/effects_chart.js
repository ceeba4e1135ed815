// Changes with their intervals: a dot or a bar for each ablation, in the order of the marks.

import { onWidth, shortened, svgElement, textWidth } from "../shared/dom.js";
import { axisTitle, reactTo, roundTicks, tickText, valueAxis } from "./axes.js";

const EFFECT_FONT = "11px system-ui, sans-serif";
const EFFECT_HEIGHT = 260, EFFECT_LEFT = 64, EFFECT_RIGHT = 10, EFFECT_TOP = 14;
const EFFECT_LINE = 14; // pixels of a name that is turned
const EFFECT_LONGEST = 120; // pixels of a name

// Props:
//   marks: {index, name, change, low, high, side, significant, tested, text}; side: -1 for a loss, 1 for a gain, else 0.
//   bars: bars, with a dot above significant ones if changes are tested, in place of dots, which are filled if significant.
//   selected: an index. measure: of the metric. title, below: of the axes. onSelect(index): a click.
export function effectsChart(props) {
  let given = props, width = 0;
  const node = document.createElement("div");
  const draw = () => { if (width) node.replaceChildren(drawEffects(given, width)); };
  onWidth(node, wide => { width = wide; draw(); });
  return { node, update: changed => { given = { ...given, ...changed }; draw(); } };
}

function limitsOf(marks, digits) {
  const ends = marks.flatMap(mark => [mark.change, mark.low, mark.high]).filter(value => value !== null);
  const low = Math.min(0, ...ends), high = Math.max(0, ...ends), least = 5 * 10 ** -digits;
  return high - low < least ? [-least, least] : [low - 0.04 * (high - low), high + 0.04 * (high - low)];
}

function drawEffects({ marks, selected, measure, bars = false, title, below, onSelect }, width) {
  const inner = width - EFFECT_LEFT - EFFECT_RIGHT, step = inner / Math.max(1, marks.length);
  const every = Math.max(1, Math.ceil(EFFECT_LINE / step)), named = marks.filter((_, index) => index % every === 0);
  const isTurned = Math.max(...named.map(mark => textWidth(mark.name, EFFECT_FONT))) > every * step - 4;
  const texts = named.map(mark => shortened(mark.name, EFFECT_LONGEST, EFFECT_FONT));
  const under = (isTurned ? Math.max(...texts.map(text => textWidth(text, EFFECT_FONT))) : 12) + (below ? 28 : 12);
  const [low, high] = limitsOf(marks, measure.digits);
  const x = place => EFFECT_LEFT + (place + 0.5) * step;
  const y = value => EFFECT_TOP + (high - value) / (high - low) * EFFECT_HEIGHT;
  const ticks = roundTicks(low, high, 6), bottom = EFFECT_TOP + EFFECT_HEIGHT;
  const svg = svgElement("svg", { width, height: bottom + under, class: "effects", role: "img", "aria-label": title });
  const shade = mark => ["var(--low)", "var(--grey)", "var(--high)"][mark.side + 1];
  svg.append(
    ...valueAxis(ticks, y, EFFECT_LEFT, width - EFFECT_RIGHT, { texts: ticks.map(tick => tickText(tick, ticks)) }),
    svgElement("line", { x1: EFFECT_LEFT, x2: width - EFFECT_RIGHT, y1: y(0), y2: y(0), stroke: "var(--ink)" }),
    axisTitle(title, 14, EFFECT_TOP + EFFECT_HEIGHT / 2));
  marks.forEach((mark, place) => svg.append(
    ...(bars ? barOf : dotOf)(mark, x(place), y, step, shade(mark), mark.index === selected)));
  named.forEach((mark, index) => svg.append(nameOf(mark, texts[index], x(index * every), bottom, isTurned, selected)));
  if (below) svg.append(svgElement("text", {
    x: EFFECT_LEFT + inner / 2, y: bottom + under - 4, class: "axis-title", "text-anchor": "middle",
  }, below));
  const byIndex = new Map(marks.map(mark => [mark.index, mark]));
  reactTo(svg, index => byIndex.get(index).text, onSelect);
  return svg;
}

function nameOf(mark, text, x, bottom, isTurned, selected) {
  const weight = mark.index === selected ? "bold" : null;
  return isTurned ?
    svgElement("text", {
      x, y: bottom + 8, class: "tick", "text-anchor": "end", "font-weight": weight, "dominant-baseline": "middle",
      transform: `rotate(-90 ${x} ${bottom + 8})`,
    }, text) :
    svgElement("text", { x, y: bottom + 15, class: "tick", "text-anchor": "middle", "font-weight": weight }, text);
}

function intervalOf(mark, x, y) {
  if (mark.low === null || mark.high === null) return [];
  return [svgElement("line", { x1: x, x2: x, y1: y(mark.low), y2: y(mark.high), stroke: "var(--grey)" })];
}

// The area of a mark for the mouse is as wide as its column.
const areaOf = (mark, x, y, step, top, bottom) => svgElement("rect", {
  x: x - step / 2, y: top, width: step, height: Math.max(8, bottom - top), fill: "transparent", class: "clickable",
  "data-index": mark.index,
});

function dotOf(mark, x, y, step, shade, isSelected) {
  if (mark.change === null) return [];
  const size = (isSelected ? 1.6 : 1) * Math.max(2, Math.min(4.5, step / 2));
  const ends = [mark.change, mark.low ?? mark.change, mark.high ?? mark.change].map(y);
  return [
    ...intervalOf(mark, x, y),
    svgElement("circle", {
      cx: x, cy: y(mark.change), r: size, class: "dot", fill: mark.significant ? shade : "var(--paper)", stroke: shade,
      "stroke-width": 1.5, "data-significant": String(mark.significant),
    }),
    areaOf(mark, x, y, step, Math.min(...ends) - 5, Math.max(...ends) + 5),
  ];
}

function barOf(mark, x, y, step, shade, isSelected) {
  if (mark.change === null) return [];
  const wide = Math.min(60, 0.75 * step), top = Math.min(y(0), y(mark.change));
  return [
    svgElement("rect", {
      x: x - wide / 2, y: top, width: wide, height: Math.abs(y(mark.change) - y(0)), class: "bar",
      fill: shade, stroke: isSelected ? "var(--ink)" : shade, "stroke-width": isSelected ? 3 : 1,
      "data-significant": String(mark.significant),
    }),
    ...intervalOf(mark, x, y),
    ...(mark.significant && mark.tested ? [svgElement("circle", { cx: x, cy: EFFECT_TOP + 6, r: 4, class: "dot" })] : []),
    areaOf(mark, x, y, step, EFFECT_TOP, EFFECT_TOP + EFFECT_HEIGHT),
  ];
}
