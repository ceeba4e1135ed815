// The page of restored layers: what the score is with parameters of the base model.

import { barsOverview, mapOverview } from "./overviews.js";
import { data, noun, printed } from "./results.js";

export function restorePage(choose) {
  const { part, scores } = data.details.restoring ?? {};
  return {
    overview: data.kind === "head" ? mapOverview(choose) : barsOverview(choose),
    hasRankingChart: data.kind === "head", // the bars have intervals
    texts: {
      overview: `Effect of ${data.mode.name === "redrawn" ? "redrawing" : "restoring"} ${part}`,
      overviewNote: "",
      drawn: "how the score changes when it is restored",
      examples: name => `Examples that change most when ${noun()} ${name} is restored`,
    },
  };
}
