// The page of Shapley values: the values, and how precise they are over orders of removal.

import { effectsChart } from "./effects_chart.js";
import { mapOverview } from "./overviews.js";
import { data, everyIndex, inUnit, marksOf, measure, printedChange, sorted, state } from "./results.js";

export function shapleyPage(choose) {
  const { orders, exact, half_widths: widths } = data.details.shapley ?? {};
  const drawn = exact ? "all sets of heads" : `${orders} random orders of removal`;
  return {
    overview: mapOverview(choose),
    extra: widths && !exact && widths.every(width => width !== null) ? ordersSection(choose, orders) : null,
    texts: {
      overview: "Shapley value of each head",
      overviewNote: "The value of a head is its mean contribution to the score over orders in which heads are removed" +
        `${orders === undefined ? "" : ` (${drawn})`}. ${sumOfValues()}`,
      ranking: "Values with 95 % intervals",
      rankingNote: "These intervals are over examples.",
      examples: name => `Examples that contribute most to the Shapley value of head ${name}`,
      changed: name => `Head ${name} ablated`,
      unchanged: name => `Ablating head ${name}`,
    },
  };
}

// "The values sum to +34.00 points: ROC AUC 84.00 with all heads, 50.00 without them."
function sumOfValues() {
  const { shapley: found, derived } = data.details;
  if (!found || !derived || found.without === null) return "";
  const { factor, digits } = measure(), [base, without] = [derived.base, found.without].map(value => factor * value);
  return `The values sum to ${inUnit(printedChange(base - without))}: ${derived.label} ${base.toFixed(digits)} with ` +
    `these heads, ${without.toFixed(digits)} without them.`;
}

function ordersSection(choose, orders) {
  const chart = effectsChart({ marks: [], measure: measure(), title: "", onSelect: choose });
  const { half_widths: widths } = data.details.shapley;
  const update = () => {
    const { factor, unit } = measure(), ends = widths.map(width => factor * width);
    const marks = marksOf(sorted(everyIndex(), "gain")).map(mark => ({
      ...mark, low: mark.change - ends[mark.index], high: mark.change + ends[mark.index],
      text: `head ${mark.name}: ${inUnit(printedChange(mark.change))} ± ${ends[mark.index].toPrecision(2)}`,
    }));
    const title = `value${unit ? ` in ${unit}` : ""}`;
    chart.update({ marks, selected: state.chosen, measure: measure(), title, below: "head" });
  };
  return {
    node: chart.node, update, heading: "Precision over orders of removal",
    note: `Values with 95 % intervals over the ${orders} sampled orders, for these examples. More orders ` +
      "(--permutations) make them narrower.",
  };
}
