// Attention of all heads as thumbnails: layers x heads.

import { largestOf } from "./attention.js";
import { channels, colour, onTheme } from "./colours.js";
import { element, svgElement } from "./dom.js";
import { hideTooltip, showTooltip } from "./tooltip.js";

const THUMBNAIL_PIXELS = 64; // more tokens share pixels, of which the largest weight is shown

// Props:
//   attention: of a text, as `readAttention` returns it. layer, head: the selected head. caption: text above.
//   off: a Set of "layer.head" that are switched off; their thumbnails have a dashed frame.
//   onSelect(layer, head): click or Enter on a thumbnail.
export function modelView(props) {
  const state = { caption: "", off: new Set(), layer: 0, head: 0, ...props };
  const caption = element("figcaption", {});
  const grid = element("div", { class: "model-grid", role: "grid", "aria-label": "Attention of all heads" });
  const view = { node: element("figure", { class: "model-view" }, caption, grid), update, svg };
  let buttons = [];

  function update(changed = {}) {
    const redrawn = "attention" in changed && changed.attention !== state.attention;
    Object.assign(state, changed);
    caption.textContent = state.caption;
    caption.hidden = !state.caption;
    if (redrawn || !buttons.length) build();
    paint();
  }

  function build() {
    const { layers, heads } = state.attention;
    grid.style.setProperty("--heads", heads);
    grid.style.setProperty("--layers", layers);
    buttons = Array.from({ length: layers }, (_, layer) =>
      Array.from({ length: heads }, (_, head) => thumbnail(layer, head)));
    const corner = element("span", { class: "model-label" });
    const top = Array.from({ length: heads }, (_, head) => element("span", { class: "model-label" }, String(head)));
    const rows = buttons.map((row, layer) => element("div", { class: "model-row", role: "row" },
      element("span", { class: "model-label", role: "rowheader" }, String(layer)), row));
    grid.replaceChildren(
      element("div", { class: "model-row", "aria-hidden": "true" }, corner, top), ...rows);
    drawThumbnails();
  }

  function thumbnail(layer, head) {
    const off = () => state.off.has(`${layer}.${head}`) ? " (off)" : "";
    const show = event => showTooltip(`head ${layer}.${head}${off()}`, event.currentTarget.getBoundingClientRect());
    return element("button", {
      type: "button", class: "model-cell", role: "gridcell", tabindex: -1, "data-head": `${layer}.${head}`,
      "aria-label": `head ${layer}.${head}`,
      onclick: () => state.onSelect?.(layer, head), onkeydown: event => onKey(event, layer, head),
      onpointerenter: show, onpointerleave: hideTooltip, onfocus: show, onblur: hideTooltip,
    }, element("canvas", {}));
  }

  function onKey(event, layer, head) {
    const { layers, heads } = state.attention;
    const to = {
      ArrowUp: [layer - 1, head], ArrowDown: [layer + 1, head], ArrowLeft: [layer, head - 1], ArrowRight: [layer, head + 1],
      Home: [layer, 0], End: [layer, heads - 1], PageUp: [0, head], PageDown: [layers - 1, head],
    }[event.key];
    if (!to) return;
    event.preventDefault();
    const button = buttons[to[0]]?.[to[1]];
    if (!button) return;
    for (const one of buttons.flat()) one.setAttribute("tabindex", one === button ? 0 : -1);
    button.focus();
  }

  function drawThumbnails() {
    const [background, ink] = [channels(colour("--paper")), channels(colour("--mark"))];
    buttons.forEach((row, layer) => row.forEach((button, head) =>
      drawThumbnail(button.firstChild, state.attention, [layer, head], [background, ink])));
  }

  function paint() {
    for (const button of buttons.flat()) {
      const selected = button.dataset.head === `${state.layer}.${state.head}`;
      button.setAttribute("aria-selected", String(selected));
      button.setAttribute("tabindex", selected ? 0 : -1);
      button.classList.toggle("is-off", state.off.has(button.dataset.head));
    }
  }

  // A picture of the thumbnails, for a file.
  function svg() {
    const { layers, heads } = state.attention, size = 66, start = 24;
    const label = (x, y, text) => svgElement("text", { x, y, "text-anchor": "middle", "font-size": 12 }, text);
    const images = buttons.flatMap((row, layer) => row.map((button, head) => svgElement("image", {
      x: start + head * size + 1, y: start + layer * size + 1, width: size - 2, height: size - 2,
      preserveAspectRatio: "none", "image-rendering": "pixelated", href: button.firstChild.toDataURL(),
    })));
    const [width, height] = [start + heads * size, start + layers * size];
    return svgElement("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, images,
      buttons.map((_, layer) => label(12, start + (layer + 0.5) * size + 4, String(layer))),
      buttons[0].map((_, head) => label(start + (head + 0.5) * size, 15, String(head))));
  }

  onTheme(drawThumbnails);
  update();
  return view;
}

// Weights of a head as pixels: the square root, so that small weights can be seen, from `background` to `ink`.
function drawThumbnail(canvas, attention, [layer, head], [background, ink]) {
  const count = attention.tokens.length, matrix = attention.matrix(layer, head);
  const size = Math.min(count, THUMBNAIL_PIXELS), shares = new Float32Array(size * size);
  const pixels = Array.from({ length: count }, (_, token) => Math.floor((token * size) / count));
  for (let query = 0; query < count; query += 1) { // loops, since there are hundreds of thumbnails
    const row = pixels[query] * size, start = query * count;
    for (let key = 0; key < count; key += 1) {
      const place = row + pixels[key], weight = matrix[start + key];
      if (weight > shares[place]) shares[place] = weight;
    }
  }
  const most = largestOf(shares) || 1;
  [canvas.width, canvas.height] = [size, size];
  const context = canvas.getContext("2d"), image = context.createImageData(size, size);
  for (let place = 0; place < shares.length; place += 1) {
    const strength = Math.min(1, Math.sqrt(shares[place] / Math.max(most, 0.2)));
    for (let channel = 0; channel < 3; channel += 1) {
      image.data[4 * place + channel] = background[channel] + (ink[channel] - background[channel]) * strength;
    }
    image.data[4 * place + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}
