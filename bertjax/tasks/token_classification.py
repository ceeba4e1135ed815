"""Tags of words: each word's tag is that of its first piece, as in the reference programs of transformers.

A word without pieces, or beyond the maximum length, is tagged `O`, outside of all entities, if the model has that tag.

A `.conll` file (also `.bio`, `.iob`, `.txt`, `.tsv`, each also `.gz`) has a word in each line, its first column, and
its tag in the last; columns are separated by tabs, or else by spaces. A line of nothing but white space ends a
sentence. Lines of `-DOCSTART-` are left out. A `.conllu` file has its own columns: the words' forms and their universal
parts of speech. JSONL, Parquet and directories of HuggingFace `datasets` have `tokens` (or `words`) and `tags` (or
`ner_tags`, `labels`), lists of texts; tags may be class numbers whose names the file has (`ClassLabel`). Words are
kept as they are: a word may contain white space or be blank. Sentences without words are left out.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from jaxtyping import Float, Int, Shaped

from bertjax.data import Encoding, Examples, Source, Table, Tokenizer, brief, numbered_lines
from bertjax.errors import ConfigError, DataError, some_of
from bertjax.formatting import count_of
from bertjax.interventions import readouts
from bertjax.models import BertForTokenClassification, PretrainedModel
from bertjax.paths import is_directory
from bertjax.results import NAME, PLAIN, RIGHT, TRUE, WRONG, Line, NumberDisplay, shorten
from bertjax.statistics import METRICS, Metric, ratios
from bertjax.tasks.encoded import TargetPositions, TaskOutputs, TokenEncodings
from bertjax.tasks.entities import Counter, Tagged, entities, scheme_of
from bertjax.tasks.masked_words import grade_targets
from bertjax.tasks.outputs import Form, Graded, Objective, OutputSpec
from bertjax.tasks.task import EncodeArguments, Task, model_labels

TAGGING = "token-classification"
OUTSIDE = "O"


class TagsDisplay(NumberDisplay):
    """Sentences with their entities, or with the words whose tags change."""

    value, note = "mean log-probability", "It is that of the true tags. Entities are green where they are right."

    @property
    def _names(self) -> list[str]:
        return list(self.saved.summary["tags"])

    def lines(self, example: int) -> list[Line]:
        """The sentence, its true entities, and those that the model finds."""
        row = self.saved.examples[example]
        lines: list[Line] = [[(shorten(row["first"]), PLAIN)]]
        return [*lines, self._found("true", row, None), self._found("found", row, self._tags(None, example))]

    def change(self, run: int, example: int) -> list[Line]:
        """What an ablated model finds."""
        return [self._found("ablated", self.saved.examples[example], self._tags(run, example))]

    def _tags(self, run: int | None, example: int) -> list[str]:
        """The predicted tag of each word, without an ablation or with one."""
        arrays, tags = self.saved.outputs, [OUTSIDE] * len(self.saved.examples[example]["words"])
        start, end = np.searchsorted(arrays["units"], [example, example + 1])
        found: Int[np.ndarray, " words"] = arrays["base_tags"] if run is None else arrays["tags"][run]
        for word, number in zip(arrays["words"][start:end].tolist(), found[start:end].tolist(), strict=True):
            tags[word] = self._names[number]
        return tags

    @staticmethod
    def _found(name: str, row: Mapping[str, Any], tags: Sequence[str] | None) -> Line:
        """Spans of words with tags; predicted ones are right or wrong."""
        true = spans_of(row["tags"])
        found = true if tags is None else spans_of(tags)
        line: Line = [(name, NAME)]
        for span in found:
            kind, start, end = span
            mark = TRUE if tags is None else RIGHT if span in true else WRONG
            line.append((f"{' '.join(row['words'][start:end])} ({kind})", mark))
        return line if found else [*line, ("none", PLAIN)]


def spans_of(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Neighbouring words with tags of one type, none of them `O`: type, first word and one past the last.

    >>> spans_of(["B-PER", "I-PER", "O", "B-LOC", "B-LOC"])
    [('PER', 0, 2), ('LOC', 3, 4), ('LOC', 4, 5)]
    >>> spans_of(["I-PER", "E-PER", "E-PER", "I-PER"])
    [('PER', 0, 2), ('PER', 2, 3), ('PER', 3, 4)]
    """
    spans: list[tuple[str, int, int]] = []
    for place, tag in enumerate(tags):
        mark, _, kind = tag.partition("-")
        kind = kind or tag
        if tag == OUTSIDE:
            continue
        complete = place > 0 and tags[place - 1][:1] in "ELSU"  # the entity of the word before
        if spans and mark in "IEL" and not complete and spans[-1][2] == place and spans[-1][0] == kind:
            spans[-1] = (kind, spans[-1][1], place + 1)
        else:
            spans.append((kind, place, place + 1))
    return spans


TAGS = Form(
    "tags", readouts.tags, called="tags of words", counted="word", numbers=ratios.TAGS, sized=1, display=TagsDisplay
)
WORD_COLUMNS, TAG_COLUMNS = ("tokens", "words"), ("tags", "ner_tags", "pos_tags", "labels")
OF_LISTS = (".jsonl", ".jsonl.gz", ".parquet", ".parquet.gz")
DOCUMENT = "-DOCSTART-"
ENTITY = re.compile(r"[BIOESLU]-.+|O")  # a tag that says where in an entity its word is
OF_TAGS = ("tag_accuracy",)  # of tags that are none of entities
STRICT = "strict_entity_f1"  # needs a scheme
NUMBERED = (
    ": tag names are missing; write names in place of the numbers, or save a data set of `datasets` whose tags are "
    "ClassLabel"
)
BLANKS = " \t\r"  # between columns; a word may hold all other white space


@dataclass(frozen=True)
class TokenClassification(Task):
    """Sentences with a tag for each word."""

    models = (BertForTokenClassification,)
    needs = "token-classification head"
    forms = (TAGS,)
    files = "a file of words and tags (.conll), or of lists tokens and tags (.jsonl, .parquet)"

    def read_path(self, path: Path, source: Source) -> Examples:
        """Sentences of a file with a word in each line, or of rows with lists; or of a saved dataset."""
        if is_directory(path) or path.name.endswith(OF_LISTS):
            return super().read_path(path, source)
        return self.read_table(_read_columns(path), source)

    def read_table(self, table: Table, source: Source) -> Examples:
        """Sentences of a table; if tags are not those of entities, only accuracy is a metric."""
        columns = source.text_columns
        if columns is not None and len(columns) != 2:
            raise DataError(f"{self.name} takes two columns, of words and of tags; found {', '.join(columns)}")
        names = tuple(columns) if columns else (table.need(WORD_COLUMNS), table.need(TAG_COLUMNS))
        columns_of = [(name, table.column(name)) for name in names]
        read = [_sentence(table, row, columns_of) for row in range(len(table))]
        rows = [row for row, sentence in enumerate(read) if sentence.words]
        if not rows:
            raise DataError(f"{table.path}: no sentence has a word")
        several = sum(len(_alternatives(tag)) > 1 for one in read for tag in one.tags)
        sentences = [replace(read[row], tags=tuple(_alternatives(tag)[0] for tag in read[row].tags)) for row in rows]
        task, scheme, called = _with_metrics(self, sentences)
        what = f"{table.path} ({called}"
        what += f"; {count_of(len(read) - len(rows), 'sentence')} without words left out" * (len(rows) < len(read))
        what += f"; {count_of(several, 'word')} with several tags, the first taken" * (several > 0)
        return Examples(
            task=task,
            ids=tuple(table.numbers[row] for row in rows),
            first=tuple(" ".join(sentence.words) for sentence in sentences),
            second=None,
            labels=np.full(len(rows), np.nan, np.float32),
            source=f"{what})",
            split="validation",
            content=tuple(replace(sentence, scheme=scheme) for sentence in sentences),
        )

    def can_be_scored(self, form: OutputSpec, metric: Metric) -> bool:
        """Not by metrics of entities if the tags of the data are none."""
        lacking = METRICS.get(metric.name) == metric and metric.name not in self.metrics
        return super().can_be_scored(form, metric) and not (metric.reads == "outputs" and lacking)

    def encode(
        self, model: PretrainedModel, tokenizer: Tokenizer, examples: Examples, arguments: EncodeArguments
    ) -> "EncodedSentences":
        """Sentences, with the first piece of each word.

        Raises:
            ConfigError: the model lacks a tag of the data.
            DataError: no word has a piece.
        """
        names, sentences = model_labels(model), _sentences(examples)
        numbers = _numbers(names, sentences, examples)
        words_of = [sentence.words for sentence in sentences]
        texts = tokenizer.encode_words(words_of, arguments.max_length)
        heads = [_first_pieces(text) for text in texts]
        kept = [number for number, words in enumerate(heads) if words]
        if not kept:
            raise DataError("no word has a piece of the tokenizer's: nothing can be measured")
        tokens = [list(heads[number].values()) for number in kept]
        true = [[numbers[sentences[number].tags[word]] for word in heads[number]] for number in kept]
        positions = TargetPositions.of_lists(tokens, true, range(len(kept)))
        words = np.array([word for number in kept for word in heads[number]], np.int32)
        tagged = [sentences[number] for number in kept]
        notes = _without_piece(sentences, heads, examples.ids)
        if len(kept) < len(texts):
            notes.append(f"{count_of(len(texts) - len(kept), 'sentence')} without any left out")
        return EncodedSentences(
            TAGS,
            tuple(texts[number] for number in kept),
            tokenizer.pad_id,
            len(kept),
            np.array([len(entities(sentence.tags)) for sentence in tagged], np.int32),
            positions,
            dropped=[number for number, found in enumerate(heads) if not found],
            note=", ".join(notes),
            sentences=tagged,
            words=words,
            names=names,
        )


TOKEN_CLASSIFICATION = TokenClassification(
    TAGGING, ("sentence",), metrics=("entity_f1", "strict_entity_f1", "tag_accuracy")
)


@dataclass(frozen=True)
class EncodedSentences(TokenEncodings):
    """Sentences whose words have tags.

    Args:
        sentences: with their true tags.
        words: the index of each scored word in its sentence.
        names: of the model's tags.
    """

    sentences: Sequence[Tagged] = field(kw_only=True)
    words: Int[np.ndarray, " positions"] = field(kw_only=True)
    names: Sequence[str] = field(kw_only=True)

    @property
    def arrays(self) -> dict[str, Shaped[np.ndarray, "..."]]:
        """The sentence, token, index and true tag of each scored word."""
        at = self.positions
        return {"units": at.units, "places": at.tokens, "words": self.words, "true": at.true}

    @property
    def metadata(self) -> dict[str, Any]:
        """The names of the tags."""
        return {"tags": list(self.names)}

    @property
    def objective(self) -> Objective:
        """The mean surprisal of a sentence's true tags."""
        return Objective(readouts.tags, self.grade, "mean surprisal of a sentence's true tags")

    def grade(self, example: int, values: Float[np.ndarray, "texts wanted *numbers"]) -> Graded:
        """An example's loss and its gradient."""
        return grade_targets(self.positions, example, values)

    def collect(self, values: Float[np.ndarray, "runs texts wanted 2"]) -> TaskOutputs:
        """The mean log-probability of each sentence's true tags, and counts of words and entities."""
        by_word = self.positions.flatten(values)
        counts = np.bincount(self.positions.units, minlength=self.examples)
        ends = np.cumsum(counts)
        mean = np.add.reduceat(by_word[..., 0].astype(np.float64), ends - counts, axis=1) / counts
        predicted = by_word[..., 1].astype(np.int16)
        outputs = np.zeros((len(values), self.examples, len(ratios.TAGS)), values.dtype)
        outputs[..., 0] = mean
        for number, (sentence, end, count) in enumerate(zip(self.sentences, ends, counts, strict=True)):
            counter = Counter(sentence, self.words[end - count : end], self.names, OUTSIDE)
            outputs[:, number, 1:] = [counter.count(run) for run in predicted[:, end - count : end]]
        return TaskOutputs(outputs, {"tags": predicted})


def _sentences(examples: Examples) -> list[Tagged]:
    return [content for content in examples.content or () if isinstance(content, Tagged)]


def _numbers(names: Sequence[str], sentences: Sequence[Tagged], examples: Examples) -> dict[str, int]:
    """The model's number of each tag. Raises `ConfigError` where it lacks one of the data."""
    numbers = {name: number for number, name in enumerate(names)}
    found = {tag for sentence in sentences for tag in sentence.tags}
    if missing := sorted(found - numbers.keys()):
        raise ConfigError(
            f"the model's tags {some_of(names)} lack {some_of(missing)} of {examples.task.name}'s data: name them "
            "alike in the model's config.json (id2label)"
        )
    return numbers


def _without_piece(
    sentences: Sequence[Tagged], heads: Sequence[Mapping[int, int]], ids: Sequence[int | str]
) -> list[str]:
    """How many words have no piece, and the first of them; nothing where all have one."""
    missing = [
        (word, name)
        for sentence, found, name in zip(sentences, heads, ids, strict=True)
        for place, word in enumerate(sentence.words)
        if place not in found
    ]
    if not missing:
        return []
    (word, name), count = missing[0], count_of(len(missing), "word")
    return [f"{count} without piece, tagged {OUTSIDE} (first {brief(word)} of sentence {name})"]


def _first_pieces(text: Encoding) -> dict[int, int]:
    """The token of each word's first piece, of words that have one."""
    found: dict[int, int] = {}
    for place, word in enumerate(text.word_ids):
        if word is not None:
            found.setdefault(word, place)
    return found


def _with_metrics(task: Task, sentences: Sequence[Tagged]) -> tuple[Task, str | None, str]:
    """The task with the metrics that fit the tags, the tagging scheme, and what there is in words."""
    count, tags = sum(len(one.words) for one in sentences), {tag for one in sentences for tag in one.tags}
    called = f"{count_of(len(sentences), 'sentence')}, {count_of(count, 'word')}, {count_of(len(tags), 'tag')}"
    if not all(map(ENTITY.fullmatch, tags)):
        return replace(task, metrics=OF_TAGS), None, called
    scheme, apart = scheme_of(one.tags for one in sentences)
    if scheme is None:
        metrics = tuple(name for name in task.metrics if name != STRICT)
        return replace(task, metrics=metrics), None, f"{called}, which follow no tagging scheme: no {STRICT}"
    return task, scheme, f"{called} in {scheme}" + f" but for {count_of(apart, 'word')}" * (apart > 0)


def _alternatives(tag: str) -> list[str]:
    """The tags of a word that annotators gave several, as in the test part of WNUT 2017: `B-location,B-group`."""
    parts = tag.split(",")
    return parts if all(map(ENTITY.fullmatch, parts)) else [tag]


def _sentence(table: Table, row: int, columns: Sequence[tuple[str, Sequence[object]]]) -> Tagged:
    words, tags = (cast(Sequence[str], _named(table, row, name, values[row])) for name, values in columns)
    for (name, _), values in zip(columns, (words, tags), strict=True):
        if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
            hint = NUMBERED if name == columns[1][0] and _is_numbered(values) else ""
            raise table.error(row, f"column {name!r} holds {brief(values)}, which is no list of texts{hint}")
        table.text_list(row, name, values)
    if not all(map(str.strip, tags)):
        raise table.error(row, f"column {columns[1][0]!r} holds an empty text: each word needs a tag")
    if len(words) != len(tags):
        raise table.error(row, f"there are {len(words)} words and {len(tags)} tags: each word needs one")
    return Tagged(tuple(words), tuple(tags))


def _is_numbered(values: object) -> bool:
    """Whether tags are numbers whose names the file does not have."""
    return isinstance(values, list | tuple) and any(isinstance(value, int) for value in values)


def _named(table: Table, row: int, name: str, value: object) -> object:
    """A value of a column, in which numbers of classes that the file names are these names."""
    classes = table.classes.get(name, ())
    if not classes or not isinstance(value, list):
        return value
    for number in value:
        if isinstance(number, int) and not 0 <= number < len(classes):
            problem = f"is none of the classes that the {table.called} names"
            raise table.error(row, f"tag {number} of column {name!r} {problem}")
    return [classes[item] if isinstance(item, int) else item for item in value]


def _fields(text: str) -> list[str]:
    """The columns of a line; a first one that is blank is a word if tabs follow it."""
    if "\t" in text.rstrip(BLANKS):
        return text.split("\t")
    return re.split(f"[{BLANKS}]+", text.strip(BLANKS))


def _read_columns(path: Path) -> Table:
    """Words and tags of a file of columns, a row for each sentence."""
    universal = path.name.endswith((".conllu", ".conllu.gz"))
    sentences: list[tuple[list[str], list[str]]] = []
    lines: list[int] = []
    width, last, ended = 0, 0, True
    for line, text in numbered_lines(path):
        blank = not text.strip()
        if line > last + 1 or blank:
            ended = True
        last = line
        fields = _fields(text)
        if blank or fields[0] == DOCUMENT or (universal and not fields[0].isdecimal()):
            continue  # of CoNLL-U also comments, words of several tokens and words that are not there
        if len(fields) < 2 or (width and len(fields) != width):
            raise DataError(
                f"{path}, line {line}: {count_of(len(fields), 'column')}"
                f"{f', not the {width} of the lines before' * bool(width)}: a word and its tag are needed"
            )
        width = len(fields)
        word, tag = (fields[1], fields[3]) if universal and width > 3 else (fields[0], fields[-1])
        if not tag.strip():
            raise DataError(f"{path}, line {line}: the tag of {brief(word)} is empty")
        if ended:
            sentences.append(([], []))
            lines.append(line)
            ended = False
        sentences[-1][0].append(word)
        sentences[-1][1].append(tag.strip())
    if not sentences:
        raise DataError(f"{path}: holds no examples")
    values = {"tokens": [words for words, _ in sentences], "tags": [tags for _, tags in sentences]}
    return Table(path, ("tokens", "tags"), values.__getitem__, range(len(sentences)), lambda: lines)
