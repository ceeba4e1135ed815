// Nodes of the page. Texts are inserted as text nodes, never as HTML.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

// An HTML element. Attributes: a function under a name that begins with `on` is a listener (`onclick`); an object under
// `style` has CSS properties, custom ones included (the page's policy forbids style as text); true stands for a boolean
// attribute; null, undefined and false are left out. Children: nodes, texts, numbers, arrays of these; null is left out.
export function element(tag, attributes = {}, ...children) {
  return fillNode(document.createElement(tag), attributes, children);
}

// The same for an element of SVG.
export function svgElement(tag, attributes = {}, ...children) {
  return fillNode(document.createElementNS(SVG_NAMESPACE, tag), attributes, children);
}

function fillNode(node, attributes, children) {
  setAttributes(node, attributes ?? {});
  node.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false));
  return node;
}

// Set attributes as `element` does; null, undefined and false remove an attribute.
export function setAttributes(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) {
      if (value) node.addEventListener(name.slice(2), value);
    } else if (name === "style") {
      for (const [property, setting] of Object.entries(value ?? {})) node.style.setProperty(property, setting);
    } else if (value === null || value === undefined || value === false) {
      node.removeAttribute(name);
    } else {
      node.setAttribute(name, value === true ? "" : value);
    }
  }
  return node;
}

// Replace the options of a <select>. choices: [[value, text], ...].
export function fillSelect(select, choices, chosen) {
  select.replaceChildren(...choices.map(([value, text]) => element("option", { value }, text)));
  if (chosen !== undefined && chosen !== null) select.value = String(chosen);
  return select;
}

// The data that Python put into the page.
export function pageData() {
  return JSON.parse(document.getElementById("data").textContent);
}

// Bytes from base64 of gzip: a promise of a Uint8Array.
export async function unpack(text) {
  const packed = Uint8Array.from(atob(text), character => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Call `draw(width)` now and whenever the width of a node changes: at most once for each frame of the screen.
export function onWidth(node, draw) {
  let drawn = -1;
  const check = () => {
    const width = Math.floor(node.clientWidth);
    if (width > 0 && width !== drawn) draw(drawn = width);
  };
  new ResizeObserver(() => requestAnimationFrame(check)).observe(node);
}

let issued = 0;

// An id that no other element of the page has.
export function uniqueId(prefix) {
  issued += 1;
  return `${prefix}-${issued}`;
}

// Width of a text in pixels, in a font such as "13px system-ui".
export function textWidth(text, font) {
  measuring ??= document.createElement("canvas").getContext("2d");
  measuring.font = font;
  return measuring.measureText(text).width;
}

let measuring = null;

// A text that is at most `width` pixels wide; what is cut off becomes an ellipsis.
export function shortened(text, width, font) {
  if (textWidth(text, font) <= width) return text;
  const characters = [...text];
  let low = 0, high = characters.length;
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (textWidth(`${characters.slice(0, middle).join("")}…`, font) <= width) low = middle;
    else high = middle - 1;
  }
  return `${characters.slice(0, low).join("")}…`;
}
