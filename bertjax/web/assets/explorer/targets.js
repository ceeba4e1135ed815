// Targets: the part of an answer whose change the map shows.

// The target that a state has, or the most likely part of the answer if it has none or it does not fit; null if the
// answer has no part.
export function targetOf(kind, target, answer) {
  if (target && fitsAnswer(kind, target, answer)) return target;
  if (kind === "words") return answer.masks.length ? { mask: 0, word: answer.masks[0].guesses[0].word } : null;
  if (kind === "classes" || kind === "labels") return { class: mostLikely(answer[kind]) };
  if (kind === "entities") {
    const index = Math.max(0, answer.words.findIndex(({ tag }) => tag !== "O"));
    return answer.words.length ? { word: index, tag: answer.words[index].tag } : null;
  }
  if (kind === "answer") return answer.spans.length ? { start: answer.spans[0].start, end: answer.spans[0].end } : null;
  return {};
}

function fitsAnswer(kind, target, answer) {
  if (kind === "words") return target.mask < answer.masks.length;
  if (kind === "classes" || kind === "labels") return target.class < answer[kind].length;
  if (kind === "entities") return target.word < answer.words.length;
  return true;
}

function mostLikely(classes) {
  return classes.reduce((best, { probability }, index) => (probability > classes[best].probability ? index : best), 0);
}

// A target in words: "“cat”", "positive", "B-PER at “Ada”". texts: of the question.
export function targetText(kind, target, answer, texts) {
  if (kind === "words") return `“${target.word}”${answer.masks.length > 1 ? ` at mask ${target.mask + 1}` : ""}`;
  if (kind === "classes" || kind === "labels") return `“${answer[kind][target.class].name}”`;
  if (kind === "entities") return `${target.tag} at “${answer.words[target.word].text}”`;
  if (kind === "answer") return `“${texts[1].slice(...codeUnits(texts[1], target))}”`;
  return "";
}

// Offsets of Python, which count code points, as offsets of JavaScript.
export function codeUnits(text, { start, end }) {
  const points = [...text];
  const first = points.slice(0, start).join("").length;
  return [first, first + points.slice(start, end).join("").length];
}

// Whether two targets are the same.
export function sameTarget(one, other) {
  if (one === null || other === null) return one === other;
  return Object.keys(one).every(name => one[name] === other[name]);
}

// The target that remains when the user changes the texts: positions in a text do not.
export function keptTarget(kind, target) {
  return kind === "entities" || kind === "answer" ? null : target;
}
