// The page of roles of heads: where each head attends, and which heads meet a criterion.

import { element } from "../shared/dom.js";
import { plain } from "../shared/numbers.js";
import { mapOverview } from "./overviews.js";
import { data, indexAt } from "./results.js";

const MOST_HEADS = 3; // named for each role

// showMetric(name): called when a role is chosen.
export function rolesPage(choose, showMetric) {
  return {
    overview: mapOverview(choose),
    extra: data.details.roles ? rolesSection(choose, showMetric) : null,
    texts: {
      overview: "Attention of each head by role",
      drawn: "The attention of each head, as a difference from uniform attention",
      metric: "Role",
      ranking: "Heads with 95 % intervals",
      examples: name => `Texts in which head ${name} differs most from uniform attention`,
    },
  };
}

function headButtons(names, choose, textOf = name => name) {
  const buttons = names.map(name => element(
    "button", { type: "button", class: "link", onclick: () => choose(indexAt.get(name)) }, textOf(name)));
  return buttons.length ? buttons.flatMap(button => [button, " "]) : "none";
}

const NUMBER_COLUMNS = ["heads", "uniform", "mean", "by norms"];

const headingsOf = titles => element("thead", {}, element("tr", {}, titles.map(title =>
  element("th", { scope: "col", class: NUMBER_COLUMNS.includes(title) ? "number" : null }, title))));

function rolesSection(choose, showMetric) {
  return {
    node: element("div", { class: "chart" },
      element("div", { class: "scroll-x" }, criteriaTable(choose)),
      element("h3", {}, "Share of attention by role, in points"),
      element("div", { class: "scroll-x" }, sharesTable(choose, showMetric))),
    update: () => {}, heading: "Heads by role", note: data.details.silhouette ?? "",
  };
}

// Criteria with the heads that meet them.
function criteriaTable(choose) {
  const { criteria, kinds } = data.details.roles;
  const rows = Object.entries(criteria).map(([kind, criterion]) => {
    const heads = Object.keys(kinds).filter(name => kinds[name].includes(kind));
    return element("tr", {}, element("th", { scope: "row" }, kind), element("td", {}, criterion),
      element("td", { class: "number" }, heads.length), element("td", {}, headButtons(heads, choose)));
  });
  const titles = ["role", "criterion", "heads", "names"];
  return element("table", { id: "criteria" }, headingsOf(titles), element("tbody", {}, rows));
}

const meanOf = values => values.reduce((sum, value) => sum + (value ?? 0), 0) / values.length;

// For each role the share under uniform attention, the mean of all heads, and the heads with the largest shares.
function sharesTable(choose, showMetric) {
  const labels = new Map(data.metrics.map(metric => [metric.name, metric.label]));
  const defined = Object.entries(data.details.roles.definitions).filter(([name]) => name in data.rows);
  const rows = defined.map(([name, definition]) => {
    const { score, base } = data.rows[name], norms = data.rows[`norm_${name}`]?.score;
    const largest = data.names.map((_, index) => index).sort((a, b) => score[b] - score[a]).slice(0, MOST_HEADS);
    const shareOf = new Map(largest.map(index => [data.names[index], plain(100 * score[index], 0)]));
    const button = element("button", {
      type: "button", class: "link", title: definition, onclick: () => showMetric(name),
    }, labels.get(name).replace("Attention to ", ""));
    return element("tr", {}, element("th", { scope: "row" }, button),
      [base[0], meanOf(score), norms ? meanOf(norms) : null].map(value =>
        element("td", { class: "number" }, value === null ? "" : plain(100 * value, 1))),
      element("td", {}, headButtons([...shareOf.keys()], choose, head => `${head} (${shareOf.get(head)})`)));
  });
  return element("table", { id: "shares" }, headingsOf(["attention to", "uniform", "mean", "by norms", "largest"]),
    element("tbody", {}, rows));
}
