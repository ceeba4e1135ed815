// The table of all ablations, with a filter, sorting, and a chart of the same rows.

import { element } from "../shared/dom.js";
import {
  byId, column, data, everyIndex, interval, isNamed, isSignificant, marksOf, measure, noun, plural, printed,
  printedChange, printedP, printedScore, setText, side, sorted, state,
} from "./results.js";
import { effectsChart } from "./effects_chart.js";

let rankingChart = null;

// The indices that the filter and the box for significant ones leave.
function found() {
  const wanted = byId("filter").value.trim().toLowerCase(), onlySignificant = byId("significant").checked;
  const matches = index => !wanted || data.names[index].startsWith(wanted) ||
    (isNamed && data.names[index].toLowerCase().includes(wanted)) ||
    data.heads[index].some(head => head.startsWith(wanted));
  return everyIndex().filter(index => matches(index) && (!onlySignificant || isSignificant(index)));
}

function notFound() {
  const wanted = byId("filter").value.trim();
  const parts = [wanted ? `has a name with ${wanted}` : "", byId("significant").checked ? "is significant" : ""];
  return parts.filter(Boolean).join(" and ");
}

const counted = () => `${data.ablations.toLocaleString("en")} ${data.ablations === 1 ? noun() : plural(noun())}`;

// Columns of the table: a key to sort by (null for none), a heading, and the text of a row.
function columns() {
  const hasFlips = column("gains").some(value => value !== null);
  return [
    ["name", noun(), null],
    ...(measure().effects ? [] : [["score", "score", printedScore]]),
    ["change", measure().change, index => printedChange(printed("difference", index))],
    [null, "95 % interval", interval],
    ...(measure().tested ? [["q", "q", index => printedP(index, column("q")[index])]] : []),
    ...(hasFlips ? ["gains", "losses"].map((name, place) =>
      [name, ["become right", "become wrong"][place], index => String(column(name)[index])]) : []),
  ];
}

function headings(titles) {
  const row = element("tr");
  for (const [key, title] of titles) {
    const cell = element("th", { scope: "col", class: key === "name" ? null : "number" }, key ? null : title);
    if (key) {
      cell.append(element("button", { type: "button", onclick: () => sortBy(key) }, title));
      if (state.sort === key) cell.setAttribute("aria-sort", state.descending ? "descending" : "ascending");
    }
    row.append(cell);
  }
  return row;
}

function sortBy(key) {
  state.descending = state.sort === key && !state.descending;
  state.sort = key;
  showTable();
}

function rowOf(index, titles, choose) {
  const sides = { "-1": "number loss", 0: "number", 1: "number gain" };
  const classes = [isSignificant(index) ? "significant" : "", index === state.chosen ? "selected" : ""];
  const cells = titles.slice(1).map(([key, , text]) => element("td", {
    class: sides[key === "change" ? side(printed("difference", index)) : 0],
  }, text(index)));
  const button = element("button", { type: "button", onclick: () => choose(index) }, data.names[index]);
  return element("tr", { class: classes.filter(Boolean).join(" ") || null, "data-name": data.names[index] },
    element("td", { class: "name" }, button), ...cells);
}

let chosenBy = null;

function showTable() {
  const table = byId("table"), titles = columns(), order = sorted(found(), state.sort);
  if (state.descending) order.reverse();
  const focused = document.activeElement, row = focused?.closest("#table tbody tr")?.dataset.name;
  const heading = focused?.closest("#table thead th")?.cellIndex;
  table.tHead.replaceChildren(headings(titles));
  table.tBodies[0].replaceChildren(...order.map(index => rowOf(index, titles, chosenBy)));
  // The focused node was replaced: its successor gets the focus.
  const same = row !== undefined && [...table.tBodies[0].rows].find(one => one.dataset.name === row);
  if (same) same.querySelector("button").focus();
  else if (heading !== undefined) table.tHead.rows[0].cells[heading].querySelector("button")?.focus();
}

const valueTitle = () => measure().change + (measure().unit ? ` in ${measure().unit}` : "");

// Show chart and table for what is chosen.
export function showRanking() {
  const order = sorted(found(), "gain"), { untested, tested } = measure();
  setText("count", order.length ? `${order.length.toLocaleString("en")} of ${counted()}` :
    `Nothing found: none of the ${counted()} ${notFound()}.`);
  byId("ranking").hidden = !order.length || !rankingChart;
  if (rankingChart && order.length) rankingChart.update({
    marks: marksOf(order), selected: state.chosen, measure: measure(), title: valueTitle(), below: noun(),
  });
  byId("significant").parentElement.hidden = !tested;
  if (!tested) byId("significant").checked = false;
  setText("ordered", tested ? `${sentenceOfOrder()}.` : `${sentenceOfOrder()}; ${untested}.`);
  for (const part of document.querySelectorAll(".of-tests")) part.hidden = !tested;
  showTable();
}

// From where to where the chart goes.
function sentenceOfOrder() {
  const { order, of_model: isOfModel, names: [worse, better], change } = measure();
  if (isOfModel) return `Changes with 95 % intervals, from the largest ${worse} to the largest ${better}`;
  const ends = order > 0 ? ["lowest", "highest"] : ["highest", "lowest"];
  return `${change[0].toUpperCase()}${change.slice(1)}s with 95 % intervals, from the ${ends[0]} to the ${ends[1]}`;
}

// hasChart: whether the chart of all ablations is drawn; choose(index): called by chart and table.
export function startRanking(hasChart, choose) {
  chosenBy = choose;
  if (hasChart) {
    rankingChart = effectsChart({ marks: [], selected: null, measure: measure(), title: "", onSelect: choose });
    byId("ranking").append(rankingChart.node);
  }
  byId("filter").addEventListener("input", showRanking);
  byId("significant").addEventListener("change", showRanking);
}
