// The numbers and the changed examples as CSV files.

import { saveText } from "../shared/export.js";
import { examplesOf, lineText } from "./examples.js";
import { data } from "./results.js";

const formula = new RegExp(data.formula);

function quoted(value) {
  const text = value === null || value === undefined ? "" : Array.isArray(value) ? value.join(" ") : String(value);
  const safe = typeof value === "string" && formula.test(text) ? `'${text}` : text; // no formula for a spreadsheet
  return /[",\n\r]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
}

export function saveTable(name, lines) {
  saveText(`${lines.map(line => line.map(quoted).join(",")).join("\n")}\n`, name, "text/csv");
}

export function numberLines() {
  const lines = [data.columns];
  for (const metric of data.metrics) {
    const rows = data.rows[metric.name];
    data.written.forEach(([name, heads], index) => {
      const known = { name, layer: data.places[index][0], head: data.places[index][1], heads };
      lines.push(data.columns.map(title => title in known ? known[title] : rows[title][index]));
    });
  }
  return lines;
}

export function exampleLines() {
  const titles = ["name", "layer", "head", "id", "label", "before", "after", "prediction before", "prediction after"];
  const lines = [[...titles, "first", "second"]];
  data.written.forEach(([name], index) => {
    for (const { id, label, before, after, first, second, lines: texts } of examplesOf(index)[1]) {
      const known = [name, ...data.places[index], id, label, before, after, first, second];
      lines.push([...known, ...texts.map(line => lineText([line]))]);
    }
  });
  return lines;
}
