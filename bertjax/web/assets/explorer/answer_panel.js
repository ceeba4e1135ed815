// The panel with the answer of the model.

import { answerNodes, answerSentence } from "./answers.js";

const WAITING = "Computing. The first time takes longer.";
const WAITING_PAUSE = 1000; // milliseconds before that is shown
const TARGET_NOTES = {
  words: "Select the word that the map follows.", classes: "Select the class that the map follows.",
  labels: "Select the label that the map follows.", entities: "Select the word whose tag the map follows.",
  answer: "Select the span that the map follows.",
};

// The panel. props: model; onTarget(target): the user chose what the map follows.
// update({answer, texts, target, note}): the answer of the server to these texts, or null; note stands in place of the
// hint. wait(): the answer is an older one until the next update, or until keep(). fail(): there will be no update.
export function answerPanel({ model, onTarget }) {
  const [body, note, heard] = ["answer-body", "answer-note", "heard"].map(id => document.getElementById(id));
  let text = "", timer = null;

  function mark(isStale, waits = false) {
    body.classList.toggle("is-stale", isStale);
    clearTimeout(timer);
    note.textContent = text;
    if (waits) timer = setTimeout(() => { note.textContent = WAITING; }, WAITING_PAUSE);
  }

  function update({ answer, texts, target, note: message }) {
    const cut = answer?.truncated
      ? `The text is longer than the ${model.max_tokens} tokens that the model reads: its end is left out.` : "";
    text = [message || (answer ? TARGET_NOTES[model.kind] : ""), cut].filter(Boolean).join(" ");
    const focused = body.contains(document.activeElement) ? document.activeElement.dataset : null;
    body.replaceChildren(...(answer ? answerNodes({ model, texts, answer, target, onTarget }) : []));
    if (focused) refocus(body, focused);
    const sentence = message || (answer ? answerSentence(model.kind, answer) : "");
    if (heard.textContent !== sentence) heard.textContent = sentence;
    mark(false);
  }

  return { update, wait: () => mark(true, true), keep: () => mark(false), fail: () => mark(true) };
}

// Focus the node that has the data of the one that had the focus.
function refocus(body, data) {
  const key = ["text", "word", "mask"].find(name => name in data);
  const same = [...body.querySelectorAll(`[data-${key}]`)].find(one => one.dataset[key] === data[key]);
  if (key && same) same.focus({ preventScroll: true });
}
