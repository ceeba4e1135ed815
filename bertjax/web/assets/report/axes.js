// Axes of charts, and what happens at their marks.

import { svgElement } from "../shared/dom.js";
import { hideTooltip, showTooltipAt } from "../shared/tooltip.js";

// Round numbers from low to high, at most `most` of them.
export function roundTicks(low, high, most) {
  const rough = (high - low) / Math.max(1, most), power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 5, 10].map(factor => factor * power).find(size => size >= rough * (1 - 1e-9)) ?? 10 * power;
  const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, index) => (first + index) * step);
}

// A tick's text: as many digits as the step between ticks needs.
export function tickText(value, ticks) {
  const step = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) : Math.abs(value) || 1;
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  return (Math.abs(value) < step / 1e6 ? 0 : value).toFixed(digits).replace("-", "−");
}

// Horizontal lines with numbers at the left.
export function valueAxis(ticks, y, left, right, { texts = null } = {}) {
  return ticks.map((tick, index) => svgElement("g", {},
    svgElement("line", { x1: left, x2: right, y1: y(tick), y2: y(tick), stroke: "var(--pale)" }),
    svgElement("text", { x: left - 6, y: y(tick), class: "tick", "text-anchor": "end", "dominant-baseline": "middle" },
      texts ? texts[index] : tickText(tick, ticks))));
}

// The title of a vertical axis, turned.
export const axisTitle = (text, x, y) => svgElement(
  "text", { x, y, class: "axis-title", "text-anchor": "middle", transform: `rotate(-90 ${x} ${y})` }, text);

// Tooltips and clicks of the marks in an SVG, which have the attribute data-index.
export function reactTo(svg, textOf, onSelect) {
  const indexOf = event => event.target.closest?.("[data-index]")?.dataset.index;
  svg.addEventListener("pointermove", event => {
    const index = indexOf(event);
    if (index === undefined) hideTooltip(); else showTooltipAt(textOf(Number(index)), event);
  });
  svg.addEventListener("pointerleave", hideTooltip);
  svg.addEventListener("click", event => {
    const index = indexOf(event);
    if (index !== undefined && onSelect) onSelect(Number(index));
  });
}
