"""Token classification: the tag of a word is predicted at its first piece, as in transformers' reference programs.

A word without pieces, or beyond the maximum length, is tagged `O`, outside of all entities.

A `.conll` file (also `.bio`, `.iob`, `.txt`, `.tsv`, each also `.gz`) has a line for each word, with the word in the
first column and its tag in the last; columns are separated by tabs, or else by spaces. A blank line ends a sentence.
Lines with `-DOCSTART-` are left out. The words of a `.conllu` file are its forms; their tags are the universal parts of
speech, or another column (`--tags`). The columns of predicates of Universal Propositions are read too. JSONL, Parquet
and directories of HuggingFace `datasets` have lists of str, `tokens` (or `words`) and `tags` (or `ner_tags`, `labels`,
or the columns of CoNLL-U, as in `universal_dependencies`); tags may be class ids if the file names the classes
(`ClassLabel`). Words may be blank or contain white space. Sentences without words are left out.

Rows with `text` and `targets` are in the edge-probing format of jiant: `{"text": "the cat sat", "targets": [{"span1":
[1, 2], "span2": [2, 3], "label": "nsubj"}]}`. Words are separated by white space; a span is its first word, from 0, and
one past its last word; `span2` may be absent. Their words have no tags.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

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
from bertjax.tasks.entities import Annotation, Counter, Edge, Tagged, entities, scheme_of
from bertjax.tasks.masked_words import grade_targets
from bertjax.tasks.outputs import Form, Graded, Objective, OutputSpec
from bertjax.tasks.task import EncodeArguments, Task, TaskOptions, model_labels

# The name of the task.
TAGGING = "token-classification"
OUTSIDE = "O"


class TagsDisplay(NumberDisplay):
    """Sentences with their true and predicted entities."""

    value, note = "mean log-probability", "It is the mean over the true tags. Right entities are green."

    @property
    def _names(self) -> list[str]:
        return list(self.saved.summary["tags"])

    def lines(self, example: int) -> list[Line]:
        """The sentence, its true entities, and the predicted entities."""
        row = self.saved.examples[example]
        lines: list[Line] = [[(shorten(row["first"]), PLAIN)]]
        return [*lines, self._found("true", row, None), self._found("found", row, self._tags(None, example))]

    def change(self, run: int, example: int) -> list[Line]:
        """The entities that an ablated model predicts."""
        return [self._found("ablated", self.saved.examples[example], self._tags(run, example))]

    def _tags(self, run: int | None, example: int) -> list[str]:
        """The predicted tag of each word, without an ablation or with one."""
        arrays, tags = self.saved.outputs, [OUTSIDE] * len(self.saved.examples[example]["words"])
        start, end = np.searchsorted(arrays["units"], [example, example + 1])
        found: Int[np.ndarray, " words"] = arrays["base_tags"] if run is None else arrays["tags"][run]
        for word, tag_id in zip(arrays["words"][start:end].tolist(), found[start:end].tolist(), strict=True):
            tags[word] = self._names[tag_id]
        return tags

    @staticmethod
    def _found(name: str, row: Mapping[str, Any], tags: Sequence[str] | None) -> Line:
        """A line with spans of tagged words; predicted spans are marked as right or wrong."""
        true = spans_of(row["tags"])
        found = true if tags is None else spans_of(tags)
        line: Line = [(name, NAME)]
        for span in found:
            kind, start, end = span
            mark = TRUE if tags is None else RIGHT if span in true else WRONG
            line.append((f"{' '.join(row['words'][start:end])} ({kind})", mark))
        return line if found else [*line, ("none", PLAIN)]


def spans_of(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Spans of consecutive words with tags of one type other than `O`: type, first word and one past the last.

    >>> spans_of(["B-PER", "I-PER", "O", "B-LOC", "B-LOC"])
    [('PER', 0, 2), ('LOC', 3, 4), ('LOC', 4, 5)]
    >>> spans_of(["I-PER", "E-PER", "E-PER", "I-PER"])
    [('PER', 0, 2), ('PER', 2, 3), ('PER', 3, 4)]
    """
    spans: list[tuple[str, int, int]] = []
    for index, tag in enumerate(tags):
        mark, _, kind = tag.partition("-")
        kind = kind or tag
        if tag == OUTSIDE:
            continue
        complete = index > 0 and tags[index - 1][:1] in "ELSU"  # the entity of the previous word
        if spans and mark in "IEL" and not complete and spans[-1][2] == index and spans[-1][0] == kind:
            spans[-1] = (kind, spans[-1][1], index + 1)
        else:
            spans.append((kind, index, index + 1))
    return spans


TAGS = Form(
    "tags", readouts.tags, called="tags of words", counted="word", numbers=ratios.TAGS, sized=1, display=TagsDisplay
)
WORD_COLUMNS, TAG_COLUMNS = ("tokens", "words"), ("tags", "ner_tags", "pos_tags", "labels", "upos")
# The columns of CoNLL-U, named as in `universal_dependencies` of `datasets`. In Universal Propositions a column with
# the sense of each predicate follows, and then a column of roles for each predicate.
CONLLU = ("idx", "tokens", "lemmas", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
FIRST_ROLE = len(CONLLU) + 1
ANNOTATED = ("lemmas", "upos", "head", "deprel")
EDGES = ("text", "targets")
OF_LISTS = (".jsonl", ".jsonl.gz", ".parquet", ".parquet.gz")
DOCUMENT = "-DOCSTART-"
ENTITY = re.compile(r"[BIOESLU]-.+|O")  # a tag of a tagging scheme
OF_TAGS = ("tag_accuracy",)  # the metrics of tags without a tagging scheme
STRICT = "strict_entity_f1"  # needs a scheme
NUMBERED = (
    ": tag names are missing; write names in place of ids, or save a data set of `datasets` whose tags are ClassLabel"
)
BLANKS = " \t\r"  # between columns; a word may contain other white space


@dataclass(frozen=True, kw_only=True)
class TagOptions(TaskOptions):
    """Which column has the tags.

    Args:
        tags: with task token-classification: the column of CoNLL-U with the tags: universal or language-specific part
            of speech, or dependency relation without its subtype.
    """

    tags: Literal["upos", "xpos", "deprel"] = "upos"


@dataclass(frozen=True)
class TokenClassification(Task):
    """Sentences whose words have tags."""

    models = (BertForTokenClassification,)
    needs = "token-classification head"
    forms = (TAGS,)
    options = TagOptions
    files = "a file of words and tags (.conll), or of lists tokens and tags (.jsonl, .parquet)"

    def read_path(self, path: Path, source: Source) -> Examples:
        """Read the sentences of a file with a line for each word, of rows with lists, or of a saved data set."""
        if is_directory(path) or path.name.endswith(OF_LISTS):
            return super().read_path(path, source)
        return self.read_table(_read_columns(path), source)

    def read_table(self, table: Table, source: Source) -> Examples:
        """Read the sentences of a table; tags without a tagging scheme are scored only by accuracy."""
        columns = source.text_columns
        if columns is not None and len(columns) != 2:
            raise DataError(f"{self.name} needs two columns, of words and of tags; found {', '.join(columns)}")
        if columns is None and {*EDGES} <= {*table.columns}:
            return self._examples(table, [_edges(table, row) for row in range(len(table))])
        tags = source.options.tags if isinstance(source.options, TagOptions) else TagOptions.tags
        named = TAG_COLUMNS if tags == TagOptions.tags else (tags,)
        names = tuple(columns) if columns else (table.need(WORD_COLUMNS), table.need(named))
        values = [(name, table.named(name)) for name in names]
        read = [
            replace(_sentence(table, row, values), annotation=found) for row, found in enumerate(_annotations(table))
        ]
        return self._examples(table, read)

    def _examples(self, table: Table, read: Sequence[Tagged]) -> Examples:
        """The examples of the sentences of all rows."""
        rows = [row for row, sentence in enumerate(read) if sentence.words]
        if not rows:
            raise DataError(f"{table.path}: no sentence has a word")
        several = sum(len(_alternatives(tag)) > 1 for one in read for tag in one.tags)
        sentences = [replace(read[row], tags=tuple(_alternatives(tag)[0] for tag in read[row].tags)) for row in rows]
        task, scheme, description = _with_metrics(self, sentences)
        source_note = f"{table.path} ({description}"
        if len(rows) < len(read):
            source_note += f"; {count_of(len(read) - len(rows), 'sentence')} without words left out"
        if several:
            source_note += f"; {count_of(several, 'word')} with several tags, the first taken"
        return Examples(
            task=task,
            ids=tuple(table.indices[row] for row in rows),
            first=tuple(" ".join(sentence.words) for sentence in sentences),
            second=None,
            labels=np.full(len(rows), np.nan, np.float32),
            source=f"{source_note})",
            split="validation",
            content=tuple(replace(sentence, scheme=scheme) for sentence in sentences),
        )

    def can_be_scored(self, form: OutputSpec, metric: Metric) -> bool:
        """Whether a metric can score the outputs; metrics of entities need a tagging scheme."""
        lacking = METRICS.get(metric.name) == metric and metric.name not in self.metrics
        return super().can_be_scored(form, metric) and not (metric.reads == "outputs" and lacking)

    def encode(
        self, model: PretrainedModel, tokenizer: Tokenizer, examples: Examples, arguments: EncodeArguments
    ) -> "EncodedSentences":
        """Encode sentences; outputs are read at the first piece of each word.

        Raises:
            ConfigError: the model lacks a tag of the data.
            DataError: no word has a piece.
        """
        names = model_labels(model)
        if any(content.edges for content in examples.content or () if isinstance(content, Tagged)):
            raise DataError("labels of spans are for edge probes (bertjax probe-edges): words need tags here")
        sentences = [content for content in examples.content or () if isinstance(content, Tagged)]
        tag_ids = _tag_ids(names, sentences, examples)
        texts = tokenizer.encode_words([sentence.words for sentence in sentences], arguments.max_length)
        first_pieces = [_first_pieces(text) for text in texts]
        kept = [index for index, words in enumerate(first_pieces) if words]
        if not kept:
            raise DataError("no word has a piece in the tokenizer")
        tokens = [list(first_pieces[index].values()) for index in kept]
        true = [[tag_ids[sentences[index].tags[word]] for word in first_pieces[index]] for index in kept]
        positions = TargetPositions.of_lists(tokens, true, range(len(kept)))
        words = np.array([word for index in kept for word in first_pieces[index]], np.int32)
        tagged = [sentences[index] for index in kept]
        notes = _words_without_piece(sentences, first_pieces, examples.ids)
        if len(kept) < len(texts):
            notes.append(f"{count_of(len(texts) - len(kept), 'sentence')} without pieces left out")
        return EncodedSentences(
            TAGS,
            tuple(texts[index] for index in kept),
            tokenizer.pad_id,
            len(kept),
            np.array([len(entities(sentence.tags)) for sentence in tagged], np.int32),
            positions,
            dropped=[index for index, words in enumerate(first_pieces) if not words],
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
        sentences: the sentences with their true tags.
        words: the index of each scored word in its sentence.
        names: the names of the model's tags.
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
        for index, (sentence, end, count) in enumerate(zip(self.sentences, ends, counts, strict=True)):
            counter = Counter(sentence, self.words[end - count : end], self.names, OUTSIDE)
            outputs[:, index, 1:] = [counter.count(run) for run in predicted[:, end - count : end]]
        return TaskOutputs(outputs, {"tags": predicted})


def _tag_ids(names: Sequence[str], sentences: Sequence[Tagged], examples: Examples) -> dict[str, int]:
    """The model's id of each tag. Raises `ConfigError` if it lacks a tag of the data."""
    ids = {name: tag_id for tag_id, name in enumerate(names)}
    if missing := sorted({tag for sentence in sentences for tag in sentence.tags} - ids.keys()):
        raise ConfigError(
            f"the model's tags {some_of(names)} lack {some_of(missing)} of {examples.task.name}'s data: use the same "
            "names in the model's config.json (id2label)"
        )
    return ids


def _words_without_piece(
    sentences: Sequence[Tagged], first_pieces: Sequence[Mapping[int, int]], ids: Sequence[int | str]
) -> list[str]:
    """A note with the number of words without a piece and the first of them; no note if there are none."""
    missing = [
        (word, name)
        for sentence, found, name in zip(sentences, first_pieces, ids, strict=True)
        for index, word in enumerate(sentence.words)
        if index not in found
    ]
    if not missing:
        return []
    (word, name), count = missing[0], count_of(len(missing), "word")
    return [f"{count} without pieces, tagged {OUTSIDE} (first {brief(word)} of sentence {name})"]


def _first_pieces(text: Encoding) -> dict[int, int]:
    """The index of each word's first piece, for words with pieces."""
    found: dict[int, int] = {}
    for index, word in enumerate(text.word_ids):
        if word is not None:
            found.setdefault(word, index)
    return found


def _with_metrics(task: Task, sentences: Sequence[Tagged]) -> tuple[Task, str | None, str]:
    """The task with the metrics for the tags, the tagging scheme, and a description of the data."""
    count, tags = sum(len(one.words) for one in sentences), {tag for one in sentences for tag in one.tags}
    counts = f"{count_of(len(sentences), 'sentence')}, {count_of(count, 'word')}"
    if edges := sum(len(one.edges) for one in sentences):
        return replace(task, metrics=OF_TAGS), None, f"{counts}, {count_of(edges, 'labelled span or pair')}"
    counts = f"{counts}, {count_of(len(tags), 'tag')}"
    if not all(map(ENTITY.fullmatch, tags)):
        return replace(task, metrics=OF_TAGS), None, counts
    scheme, apart = scheme_of(one.tags for one in sentences)
    if scheme is None:
        metrics = tuple(name for name in task.metrics if name != STRICT)
        return replace(task, metrics=metrics), None, f"{counts}, which follow no tagging scheme: no {STRICT}"
    return task, scheme, f"{counts} in {scheme}" + f" except {count_of(apart, 'word')}" * (apart > 0)


def _alternatives(tag: str) -> list[str]:
    """The alternative tags of a word, as in the test part of WNUT 2017: `B-location,B-group`."""
    parts = tag.split(",")
    return parts if all(map(ENTITY.fullmatch, parts)) else [tag]


def _sentence(table: Table, row: int, columns: Sequence[tuple[str, Sequence[object]]]) -> Tagged:
    (_, words), (tag_column, tags) = ((name, values[row]) for name, values in columns)
    unnamed = [tag for tag in tags if isinstance(tag, int)] if isinstance(tags, list) else []
    if unnamed and (classes := table.classes.get(tag_column)):
        problem = f"is not a class id: the classes of the {table.noun} are {some_of(classes)}"
        raise table.error(row, f"tag {unnamed[0]} of column {tag_column!r} {problem}")
    if unnamed:
        raise table.error(row, f"column {tag_column!r} holds {brief(tags)}, which is not a list of strings{NUMBERED}")
    words, tags = (table.text_list(row, name, values[row]) for name, values in columns)
    if not all(map(str.strip, tags)):
        raise table.error(row, f"column {tag_column!r} has an empty string: each word needs a tag")
    if len(words) != len(tags):
        raise table.error(row, f"there are {len(words)} words and {len(tags)} tags: each word needs one")
    if tag_column == "deprel":
        tags = [tag.partition(":")[0] for tag in tags]
    return Tagged(tuple(words), tuple(tags))


def _edges(table: Table, row: int) -> Tagged:
    """The sentence of a row in the edge-probing format."""
    text, targets = (table.column(name)[row] for name in EDGES)
    words = table.text(row, "text", text).split()
    if not isinstance(targets, list) or not all(isinstance(target, dict) for target in targets):
        raise table.error(row, f"column 'targets' holds {brief(targets)}, which is not a list of objects")
    edges = []
    for target in targets:
        first, second, label = (target.get(name) for name in ("span1", "span2", "label"))
        label = label[0] if isinstance(label, list) and len(label) == 1 else label
        if not isinstance(label, str):
            raise table.error(row, f"a target has the label {brief(label)}: an edge probe needs one string")
        for span in [first] if second is None else [first, second]:
            if not _is_span(span, len(words)):
                raise table.error(row, f"{brief(span)} is not a span [first, end) of {count_of(len(words), 'word')}")
        edges.append(Edge(tuple(first), None if second is None else tuple(second), label))
    return Tagged(tuple(words), (OUTSIDE,) * len(words), edges=tuple(edges))


def _is_span(span: Any, words: int) -> bool:
    is_pair = isinstance(span, list) and len(span) == 2 and all(type(end) is int for end in span)
    return bool(is_pair and 0 <= span[0] < span[1] <= words)


def _annotations(table: Table) -> list[Annotation | None]:
    """The annotation of each sentence; None for sentences without heads."""
    if not {*ANNOTATED} <= {*table.columns}:
        return [None] * len(table)
    columns: list[list[Any]] = [table.named(name) for name in ANNOTATED]
    roles: list[Any] = table.column("roles") if "roles" in table.columns else [()] * len(table)
    found: list[Annotation | None] = []
    for lemmas, upos, heads, deprel, of_predicates in zip(*columns, roles, strict=True):
        known = all(str(head).isdecimal() for head in heads)
        numbers = tuple(map(int, heads)) if known else ()
        found.append(Annotation(tuple(lemmas), tuple(upos), numbers, tuple(deprel), of_predicates) if known else None)
    return found


def _fields(text: str) -> list[str]:
    """The columns of a line; a blank first column before a tab is a word."""
    if "\t" in text.rstrip(BLANKS):
        return text.split("\t")
    return re.split(f"[{BLANKS}]+", text.strip(BLANKS))


def _read_columns(path: Path) -> Table:
    """The table of a file of columns, with a row for each sentence."""
    universal = path.name.endswith((".conllu", ".conllu.gz"))
    sentences: list[list[list[str]]] = []
    lines: list[int] = []
    width, last, ended = 0, 0, True
    for line, text in numbered_lines(path):
        blank = not text.strip()
        if line > last + 1 or blank:
            ended = True
        last = line
        fields = _fields(text)
        if blank or fields[0] == DOCUMENT or (universal and not fields[0].isdecimal()):
            continue  # in CoNLL-U also comments, multiword tokens and empty nodes
        if ended:
            sentences.append([])
            lines.append(line)
            width = 0 if universal and width >= FIRST_ROLE else width  # each sentence has columns for its predicates
            ended = False
        if len(fields) < (4 if universal else 2) or (width and len(fields) != width):
            raise DataError(
                f"{path}, line {line}: {count_of(len(fields), 'column')}"
                f"{f', but {width} in earlier lines' * bool(width)}: expected a word and its tag"
            )
        width = len(fields)
        word, tag = (fields[1], fields[3]) if universal else (fields[0], fields[-1])
        if not tag.strip():
            raise DataError(f"{path}, line {line}: the tag of {brief(word)} is empty")
        sentences[-1].append(fields)
    if not sentences:
        raise DataError(f"{path}: holds no examples")
    places = {name: place for place, name in enumerate(CONLLU[:width])} if universal else {"tokens": 0, "tags": -1}

    def read(name: str) -> list[object]:
        if name == "roles":
            return [tuple(tuple(fields[FIRST_ROLE:]) for fields in sentence) for sentence in sentences]
        return [[_cell(name, fields[places[name]]) for fields in sentence] for sentence in sentences]

    columns = (*places, "roles") if width >= FIRST_ROLE else (*places,)
    return Table(path, columns, read, range(len(sentences)), lambda: lines)


def _cell(name: str, text: str) -> str:
    """The value of a cell; words keep their white space."""
    return text if name == "tokens" else text.strip()
