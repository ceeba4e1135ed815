// The page of linear probes: what each layer or head knows about the tags of words.

import { barsOverview, mapOverview } from "./overviews.js";
import { data, noun } from "./results.js";

export function probePage(choose) {
  const { sentences, most_frequent: frequent, description_lengths: lengths } = data.details.probe ?? {};
  const split = sentences ? `Probes are trained on ${sentences.train} sentences, selected on ${sentences.select} and ` +
    `tested on ${sentences.test}; ${(100 * frequent).toFixed(1)} % of the test words have the most frequent tag. ` : "";
  return {
    overview: data.kind === "head" ? mapOverview(choose) : barsOverview(choose),
    hasRankingChart: data.kind === "head", // the bars have intervals
    texts: {
      overview: `Probe of each ${noun()}`,
      overviewNote: split + lengthsOf(lengths),
      ranking: `${data.kind === "head" ? "Heads" : "Layers"} with 95 % intervals`,
      examples: name => `Sentences in which the probe of ${noun()} ${name} differs most from that of the embeddings`,
    },
  };
}

// "Shortest description of the tags: 3, 1,234 bits (compression 4.20)."
function lengthsOf(lengths) {
  if (!lengths) return "";
  const [name, { bits, compression }] = Object.entries(lengths).sort((one, other) => one[1].bits - other[1].bits)[0];
  return `Shortest description of the tags: ${name}, ${Math.round(bits).toLocaleString("en")} bits ` +
    `(compression ${compression.toFixed(2)}).`;
}
