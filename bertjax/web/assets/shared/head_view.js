// Attention of one head as lines between two columns of tokens: queries on the left, keys on the right.

import { element } from "./dom.js";

// Props:
//   tokens: texts. matrix: weights, row by row: matrix[query * tokens.length + key].
//   caption: text above. description: what is drawn, for people who hear the page.
//   limit: the weight that is drawn at full strength; by default the largest of the matrix.
export function headView(props) {
  const node = element("figure", { class: "head-view" });
  const view = { node, update: () => {}, svg: () => null };
  return view;
}
