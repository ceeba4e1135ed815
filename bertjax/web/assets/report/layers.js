// The pages of analyses of layers: structural probes, geometry and senses of words, and comparisons of layers.

import { barsOverview, gridOverview } from "./overviews.js";
import { data } from "./results.js";

const percent = value => value === null ? "undefined" : `${(100 * value).toFixed(1)} %`;

const called = layer => layer === "embeddings" ? "the embeddings" : `layer ${layer}`;

// Bars have intervals, so a ranking would repeat them.
const page = (overview, texts) => ({ overview, hasRankingChart: false, texts: {
  ranking: data.grids ? "Pairs of layers with 95 % intervals" : "Layers with 95 % intervals", ...texts,
} });

export function structurePage(choose) {
  const { sentences, rank, linear_chain: chain } = data.details.structure;
  return page(barsOverview(choose), {
    overview: "Structural probe of each layer",
    overviewNote: `Probes of rank ${rank} are trained on ${sentences.train} sentences, selected on ${sentences.select} ` +
      `and tested on ${sentences.test}.` +
      (chain ? ` A tree that joins each word with the next has a UUAS of ${percent(chain.uuas)}.` : ""),
    examples: name => `Sentences in which the probe of layer ${name} differs most from that of the embeddings`,
  });
}

export function geometryPage(choose) {
  return page(barsOverview(choose), {
    overview: "Geometry of words in each layer",
    overviewNote: `Over ${data.details.geometry.words.toLocaleString("en")} words. Similarities and explainable variance ` +
      "are those beyond unrelated words.",
    examples: name => `Sentences whose contributions differ most between layer ${name} and the embeddings`,
  });
}

export function sensesPage(choose) {
  const { pairs, majority, layers } = data.details.senses;
  const values = (site, name) => `${site === "embeddings" ? site : `layer ${site}`} ${percent(layers[site][name])}`;
  const byLayer = name => ["embeddings", ...data.names].map(site => values(site, name)).join(", ");
  return page(barsOverview(choose), {
    overview: "Senses of words in each layer",
    overviewNote: `${pairs.toLocaleString("en")} pairs; the most frequent label has ${percent(majority)}. AUC of a random ` +
      `encoder: ${byLayer("random_auc")}. AUC of the mean of all other tokens of each sentence: ${byLayer("context_auc")}.`,
    examples: name => `Pairs whose cosine differs most between layer ${name} and the embeddings`,
  });
}

export function likenessPage(choose) {
  const { words, other, chance } = data.details.likeness;
  const most = Math.max(...chance.flat());
  return page(data.grids ? gridOverview(choose, "Map of pairs of layers; arrow keys choose a pair") : barsOverview(choose), {
    overview: other ? `Each layer, compared with that of ${other}` : "How alike two layers are",
    overviewNote: `Over ${words.toLocaleString("en")} words; unrelated words have an alignment of at most ${most.toFixed(3)}.`,
    examples: name => `Sentences that contribute most to the alignment of ${
      other ? `layer ${name} in both models` : name.split("-").map(called).join(" and ")}`,
  });
}
