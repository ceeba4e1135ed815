// The data of the page, what is chosen, and how values are printed.

import { pageData } from "../shared/dom.js";
import { signed } from "../shared/numbers.js";

export const data = pageData();
export const state = { metric: data.drawn, chosen: 0, sort: "change", descending: false };
export const byId = id => document.getElementById(id);
export const setText = (id, text) => { byId(id).textContent = text; };

const SIGNIFICANT = 0.05;

// The kind of an ablation, in the singular, and its plural.
export function noun() {
  if (data.analysis === "pruning") return "point";
  if (data.kind !== "set") return data.kind;
  if (data.analysis === "compare-layers") return "pair of layers";
  if (data.analysis === "restore") return "set of layers";
  return data.grids ? "pair of heads" : "set of heads";
}

export const plural = name => name.includes(" of ") ? name.replace(" of ", "s of ") : `${name}s`;
export const isMap = data.kind === "head";
// Names of sets and cells are found by any part of them, names of heads and layers by their beginning.
export const isNamed = !isMap && data.kind !== "layer";
export const indexAt = new Map(data.places.map(([layer, head], index) => [`${layer}.${head}`, index]));

// The metric that is shown: unit, factor, digits, and sign: 1 where greater is better, else -1.
export const measure = () => data.metrics.find(metric => metric.name === state.metric);
export const column = name => data.rows[state.metric][name];

export function printed(name, index) {
  const value = column(name)[index];
  return value === null ? null : measure().factor * value;
}

export const isTested = index => column("q")[index] !== null;
export const isSignificant = index => isTested(index) && column("q")[index] < SIGNIFICANT;

// A change with its sign; what cannot be below 0 has none.
export function printedChange(value) {
  if (value === null) return "undefined";
  return isFromZero() && value > 0 ? value.toFixed(measure().digits) : signed(value, measure().digits);
}

export const inUnit = text => `${text} ${measure().unit}`.trim();

// The smallest p that random swaps can give is an upper bound.
function isBound(value, name) {
  const least = data.statistics[state.metric]?.[name];
  return typeof least === "number" && value !== null && value <= least * (1 + 1e-9);
}

function probability(value) {
  if (value === null) return "undefined";
  if (value >= 0.001) return String(Number(value.toPrecision(2)));
  return value >= 0.00001 ? String(Number(value.toFixed(5))) : "<0.00001";
}

// A p or q of an ablation, with ≤ if its p is a bound.
export const printedP = (index, value) =>
  `${value !== null && isBound(column("p")[index], "least_p") ? "≤" : ""}${probability(value)}`;

const equals = text => /^[<≤]/.test(text) ? `${text[0]} ${text.slice(1)}` : `= ${text}`;

export function interval(index) {
  const low = printed("low", index), high = printed("high", index);
  return low === null || high === null ? "" : `${printedChange(low)} to ${printedChange(high)}`;
}

export const printedScore = index =>
  printed("score", index) === null ? "undefined" : printed("score", index).toFixed(measure().digits);

function testsOf(index) {
  if (!measure().tested) return "";
  if (!isTested(index)) return "p and q undefined";
  return `p ${equals(printedP(index, column("p")[index]))}, q ${equals(printedP(index, column("q")[index]))}`;
}

// All numbers of an ablation.
export function describe(index, separator = "; ") {
  const name = `${noun()} ${data.names[index]}`, change = printed("difference", index);
  const parts = [
    measure().effects ? name : `${name}: score ${printedScore(index)}`,
    change === null ? "change undefined" :
      `${measure().change} ${inUnit(printedChange(change))} (95 % CI ${interval(index) || "undefined"})`,
    testsOf(index),
  ];
  const best = column("best_p")[index];
  if (measure().sign * change > 0 && best !== null) {
    const text = `${isBound(best, "least_best_p") ? "≤" : ""}${probability(best)}`;
    parts.push(`the largest of ${data.ablations} chance effects is at least as large with p ${equals(text)}`);
  }
  const gains = column("gains")[index], losses = column("losses")[index];
  if (gains !== null) parts.push(`${gains} become right, ${losses} wrong`);
  return parts.filter(Boolean).join(separator);
}

const keys = {
  name: index => isNamed ? data.names[index] : 1000 * data.places[index][0] + (data.places[index][1] ?? 0),
  score: index => printed("score", index),
  change: index => printed("difference", index),
  gain: index => printed("difference", index) === null ? null : measure().order * printed("difference", index),
  q: index => column("q")[index],
  gains: index => column("gains")[index],
  losses: index => column("losses")[index],
};

// Indices of ablations in ascending order of a column, undefined values last.
export function sorted(indices, key) {
  return [...indices].sort((a, b) => {
    const left = keys[key](a), right = keys[key](b);
    if (left === null || right === null) return (left === null) - (right === null) || a - b;
    return left < right ? -1 : left > right ? 1 : a - b;
  });
}

export const everyIndex = () => data.names.map((_, index) => index);

// The table begins with the largest loss.
export function sortByLoss() {
  if (state.sort === "change") state.descending = measure().order < 0;
}

// -1 for a loss, 1 for a gain, 0 for a change that is printed as 0 or undefined.
export function side(change) {
  return change === null || Number(change.toFixed(measure().digits)) === 0 ? 0 : Math.sign(measure().sign * change);
}

// What a chart draws of an ablation.
export const marksOf = indices => indices.map(index => ({
  index, name: data.names[index], change: printed("difference", index), low: printed("low", index),
  high: printed("high", index), side: side(printed("difference", index)),
  significant: isSignificant(index) || !measure().tested, tested: measure().tested, text: describe(index, "\n"),
}));

// Whether values are never below 0, so that charts begin at 0.
export const isFromZero = () => measure().effects && !measure().tested;

// The end of the colour scale: the largest size, or three times the 90th percentile if that is smaller. Shares that
// patches restore end at 100 points.
export function colourLimit(values) {
  const sizes = values.filter(value => value !== null).map(Math.abs).sort((a, b) => a - b);
  const least = 5 * 10 ** -measure().digits;
  if (!sizes.length) return least;
  const largest = sizes[sizes.length - 1];
  if (data.analysis === "patching" && measure().effects) return Math.max(Math.min(100, largest), least);
  const bound = 3 * sizes[Math.floor(0.9 * (sizes.length - 1))];
  return Math.max(bound > 0 ? Math.min(largest, bound) : largest, least);
}
