// The page of roles of heads: where each head attends, and which heads meet a criterion.

import { element } from "../shared/dom.js";
import { mapOverview } from "./overviews.js";
import { data, indexAt } from "./results.js";

export function rolesPage(choose) {
  return {
    overview: mapOverview(choose),
    extra: data.details.roles ? criteriaSection(choose) : null,
    texts: {
      overview: "Attention of each head by role",
      overviewNote: "Choose a role under “Score”. Names with “norm” weight attention by the norms of values.",
      drawn: "the attention of each head, as a difference from uniform attention",
      ranking: "Heads with 95 % intervals",
      examples: name => `Texts in which head ${name} differs most from uniform attention`,
      base: "Attention",
    },
  };
}

// A table of criteria with the heads that meet them.
function criteriaSection(choose) {
  const { criteria, kinds } = data.details.roles;
  const rows = Object.entries(criteria).map(([kind, criterion]) => {
    const heads = Object.keys(kinds).filter(name => kinds[name].includes(kind));
    const buttons = heads.flatMap(name => [
      element("button", { type: "button", class: "link", onclick: () => choose(indexAt.get(name)) }, name), " "]);
    return element("tr", {}, element("th", { scope: "row" }, kind), element("td", {}, criterion),
      element("td", { class: "number" }, heads.length), element("td", {}, buttons.length ? buttons : "none"));
  });
  const titles = ["role", "criterion", "heads", "names"].map(title => element("th", { scope: "col" }, title));
  return {
    node: element("table", { id: "criteria" }, element("thead", {}, element("tr", {}, titles)), element("tbody", {}, rows)),
    update: () => {}, heading: "Heads that meet a criterion", note: data.details.silhouette ?? "",
  };
}
