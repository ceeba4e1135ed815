// The pages of activation patching and of path patching.

import { gridOverview, mapOverview } from "./overviews.js";
import { data, isMap } from "./results.js";

export function patchPage(choose) {
  const { patching, too_few_contrasts: tooFew } = data.details, { into, score, receivers } = patching;
  const other = into === "corrupted" ? "clean" : "corrupted";
  const written = value => Math.abs(value) >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
  const scores = `${score}: ${written(patching.own_score)} of ${into} texts, ` +
    `${written(patching.donor_score)} of ${other} texts.`;
  const to = receivers && Object.entries(receivers).map(([site, heads]) => `${site} of ${heads.join(" ")}`).join(", ");
  const hasGaps = data.grids?.panels.some(panel => panel.cells.flat().includes(null));
  return {
    overview: isMap ? mapOverview(choose) : gridOverview(choose, "Grids of patches; arrow keys choose a cell"),
    texts: {
      overview: to ? `Effect of the paths from each head to the ${to}` : `Effect of each patch of ${into} texts`,
      overviewNote: [
        to ? `Each head's output is taken from the ${other} text, and acts only through the ${to}.` :
          `Each cell takes its activations from the ${other} text. Rows: layers or heads. Columns: token positions.`,
        hasGaps ? "Dashed cells: the patch cannot act on the score." : "",
        scores, tooFew ? `${tooFew}.` : "",
      ].filter(Boolean).join(" "),
      drawn: `how the score of ${into} texts changes`,
      examples: name => to ? `Contrasts that the paths from head ${name} change most` :
        `Contrasts that the patch of ${name} changes most`,
      base: "Without patches",
      flip: name => `with ${name} patched`,
      noRuns: "The attention of patched runs is not recorded.",
    },
  };
}
