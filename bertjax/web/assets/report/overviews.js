// The first chart of a page: a map of heads, bars of layers or sets, or grids of cells.

import { element } from "../shared/dom.js";
import { headsMap } from "../shared/heads_map.js";
import { cellsGrid } from "./cells_grid.js";
import { effectsChart } from "./effects_chart.js";
import {
  colourLimit, data, describe, everyIndex, indexAt, isFromZero, isSignificant, marksOf, measure, noun, printed,
  printedChange, inUnit, sorted, state,
} from "./results.js";

// What a map of heads draws of a value for each ablation.
export function mapOf(valueOf) {
  const values = Array.from({ length: data.model.layers }, () => Array(data.model.heads).fill(null));
  data.places.forEach(([layer, head], index) => { values[layer][head] = valueOf(index); });
  return values;
}

// The changes of single heads.
export function mapOverview(choose) {
  const view = headsMap({
    ...data.model, label: "Map of heads; arrow keys move, Enter chooses a head",
    describe: (layer, head) => indexAt.has(`${layer}.${head}`) ?
      describe(indexAt.get(`${layer}.${head}`), "\n") : `head ${layer}.${head}: no result`,
    onSelect: (layer, head) => choose(indexAt.get(`${layer}.${head}`)),
  });
  const update = () => {
    const { unit, digits, sign, tested, change } = measure();
    view.update({
      values: mapOf(index => printed("difference", index)), unit, digits, tested, quantity: change,
      limit: colourLimit(everyIndex().map(index => printed("difference", index))),
      lossIsNegative: sign > 0, fromZero: isFromZero(), selected: data.places[state.chosen],
      marks: new Set(everyIndex().filter(isSignificant).map(index => data.places[index].join("."))),
    });
  };
  return { node: view.node, update };
}

// The changes of layers or sets, in the order of their names.
export function barsOverview(choose) {
  const chart = effectsChart({ marks: [], measure: measure(), title: "", bars: true, onSelect: choose });
  const update = () => chart.update({
    marks: marksOf(sorted(everyIndex(), "name")), selected: state.chosen, measure: measure(),
    title: measure().change + (measure().unit ? ` in ${measure().unit}` : ""), below: noun(),
  });
  return { node: element("div", { class: "chart" }, chart.node), update };
}

// The changes of all cells or pairs. Ablations without details on the page have values here.
export function gridOverview(choose, label) {
  const { columns, panels, kept } = data.grids, indexOf = new Map(kept.map((ablation, index) => [ablation, index]));
  const printedValues = new Map(); // by metric
  function valuesOf() {
    if (!printedValues.has(state.metric)) {
      const values = data.grids.values[state.metric].map(value => value === null ? null : measure().factor * value);
      printedValues.set(state.metric, values);
    }
    return printedValues.get(state.metric);
  }
  const chart = cellsGrid({
    columns, panels, label, hasGaps: data.analysis === "patching", values: [], significant: [], measure: measure(),
    describe: ablation => indexOf.has(ablation) ? describe(indexOf.get(ablation), "\n") :
      `${measure().change} ${inUnit(printedChange(valuesOf()[ablation]))}\nThe page has no details of this ${noun()}.`,
    onSelect: (ablation, byKey) => { if (indexOf.has(ablation)) choose(indexOf.get(ablation), byKey); },
  });
  const update = () => {
    const values = valuesOf();
    chart.update({
      values, significant: data.grids.significant[state.metric], limit: colourLimit(values), measure: measure(),
      tested: measure().tested, isFromZero: isFromZero(), selected: kept[state.chosen],
    });
  };
  return { node: element("div", { class: "chart scroll-x" }, chart.node), update };
}
