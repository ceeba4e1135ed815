// The page of languages: how far the sentence vectors of each layer depend on the language.

import { barsOverview } from "./overviews.js";
import { data } from "./results.js";

export function languagesPage(choose) {
  const { names, sentences, chance, layers } = data.details.languages;
  const percent = value => `${(100 * value).toFixed(1)} %`;
  const sites = ["embeddings", ...data.names];
  const byLayer = read => sites.map(site => `${site} ${read(layers[site])}`).join(", ");
  return {
    overview: barsOverview(choose),
    hasRankingChart: false, // the bars have intervals
    texts: {
      overview: "Languages at each layer",
      overviewNote: `${names.join(", ")}; centroids and probes are estimated on ${sentences.train} sentences, and ` +
        `${sentences.test} are tested. Retrieval by chance is ${percent(chance)}. Centred retrieval of a random ` +
        `encoder: ${byLayer(found => percent(found.random.retrieval_centred))}. Distance between centroids, as a ` +
        `multiple of the spread of sentences: ${byLayer(found => (found.distance / found.spread).toFixed(2))}.`,
      ranking: "Layers with 95 % intervals",
      examples: name => `Sentences whose translations are retrieved differently in layer ${name} and in the embeddings`,
    },
  };
}
