// Attention of one text: one head as lines or as a matrix, or all heads; base and ablated beside each other.

import { element } from "./dom.js";

// Props:
//   base: attention as `readAttention` returns it. ablated: the same with heads ablated, or null.
//   layer, head: the selected head. view: "head", "matrix" or "model".
//   captions: [of base, of ablated]. off: a Set of "layer.head" that are switched off in `ablated`.
//   name: of files that are saved, without suffix.
//   onChange({layer, head, view}): the user selected another head or view.
export function attentionViewer(props) {
  const node = element("div", { class: "attention-viewer" });
  return { node, update: () => {}, svg: () => null };
}
