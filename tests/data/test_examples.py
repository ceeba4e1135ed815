"""Claims about examples: which rows are read, in which order, with which labels, and what is refused.

All texts here are made up; the files have the layouts of GLUE's own.
"""

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertjax.data import Examples, draw, read_contrasts
from bertjax.errors import DataError
from bertjax.tasks import TASKS, load_examples, task_named

# Quotation marks do not match, one text holds a character that str.splitlines would split at.
TEXTS = ('He said "no', 'Zoë\u2028and "she"" did', "a ' b", "naïve 中国 😀", "plain")


def write(path: Path, rows: list[tuple[object, ...]], start: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = (start + "".join("\t".join(map(str, row)) + "\n" for row in rows)).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write_mrpc(path: Path) -> Path:
    header = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
    rows = [(i % 2, 70 + i, 90 + i, text, text[::-1]) for i, text in enumerate(TEXTS)]
    return write(path, [header, *rows], start="\ufeff")


# For each task: the file's name, its rows, and the class numbers or scores that they mean.
LAYOUTS: dict[str, tuple[str, list[tuple[object, ...]], list[float]]] = {
    "stsb": (
        "STS-B/dev.tsv",
        [
            ("index", "genre", "filename", "year", "source1", "sentence1", "sentence2", "score"),
            (0, "g", "f", "2012", "none", "a b", "c d", "4.750"),
            (1, "g", "f", "2012", "none", "e", "f", "0.000"),
        ],
        [4.75, 0.0],
    ),
    "sst2": ("SST-2/dev.tsv.gz", [("sentence", "label"), ("good ", 1), ("bad ", 0)], [1, 0]),
    "qqp": (
        "QQP/dev.tsv",
        [("id", "qid1", "qid2", "question1", "question2", "is_duplicate"), (77, 1, 2, "a?", "b?", 1)],
        [1],
    ),
    "rte": (
        "RTE/dev.tsv",
        [
            ("index", "sentence1", "sentence2", "label"),
            (0, "a", "b", "not_entailment"),
            (1, "c", "d", "entailment"),
        ],
        [1, 0],
    ),
    "qnli": ("qnli/dev.tsv", [("index", "question", "sentence", "label"), (0, "a", "b", "entailment")], [0]),
    "mnli": (
        "MNLI/dev_matched.tsv",
        [
            ("index", "promptID", "pairID", "sentence1", "sentence2", "label1", "gold_label"),
            (0, 3, "3n", "a", "b", "entailment", "neutral"),
            (1, 4, "4c", "c", "d", "neutral", "contradiction"),
            (2, 5, "5e", "e", "f", "neutral", "entailment"),
        ],
        [1, 2, 0],
    ),
    "mnli-mm": (
        "MNLI/dev_mismatched.tsv",
        [("index", "sentence1", "sentence2", "gold_label"), (0, "x", "y", "neutral")],
        [1],
    ),
    "cola": ("CoLA/dev.tsv", [("gj04", 1, "", "He runs."), ("gj04", 0, "*", "Runs he the.")], [1, 0]),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_glue_directory_is_read_by_the_layout_of_each_task(name: str, tmp_path: Path) -> None:
    file, rows, labels = LAYOUTS[name]
    path = write(tmp_path / file, rows)
    for place in (tmp_path, path.parent, path):
        examples = load_examples(name, data=place)
        assert examples.labels.tolist() == labels
        assert examples.labels.dtype == (np.float32 if name == "stsb" else np.int32)
        assert examples.ids == tuple(range(len(labels)))
        assert (examples.second is None) == (name in ("sst2", "cola"))
        assert str(path) in examples.source
        assert examples.split == (
            "validation_" + file[len("MNLI/dev_") : -len(".tsv")] if "MNLI" in file else "validation"
        )


def test_tsv_is_read_without_quoting_and_byte_order_mark(tmp_path: Path) -> None:
    write_mrpc(tmp_path / "MRPC" / "dev.tsv")
    examples = load_examples("MRPC", data=tmp_path)
    assert examples.first == TEXTS
    assert examples.second == tuple(text[::-1] for text in TEXTS)
    assert examples.labels.tolist() == [0, 1, 0, 1, 0]


def test_windows_line_ends_and_a_blank_last_line_change_nothing(tmp_path: Path) -> None:
    path = write_mrpc(tmp_path / "dev.tsv")
    before = load_examples("mrpc", data=path)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n") + b"\r\n")
    assert load_examples("mrpc", data=path).sha256 == before.sha256


def test_malformed_qqp_rows_are_dropped_and_counted(tmp_path: Path) -> None:
    header = ("id", "qid1", "qid2", "question1", "question2", "is_duplicate")
    rows = [(5, 1, 2, "a?", "b?", 1), (6, 3, 4, "cut off"), (7, 5, 6, "c?", "d?", ""), (8, 7, 8, "e?", "", 0)]
    path = write(tmp_path / "dev.tsv", [header, *rows])
    examples = load_examples("qqp", data=path)
    assert (examples.first, examples.second, examples.ids) == (("a?", "e?"), ("b?", ""), (0, 3))
    assert examples.source == f"{path} (2 rows, 2 dropped)"


def test_a_test_split_may_lack_labels_and_no_other_may(tmp_path: Path) -> None:
    write(tmp_path / "CoLA" / "test.tsv", [("index", "sentence"), (0, "a"), (1, "b"), (2, "c")])
    examples = load_examples("cola", split="test", data=tmp_path)
    assert (examples.first, examples.labels.tolist()) == (("a", "b", "c"), [-1, -1, -1])
    write(tmp_path / "STS-B" / "test.tsv", [("index", "sentence1", "sentence2"), (0, "a", "b")])
    assert np.isnan(load_examples("stsb", split="test", data=tmp_path).labels).all()
    write(tmp_path / "STS-B" / "dev.tsv", [("index", "sentence1", "sentence2"), (0, "a", "b")])
    with pytest.raises(DataError, match=r"STS-B/dev.tsv, line 1: no column 'score'; the columns are 'index'"):
        load_examples("stsb", data=tmp_path)


def test_jsonl_with_the_hubs_column_names_reads_like_glues_tsv(tmp_path: Path) -> None:
    write_mrpc(tmp_path / "dev.tsv")
    rows = [{"sentence1": text, "sentence2": text[::-1], "label": i % 2, "idx": i} for i, text in enumerate(TEXTS)]
    path = tmp_path / "mine.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(json.dumps(row) for row in rows).encode()))
    assert load_examples("mrpc", data=path).sha256 == load_examples("mrpc", data=tmp_path / "dev.tsv").sha256


def test_columns_can_be_named_for_a_task_and_for_a_custom_one(tmp_path: Path) -> None:
    path = write(tmp_path / "own.tsv", [("key", "left", "verdict"), ("b7", "x y", "yes"), ("a9", "z", "no")])
    named = {"text_columns": ["left"], "label_column": "verdict", "id_column": "key", "data": path}
    examples = load_examples(None, **named)
    assert (examples.ids, examples.first, examples.second) == (("b7", "a9"), ("x y", "z"), None)
    assert (examples.task.label_names, examples.labels.tolist()) == (("no", "yes"), [1, 0])
    assert examples.task.metrics == ("accuracy",)
    ordered = load_examples("custom", **named, label_names=["yes", "no"])
    assert ordered.labels.tolist() == [0, 1]
    as_task = load_examples("sst2", **named, label_names=["yes", "no"])
    assert (as_task.task.name, as_task.labels.tolist()) == ("sst2", [0, 1])


@pytest.mark.parametrize(
    ("values", "names", "labels"),
    [
        (["3", "1", "3"], ("1", "3"), [1, 0, 1]),
        (["1.0", "0.0", "1.0"], ("0", "1"), [1, 0, 1]),
        (["0.5", "2", "1e1"], None, [0.5, 2.0, 10.0]),
        (["b", "1", "b"], ("1", "b"), [1, 0, 1]),
        (["1_2", "3_4", "1_2"], ("1_2", "3_4"), [0, 1, 0]),
    ],
)
def test_a_custom_tasks_classes_come_from_its_labels(
    values: list[str], names: tuple[str, ...] | None, labels: list[float], tmp_path: Path
) -> None:
    path = write(tmp_path / "own.tsv", [("text", "label"), *(("t", value) for value in values)])
    examples = load_examples("custom", data=path, text_columns=["text"])
    assert (examples.task.label_names, examples.labels.tolist()) == (names, labels)
    assert examples.task.kind == ("regression" if names is None else "classification")


def test_labels_are_names_where_class_names_are_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "own.tsv", [("text", "label"), ("a", 1), ("b", 0)])
    with pytest.raises(DataError, match="line 3: label '0' is not one of 1, 2"):
        load_examples("custom", data=path, text_columns=["text"], label_names=["1", "2"])


def test_a_custom_test_split_may_lack_labels(tmp_path: Path) -> None:
    path = write(tmp_path / "test.tsv", [("text",), ("a",), ("b",)])
    assert np.isnan(load_examples("custom", data=path, text_columns=["text"]).labels).all()


def test_an_empty_tuple_of_label_names_asks_for_regression(tmp_path: Path) -> None:
    path = write(tmp_path / "own.tsv", [("text", "label"), ("a", 4), ("b", 2)])
    examples = load_examples("custom", data=path, text_columns=["text"], label_names=())
    assert examples.labels.dtype == np.float32
    assert examples.task.metrics == ("pearson", "spearman", "mean_squared_error", "mean_absolute_error")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "dev.tsv",
            b"index\tsentence1\tsentence2\tlabel\n0\ta\tb\n",
            "line 2: 3 fields separated by tabs, expected 4",
        ),
        ("dev.tsv", b"index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\tc\n", "line 2: 5 fields"),
        (
            "dev.tsv",
            b"index\tsentence1\tsentence2\tlabel\n0\ta\tb\tmaybe\n",
            "line 2: label 'maybe' is not one of",
        ),
        ("dev.tsv", b"index\tsentence1\tsentence2\tlabel\n0\ta\tb\t2\n", "line 2: label '2' is not one of"),
        ("dev.tsv", b"index\tsentence1\tsentence2\tlabel\n0\ta\tb\t-1\n", "line 2: label '-1' is not one of"),
        ("dev.tsv", b"index\tsentence1\tsentence2\tlabel\n\n0\ta\t\xff\t1\n", "line 3: not UTF-8"),
        ("dev.tsv", b"index\tsentence1\tsentence2\tlabel\n", "holds no examples"),
        ("dev.tsv", b"", "holds no examples"),
        (
            "dev.tsv",
            b"index\tsentence1\tsentense2\tlabel\n0\ta\tb\t1\n",
            "line 1: no column 'sentence2' .*'sentense2'",
        ),
        ("dev.tsv", b"index\tlabel\tsentence2\tlabel\n0\ta\tb\t1\n", "line 1: a column name appears twice"),
        ("dev.tsv", "a\u2028b\ta\u2028b\n1\t2\n".encode(), r"appears twice in a\\u2028b"),
        ("dev.tsv.gz", b"index\tsentence1", r"cannot be read .(Not a gzipped|Compressed file ended)"),
        (
            "dev.tsv.gz",
            gzip.compress(b"index\tsentence1" * 9, mtime=0)[:-9],
            r"cannot be read .(Not a gzipped|Compressed file ended)",
        ),
        ("dev.jsonl", b'{"sentence1": "a"\n', "line 1: not valid JSON"),
        ("dev.jsonl", b"[1]\n", "line 1: found '\\[1\\]'; write one JSON object"),
        (
            "dev.jsonl",
            b'{"sentence1": "a", "sentence2": 5, "label": 1}\n',
            "line 1: column 'sentence2' holds 5",
        ),
        (
            "dev.jsonl",
            b'{"sentence1": "\\ud800", "sentence2": "", "label": 1}\n',
            "line 1: column 'sentence1' contains a lone surrogate",
        ),
        (
            "dev.jsonl",
            b'{"sentence1": "a", "sentence2": "b", "label": 1}\n{"sentence1": "a", "label": 1}',
            "line 2: column 'sentence2' is null",
        ),
        ("dev.xlsx", b"sentence1,sentence2\n", "ends in .tsv, .tsv.gz, .csv, .csv.gz, .jsonl"),
    ],
)
def test_errors_in_a_file_are_one_line(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as raised:
        load_examples("rte", data=tmp_path / name)
    assert str(tmp_path / name) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "mrcp"}, r"no task is called 'mrcp'; did you mean mrpc\? Known: mrpc, stsb"),
        ({"task": "mrpc", "data": "/no/such/place"}, "/no/such/place: no such file or directory"),
        (
            {"task": "mrpc", "data": "."},
            r"no dev.tsv for mrpc validation nor a folder MRPC; found no .tsv file",
        ),
        ({"task": "rte", "data": "MRPC"}, "the folder of another task than rte; expected RTE"),
        ({"task": "mrpc", "data": "MRPC"}, r"no dev.tsv for mrpc validation; found dev_ids.tsv"),
        (
            {"task": "mrpc", "data": "MRPC", "split": "tset"},
            "has no split 'tset'; there are train, validation",
        ),
        (
            {"task": None, "data": "MRPC", "text_columns": []},
            "needs one or two text columns; found none",
        ),
        ({"task": None, "data": "MRPC", "text_columns": ["a", "b", "c"]}, "two text columns; found a, b, c"),
        ({"task": None, "data": "MRPC"}, "is a directory, and datasets did not save it; give a .tsv, .csv, .jsonl or"),
        ({"task": "mlm", "data": "MRPC"}, "is a directory; mlm needs a file of texts: .txt, .tsv, .csv, .jsonl or"),
        ({"task": None}, "give the .tsv, .csv, .jsonl or .parquet file as data"),
        ({"task": "mrpc", "text_columns": ["a"]}, "give the .tsv, .csv, .jsonl or .parquet file as data"),
        ({"task": "qnli-sample", "data": "MRPC"}, "needs no data"),
        ({"task": "qnli-sample", "split": "train"}, "has no split 'train'"),
        ({"task": "qnli-sample", "limit": 0}, "limit is 0; it must be at least 1"),
    ],
)
def test_wrong_requests_are_refused(
    arguments: dict[str, object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "MRPC" / "dev_ids.tsv", [(1, 2)])
    if arguments.get("data") == ".":
        (tmp_path / "MRPC" / "dev_ids.tsv").unlink()
        (tmp_path / "MRPC").rmdir()
    with pytest.raises(DataError, match=message):
        load_examples(**arguments)


def test_an_id_column_must_not_repeat_itself(tmp_path: Path) -> None:
    path = write(tmp_path / "own.tsv", [("key", "sentence", "label"), (4, "a", 1), (5, "b", 0), (4, "c", 1)])
    with pytest.raises(DataError, match="line 4: id '4' of column 'key' is also in line 2"):
        load_examples("sst2", data=path, id_column="key")


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("MRPC", "mrpc"),
        ("sts-b", "stsb"),
        ("STS_B", "stsb"),
        ("SST-2", "sst2"),
        ("glue/rte", "rte"),
        ("mnli_matched", "mnli"),
        ("MNLI-mm", "mnli-mm"),
        ("mnli_mismatched", "mnli-mm"),
        ("CoLA", "cola"),
        ("QNLI_sample", "qnli-sample"),
    ],
)
def test_common_spellings_name_the_task(spelling: str, name: str) -> None:
    assert task_named(spelling) is TASKS[name]


def test_the_hash_depends_only_on_ids_texts_labels_and_order(tmp_path: Path) -> None:
    path = write_mrpc(tmp_path / "dev.tsv")
    base = load_examples("mrpc", data=path)
    other = Examples(TASKS["rte"], base.ids, base.first, base.second, base.labels, "elsewhere", "train")
    assert other.sha256 == base.sha256
    assert re.fullmatch("[0-9a-f]{64}", base.sha256)
    ids = tuple(int(i) + 1 for i in base.ids)
    changed = [
        Examples(base.task, ids, base.first, base.second, base.labels, "", ""),
        Examples(base.task, base.ids, base.first[::-1], base.second, base.labels, "", ""),
        Examples(base.task, base.ids, base.first, base.first, base.labels, "", ""),
        Examples(base.task, base.ids, base.first, None, base.labels, "", ""),
        Examples(base.task, base.ids, base.first, base.second, 1 - base.labels, "", ""),
        base.take([1, 0, 2, 3, 4]),
        base.head(4),
    ]
    assert len({base.sha256, *(examples.sha256 for examples in changed)}) == len(changed) + 1


def test_a_limit_takes_the_first_or_a_seeded_choice_in_order() -> None:
    whole = load_examples("qnli-sample")
    assert load_examples("qnli-sample", limit=7).ids == whole.ids[:7]
    drawn = load_examples("qnli-sample", limit=7, seed=3)
    assert drawn.ids == tuple(whole.ids[i] for i in draw(len(whole), 7, seed=3))
    assert list(drawn.ids) == sorted(drawn.ids)
    assert drawn.ids != load_examples("qnli-sample", limit=7, seed=4).ids
    assert drawn.source.endswith("7 drawn with seed 3")
    assert len(load_examples("qnli-sample", limit=9999, seed=3)) == 600


def test_examples_must_be_equally_many() -> None:
    with pytest.raises(DataError, match="equal lengths"):
        Examples(TASKS["sst2"], (0, 1), ("a", "b"), None, np.zeros(3, np.int32), "", "train")


# ---- characters and keys that no file means -------------------------------------------------------------------------
FORMATS = {
    "rows.tsv": ("custom", "text\tlabel\nab\t1\ncd\t0\n"),
    "rows.jsonl": ("custom", '{"text": "ab", "label": 1}\n{"text": "cd", "label": 0}\n'),
    "texts.txt": ("mlm", "ab\ncd\n"),
    "words.conll": ("token-classification", "ab O\nc O\n\ncd O\n"),
    "words.tsv": ("token-classification", "ab\tO\nc\tO\n\ncd\tO\n"),
    "words.conllu": ("token-classification", "1\tab\t_\tX\n\n1\tcd\t_\tX\n"),
    "pairs.tsv": ("minimal-pairs", "good\tbad\nab\tcd\n"),
    "choices.tsv": ("multiple-choice", "context\tchoice1\tchoice2\tlabel\nab\tcd\te\t0\n"),
    "sets.tsv": ("multi-label", "text\tlabels\nab\tx\ncd\ty\n"),
    "ranking.tsv": ("ranking", "query\ttext\tlabel\nab\tcd\t1\n"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_carriage_returns_that_end_no_line_are_refused(name: str, tmp_path: Path) -> None:
    task, content = FORMATS[name]
    (tmp_path / name).write_bytes(content.encode())
    expected = load_examples(task, data=tmp_path / name).sha256
    (tmp_path / name).write_bytes(content.replace("\n", "\r\n").encode())
    assert load_examples(task, data=tmp_path / name).sha256 == expected
    (tmp_path / name).write_bytes(content.replace("\n", "\r").encode())
    with pytest.raises(DataError, match=r"line 1: a carriage return without a line feed; save .* line endings"):
        load_examples(task, data=tmp_path / name)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "rows.jsonl"])
def test_a_carriage_return_is_no_part_of_a_word(name: str, tmp_path: Path) -> None:
    task, content = FORMATS[name]
    (tmp_path / name).write_bytes(content.replace("cd", "c\rd").encode())
    plain = tmp_path / f"plain {name}"
    plain.write_text(content)
    if name.startswith("words"):
        with pytest.raises(DataError, match=r"line \d: a carriage return without a line feed"):
            load_examples(task, data=tmp_path / name)
    else:  # scraped texts hold some
        assert len(load_examples(task, data=tmp_path / name)) == len(load_examples(task, data=plain))


@pytest.mark.parametrize("name", FORMATS)
def test_nul_characters_are_refused_in_every_format(name: str, tmp_path: Path) -> None:
    task, content = FORMATS[name]
    (tmp_path / name).write_text(content.replace("cd", "c\0d"))
    with pytest.raises(DataError, match=r"line \d: contains a NUL character; copy"):
        load_examples(task, data=tmp_path / name)


def test_nul_characters_that_are_escaped_are_refused_too(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a", "label": 1}\n{"text": "b\\u0000", "label": 0}\n')
    with pytest.raises(DataError, match="line 2: column 'text' contains a NUL character"):
        load_examples("custom", data=tmp_path / "rows.jsonl")
    (tmp_path / "words.jsonl").write_text('{"tokens": ["a", "b\\u0000"], "tags": ["O", "O"]}\n')
    with pytest.raises(DataError, match="line 1: column 'tokens' contains a NUL character"):
        load_examples("ner", data=tmp_path / "words.jsonl")
    pq.write_table(pa.table({"text": ["a", "b\0"], "label": [1, 0]}), tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"row 1 .from 0.: column 'text' contains a NUL character"):
        load_examples("custom", data=tmp_path / "rows.parquet")


def test_rows_with_a_key_twice_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a", "label": 1}\n{"text": "b", "label": 0, "label": 1}\n')
    with pytest.raises(DataError, match=r'line 2: an object has the key "label" twice; keep one of the two$'):
        load_examples("custom", data=tmp_path / "rows.jsonl")


@pytest.mark.parametrize("name", [true for true in FORMATS if true not in ("texts.txt",)])
def test_options_without_effect_on_a_file_are_refused(name: str, tmp_path: Path) -> None:
    task, content = FORMATS[name]
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=f"{task} has no split 'x'; there are train, validation and test"):
        load_examples(task, data=tmp_path / name, split="x")
    assert load_examples(task, data=tmp_path / name, split="train").split == "train"
    with pytest.raises(DataError, match=r"data and data_dir .* cannot be given together"):
        load_examples(task, data=tmp_path / name, data_dir=tmp_path)
    if task != "custom":
        with pytest.raises(DataError, match=f"{task} has no id column: leave it out"):
            load_examples(task, data=tmp_path / name, id_column="text")


def test_splits_of_what_has_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"sentence_good": "a", "sentence_bad": "b"}\n')
    with pytest.raises(DataError, match="--split does not select files of a directory"):
        load_examples("blimp", data=tmp_path, split="train")
    with pytest.raises(DataError, match="mlm has no split 'train' without data"):
        load_examples("mlm", split="train")


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("7", "line 2: id '7' of column 'id' is also in line 1"),
        (None, "line 2: column 'id' is null"),
        (True, "holds True; an id must be"),
    ],
)
def test_ids_of_contrasts_are_texts_and_distinct(second: object, message: str, tmp_path: Path) -> None:
    rows = [{"id": name, "clean": "a", "corrupted": "b"} for name in ("7", second)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(DataError, match=message):
        read_contrasts(tmp_path / "rows.jsonl")


@pytest.mark.parametrize("value", [True, None, 1.5, ["a"], ""])
def test_ids_are_texts_or_whole_numbers(value: object, tmp_path: Path) -> None:
    rows = [{"key": key, "text": "a", "label": label} for key, label in (("x", 1), (value, 0))]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(DataError, match="line 2: column 'key' "):
        load_examples("custom", data=tmp_path / "rows.jsonl", id_column="key")


@pytest.mark.parametrize("quote", ["", '"'])
def test_integers_beyond_a_float_are_separate_classes(tmp_path, quote):
    path, numbers = tmp_path / "own.jsonl", [2**53, 2**53 + 1, 10**30]
    path.write_text("".join(f'{{"text": "a", "label": {quote}{number}{quote}}}\n' for number in numbers))
    examples = load_examples("custom", data=path, text_columns=["text"])
    assert examples.task.label_names == tuple(map(str, numbers))
    assert examples.labels.tolist() == [0, 1, 2]
