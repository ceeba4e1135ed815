// The inputs of the texts, and the choice of an example of the task.

import { element } from "../shared/dom.js";

const EXAMPLES_SHOWN = 20;
const EXAMPLES_PAUSE = 250; // milliseconds after typing in the search
const NAMES_OF_TEXTS = {
  answer: ["Question", "Context"],
  similarity: ["First text", "Second text"],
};
const SAMPLE_TEXTS = {
  words: mask => [`The capital of France is ${mask}.`],
  classes: () => ["This film was a pleasure from start to finish.", ""],
  labels: () => ["Thank you so much, that was very kind of you!", ""],
  score: () => ["A wonderful film with a weak ending.", ""],
  similarity: () => ["A man is playing a guitar.", "Someone is making music."],
  entities: () => ["Ada Lovelace met Charles Babbage in London in 1833."],
  answer: () => ["Who wrote the first program?",
    "Charles Babbage designed the Analytical Engine. Ada Lovelace wrote the first program for it in 1843."],
};

// The texts that the page shows first: those of the first example, or a sentence that fits the kind of the answers.
export function firstTexts({ kind, texts, mask }, example) {
  const count = texts === 1 ? 1 : 2;
  const found = example?.texts ?? SAMPLE_TEXTS[kind](mask);
  const otherwise = index => (texts === 2 ? SAMPLE_TEXTS.similarity()[index] : "");
  return Array.from({ length: count }, (_, index) => found[index] || otherwise(index));
}

// The texts that are sent: an empty second text is left out if it is optional. null if a text is missing.
export function sentTexts(model, texts) {
  const used = texts.map(text => text.toWellFormed());
  if (model.texts === "1 or 2" && !used[1].trim()) used.pop();
  return used.every(text => text.trim()) ? used : null;
}

// The inputs. Props: model, texts; onType(texts): the user typed. update({texts}).
export function textInputs({ model, texts, onType }) {
  const optional = model.texts === "1 or 2";
  const names = NAMES_OF_TEXTS[model.kind] ?? ["Text", `Second text${optional ? " (optional)" : ""}`];
  const inputs = texts.map((text, index) => element("textarea", {
    id: `text-${index + 1}`, rows: texts.length > 1 ? 2 : 3, maxlength: 20000, spellcheck: "false",
    oninput: () => type(),
  }));
  const labels = inputs.map((input, index) => element("label", { class: "text-input" },
    element("span", { class: texts.length > 1 ? "" : "only-heard" }, names[index]), input));
  const insert = () => element("button", { type: "button", id: "insert-mask", onclick: insertMask }, `Insert ${model.mask}`);
  const mask = model.mask === null ? null : insert();
  const node = element("div", { class: "text-inputs" }, labels, mask);

  function type() {
    inputs.forEach(grow);
    onType(inputs.map(input => input.value));
  }

  // Put the mask where the caret is, or in place of what is selected.
  function insertMask() {
    const [input] = inputs;
    const before = input.value.slice(0, input.selectionStart), after = input.value.slice(input.selectionEnd);
    const text = `${/\S$/.test(before) ? " " : ""}${model.mask}${/^\w/.test(after) ? " " : ""}`;
    input.setRangeText(text, input.selectionStart, input.selectionEnd, "end");
    input.focus();
    type();
  }

  function update(changed) {
    changed.texts.forEach((text, index) => {
      if (inputs[index].value !== text) inputs[index].value = text;
      grow(inputs[index]);
    });
  }

  update({ texts });
  return { node, update, insertMask };
}

// Make an input as high as its text, up to what its style allows.
function grow(input) {
  input.style.setProperty("height", "auto");
  if (input.scrollHeight) input.style.setProperty("height", `${input.scrollHeight + 2}px`);
}

// The choice of an example. Props: count: of examples; task; load(body): a promise of the server's answer;
// onPick(texts), onError(error). node: null without examples.
export function examplePicker({ count, task, load, onPick, onError }) {
  if (!count) return { node: null };
  let offset = 0, total = count, listed = [], chosen = -1, timer = null, calls = 0;
  const search = element("input", {
    type: "search", id: "search", maxlength: 200, placeholder: "Find a word", "aria-label": "Find a word in the examples",
    oninput: () => {
      clearTimeout(timer);
      timer = setTimeout(() => { offset = 0; fill(); }, EXAMPLES_PAUSE);
    },
  });
  const list = element("ul", { class: "example-list", "aria-label": "Examples" });
  const position = element("span", { class: "note", role: "status" });
  const button = (text, action) => element("button", { type: "button", onclick: action }, text);
  const earlier = button("Earlier", () => { offset -= EXAMPLES_SHOWN; fill(); });
  const later = button("Later", () => { offset += EXAMPLES_SHOWN; fill(); });
  const fillFirst = () => { if (details.open && !listed.length) fill(); };
  const details = element("details", { id: "examples", ontoggle: fillFirst },
    element("summary", {}, `Examples${task ? ` of ${task}` : ""} (${count.toLocaleString("en")})`),
    element("div", { class: "controls" }, search, earlier, later, position), list);
  const step = (text, id, by) => element("button", { type: "button", id, onclick: () => move(by) }, text);
  const steps = element("div", { class: "controls example-steps" },
    step("Previous example", "previous-example", -1), step("Next example", "next-example", 1));

  async function fill() {
    calls += 1;
    const call = calls;
    try {
      const found = await load({ offset, count: EXAMPLES_SHOWN, search: search.value.toWellFormed() });
      if (call !== calls) return;
      [listed, total] = [found.examples, found.total];
    } catch (error) {
      onError(error);
      return;
    }
    draw();
  }

  function draw() {
    earlier.disabled = offset === 0;
    later.disabled = offset + EXAMPLES_SHOWN >= total;
    const last = offset + listed.length;
    position.textContent = total ? `${offset + 1} to ${last} of ${total}` : "No example has this text.";
    list.replaceChildren(...listed.map(({ texts, label }, index) => element("li", {}, element("button", {
      type: "button", class: offset + index === chosen ? "example is-chosen" : "example",
      onclick: () => pick(offset + index),
    }, element("span", {}, texts.join(" ‖ ")), label === null ? null : element("em", {}, label)))));
  }

  async function move(by) {
    if (!total) return;
    const index = Math.min(Math.max(chosen + by, 0), total - 1);
    if (index < offset || index >= offset + listed.length) {
      offset = EXAMPLES_SHOWN * Math.floor(index / EXAMPLES_SHOWN);
      await fill();
    }
    pick(index);
  }

  function pick(index) {
    const example = listed[index - offset];
    if (!example) return;
    chosen = index;
    draw();
    onPick(example.texts);
  }

  return { node: element("div", { class: "examples" }, steps, details) };
}
