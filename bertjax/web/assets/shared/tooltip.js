// One tooltip for the page, beside the pointer or a node, and always inside the window.

import { element } from "./dom.js";

let tooltip = null;

// Show a text (line feeds are kept) beside a rectangle of the window, as getBoundingClientRect returns it.
// side: "above" or "below", where it fits.
export function showTooltip(text, box, side = "above") {
  tooltip ??= element("div", { class: "tooltip", role: "tooltip" });
  if (!tooltip.isConnected) document.body.append(tooltip);
  tooltip.textContent = text;
  tooltip.hidden = false;
  const { width, height } = tooltip.getBoundingClientRect();
  const most = { left: document.documentElement.clientWidth - width - 4, top: window.innerHeight - height - 4 };
  const below = box.bottom + 6, above = box.top - height - 6;
  const left = Math.max(4, Math.min((box.left + box.right) / 2 - width / 2, most.left));
  const first = side === "above" ? above : below;
  const top = first >= 4 && first <= most.top ? first : Math.max(4, Math.min(side === "above" ? below : above, most.top));
  tooltip.style.setProperty("left", `${left}px`);
  tooltip.style.setProperty("top", `${top}px`);
}

// Show a text beside the pointer of a mouse event.
export function showTooltipAt(text, { clientX, clientY }) {
  showTooltip(text, { left: clientX, right: clientX, top: clientY - 8, bottom: clientY + 14 });
}

export function hideTooltip() {
  if (tooltip) tooltip.hidden = true;
}
