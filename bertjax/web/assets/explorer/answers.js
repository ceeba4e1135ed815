// The answer of the model in the form of its kind, before and after heads are switched off; the choice of the target.

import { element, fillSelect } from "../shared/dom.js";
import { plain, share, signed } from "../shared/numbers.js";
import { codeUnits, sameTarget } from "./targets.js";

// Nodes of an answer. props:
//   model: of the page's data. texts: of the question.
//   answer: {base, ablated or null} of the server. target: the chosen target, or null.
//   onTarget(target): the user chose another one.
export function answerNodes(props) {
  const { kind } = props.model;
  if (kind === "words") return wordsNodes(props);
  if (kind === "entities") return entityNodes(props);
  if (kind === "score" || kind === "similarity") return [numberTable(kind, props.answer)];
  const rows = kind === "answer" ? spanRows(props.answer) : classRows(kind, props.answer);
  const heading = { classes: "Class", labels: "Label", answer: "Span of the context" }[kind];
  return [answerTable(rows, { ...props, heading, name: "target" })];
}

// The answer in one sentence, for people who hear the page.
export function answerSentence(kind, { base, ablated }) {
  const one = answer => {
    if (kind === "words") return answer.masks.map(({ guesses }) => spoken(guesses[0].word, guesses[0])).join("; ");
    if (kind === "score" || kind === "similarity") return `${kind} ${plain(answer[kind], 3)}`;
    if (kind === "entities") {
      return answer.entities.map(({ text, type }) => `${text}: ${type}`).join("; ") || "no entity";
    }
    if (kind === "answer") return answer.spans.length ? spoken(answer.spans[0].text, answer.spans[0]) : "no answer";
    return answer[kind].map(found => spoken(found.name, found)).join("; ");
  };
  return ablated ? `Before: ${one(base)}. After: ${one(ablated)}.` : `Answer: ${one(base)}.`;
}

function spoken(text, { probability }) {
  return `${text} ${share(probability)}`;
}

// A change of a probability: "+3.2 points".
export function pointsText(before, after) {
  return `${signed(100 * (after - before), 1)} points`;
}

function changeCell(before, after, text) {
  const sign = Math.sign(Number((100 * (after - before)).toFixed(1)));
  return element("td", { class: `number ${sign < 0 ? "is-loss" : sign > 0 ? "is-gain" : ""}` }, text);
}

// A table of probabilities with a radio button for each row. rows: [{text, before, after, target or null}]; a
// probability may be {below: x}, if it is only known to be smaller than x.
function answerTable(rows, { answer, target, onTarget, heading, name }) {
  const after = answer.ablated !== null;
  const titles = [heading, ...(after ? ["Before", "After", "Change"] : ["Probability"])];
  const head = element("tr", {}, titles.map((title, index) =>
    element("th", { scope: "col", class: index ? "number" : "" }, title)));
  const body = rows.map(row => {
    const chosen = row.target !== null && sameTarget(row.target, target);
    const label = row.target === null ? element("span", { class: "answer-fixed" }, row.text)
      : element("label", { class: "answer-choice" }, element("input", {
        type: "radio", name, checked: chosen, "data-text": row.text, onchange: () => onTarget(row.target),
      }), " ", element("span", {}, row.text));
    return element("tr", { class: chosen ? "is-target" : "" }, element("th", { scope: "row" }, label),
      probabilityCell(row.before), after ? [probabilityCell(row.after), rowChange(row)] : null);
  });
  return element("table", { class: `answer-table ${after ? "is-compared" : ""}` },
    element("thead", {}, head), element("tbody", {}, body));
}

function probabilityCell(probability) {
  if (typeof probability !== "number") {
    const text = probability === null ? "–" : `<${share(probability.below).replace(/^</, "")}`;
    return element("td", { class: "number" }, text);
  }
  const bar = element("span", { class: "answer-bar", style: { "--share": `${100 * probability}%` } });
  return element("td", { class: "number" }, bar, element("span", { class: "answer-share" }, share(probability)));
}

function rowChange({ before, after }) {
  const [knowsBefore, knowsAfter] = [before, after].map(probability => typeof probability === "number");
  if (knowsBefore && knowsAfter) return changeCell(before, after, pointsText(before, after));
  if (knowsBefore && after !== null) return changeCell(before, 0, "lower");
  if (knowsAfter && before !== null) return changeCell(0, after, "higher");
  return element("td", { class: "number" }, "–");
}

function classRows(kind, { base, ablated }) {
  return base[kind].map(({ name, probability }, index) => ({
    text: name, before: probability, after: ablated?.[kind][index].probability ?? null, target: { class: index },
  }));
}

// Rows of two lists of the most likely parts: those of the first, then others of the second.
function listedRows(before, after, { textOf, targetOf }) {
  const least = list => (list.length ? { below: list.at(-1).probability } : null);
  const same = (one, other) => sameTarget(targetOf(one), targetOf(other));
  const find = (list, one) => list.find(other => same(one, other))?.probability ?? least(list);
  const added = (after ?? []).filter(one => !before.some(other => same(one, other)));
  return [...before, ...added].map(one => ({
    text: textOf(one), before: find(before, one), after: after ? find(after, one) : null, target: targetOf(one),
  }));
}

function spanRows({ base, ablated }) {
  const targetOf = ({ start, end }) => ({ start, end });
  const rows = listedRows(base.spans, ablated?.spans ?? null, { textOf: ({ text }) => text, targetOf });
  return [...rows, {
    text: "no answer in the context", before: base.no_answer, after: ablated?.no_answer ?? null, target: null,
  }];
}

// Words at each mask, and an input for another word.
function wordsNodes(props) {
  const { base, ablated } = props.answer;
  return base.masks.map(({ guesses }, mask) => {
    const rows = listedRows(guesses, ablated?.masks[mask].guesses ?? null, {
      textOf: ({ word }) => word, targetOf: ({ word }) => ({ mask, word }),
    });
    if (props.target?.mask === mask && !rows.some(row => sameTarget(row.target, props.target))) {
      rows.push({ text: props.target.word, before: leastOf(guesses), after: leastOf(ablated?.masks[mask].guesses),
        target: props.target });
    }
    const heading = base.masks.length > 1 ? `Word at mask ${mask + 1}` : "Word";
    return element("div", { class: "answer-part" },
      answerTable(rows, { ...props, heading, name: "target" }), otherWord(mask, props.onTarget));
  });
}

function leastOf(guesses) {
  return guesses?.length ? { below: guesses.at(-1).probability } : null;
}

function otherWord(mask, onTarget) {
  const input = element("input", { type: "text", size: 12, maxlength: 100, "data-mask": mask, autocomplete: "off" });
  const submit = event => {
    event.preventDefault();
    if (input.value.trim()) onTarget({ mask, word: input.value.trim() });
  };
  return element("form", { class: "controls other-word", onsubmit: submit },
    element("label", {}, "Another word: ", input), element("button", { type: "submit" }, "Follow it"));
}

function numberTable(kind, { base, ablated }) {
  const [before, after] = [base[kind], ablated?.[kind]];
  const figure = (title, text, style = "") => element("div", { class: `answer-figure ${style}` },
    element("span", {}, title), element("strong", {}, text));
  const name = kind === "score" ? "Score" : "Similarity (cosine)";
  if (!ablated) return element("div", { class: "answer-figures" }, figure(name, plain(before, 3)));
  const style = { "-1": "is-loss", 1: "is-gain" }[Math.sign(Number((after - before).toFixed(3)))] ?? "";
  return element("div", { class: "answer-figures" }, figure(`${name} before`, plain(before, 3)),
    figure("After", plain(after, 3)), figure("Change", signed(after - before, 3), style));
}

// The text with its tags before and after, and the chosen word with its tag.
function entityNodes(props) {
  const { answer: { base, ablated }, target, model, onTarget } = props;
  const before = taggedText(props, base, null);
  const parts = ablated ? [part("Before", before), part("After", taggedText(props, ablated, base))] : [before];
  if (!target || !base.words[target.word]) return [element("div", { class: "answer-texts" }, parts)];
  const select = element("select", { id: "tag", onchange: () => onTarget({ word: target.word, tag: select.value }) });
  fillSelect(select, model.labels.map(label => [label, label]), target.tag);
  const word = base.words[target.word].text;
  return [element("div", { class: "answer-texts" }, parts),
    element("div", { class: "controls" }, element("label", {}, `The map follows the tag of “${word}”: `, select)),
    tagTable(base.words[target.word], ablated?.words[target.word])];
}

function part(title, node) {
  return element("div", { class: "answer-part" }, element("h3", {}, title), node);
}

// A line for the most likely tag of the chosen word.
function tagTable(before, after) {
  const line = (title, { tag, probability }) =>
    [element("dt", {}, title), element("dd", {}, `${tag} ${share(probability)}`)];
  return element("dl", { class: "answer-tags" }, line(after ? "Before" : "Most likely", before),
    after ? line("After", after) : null);
}

function taggedText({ texts, target, onTarget }, answer, compared) {
  const text = texts[0], nodes = [];
  let done = 0;
  answer.words.forEach((word, index) => {
    const [start, end] = codeUnits(text, word);
    const changed = compared !== null && compared.words[index]?.tag !== word.tag;
    const style = [word.tag === "O" ? "" : "is-entity", changed ? "is-changed" : "",
      target?.word === index ? "is-target" : ""].filter(Boolean).join(" ");
    nodes.push(text.slice(done, start), element("button", {
      type: "button", class: `tagged-word ${style}`, title: `${word.tag} ${share(word.probability)}`,
      "aria-pressed": String(target?.word === index), "data-word": index,
      onclick: () => onTarget({ word: index, tag: (compared ?? answer).words[index].tag }),
    }, text.slice(start, end), word.tag === "O" && !changed ? null : element("sub", {}, word.tag)));
    done = end;
  });
  return element("p", { class: "tagged-text" }, nodes, text.slice(done));
}
