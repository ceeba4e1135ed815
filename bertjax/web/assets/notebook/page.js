// The page of a notebook's output: the attention of one text, or of each text of a batch.

import { readAttention } from "../shared/attention.js";
import { attentionViewer } from "../shared/attention_viewer.js";
import { toggleTheme } from "../shared/colours.js";
import { element, fillSelect, pageData } from "../shared/dom.js";

// Data: {texts: [{base, ablated}], captions, off, layer, head, view, name}; base and ablated (or none) as
// `pack_attention` packs them.
async function startNotebook() {
  const data = pageData(), main = document.querySelector("main");
  const readings = new Map(); // by index: texts are unpacked when they are shown first
  const read = index => {
    const { base, ablated } = data.texts[index];
    if (!readings.has(index)) readings.set(index, Promise.all([readAttention(base), ablated ? readAttention(ablated) : null]));
    return readings.get(index);
  };
  const [base, ablated] = await read(0);
  const viewer = attentionViewer({
    base, ablated, layer: data.layer, head: data.head, view: data.view, captions: data.captions, off: new Set(data.off),
    name: data.name, quantity: data.quantity, tools: [element("button", {
      type: "button", title: "Light or dark", "aria-label": "Light or dark", onclick: toggleTheme,
    }, "◐")],
  });
  let requested = 0;
  const showText = async index => {
    requested = index;
    const [chosen, changed] = await read(index);
    if (index === requested) viewer.update({ base: chosen, ablated: changed });
  };
  if (data.texts.length > 1) main.append(textSelect(data.texts, showText));
  main.append(viewer.node);
  document.body.dataset.ready = "yes";
}

// A choice of texts by their first tokens.
function textSelect(texts, onChange) {
  const select = element("select", { onchange: () => onChange(Number(select.value)) });
  fillSelect(select, texts.map(({ base }, index) => {
    const words = base.tokens.slice(0, 12).join(" ");
    return [index, `${index}: ${words}${base.tokens.length > 12 ? " …" : ""}`];
  }), 0);
  return element("label", { class: "notebook-text" }, "Text ", select);
}

startNotebook().catch(error => {
  document.querySelector("main").append(element("p", { role: "alert" }, `This page cannot be shown: ${error.message}`));
});
