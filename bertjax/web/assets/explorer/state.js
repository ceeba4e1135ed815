// The state of the explorer: what it has, how the address holds it, and undo.

const EXPLORER_VIEWS = ["head", "matrix", "model"];
const EXPLORER_CHANGES = ["log-probability", "probability"];
const EXPLORER_WEIGHTS = ["attention", "norms"];
const MOST_STEPS = 200;

// Fields of a target by the kind of the answers, with their types.
const TARGET_FIELDS = {
  words: { mask: "number", word: "string" },
  classes: { class: "number" },
  labels: { class: "number" },
  score: {},
  similarity: {},
  entities: { word: "number", tag: "string" },
  answer: { start: "number", end: "number" },
};

// The first state. texts: of the page. Fields:
//   texts: one for each text input. mode: how a head is ablated. off: names of the heads that are off, such as "4.2".
//   target: the part of the answer that the map follows; null for the most likely.
//   layer, head: the selected head, or null. view: of the attention viewer. change: what the map shows.
//   weights: which weights the attention viewer shows.
export function firstState(model, texts) {
  return {
    texts, mode: model.modes[0], off: [], target: null, layer: null, head: null, view: "head",
    change: EXPLORER_CHANGES[0], weights: EXPLORER_WEIGHTS[0],
  };
}

// A state as the fragment of an address, without "#".
export function fragmentOf(state) {
  const fields = new URLSearchParams();
  for (const text of state.texts) fields.append("texts", text);
  fields.set("mode", state.mode);
  if (state.off.length) fields.set("off", state.off.join(","));
  if (state.target) fields.set("target", JSON.stringify(state.target));
  if (state.layer !== null) {
    fields.set("layer", state.layer);
    fields.set("head", state.head);
  }
  fields.set("view", state.view);
  fields.set("change", state.change);
  fields.set("weights", state.weights);
  return fields.toString();
}

// A state from a fragment; what is missing or wrong there is as in `state`.
export function readFragment(fragment, model, state) {
  const fields = new URLSearchParams(fragment.replace(/^#/, ""));
  const found = { ...state };
  if (fields.has("texts")) {
    const texts = fields.getAll("texts");
    found.texts = state.texts.map((_, index) => texts[index] ?? "");
    found.off = [];
    found.target = null;
  }
  const choose = (name, choices) => {
    if (choices.includes(fields.get(name))) found[name] = fields.get(name);
  };
  choose("mode", model.modes);
  choose("view", EXPLORER_VIEWS);
  choose("change", EXPLORER_CHANGES);
  choose("weights", EXPLORER_WEIGHTS);
  if (fields.has("off")) found.off = sortedHeads(fields.get("off").split(",").filter(name => isHead(name, model)));
  if (fields.has("target")) found.target = readTarget(fields.get("target"), model.kind);
  if (isHead(`${fields.get("layer")}.${fields.get("head")}`, model)) {
    found.layer = Number(fields.get("layer"));
    found.head = Number(fields.get("head"));
  }
  return found;
}

function readTarget(text, kind) {
  let parsed = null;
  try {
    parsed = JSON.parse(text);
  } catch {
    return null;
  }
  const target = {};
  for (const [name, type] of Object.entries(TARGET_FIELDS[kind])) {
    const value = parsed?.[name];
    if (typeof value !== type || (type === "number" && !(Number.isInteger(value) && value >= 0))) return null;
    target[name] = value;
  }
  return Object.keys(target).length ? target : null;
}

function isHead(name, model) {
  const found = /^(\d+)\.(\d+)$/.exec(name);
  return found !== null && Number(found[1]) < model.layers && Number(found[2]) < model.heads &&
    !model.removed.includes(`${Number(found[1])}.${Number(found[2])}`);
}

// Names of heads without repetition, in order of layer and head.
export function sortedHeads(names) {
  const key = name => name.split(".").map(Number);
  return [...new Set(names)].sort((one, other) => {
    const [a, b] = [key(one), key(other)];
    return a[0] - b[0] || a[1] - b[1];
  });
}

// Heads that are off, with some switched: off if any of them is on, else on.
export function switched(off, names) {
  const now = new Set(off), anyOn = names.some(name => !now.has(name));
  for (const name of names) {
    if (anyOn) now.add(name);
    else now.delete(name);
  }
  return sortedHeads([...now]);
}

// The names of a layer's heads, without those that the checkpoint lacks.
export function headsOfLayer(layer, { heads, removed }) {
  return Array.from({ length: heads }, (_, head) => `${layer}.${head}`).filter(name => !removed.includes(name));
}

// Heads that are off as [name, heads]: a whole layer as one.
export function groupedHeads(off, model) {
  const groups = [];
  for (let layer = 0; layer < model.layers; layer += 1) {
    const inLayer = off.filter(name => name.startsWith(`${layer}.`)), heads = headsOfLayer(layer, model).length;
    if (heads > 1 && inLayer.length === heads) groups.push([`layer ${layer}`, inLayer]);
    else groups.push(...inLayer.map(name => [name, [name]]));
  }
  return groups;
}

// Undo and redo of the fields that change the question. record(state, typing): before a change; the characters that are
// typed one after the other are one step. undo(state), redo(state): the state after it, or null.
export function makeUndo() {
  const before = [], after = [];
  let typed = false;
  const kept = ({ texts, mode, off, target }) => ({ texts, mode, off, target });
  const step = (from, to, state) => {
    if (!from.length) return null;
    to.push(kept(state));
    typed = false;
    return { ...state, ...from.pop() };
  };
  return {
    record: (state, typing = false) => {
      if (!(typing && typed)) before.push(kept(state));
      if (before.length > MOST_STEPS) before.shift();
      after.length = 0;
      typed = typing;
    },
    undo: state => step(before, after, state),
    redo: state => step(after, before, state),
    canUndo: () => before.length > 0,
    canRedo: () => after.length > 0,
  };
}
