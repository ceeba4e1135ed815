// Files from the page: pictures and texts.

import { colour } from "./colours.js";
import { element, svgElement } from "./dom.js";

// What the page's stylesheet sets on parts of a picture, by element; "" for all.
const DRAWN_PROPERTIES = {
  "": ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "opacity", "visibility"],
  text: ["font-family", "font-size", "font-weight", "font-variant-numeric", "text-anchor", "dominant-baseline"],
  path: ["shape-rendering"],
  image: ["image-rendering"],
};
// XML forbids them.
const NOT_IN_XML = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]|\p{Surrogate}/gu;

// Text of a file that shows an <svg> element as it looks on the page.
export function svgText(svg) {
  const holder = element("div", { style: { position: "absolute", left: "-10000px", top: "0" } });
  if (!svg.isConnected) {
    document.body.append(holder);
    holder.append(svg);
  }
  const copy = withStyles(svg);
  holder.remove();
  const text = new XMLSerializer().serializeToString(copy).replace(NOT_IN_XML, "\ufffd");
  return `<?xml version="1.0" encoding="UTF-8"?>\n${text}\n`;
}

// A copy of an <svg> element with all styles as attributes, and the colour of the page behind.
function withStyles(svg) {
  const copy = svg.cloneNode(true);
  const originals = [svg, ...svg.querySelectorAll("*")], copies = [copy, ...copy.querySelectorAll("*")];
  originals.forEach((original, index) => {
    const style = getComputedStyle(original), one = copies[index];
    for (const name of ["class", "tabindex", "role", "style"]) one.removeAttribute(name);
    for (const name of [...DRAWN_PROPERTIES[""], ...(DRAWN_PROPERTIES[original.tagName] ?? [])]) {
      const value = style.getPropertyValue(name);
      if (value) one.setAttribute(name, value.replace(/"/g, "'"));
    }
  });
  for (const text of copy.querySelectorAll("text")) text.setAttribute("xml:space", "preserve");
  copy.prepend(svgElement("rect", { width: "100%", height: "100%", fill: colour("--paper") }));
  return copy;
}

// One <svg> element that shows several beside each other. captions: a text above each, or "".
export function sideBySide(svgs, captions) {
  const sizes = svgs.map(svg => ["width", "height"].map(name => Number(svg.getAttribute(name))));
  const top = captions.some(Boolean) ? 26 : 0, gap = 24;
  const starts = sizes.map((_, index) => sizes.slice(0, index).reduce((sum, [width]) => sum + width + gap, 0));
  const width = starts.at(-1) + sizes.at(-1)[0], height = top + Math.max(...sizes.map(size => size[1]));
  const parts = svgs.map((svg, index) => {
    const copy = svg.cloneNode(true);
    copy.setAttribute("x", starts[index]);
    copy.setAttribute("y", top);
    return [svgElement("text", { x: starts[index] + 4, y: 17, "font-size": 14, "font-weight": 600 }, captions[index]), copy];
  });
  return svgElement("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, parts);
}

// Save an <svg> element of the page as an SVG file: name.svg.
export function saveSvg(svg, name) {
  saveBlob(new Blob([svgText(svg)], { type: "image/svg+xml" }), `${name}.svg`);
}

// Save an <svg> element of the page as a PNG file at twice its size: name.png; a promise.
export async function savePng(svg, name) {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(svg))}`;
  await image.decode();
  const scale = 2, canvas = element("canvas", { width: scale * image.width, height: scale * image.height });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  const blob = await new Promise(resolve => canvas.toBlob(resolve, "image/png"));
  saveBlob(blob, `${name}.png`);
}

// Save a text under a name with its suffix. type: such as "text/csv".
export function saveText(text, name, type = "text/plain") {
  saveBlob(new Blob([text], { type: `${type};charset=utf-8` }), name);
}

function saveBlob(blob, name) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
