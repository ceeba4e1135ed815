// The page of probes: what each layer or head knows about the tags of words, or the labels of spans.

import { barsOverview, mapOverview } from "./overviews.js";
import { data, noun } from "./results.js";

export function probePage(choose) {
  const details = data.details.probe ?? {}, { sentences, most_frequent: frequent } = details;
  const split = sentences ? `Probes are trained on ${sentences.train} sentences, selected on ${sentences.select} and ` +
    `tested on ${sentences.test}; ${(100 * frequent).toFixed(1)} % of the test ${details.kind ?? "words"} have the most ` +
    `frequent ${details.kind ? "label" : "tag"}. ` : "";
  return {
    overview: data.kind === "head" ? mapOverview(choose) : barsOverview(choose),
    hasRankingChart: data.kind === "head", // the bars have intervals
    texts: {
      overview: `Probe of each ${noun()}`,
      overviewNote: split + lengthsOf(details.description_lengths) + mixOf(details),
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

// "A mix of all layers: 87.9 %, centre of gravity 2.79; expected layer 1.66."
function mixOf({ mix, expected_layer: expected }) {
  if (!mix) return "";
  return `A mix of all layers: ${(100 * mix.accuracy).toFixed(1)} %, centre of gravity ${mix.centre_of_gravity.toFixed(2)}` +
    `${expected.layer === null ? "" : `; expected layer ${expected.layer.toFixed(2)}`} (0 are the embeddings).`;
}
