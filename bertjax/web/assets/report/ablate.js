// The page of ablations of heads, layers or sets.

import { barsOverview, gridOverview, mapOverview } from "./overviews.js";
import { data, noun } from "./results.js";

export function ablatePage(choose) {
  const overview = data.kind === "head" ? mapOverview(choose) :
    data.grids ? gridOverview(choose, "Map of pairs of heads; arrow keys choose a pair") : barsOverview(choose);
  return {
    overview,
    hasRankingChart: data.kind !== "layer", // the bars have intervals
    texts: {
      overview: `Effect of ablating each ${noun()}`,
      drawn: "how the score changes when it is ablated",
      examples: name => `Examples that change most when ${noun()} ${name} is ablated`,
      flip: name => `${noun()} ${name} ablated`,
      changed: name => `${sentenceCase(noun())} ${name} ablated`,
      run: "Ablated",
      unchanged: name => `Ablating ${noun()} ${name}`,
    },
  };
}

export const sentenceCase = text => text[0].toUpperCase() + text.slice(1);
