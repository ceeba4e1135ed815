// Attention of one head as a matrix: a row for each query, a column for each key.

import { element } from "./dom.js";

// Props: tokens, matrix, caption, description, limit as in `headView`.
export function matrixView(props) {
  const node = element("figure", { class: "matrix-view" });
  return { node, update: () => {}, svg: () => null };
}
