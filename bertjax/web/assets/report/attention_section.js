// The attention of a few examples, of the base run and of ablated runs.

import { attentionViewer } from "../shared/attention_viewer.js";
import { fillSelect, unpack } from "../shared/dom.js";
import { examplesOf, isOfPredictions, labelOf, lineText } from "./examples.js";
import { byId, data, setText, state } from "./results.js";

const samples = data.attention.samples;
const runs = data.attention.runs;
const firstLayers = data.attention.first_layers;
const STEPS = 255; // of a weight
const unpacked = new Map();
const selected = { layer: 0, head: 0, view: "head" };
let viewer = null;
let sectionTexts = null;
let newest = 0;

async function bytesOf(packed) {
  if (!unpacked.has(packed)) {
    unpacked.set(packed, await unpack(packed).catch(() => {
      throw new Error("This page is damaged: its attention cannot be unpacked. Write it again with bertjax report.");
    }));
  }
  return unpacked.get(packed);
}

// The attention of a run. An ablated run is stored from the first layer in which it differs from the base, as its
// difference from the base modulo 256.
function attentionOfRun(bytes, run, tokens) {
  const { layers, heads } = data.model, size = tokens.length ** 2;
  const start = firstLayers.slice(0, run).reduce((sum, first) => sum + layers - first, 0);
  return {
    tokens, layers, heads,
    matrix: (layer, head) => {
      const base = bytes.subarray((layer * heads + head) * size);
      const place = run && layer >= firstLayers[run] ? (start + layer - firstLayers[run]) * heads + head : null;
      const change = place === null ? null : bytes.subarray(place * size);
      return Float32Array.from({ length: size }, (_, cell) => (base[cell] + (change ? change[cell] : 0)) % 256 / STEPS);
    },
  };
}

const idOf = sample => data.examples.texts[data.examples.places.indexOf(sample.example)][0];
const runLabel = () => sectionTexts.run ?? "Ablated";

// Why there is only the attention of the base.
function reason(run) {
  const name = data.names[state.chosen], most = runs.length - 1;
  if (sectionTexts.noRuns) return sectionTexts.noRuns;
  if (run) {
    return `${sectionTexts.unchanged(runs[run])} changes nothing in layer ${selected.layer}: it acts on later layers.`;
  }
  if (!most) return "";
  if (runs.includes(name)) return "The unchanged model is selected.";
  const recorded = most === 1 ? "the largest effect" : `the ${most} largest effects`;
  const change = sectionTexts.changed(name).replace(/^With /, ""), inside = change[0].toLowerCase() + change.slice(1);
  const others = `only that of ${recorded}. Choose one under “${runLabel()}”.`;
  return `The attention with ${inside} is not recorded, ${others}`;
}

function describeSample(sample) {
  const [id, label, lines] = data.examples.texts[data.examples.places.indexOf(sample.example)];
  const change = isOfPredictions && examplesOf(state.chosen)[1].find(row => row.id === id && row.flips);
  const flip = change && sectionTexts.flip ?
    ` (${sectionTexts.flip(data.names[state.chosen])}: ${change.first} → ${change.second})` : "";
  return `Example ${id}${labelOf(label) === null ? "" : `, label ${label}`}${flip}: ${lineText(lines)}`;
}

export async function showAttention() {
  if (!samples.length) return;
  const request = ++newest, sample = samples[Number(byId("example").value)];
  const text = sample.texts[Number(byId("text").value) % sample.texts.length], run = Number(byId("run").value);
  const bytes = await bytesOf(text.weights);
  if (request !== newest) return; // there is a newer one
  setText("example-text", describeSample(sample));
  const isSame = !run || selected.layer < firstLayers[run] && selected.view !== "model";
  setText("one-panel", isSame ? reason(run) : "");
  const base = attentionOfRun(bytes, 0, text.tokens), ablated = isSame ? null : attentionOfRun(bytes, run, text.tokens);
  const ablatedCaption = run && sectionTexts.changed ? sectionTexts.changed(runs[run]) : "";
  const captions = [sectionTexts.base ?? "Without ablation", ablatedCaption];
  const change = { base, ablated, ...selected, captions, name: `attention-${idOf(sample)}` };
  if (viewer) viewer.update(change);
  else {
    viewer = attentionViewer({ ...change, onChange: found => { Object.assign(selected, found); guarded(); } });
    byId("viewer").append(viewer.node);
  }
  document.body.dataset.attention = `${selected.layer}.${selected.head} ${runs[run]} ${sample.example}`;
}

let failed = null;
const guarded = () => showAttention().catch(error => failed(error));

// Show the head and the run of an ablation.
export function attendTo(index) {
  const first = data.heads[index][0]; // cells of whole layers have none
  if (first !== undefined) {
    const [layer, head] = first.split("=")[0].split(".").map(Number);
    Object.assign(selected, { layer, head });
  }
  const run = Math.max(0, runs.indexOf(data.names[index]));
  if (data.kind === "set") selected.layer = Math.max(selected.layer, Math.min(firstLayers[run], data.model.layers - 1));
  byId("run").value = String(run);
  guarded();
}

function noteOnAttention() {
  if (!samples.length) return "attention.npz is not in the directory of the results: there is no attention to show.";
  const parts = ["Weights from each token (left) to the tokens that it attends to (right)."];
  if (runs.length === 2) parts.push("The run with the largest effect is recorded.");
  if (runs.length > 2) parts.push(`The ${runs.length - 1} runs with the largest effects are recorded.`);
  const all = data.attention.kept;
  if (samples.length < all) {
    parts.push(`${samples.length} of the ${all} recorded examples fit on the page; all are in attention.npz.`);
  }
  return parts.join(" ");
}

// fail(error): called if the attention cannot be read.
export function startAttention(pageTexts, fail) {
  sectionTexts = pageTexts;
  failed = fail;
  byId("attention-parts").hidden = !samples.length;
  fillSelect(byId("example"), samples.map((sample, place) => [place, idOf(sample)]));
  fillSelect(byId("text"), (samples[0]?.texts ?? []).map((_, place) => [place, `text ${place + 1}`]));
  byId("text").parentElement.hidden = (samples[0]?.texts.length ?? 0) < 2;
  byId("run-label").textContent = runLabel();
  byId("run").parentElement.hidden = runs.length < 2;
  fillSelect(byId("run"), runs.map((name, place) => [place, place ? name : "nothing"]), runs.length > 1 ? 1 : 0);
  setText("attention-note", noteOnAttention());
  for (const id of ["example", "text", "run"]) byId(id).addEventListener("change", guarded);
}
