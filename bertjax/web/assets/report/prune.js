// The page of pruning: the score against the number of heads left, and the order in which heads are removed.

import { element, fillSelect } from "../shared/dom.js";
import { headsMap } from "../shared/heads_map.js";
import { curvesChart } from "./curves_chart.js";
import { column, data, describe, measure, printed, state } from "./results.js";

const indexOfName = new Map(data.names.map((name, index) => [name, index]));
const isRandom = order => /^random \d+$/.test(order.name);

export function prunePage(choose) {
  const { chosen_on: chosenOn } = data.details.pruning;
  return {
    overview: curvesOverview(choose),
    extra: data.details.pruning.orders.length ? orderSection() : null,
    hasRankingChart: false,
    first: firstPoint(),
    texts: {
      overview: "Score by the number of heads left",
      overviewNote: "Vertical lines: 95 % intervals of the change from all heads (dashed line). Grey: mean and range " +
        `of random orders.${chosenOn ? ` ${chosenOn.toLocaleString("en")} other examples chose the orders.` : ""}`,
      drawn: "",
      ranking: "Scores of all points",
      examples: name => `Examples that change most with ${describeRun(name)}`,
      flip: name => `with ${describeRun(name)}`,
      base: "All heads",
      changed: name => `With ${describeRun(name)}`,
      run: "Pruned",
      unchanged: name => `Removing the heads of ${name}`,
    },
  };
}

// The point of the first order with half of its points before it.
function firstPoint() {
  const { orders, points } = data.details.pruning;
  return orders.length ? indexOfName.get(orders[0].runs[points[Math.floor(points.length / 2)]]) : undefined;
}

// "36 heads left (gradient)" of the name "gradient 36".
function describeRun(name) {
  const { orders, gates = [] } = data.details.pruning;
  for (const order of orders) for (const [left, run] of Object.entries(order.runs)) {
    if (run === name) return `${left} heads left (${order.name})`;
  }
  const learned = gates.find(gate => gate.run === name);
  return learned ? `${learned.left} heads left (gates)` : name;
}

function pointOf(name, left) {
  const index = indexOfName.get(name);
  if (index === undefined) return { x: left, y: null };
  const score = printed("score", index), change = printed("difference", index);
  const [low, high] = ["low", "high"].map(end => printed(end, index));
  const at = end => end === null || score === null ? null : score - change + end;
  const text = `${describeRun(name)}\n${describe(index, "\n")}`;
  return { x: left, y: score, low: at(low), high: at(high), index, text };
}

function curves() {
  const { orders, points, gates = [] } = data.details.pruning;
  const single = orders.filter(order => !isRandom(order)).map(order => ({
    name: order.name, points: points.map(left => pointOf(order.runs[left], left)),
  }));
  const closed = gates.filter(gate => gate.run !== null).sort((a, b) => b.left - a.left);
  if (closed.length) single.push({ name: "gates", points: closed.map(gate => pointOf(gate.run, gate.left)) });
  const random = orders.filter(isRandom);
  return random.length ? [...single, rangeOf(random, points)] : single;
}

// Mean and range of random orders.
function rangeOf(random, points) {
  const means = points.map(left => {
    const drawn = random.map(order => pointOf(order.runs[left], left)).filter(point => point.y !== null);
    const scores = drawn.map(point => point.y), mean = scores.reduce((sum, score) => sum + score, 0) / scores.length;
    const [low, high] = [Math.min(...scores), Math.max(...scores)], digits = measure().digits;
    return scores.length ? {
      x: left, y: mean, low, high, index: drawn[0].index,
      text: `${left} heads left, ${scores.length} random orders\n` +
        `mean ${mean.toFixed(digits)}, from ${low.toFixed(digits)} to ${high.toFixed(digits)}`,
    } : { x: left, y: null };
  });
  return { name: `random (${random.length})`, isRange: true, points: means };
}

function curvesOverview(choose) {
  const chart = curvesChart({
    curves: [], base: { x: 1, y: 0 }, bounds: [null, null], title: "", below: "heads left", onSelect: choose,
  });
  const update = () => chart.update({
    curves: curves(), selected: state.chosen, bounds: measure().bounds,
    base: { x: data.model.layers * data.model.heads, y: measure().factor * column("base")[0] },
    title: `${measure().label}${measure().unit ? ` in ${measure().unit}` : ""}`,
  });
  return { node: element("div", { class: "chart" }, chart.node), update };
}

// The order of removal: a map of ranks, and the names in order.
function orderSection() {
  const { orders } = data.details.pruning, { layers, heads } = data.model;
  const select = element("select", { id: "order", onchange: () => update() });
  const list = element("p", { id: "removed", class: "note" });
  fillSelect(select, orders.map((order, index) => [index, order.name]), 0);
  const map = headsMap({
    layers, heads, label: "Map of ranks in the order of removal", digits: 0, fromZero: true, limit: layers * heads,
    quantity: "rank, 1: removed first", unit: "",
    describe: (layer, head) => `head ${layer}.${head}: removed ${ordinal(rankOf(layer, head))}`,
  });
  const rankOf = (layer, head) => orders[Number(select.value)].heads.indexOf(`${layer}.${head}`) + 1;
  function update() {
    map.update({ values: Array.from({ length: layers }, (_, layer) =>
      Array.from({ length: heads }, (_, head) => rankOf(layer, head) || null)) });
    list.textContent = `Removed first: ${orders[Number(select.value)].heads.slice(0, 12).join(", ")}, …`;
  }
  return {
    node: element("div", {},
      element("p", { class: "controls" }, element("label", {}, "Order ", select)), map.node, list),
    update, heading: "Order of removal", note: "The rank of each head: heads with rank 1 are removed first.",
  };
}

const ordinal = rank => {
  const last = rank % 100 > 10 && rank % 100 < 14 ? 0 : rank % 10;
  return `${rank}${["th", "st", "nd", "rd"][last] ?? "th"}`;
};
