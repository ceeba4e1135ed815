// Attention of one head as lines between two columns of tokens: queries on the left, keys on the right.

import { largestOf, largestWeights } from "./attention.js";
import { element, onWidth, setAttributes, shortened, svgElement, textWidth } from "./dom.js";
import { weightText } from "./numbers.js";
import { hideTooltip, showTooltip } from "./tooltip.js";

const LINE_SHADES = 12; // lines of about the same weight are one path
const TOKEN_FONT = "13px system-ui, sans-serif";
const TOKEN_HEIGHT = 20;
const WEIGHT_WIDTH = 42; // for the weights beside the tokens
const COLUMNS_TOP = 22; // for the names of the columns

// Props:
//   tokens: texts. matrix: weights, row by row: matrix[query * tokens.length + key].
//   caption: text above. description: what is drawn, for people who hear the page.
//   limit: the weight that is drawn at full strength; by default the largest of the matrix.
//   onToken(side, token): the user pointed at a token ("query" or "key", its index) or at none (null, null).
export function headView(props) {
  const state = { caption: "", description: "Attention between tokens", limit: null, ...props };
  const caption = element("figcaption", {});
  const scroll = element("div", { class: "head-scroll" });
  const view = { node: element("figure", { class: "head-view" }, caption, scroll), update, showToken, scroll, svg: () => svg };
  let svg = null, parts = null, width = 0;
  let pointed = null, focused = null, current = ["query", 0]; // [side, token]

  function update(changed = {}) {
    const rebuilt = "tokens" in changed && changed.tokens !== state.tokens;
    Object.assign(state, changed);
    caption.textContent = state.caption;
    caption.hidden = !state.caption;
    if (!width) return;
    if (rebuilt || !svg) build();
    paint();
  }

  function build() {
    [pointed, focused, current] = [null, null, ["query", 0]];
    const columns = ["query", "key"].map(side => state.tokens.map((_, token) => tokenNode(side, events(side, token))));
    parts = {
      columns, lines: svgElement("g", { class: "head-lines" }), chosen: svgElement("g", { class: "head-chosen" }),
      names: svgElement("g", { class: "head-names", "aria-hidden": "true" }),
    };
    const lists = columns.map((nodes, side) => svgElement("g", {
      role: "listbox", "aria-label": side ? "attended to" : "attending",
    }, nodes.map(one => one.node)));
    svg = svgElement("svg", { class: "head-svg", role: "group" }, parts.names, parts.lines, parts.chosen, ...lists);
    scroll.replaceChildren(svg);
  }

  function events(side, token) {
    return {
      onpointerenter: () => { pointed = [side, token]; point(); },
      onpointerleave: () => { pointed = null; hideTooltip(); point(); },
      onfocus: () => { current = focused = [side, token]; point(); },
      onblur: () => { focused = null; point(); },
      onkeydown: event => onKey(event, side, token),
    };
  }

  function onKey(event, side, token) {
    const other = { ArrowLeft: "query", ArrowRight: "key" }[event.key];
    const to = { ArrowUp: token - 1, ArrowDown: token + 1, Home: 0, End: state.tokens.length - 1 }[event.key];
    if (event.key === "Escape") event.currentTarget.blur();
    else if (other) nodeOf([other, token]).node.focus();
    else if (to !== undefined) nodeOf([side, to])?.node.focus();
    else return;
    event.preventDefault();
  }

  const nodeOf = ([side, token]) => parts.columns[side === "query" ? 0 : 1][token];

  function paint() {
    const grid = headLayout(state.tokens, width);
    const height = COLUMNS_TOP + TOKEN_HEIGHT * state.tokens.length + 4;
    setAttributes(svg, {
      width: grid.width, height, viewBox: `0 0 ${grid.width} ${height}`, "aria-label": state.description,
    });
    const name = (x, anchor, text) => svgElement("text", { x, y: 13, "text-anchor": anchor, class: "head-name" }, text);
    parts.names.replaceChildren(name(grid.from, "end", "attending"), name(grid.to, "start", "attended to"));
    parts.columns.forEach((nodes, column) => nodes.forEach((one, token) =>
      paintToken(one, column, token, state, grid)));
    parts.lines.replaceChildren(...allLines(state, grid));
    point();
  }

  // Show the lines and weights of the token that is pointed at, or else of the focused one, or else all lines.
  function point() {
    const chosen = pointed ?? focused;
    const grid = headLayout(state.tokens, width);
    showToken(chosen);
    for (const [column, side] of ["query", "key"].entries()) parts.columns[column].forEach(({ node }, token) =>
      node.setAttribute("tabindex", side === current[0] && token === current[1] ? 0 : -1));
    if (pointed && grid.cuts(state.tokens[pointed[1]])) {
      showTooltip(state.tokens[pointed[1]], nodeOf(pointed).text.getBoundingClientRect());
    }
    state.onToken?.(...(chosen ?? [null, null]));
  }

  // The same from outside: [side, token] or null.
  function showToken(chosen) {
    if (!svg) return;
    const grid = headLayout(state.tokens, width), count = state.tokens.length;
    svg.classList.toggle("has-token", chosen !== null);
    const weights = chosen && weightsOf(state.matrix, count, chosen);
    parts.chosen.replaceChildren(...(chosen ? linesOf(weights, chosen, state, grid) : []));
    parts.columns.forEach((nodes, column) => nodes.forEach((one, token) => {
      const own = chosen?.[0] === (column ? "key" : "query");
      const weight = chosen && !own ? weights[token] : null;
      one.node.classList.toggle("is-chosen", Boolean(own && token === chosen[1]));
      one.weight.textContent = weight === null ? "" : weightText(weight);
      one.box.setAttribute("fill-opacity", weight === null ? 0 : (0.55 * Math.min(1, weight)).toFixed(3));
    }));
  }

  onWidth(scroll, found => { width = found; update(); });
  update();
  return view;
}

// The weights of a query over the keys, or of the queries at a key.
function weightsOf(matrix, count, [side, token]) {
  return Array.from({ length: count }, (_, other) =>
    side === "query" ? matrix[token * count + other] : matrix[other * count + token]);
}

// Where the columns lie: `from` and `to` are the ends of the lines.
function headLayout(tokens, width) {
  const longest = Math.max(...tokens.map(token => textWidth(token, TOKEN_FONT)), textWidth("attended to", TOKEN_FONT));
  const least = 70, most = Math.min(150, (width - least - 2 * WEIGHT_WIDTH - 16) / 2);
  const column = Math.max(36, Math.min(longest + 2, most));
  const whole = Math.min(width, 2 * (column + WEIGHT_WIDTH) + 16 + 300);
  const from = WEIGHT_WIDTH + column + 4;
  return { width: whole, column, from, to: whole - from, cuts: token => textWidth(token, TOKEN_FONT) > column };
}

function tokenNode(side, listeners) {
  const anchor = side === "query" ? "end" : "start";
  const text = svgElement("text", { class: "head-token", "text-anchor": anchor, "dominant-baseline": "central" });
  const box = svgElement("rect", { class: "head-box", rx: 3, "fill-opacity": 0 });
  const weight = svgElement("text", { class: "head-weight", "text-anchor": anchor, "dominant-baseline": "central" });
  const node = svgElement("g", { class: "head-item", role: "option", tabindex: -1, "data-side": side, ...listeners },
    box, text, weight);
  return { node, text, box, weight };
}

function paintToken({ node, text, box, weight }, column, token, state, grid) {
  const y = COLUMNS_TOP + (token + 0.5) * TOKEN_HEIGHT, left = column === 0;
  const count = state.tokens.length, side = left ? "query" : "key";
  setAttributes(text, { x: left ? grid.from - 5 : grid.to + 5, y });
  text.textContent = shortened(state.tokens[token], grid.column, TOKEN_FONT);
  setAttributes(box, {
    x: left ? grid.from - grid.column - 8 : grid.to + 1, y: y - TOKEN_HEIGHT / 2 + 1,
    width: grid.column + 7, height: TOKEN_HEIGHT - 2,
  });
  setAttributes(weight, { x: left ? grid.from - grid.column - 11 : grid.to + grid.column + 11, y });
  const most = largestWeights(state.tokens, weightsOf(state.matrix, count, [side, token]));
  node.setAttribute("aria-label", `${state.tokens[token]}, ${left ? "attends to" : "attended to by"} ${most}`);
}

function lineOf(query, key, grid) {
  const y = token => COLUMNS_TOP + (token + 0.5) * TOKEN_HEIGHT;
  return `M${grid.from} ${y(query)}L${grid.to} ${y(key)}`;
}

// Weights of less than this part of the limit are not drawn.
const FAINTEST_LINE = 0.02;

function allLines(state, grid) {
  const count = state.tokens.length, limit = state.limit ?? largestOf(state.matrix);
  const paths = Array.from({ length: LINE_SHADES }, () => []);
  state.matrix.forEach((weight, index) => {
    const part = weight / limit;
    if (!(part >= FAINTEST_LINE)) return;
    const shade = Math.min(LINE_SHADES - 1, Math.floor(part * LINE_SHADES));
    paths[shade].push(lineOf(Math.floor(index / count), index % count, grid));
  });
  return paths.flatMap((lines, shade) => lines.length ? [linePath(lines.join(""), (shade + 0.5) / LINE_SHADES)] : []);
}

function linesOf(weights, [side, token], state, grid) {
  const limit = state.limit ?? largestOf(state.matrix);
  return weights.flatMap((weight, other) => {
    const strength = Math.sqrt(Math.min(1, weight / limit)); // so that small weights of one token can be seen
    const line = side === "query" ? lineOf(token, other, grid) : lineOf(other, token, grid);
    return strength < FAINTEST_LINE ? [] : [linePath(line, strength)];
  });
}

function linePath(d, strength) {
  return svgElement("path", {
    class: "head-line", d, "stroke-opacity": (0.08 + 0.92 * strength).toFixed(3),
    "stroke-width": (0.6 + 2.4 * strength).toFixed(2),
  });
}
