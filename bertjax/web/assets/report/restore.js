// The page of restored layers: how the score changes with parameters of another model.

import { barsOverview, mapOverview } from "./overviews.js";
import { plain } from "../shared/numbers.js";
import { data, inUnit, measure, noun } from "./results.js";

export function restorePage(choose) {
  const { part, scores } = data.details.restoring, isRedrawn = data.mode.name === "redrawn";
  const { name, label, factor, digits } = measure(), every = scores[name];
  const done = isRedrawn ? "redrawn" : "restored";
  return {
    overview: data.kind === "head" ? mapOverview(choose) : barsOverview(choose),
    hasRankingChart: data.kind === "head", // the bars have intervals
    texts: {
      overview: `Effect of ${isRedrawn ? "redrawing" : "restoring"} ${part}`,
      overviewNote: `${label} with all layers ${done}: ` +
        `${every === null ? "undefined" : inUnit(plain(factor * every, digits))}.`,
      drawn: `how the score changes when it is ${done}`,
      examples: name => `Examples that change most when ${noun()} ${name} is ${done}`,
      base: "Without changes",
      flip: name => `${noun()} ${name} ${done}`,
      noRuns: `The attention of runs with ${done} parameters is not recorded.`,
    },
  };
}
