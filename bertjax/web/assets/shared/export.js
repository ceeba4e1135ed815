// Files from the page: pictures and texts.

// Save an <svg> element of the page as an SVG file: name.svg.
export function saveSvg(svg, name) {}

// Save an <svg> element of the page as a PNG file at twice its size: name.png; a promise.
export async function savePng(svg, name) {}

// Save a text under a name with its suffix. type: such as "text/csv".
export function saveText(text, name, type = "text/plain") {}
