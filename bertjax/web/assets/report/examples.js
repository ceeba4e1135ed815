// The examples that the chosen ablation changes most.

import { element } from "../shared/dom.js";
import { signed } from "../shared/numbers.js";
import { byId, data, setText, state } from "./results.js";

export const isOfPredictions = data.examples.reads === "predictions";

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

function noteOf(flips, rows) {
  const { value, note } = data.examples;
  const what = isOfPredictions ?
    `${flips} ${flips === 1 ? "prediction changes" : "predictions change"}. ${note}` :
    `The examples whose ${value} changes most. ${note}`.trim();
  if (!rows.length) return `${what} No output changes.`;
  const flipping = rows.filter(row => row.flips).length, rest = rows.length - flipping;
  if (!isOfPredictions || !rest) return `${what} Shown: ${rows.length}.`;
  return `${what} Shown: ${flipping ? "these, and " : ""}${rest} whose ${value} changes most.`;
}

function exampleRow(row, isLabelled) {
  const change = row.after - row.before, side = !isOfPredictions || !change ? "" : change < 0 ? " loss" : " gain";
  return element("tr", { class: row.flips && isOfPredictions ? "significant" : null },
    element("td", {}, row.id),
    isLabelled ? element("td", {}, row.label) : null,
    isOfPredictions ? element("td", {}, row.flips ? `${row.first} → ${row.second}` : row.first) : null,
    element("td", { class: "number" }, `${row.before.toFixed(3)} → ${row.after.toFixed(3)}`),
    element("td", { class: `number${side}` }, signed(change, 3)),
    element("td", {}, row.lines.map(lineNode)));
}

// heading: text above the table.
export function showExamples(heading) {
  const [flips, rows] = examplesOf(state.chosen), isLabelled = rows.some(row => row.label !== "none");
  setText("examples-heading", heading);
  setText("examples-note", noteOf(flips, rows));
  const titles = ["id", isLabelled && "label", isOfPredictions && "prediction", data.examples.value, "change", "text"];
  byId("examples").tHead.replaceChildren(element("tr", {}, titles.filter(Boolean).map((title, place, all) =>
    element("th", { scope: "col", class: place >= all.length - 3 && place < all.length - 1 ? "number" : null }, title))));
  byId("examples").tBodies[0].replaceChildren(...rows.map(row => exampleRow(row, isLabelled)));
  byId("examples").parentElement.hidden = !rows.length;
}
