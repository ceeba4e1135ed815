// The page of interactions of pairs of heads.

import { gridOverview } from "./overviews.js";

export function interactionsPage(choose) {
  return {
    overview: gridOverview(choose, "Map of pairs of heads; arrow keys choose a pair"),
    texts: {
      overview: "Interaction of each pair of heads",
      overviewNote: "The interaction of a pair is the effect of ablating both heads minus the sum of the effects of " +
        "ablating each. A loss: ablating both costs more than that sum, as when each head can replace the other. " +
        "A gain: it costs less.",
      ranking: "Interactions with 95 % intervals",
      examples: name => `Examples that contribute most to the interaction of ${name.replace("+", " and ")}`,
      changed: name => `Heads ${name.replace("+", " and ")} ablated`,
      unchanged: name => `Ablating heads ${name.replace("+", " and ")}`,
    },
  };
}
