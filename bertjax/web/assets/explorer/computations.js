// What the server computes for the page; a newer question of the same kind cancels the older one.

import { emptyMap, withLine } from "./map_panel.js";
import { latestOnly } from "./requests.js";

const MOST_MAPS = 40; // that are kept, so that undo needs no computation

// Functions that return promises. onMap(map, body): called for each layer of a map that arrives.
//   answer(question), attention(question with weights): what the server sends.
//   map(question with target): the map.
//   mapWithoutOff(question with target): the map of the question with no head off; null if it was not computed, or if
//   no head is off.
export function makeComputations({ model, requests, onMap }) {
  const maps = new Map();
  let requested = null;
  const send = latestOnly(async (body, signal) => {
    const key = JSON.stringify(body);
    let found = emptyMap(model);
    await requests.map(body, signal, line => {
      found = withLine(found, line);
      if (found.layers && key === requested) onMap(found, body);
    });
    maps.set(key, found);
    if (maps.size > MOST_MAPS) maps.delete(maps.keys().next().value);
    return found;
  });

  async function map(body) {
    requested = JSON.stringify(body);
    const found = maps.get(requested) ?? await send(body);
    if (JSON.stringify(body) === requested) onMap(found, body);
    return found;
  }

  const mapWithoutOff = body => (body.off.length && maps.get(JSON.stringify({ ...body, off: [] }))) || null;
  return { answer: latestOnly(requests.answer), attention: latestOnly(requests.attention), map, mapWithoutOff };
}
