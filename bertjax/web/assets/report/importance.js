// The page of the importance of heads by gradients.

import { mapOverview } from "./overviews.js";
import { data } from "./results.js";

export function importancePage(choose) {
  const { loss, steps } = data.details.gradients ?? {};
  const points = steps > 1 ? `mean of gradients at ${steps} points` : "gradients of the unmodified model";
  return {
    overview: mapOverview(choose),
    texts: {
      overview: "Importance of each head by gradients",
      overviewNote: `Estimates by ${points}${loss ? `; loss: ${loss}` : ""}.`,
      ranking: "Heads with 95 % intervals",
      examples: name => `Examples whose loss depends most on head ${name}, by gradients`,
      base: "Unmodified model",
    },
  };
}
