// The explorer's page: its state, and what happens when the user changes it.

import { element, pageData } from "../shared/dom.js";
import { answerPanel } from "./answer_panel.js";
import { attentionPanel } from "./attention_panel.js";
import { makeComputations } from "./computations.js";
import { startHeader } from "./header.js";
import { largestChange, mapPanel } from "./map_panel.js";
import { examplePicker, firstTexts, sentTexts, textInputs } from "./question.js";
import { isCancelled, makeRequests } from "./requests.js";
import { firstState, fragmentOf, groupedHeads, headsOfLayer, makeUndo, readFragment, switched } from "./state.js";
import { keptTarget, sameTarget, targetOf, targetText } from "./targets.js";

const TYPING_PAUSE = 250; // milliseconds
const find = id => document.getElementById(id);

function startExplorer() {
  const data = pageData(), { model } = data;
  const requests = makeRequests(new URLSearchParams(location.search).get("token") ?? "");
  const computations = makeComputations({ model, requests, onMap: showMap });
  const undo = makeUndo();
  let state = readFragment(location.hash, model, firstState(model, firstTexts(model, data.example)));
  // What the server has sent: answer to texts, map of target. message: in place of a map. stale: the map is older than
  // the state. failed: the map could not be computed.
  let shown = {
    texts: null, answer: null, target: null, map: null, baseMap: null, message: null, stale: false, failed: false,
  };
  let timer = null, runs = 0;

  // ---- Changes of the state

  // how: "typing"; "question", which is a step of undo and of the browser's history; or "view", which is neither.
  function change(changes, how) {
    if (how !== "view") undo.record(state, how === "typing");
    setState({ ...state, ...changes }, { typing: null, question: "pushState", view: "replaceState" }[how]);
    schedule(how === "typing" ? TYPING_PAUSE : 0);
  }

  // write: how the address is written; null for later, since browsers refuse to write it at each key.
  function setState(next, write) {
    state = next;
    if (write) history[write](null, "", `#${fragmentOf(state)}`);
    drawState();
  }

  function step(move) {
    const next = move(state);
    if (!next) return;
    setState(next, "pushState");
    schedule(0);
  }

  const toggle = names => change({ off: switched(state.off, names) }, "question");
  const toggleHead = (layer, head) => toggle(headsOfLayer(layer, model).filter(name => name === `${layer}.${head}`));
  const toggleLayer = layer => toggle(headsOfLayer(layer, model));

  // ---- Computations

  function schedule(milliseconds) {
    runs += 1;
    document.body.dataset.busy = "yes";
    clearTimeout(timer);
    timer = setTimeout(refresh, milliseconds);
  }

  // Ask for what the page lacks, and show it.
  async function refresh() {
    const run = runs, texts = sentTexts(model, state.texts);
    history.replaceState(null, "", `#${fragmentOf(state)}`);
    try {
      if (texts === null) showNothing();
      else await ask({ texts, mode: state.mode, off: state.off }, () => run === runs);
    } catch (error) {
      if (run === runs) showError(error);
    }
    if (run === runs) document.body.dataset.busy = "no";
  }

  // isLatest(): whether the user has changed nothing since.
  async function ask(question, isLatest) {
    answer.wait();
    const found = await computations.answer(question).catch(error => {
      if (isLatest()) answer.fail();
      throw error;
    });
    if (!isLatest()) return;
    showError(null);
    showAnswer(found, question.texts);
    const attentionShown = showAttention({ ...question, weights: state.weights }, isLatest);
    if (shown.target) await showMapOf({ ...question, target: shown.target });
    await attentionShown;
  }

  function showNothing() {
    showError(null);
    shown = { ...shown, answer: null, target: null, message: "" };
    answer.update({ ...shown, note: "Type a text, and the answer of the model appears here." });
    drawMap();
    attention.fail("");
  }

  function showAnswer(found, texts) {
    const target = targetOf(model.kind, state.target, found.base);
    if (found === shown.answer && sameTarget(target, shown.target)) {
      answer.keep();
      return;
    }
    const noMask = model.kind === "words" && !found.base.masks.length;
    shown = { ...shown, answer: found, texts, target, message: noMask ? "" : null, stale: true };
    const isCut = found.truncated && texts[0].includes(model.mask);
    answer.update({ ...shown, note: noMask ? noMaskNote(model.mask, isCut) : "" });
    drawMap();
  }

  async function showMapOf(body) {
    shown.failed = false;
    try {
      const found = await computations.map(body);
      if (state.layer === null) {
        const [layer, head] = largestChange(found) ?? [0, 0];
        setState({ ...state, layer, head }, "replaceState");
      }
    } catch (error) {
      shown.failed = !isCancelled(error);
      drawMap();
      throw error;
    }
  }

  function showMap(found, body) {
    shown = { ...shown, map: found, baseMap: computations.mapWithoutOff(body), stale: false };
    drawMap();
  }

  async function showAttention(body, isLatest) {
    try {
      const { texts } = await computations.attention(body);
      if (isLatest()) await attention.show(texts);
    } catch (error) {
      if (isLatest() && !isCancelled(error) && !error.unreachable) attention.fail(error.message);
    }
  }

  function showError(error) {
    if (error && isCancelled(error)) return;
    if (error && !error.forUser) console.error(error);
    const retry = () => element("button", { type: "button", id: "retry", onclick: () => schedule(0) }, "Try again");
    find("error").replaceChildren(...(error ? [element("p", {}, error.message), retry()] : []));
  }

  async function python() {
    if (!shown.target || !shown.answer) return null;
    return (await requests.python({ texts: shown.texts, mode: state.mode, off: state.off, target: shown.target })).code;
  }

  // ---- Drawing

  function drawState() {
    inputs.update({ texts: state.texts });
    attention.update(state);
    find("undo").disabled = !undo.canUndo();
    find("redo").disabled = !undo.canRedo();
    drawOff();
    drawMap();
  }

  function drawMap() {
    const { answer: found, texts, target } = shown;
    map.update({ ...shown, state, target: found && target ? targetText(model.kind, target, found.base, texts) : "" });
  }

  function drawOff() {
    const chips = groupedHeads(state.off, model).map(([name, heads]) => element("button", {
      type: "button", class: "chip", "data-off": name, title: "Switch on", onclick: () => toggle(heads),
      "aria-label": `Switch ${heads.length > 1 ? name : `head ${name}`} on`,
    }, `${name} ×`));
    const text = chips.length ? "Switched off:" : "All heads are on.";
    const hadFocus = find("off-heads").contains(document.activeElement);
    find("off-heads").replaceChildren(element("span", {}, text), ...chips);
    find("clear").disabled = !chips.length;
    if (hadFocus) (chips[0] ?? find("undo")).focus();
  }

  // ---- Parts of the page

  const answer = answerPanel({ model, onTarget: target => change({ target }, "question") });
  const inputs = textInputs({
    model, texts: state.texts,
    onType: texts => change({ texts, target: keptTarget(model.kind, state.target) }, "typing"),
  });
  const map = mapPanel({
    model, onToggle: toggleHead, onToggleLayer: toggleLayer,
    onSelect: (layer, head) => change({ layer, head }, "view"),
    onMode: mode => change({ mode }, "question"), onChange: quantity => change({ change: quantity }, "view"),
  });
  const attention = attentionPanel({
    onToggle: toggleHead, onView: view => change(view, "view"), onWeights: weights => change({ weights }, "view"),
  });
  const picker = examplePicker({
    count: data.examples, task: data.task, load: body => requests.examples(body), onError: showError,
    onPick: texts => change({ texts: state.texts.map((_, index) => texts[index] ?? ""), target: null }, "question"),
  });

  startHeader({ data, python, onError: showError });
  find("question").append(...[inputs.node, picker.node].filter(Boolean));
  find("undo").addEventListener("click", () => step(undo.undo));
  find("redo").addEventListener("click", () => step(undo.redo));
  find("clear").addEventListener("click", () => change({ off: [] }, "question"));
  document.addEventListener("keydown", event => {
    const move = moveOfKey(event, undo);
    if (!move) return;
    event.preventDefault();
    step(move);
  });
  addEventListener("popstate", () => {
    undo.record(state);
    setState(readFragment(location.hash, model, { ...state, off: [], target: null }), null);
    schedule(0);
  });
  setState(state, null);
  schedule(0);
}

function noMaskNote(mask, isCut) {
  return isCut ? `The part of the text that the model reads has no ${mask}.`
    : `The text has no ${mask}. Insert it where the model should find a word.`;
}

// Undo or redo of a key, or null. Text inputs have their own.
function moveOfKey(event, undo) {
  const isText = event.target.matches?.("textarea, input:not([type=radio])");
  if (isText || event.altKey || !(event.ctrlKey || event.metaKey)) return null;
  const key = event.key.toLowerCase();
  if (key === "y") return undo.redo;
  if (key === "z") return event.shiftKey ? undo.redo : undo.undo;
  return null;
}

startExplorer();
