// The examples that the chosen ablation changes most.

import { element } from "../shared/dom.js";
import { plain, signed } from "../shared/numbers.js";
import { byId, data, setText, state } from "./results.js";

export const isOfPredictions = data.examples.reads === "predictions";
// Contrasts have no labels.
export const labelOf = label => label === "none" || "patching" in data.details ? null : label;
// Contributions to an effect are 0 without it.
const isOfEffects = ["interactions", "shapley", "compare-layers"].includes(data.analysis);
const ofWhat = data.examples.value;

// A line is pieces of text with marks.
export const lineText = lines => lines
  .map(line => line.map(([text, mark]) => mark === "name" ? `${text}:` : text.trim()).join(" ")).join(" / ");

const lineNode = pieces => element("div", {}, pieces.map(([text, mark]) =>
  [mark ? element("span", { class: `mark-${mark}` }, text) : text, mark === "name" ? " " : ""]));

// The number of predictions that an ablation changes (null for values), and its examples.
export function examplesOf(ablation) {
  const [flips, rows] = data.examples.changed[ablation], names = data.examples.labels;
  const nameOf = label => label === undefined ? null : names?.[label] ?? String(label);
  return [flips, rows.map(([index, before, after, first, second], place) => {
    const [id, label, lines] = data.examples.texts[index], changes = data.examples.details[ablation][place] ?? [];
    return {
      id, label, lines: [...lines, ...changes], before, after, first: nameOf(first), second: nameOf(second),
      flips: first !== second,
    };
  })];
}

function examplesNote(flips, rows) {
  const { note } = data.examples, largest = `largest ${"roles" in data.details ? "difference" : "change"} of ${ofWhat}`;
  const what = isOfPredictions ?
    `${flips} ${flips === 1 ? "prediction changes" : "predictions change"}. ${note}` :
    `The examples with the ${isOfEffects ? `largest ${ofWhat} in size` : largest}. ${note}`.trim();
  if (!rows.length) return `${what} No output changes.`;
  const flipping = rows.filter(row => row.flips).length, rest = rows.length - flipping;
  if (!isOfPredictions || !rest) return `${what} Shown: ${rows.length}.`;
  return `${what} Shown: ${flipping ? "these, and " : ""}${rest} with the ${largest}.`;
}

// Value before and after, and the change; of effects only the value.
function numberCells({ before, after }) {
  const change = after - before, side = !isOfPredictions || !change ? "" : change < 0 ? " loss" : " gain";
  const numbers = element("td", { class: "number" }, `${plain(before, 3)} → ${plain(after, 3)}`);
  return [...(isOfEffects ? [] : [numbers]), element("td", { class: `number${side}` }, signed(change, 3))];
}

function exampleRow(row, isLabelled) {
  return element("tr", { class: row.flips && isOfPredictions ? "significant" : null },
    element("td", {}, row.id),
    isLabelled ? element("td", {}, row.label) : null,
    isOfPredictions ? element("td", {}, row.flips ? `${row.first} → ${row.second}` : row.first) : null,
    numberCells(row),
    element("td", {}, row.lines.map(lineNode)));
}

// heading: text above the table.
export function showExamples(heading) {
  const [flips, rows] = examplesOf(state.chosen), isLabelled = rows.some(row => labelOf(row.label) !== null);
  setText("examples-heading", heading);
  setText("examples-note", examplesNote(flips, rows));
  const numbers = isOfEffects ? [ofWhat] : [ofWhat, "roles" in data.details ? "difference" : "change"];
  const titles = ["id", isLabelled && "label", isOfPredictions && "prediction", ...numbers, "text"];
  byId("examples").tHead.replaceChildren(element("tr", {}, titles.filter(Boolean).map(title =>
    element("th", { scope: "col", class: numbers.includes(title) ? "number" : null }, title))));
  byId("examples").tBodies[0].replaceChildren(...rows.map(row => exampleRow(row, isLabelled)));
  byId("examples").parentElement.hidden = !rows.length;
}
