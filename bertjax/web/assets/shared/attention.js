// Attention weights of one text.

import { unpack } from "./dom.js";

// Attention from bytes. weights: an array of integers [layers, heads, query, key], each `steps` times a weight.
// matrix(layer, head): the weights of a head, row by row: weights[query * tokens.length + key].
export function attentionOf({ tokens, layers, heads, weights, steps }) {
  const size = tokens.length ** 2;
  if (weights.length !== layers * heads * size) throw new Error("these attention weights do not fit their tokens");
  return {
    tokens, layers, heads,
    matrix: (layer, head) => {
      const start = (layer * heads + head) * size, matrix = new Float32Array(size);
      for (let index = 0; index < size; index += 1) matrix[index] = weights[start + index] / steps;
      return matrix;
    },
  };
}

// Attention as `pack_attention` of Python packs it: a promise.
export async function readAttention({ tokens, layers, heads, weights }) {
  const bytes = await unpack(weights); // low bytes first, as in the memory of every machine that has a browser
  return attentionOf({ tokens, layers, heads, weights: new Uint16Array(bytes.buffer), steps: 65535 });
}

// The largest of an array of numbers.
export function largestOf(numbers) {
  return numbers.reduce((most, value) => Math.max(most, value), 0);
}

// "[CLS] 0.52, cat 0.31, the 0.08": the largest of a token's weights, for people who hear the page.
export function largestWeights(tokens, weights, count = 3) {
  const order = tokens.map((_, index) => index).sort((a, b) => weights[b] - weights[a]);
  return order.slice(0, count).map(index => `${tokens[index]} ${weights[index].toFixed(2)}`).join(", ");
}
