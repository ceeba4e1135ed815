// The explorer's page: its state, and what happens when the user changes it.

import { element, pageData } from "../shared/dom.js";
import { toggleTheme } from "../shared/colours.js";
import { answerNodes, answerSentence } from "./answers.js";
import { attentionPanel } from "./attention_panel.js";
import { emptyMap, largestChange, mapPanel, withLine } from "./map_panel.js";
import { examplePicker, firstTexts, sentTexts, textInputs } from "./question.js";
import { isCancelled, latestOnly, makeRequests } from "./requests.js";
import { firstState, fragmentOf, makeUndo, readFragment, switched } from "./state.js";
import { keptTarget, sameTarget, targetOf, targetText } from "./targets.js";

const TYPING_PAUSE = 250; // milliseconds
const MOST_MAPS = 40; // that are kept, so that undo needs no computation
const TARGET_NOTES = {
  words: "Select the word that the map follows.", classes: "Select the class that the map follows.",
  labels: "Select the label that the map follows.", entities: "Select the word whose tag the map follows.",
  answer: "Select the span that the map follows.",
};
const find = id => document.getElementById(id);

function startExplorer() {
  const data = pageData(), { model } = data;
  const requests = makeRequests(new URLSearchParams(location.search).get("token") ?? "");
  const undo = makeUndo();
  let state = readFragment(location.hash, model, firstState(model, firstTexts(model, data.example)));
  let shown = { texts: null, answer: null, map: null, baseMap: null, target: null, stale: false, message: null };
  let timer = null, runs = 0, requested = null;
  const maps = new Map();

  // Change the state. how: "typing", "question" (a step of undo and of the browser's history), or "view".
  function change(changes, how) {
    if (how !== "view") {
      undo.record(state, how === "typing");
      shown.stale = true;
    }
    setState({ ...state, ...changes }, how === "question");
    schedule(how === "typing" ? TYPING_PAUSE : 0);
  }

  function setState(next, inHistory = false) {
    state = next;
    const address = `#${fragmentOf(state)}`;
    if (inHistory) history.pushState(null, "", address);
    else history.replaceState(null, "", address);
    drawState();
  }

  function schedule(milliseconds) {
    runs += 1;
    document.body.dataset.busy = "yes";
    clearTimeout(timer);
    timer = setTimeout(refresh, milliseconds);
  }

  const latestAnswer = latestOnly(requests.answer);
  const latestAttention = latestOnly(requests.attention);
  const latestMap = latestOnly(async (body, signal) => {
    let found = emptyMap(model);
    await requests.map(body, signal, line => {
      found = withLine(found, line);
      if (found.layers) showMap(found, body);
    });
    maps.set(JSON.stringify(body), found);
    if (maps.size > MOST_MAPS) maps.delete(maps.keys().next().value);
    return found;
  });

  // Ask for what the page lacks, and show it.
  async function refresh() {
    const run = runs, texts = sentTexts(model, state.texts);
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
    find("answer-body").classList.add("is-stale");
    const answer = await latestAnswer(question);
    if (!isLatest()) return;
    showError(null);
    showAnswer(answer, question.texts);
    const shownAttention = showAttention({ ...question, weights: state.weights });
    if (shown.target) await showMapOf({ ...question, target: shown.target });
    await shownAttention;
  }

  function showNothing() {
    showError(null);
    shown = { ...shown, answer: null, target: null, message: "" };
    drawAnswer("Type a text, and the answer of the model appears here.");
    drawMap();
  }

  function showAnswer(answer, texts) {
    const target = targetOf(model.kind, state.target, answer.base);
    if (answer === shown.answer && sameTarget(target, shown.target)) {
      find("answer-body").classList.remove("is-stale");
      return;
    }
    const noMask = model.kind === "words" && !answer.base.masks.length;
    shown = { ...shown, answer, texts, target, message: noMask ? "" : null };
    drawAnswer(noMask ? `The text has no ${model.mask}. Insert it where the model should find a word.` : "");
    drawMap();
  }

  async function showMapOf(body) {
    requested = JSON.stringify(body);
    shown.failed = false;
    const found = maps.get(requested) ?? await latestMap(body).catch(error => {
      shown.failed = !isCancelled(error);
      drawMap();
      throw error;
    });
    showMap(found, body);
    if (state.layer === null) {
      const [layer, head] = largestChange(found) ?? [0, 0];
      setState({ ...state, layer, head });
    }
  }

  function showMap(found, body) {
    if (JSON.stringify(body) !== requested) return;
    const baseMap = body.off.length ? maps.get(JSON.stringify({ ...body, off: [] })) : null;
    shown = { ...shown, map: found, baseMap: baseMap ?? null, stale: false };
    drawMap();
  }

  async function showAttention(body) {
    try {
      await attention.show((await latestAttention(body)).texts);
    } catch (error) {
      if (!isCancelled(error) && !error.unreachable) attention.fail(error.message);
    }
  }

  function showError(error) {
    if (error && isCancelled(error)) return;
    const place = find("error");
    if (error && !error.forUser) console.error(error);
    const retry = () => element("button", { type: "button", id: "retry", onclick: () => schedule(0) }, "Try again");
    place.replaceChildren(...(error ? [element("p", {}, error.message), retry()] : []));
  }

  // Draw what depends on the state only.
  function drawState() {
    inputs.update({ texts: state.texts });
    attention.update(state);
    drawOff();
    find("undo").disabled = !undo.canUndo();
    find("redo").disabled = !undo.canRedo();
    drawMap();
  }

  function drawAnswer(note) {
    const { answer, texts, target } = shown, body = find("answer-body");
    body.classList.remove("is-stale");
    const choice = answer && !note ? TARGET_NOTES[model.kind] ?? "" : "";
    const truncated = answer?.truncated
      ? `The text is longer than the ${model.max_tokens} tokens that the model reads: its end is left out.` : "";
    find("answer-note").textContent = [note, choice, truncated].filter(Boolean).join(" ");
    const focused = body.contains(document.activeElement) ? document.activeElement.dataset : null;
    body.replaceChildren(...(answer ? answerNodes({ model, texts, answer, target, onTarget: setTarget }) : []));
    if (focused) refocus(body, focused);
    const heard = answer && !note ? answerSentence(model.kind, answer) : note;
    if (find("heard").textContent !== heard) find("heard").textContent = heard;
  }

  function setTarget(target) {
    change({ target }, "question");
  }

  function drawMap() {
    const { answer, texts, target } = shown;
    const text = answer && target ? targetText(model.kind, target, answer.base, texts) : "";
    map.update({ ...shown, state, target: text });
  }

  function drawOff() {
    const names = state.off;
    const chips = names.map(name => element("button", {
      type: "button", class: "chip", "data-off": name, "aria-label": `Switch head ${name} on`, title: "Switch it on",
      onclick: () => toggle([name]),
    }, `${name} ×`));
    const text = names.length ? `${names.length === 1 ? "Head" : "Heads"} switched off:` : "All heads are on.";
    find("off-heads").replaceChildren(element("span", {}, text), ...chips);
    find("clear").disabled = !names.length;
  }

  const toggle = names => change({ off: switched(state.off, names) }, "question");
  const wholeLayer = layer => Array.from({ length: model.heads }, (_, head) => `${layer}.${head}`);

  const inputs = textInputs({
    model, texts: state.texts,
    onType: texts => change({ texts, target: keptTarget(model.kind, state.target) }, "typing"),
  });
  const map = mapPanel({
    model, onMode: mode => change({ mode }, "question"), onChange: one => change({ change: one }, "view"),
    onSelect: (layer, head) => change({ layer, head }, "view"),
    onToggle: (layer, head) => toggle([`${layer}.${head}`]), onToggleLayer: layer => toggle(wholeLayer(layer)),
  });
  const attention = attentionPanel({
    onView: changed => change(changed, "view"), onWeights: weights => change({ weights }, "view"),
    onToggle: (layer, head) => toggle([`${layer}.${head}`]),
  });
  const picker = examplePicker({
    count: data.examples, task: data.task, load: body => requests.examples(body), onError: showError,
    onPick: texts => change({ texts: state.texts.map((_, index) => texts[index] ?? ""), target: null }, "question"),
  });

  async function copyPython() {
    if (!shown.target || !shown.texts) return;
    try {
      const body = { texts: shown.texts, mode: state.mode, off: state.off, target: shown.target };
      const { code } = await requests.python(body);
      find("python").hidden = false;
      find("python").querySelector("pre").textContent = code;
      find("python-note").textContent = (await copied(code)) ? "These lines are copied:" : "Copy these lines:";
    } catch (error) {
      showError(error);
    }
  }

  async function copyLink() {
    const done = await copied(location.href);
    find("copied").textContent = done ? "The link is copied." : "Copy the link from the address bar.";
    find("copy-link").textContent = done ? "Copied" : "Copy it from the address bar";
    setTimeout(() => { find("copy-link").textContent = "Copy link"; }, 2000);
  }

  function step(move) {
    const next = move(state);
    if (!next) return;
    setState(next, true);
    schedule(0);
  }

  function onKey(event) {
    const isText = event.target.matches("textarea, input:not([type=radio])");
    if (isText || !(event.ctrlKey || event.metaKey) || event.altKey) return;
    const key = event.key.toLowerCase();
    if (key !== "z" && key !== "y") return;
    event.preventDefault();
    step(key === "y" || event.shiftKey ? undo.redo : undo.undo);
  }

  find("model").textContent = modelText(data);
  find("model").title = model.name;
  find("question").append(...[inputs.node, picker.node].filter(Boolean));
  const actions = {
    undo: () => step(undo.undo), redo: () => step(undo.redo), clear: () => change({ off: [] }, "question"),
    theme: toggleTheme, "copy-link": copyLink, "copy-python": copyPython,
    "python-close": () => { find("python").hidden = true; },
  };
  for (const [id, action] of Object.entries(actions)) find(id).addEventListener("click", action);
  document.addEventListener("keydown", onKey);
  addEventListener("popstate", () => {
    undo.record(state);
    setState(readFragment(location.hash, model, { ...state, off: [], target: null }));
    schedule(0);
  });
  setState(state);
  schedule(0);
}

function modelText({ model, task, version }) {
  const size = `${model.layers} layers of ${model.heads} heads`;
  const name = model.name.split("/").slice(-2).join("/");
  return [`${name}: ${size}`, task && `task ${task}`, `bertjax ${version}`].filter(Boolean).join(" · ");
}

// Focus the node that has the data of the one that had the focus.
function refocus(body, data) {
  const key = ["text", "word", "mask"].find(name => name in data);
  const same = [...body.querySelectorAll(`[data-${key}]`)].find(one => one.dataset[key] === data[key]);
  if (key && same) same.focus({ preventScroll: true });
}

// Copy a text; whether that was possible.
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

startExplorer();
