// Attention of all heads as thumbnails: layers x heads.

import { element } from "./dom.js";

// Props:
//   attention: of a text, as `readAttention` returns it. layer, head: the selected head. caption: text above.
//   off: a Set of "layer.head" that are switched off; their thumbnails have a dashed frame.
//   onSelect(layer, head): click or Enter on a thumbnail.
export function modelView(props) {
  const node = element("figure", { class: "model-view" });
  return { node, update: () => {}, svg: () => null };
}
