// The page of results: its sections, and what is chosen.

import { element, fillSelect } from "../shared/dom.js";
import { onTheme, toggleTheme } from "../shared/colours.js";
import { ablatePage } from "./ablate.js";
import { attendTo, showAttention, startAttention } from "./attention_section.js";
import { exampleLines, numberLines, saveTable } from "./downloads.js";
import { showExamples } from "./examples.js";
import { importancePage } from "./importance.js";
import { interactionsPage } from "./interactions.js";
import { languagesPage } from "./languages.js";
import { geometryPage, likenessPage, sensesPage, structurePage } from "./layers.js";
import { patchPage } from "./patch.js";
import { probePage } from "./probe.js";
import { prunePage } from "./prune.js";
import {
  byId, column, data, describe, inUnit, isMap, measure, noun, printed, printedChange, setText, sortByLoss, state,
} from "./results.js";
import { showRanking, startRanking } from "./ranking.js";
import { restorePage } from "./restore.js";
import { rolesPage } from "./roles.js";
import { shapleyPage } from "./shapley.js";

const NEEDED = "Chrome or Edge from version 80, Firefox from 113, Safari from 16.4";
const PAGES = {
  ablation: ablatePage, interactions: interactionsPage, shapley: shapleyPage, importance: importancePage,
  roles: rolesPage, pruning: prunePage, probe: probePage, edges: probePage, restore: restorePage,
  patching: patchPage, paths: patchPage,
  structure: structurePage, geometry: geometryPage, "compare-layers": likenessPage, languages: languagesPage,
  senses: sensesPage,
};
// The page of an analysis of the user is that of ablations.
const analysis = (PAGES[data.analysis] ?? ablatePage)(choose, showMetric);
const overview = analysis.overview;
const extra = analysis.extra ?? null;
const texts = analysis.texts;

// The address names the chosen ablation.
function addressed() {
  try {
    return data.names.indexOf(decodeURIComponent(location.hash.slice(1)));
  } catch {
    return -1; // a % that encodes nothing
  }
}

// replace: whether the address replaces that of the last choice in the history.
function choose(index, replace = false) {
  if (index === undefined || index === null || index < 0) return;
  const hash = `#${encodeURIComponent(data.names[index])}`;
  if (hash !== location.hash) history[replace === true ? "replaceState" : "pushState"](null, "", hash);
  open(index);
}

function open(index) {
  state.chosen = index;
  show();
  attendTo(index);
}

function showMetric(name) {
  state.metric = name;
  byId("metric").value = name;
  sortByLoss();
  show();
}

const keyboard = isMap ? "arrow keys and Enter" : data.grids ? "arrow keys" : "the table below";
const pointing = () => `Point at a mark for its numbers, click it to choose it (keyboard: ${keyboard}). ` +
  `The page's address names the chosen ${noun()}.`;

function whatIsDrawn() {
  const { effects, compared, label, by, change } = measure();
  if (texts.drawn !== undefined && !effects) return texts.drawn;
  if (effects) return label;
  if (by === "gradients") return `${label}: the change without the head that gradients predict`;
  return compared ? `difference from ${compared}` : change;
}

function show() {
  const { unit, label, positive, sign } = measure();
  overview.update();
  extra?.update();
  setText("chosen", describe(state.chosen));
  const drawn = whatIsDrawn();
  setText("drawn", `${drawn ? `${sentence(drawn)}${unit ? `, in ${unit}` : ""}. ` : ""}${pointing()}`);
  const about = positive === null ? "" : `${label} is about the label “${positive}”. `;
  setText("positive", `${about}${sign < 0 ? "Lower is better." : ""}`.trim());
  showRanking();
  showExamples(texts.examples(data.names[state.chosen]));
  const statistics = data.statistics[state.metric];
  setText("sentence", statistics ? statistics.sentence : data.sentence);
  setText("halves", statistics ? halvesOf(statistics.halves) : "");
  setText("method", statistics ? methodOf(statistics) : "");
}

const sentence = text => text ? text[0].toUpperCase() + text.slice(1) : "";

function halvesOf({ chosen, on_chosen: onChosen, on_other: onOther, halves }) {
  if (onOther === null || !halves) return "";
  const most = chosen.map(([name, part]) => `${name} (${Math.round(100 * part)} %)`).join(", ");
  const { factor, sign, change, of_model: isOfModel } = measure();
  const [here, there] = [onChosen, onOther].map(value => factor * value);
  const best = isOfModel ? `the best ${noun()} changes the score by` :
    `the ${noun()} with the ${sign < 0 ? "lowest" : "highest"} ${change} has`;
  return `Chosen on a random half of the examples, ${best} ${inUnit(printedChange(here))} there and ` +
    `${printedChange(there)} on the other half (mean of ${halves} halves). Chosen most often: ${most}.`;
}

function methodOf({ resamples, test }) {
  const draws = `bootstrap with ${resamples.toLocaleString("en")} samples`;
  const usual = column("interval").includes("t") ?
    `Student's t or ${draws}, whichever is wider, corrected for skewness` : `BCa ${draws}`;
  const tests = measure().tested ? ` Test: ${test}. q: Benjamini and Hochberg. An interval is of one ${noun()}; ` +
    `q accounts for all ${data.ablations.toLocaleString("en")}.` : "";
  return `Intervals: ${usual}, or score intervals where few predictions change.${tests}`;
}

function start() {
  document.title = data.title;
  setText("title", data.title);
  setText("overview-heading", texts.overview);
  setText("overview-note", texts.overviewNote ?? "");
  setText("metric-label", texts.metric ?? "Score");
  setText("ranking-heading", texts.ranking ?? "Effects with 95 % intervals");
  setText("ranking-note", texts.rankingNote ?? "");
  byId("overview").append(overview.node);
  byId("extra").hidden = !extra;
  if (extra) {
    setText("extra-heading", extra.heading);
    setText("extra-note", extra.note);
    byId("extra-chart").append(extra.node);
  }
  setText("all-numbers", data.names.length < data.ablations ?
    `Numbers of the ${data.names.length.toLocaleString("en")} largest effects as CSV` : "All numbers as CSV");
  fillSelect(byId("metric"), data.metrics.map(metric => [metric.name, metric.label]), state.metric);
  byId("metric").addEventListener("change", event => showMetric(event.target.value));
  byId("all-numbers").addEventListener("click", () => saveTable("results.csv", numberLines()));
  byId("changed-examples").addEventListener("click", () => saveTable("examples.csv", exampleLines()));
  byId("theme").addEventListener("click", toggleTheme);
  onTheme(() => overview.update());
  byId("facts").replaceChildren(...data.facts.flatMap(([name, text]) =>
    [element("dt", {}, name), element("dd", {}, text)]));
  byId("filter").placeholder = data.kind === "head" ? "such as 3. or 4.11" : "a name";
  startRanking(analysis.hasRankingChart ?? true, choose);
  startAttention(texts, fail);
  sortByLoss();
  const sizes = data.names.map((_, index) => Math.abs(printed("difference", index) ?? 0));
  const first = analysis.first ?? sizes.indexOf(Math.max(...sizes));
  const shown = () => addressed() < 0 ? first : addressed();
  open(shown());
  addEventListener("hashchange", () => open(shown()));
  addEventListener("popstate", () => open(shown()));
  markWhenDrawn();
}

// For tests: whether the first chart is drawn.
function markWhenDrawn() {
  if (document.querySelector("#overview svg")) document.body.dataset.ready = "yes";
  else requestAnimationFrame(markWhenDrawn);
}

function fail(error) {
  setText("failure", error.message);
  byId("failure").hidden = false;
  for (const node of [byId("sentence"), byId("theme"), document.querySelector("main")]) node.hidden = true;
}

if (window.DecompressionStream) start();
else fail(new Error(`This page needs a newer browser: ${NEEDED}.`));
