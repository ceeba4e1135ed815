"""Claims about TensorFlow Datasets' copy of GLUE: what is prepared, what is read back, what is refused.

All texts here are made up.
"""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bertjax.data import Examples, tfds_glue
from bertjax.data.tfds_glue import Prepared, prepare
from bertjax.errors import DataError, OutputError
from bertjax.tasks import TASKS, load_examples

TEXTS = ('He said "no', 'Zoë\u2028and "she"" did', "a ' b", "naïve 中国 😀", "", "tab-free", "seventh")


def write(path: Path, rows: list[tuple[object, ...]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join("\t".join(map(str, row)) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    """A small GLUE directory with a part of a split and an unlabelled test split in it."""
    directory = tmp_path / "glue"
    header = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
    rows = [(i % 2, i, i, text, text[::-1]) for i, text in enumerate(TEXTS)]
    write(directory / "MRPC" / "dev.tsv", [header, *rows])
    write(directory / "MRPC" / "train.tsv.gz", [header, *rows[:3]])
    header = ("index", "sentence1", "sentence2", "score")
    write(directory / "STS-B" / "dev.tsv", [header, (0, "a", "b", "3.800"), (1, "c", "d", "0.250")])
    write(directory / "STS-B" / "test.tsv", [header[:3], (0, "e", "f")])
    header = ("index", "sentence1", "sentence2", "gold_label")
    write(directory / "MNLI" / "dev_matched_first3000.tsv", [header, (0, "p", "h", "neutral")])
    write(
        directory / "MNLI" / "dev_mismatched.tsv",
        [header, (0, "p", "h", "entailment"), (1, "q", "i", "neutral")],
    )
    return directory


SPLITS = [
    ("mrpc", "train", 3),
    ("mrpc", "validation", 7),
    ("stsb", "validation", 2),
    ("stsb", "test", 1),
    ("mnli", "validation_matched", 1),
    ("mnli", "validation_mismatched", 2),
]


def test_every_split_found_is_prepared_and_reads_back_the_same(glue: Path, tmp_path: Path) -> None:
    prepared = prepare(glue, tmp_path / "data")
    assert [(found.task, found.split, found.rows) for found in prepared] == SPLITS
    assert "dev_matched_first3000.tsv" in prepared[4].note
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["glue"]
    for task, split, file in (
        ("mrpc", "train", "MRPC/train.tsv.gz"),
        ("mrpc", "validation", "MRPC/dev.tsv"),
        ("stsb", "validation", "STS-B/dev.tsv"),
        ("stsb", "test", "STS-B/test.tsv"),
        ("mnli", "validation", "MNLI/dev_matched_first3000.tsv"),
        ("mnli-mm", "validation", "MNLI/dev_mismatched.tsv"),
    ):
        local = load_examples(task, split=split, data=glue / file)
        copy = load_examples(task, split=split, data_dir=tmp_path / "data")
        assert (copy.ids, copy.first, copy.second) == (local.ids, local.first, local.second)
        assert copy.labels.dtype == local.labels.dtype
        np.testing.assert_array_equal(copy.labels, local.labels)
        assert (copy.sha256, copy.split) == (local.sha256, local.split)
        assert f"prepared from {Path(file).name}" in copy.source


def test_tensorflow_datasets_reads_the_copy(glue: Path, tmp_path: Path) -> None:
    prepare(glue, tmp_path, ["mrpc"])
    tfds = tfds_glue._tfds()
    rows = tfds.data_source("glue/mrpc", data_dir=str(tmp_path), split="validation", download=False)
    assert {row["sentence1"].decode() for row in rows} == set(TEXTS)
    official = tfds.builder("glue/mrpc", data_dir=str(tmp_path / "nothing")).info
    ours = tfds.builder_from_directory(str(tmp_path / "glue" / "mrpc" / "2.0.0")).info
    assert ours.full_name == official.full_name == "glue/mrpc/2.0.0"
    assert repr(ours.features) == repr(official.features)
    assert ours.features["label"].names == official.features["label"].names


def test_class_names_and_columns_match_the_official_builder() -> None:
    tfds = tfds_glue._tfds()
    configs = {config.name: config for config in tfds.builder_cls("glue").BUILDER_CONFIGS}
    for task in TASKS.values():
        if task.config:
            official = configs[task.config]
            assert tuple(official.label_classes or ()) == (task.label_names or ())
            assert tuple(official.text_features) == (task.renamed or task.text_columns)
            assert official.data_dir == task.folder


def test_an_official_copy_with_other_ids_gives_the_same_mrpc(glue: Path, tmp_path: Path) -> None:
    local = load_examples("mrpc", data=glue)
    ids = (9, 18, 25, 32, 33, 37, 40)  # TensorFlow Datasets counts MRPC's rows over train and validation
    official = Examples(local.task, ids, local.first, local.second, local.labels, "", "validation")
    directory = tfds_glue._write(tfds_glue._tfds(), TASKS["mrpc"], {"validation": official}, {}, str(tmp_path))
    assert directory == tmp_path / "glue" / "mrpc" / "2.0.0"
    assert load_examples("mrpc", data_dir=tmp_path).sha256 == local.sha256


def test_what_is_prepared_is_left_alone_unless_overwritten(glue: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    prepare(glue, data, ["stsb"])
    before = load_examples("stsb", data_dir=data)
    header = ("index", "sentence1", "sentence2", "score")
    write(glue / "STS-B" / "dev.tsv", [header, (0, "new", "b", "1"), (1, "c", "d", "2"), (2, "e", "f", "3")])
    again = prepare(glue, data, ["STS-B"])
    assert [(found.split, found.rows) for found in again] == [("validation", 2), ("test", 1)]
    assert all("already prepared" in found.note for found in again)
    assert load_examples("stsb", data_dir=data).sha256 == before.sha256
    assert prepare(glue, data, ["stsb"], overwrite=True)[0].rows == 3
    assert load_examples("stsb", data_dir=data).first == ("new", "c", "e")
    assert [path.name for path in data.iterdir()] == ["glue"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_an_interruption_leaves_nothing_that_counts_as_prepared(
    error: BaseException, glue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, records = tmp_path / "data", tfds_glue._records
    prepare(glue, data, ["stsb"])
    before = load_examples("stsb", data_dir=data)

    def interrupted(*arguments: object) -> object:
        yield next(iter(records(*arguments)))
        raise error

    monkeypatch.setattr(tfds_glue, "_records", interrupted)
    for task in ("mrpc", "stsb"):
        with pytest.raises((KeyboardInterrupt, OutputError)):
            prepare(glue, data, [task], overwrite=True)
    with pytest.raises(DataError, match="glue/mrpc is not prepared"):
        load_examples("mrpc", data_dir=data)
    assert load_examples("stsb", data_dir=data).sha256 == before.sha256
    assert [path.name for path in data.iterdir()] == ["glue"]


@pytest.mark.integration
def test_a_killed_preparation_leaves_no_prepared_data(glue: Path, tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from bertjax.data import tfds_glue\n"
        "tfds_glue.os.fsync = lambda number: os.kill(os.getpid(), signal.SIGKILL)\n"
        "tfds_glue.prepare(sys.argv[1], sys.argv[2], ['mrpc'])"
    )
    command = [sys.executable, "-c", code, str(glue), str(tmp_path / "data")]
    assert subprocess.run(command, cwd=Path(__file__).parents[2]).returncode == -9
    assert list((tmp_path / "data").glob("incomplete.*/glue/mrpc/2.0.0/*"))
    with pytest.raises(DataError, match="glue/mrpc is not prepared"):
        load_examples("mrpc", data_dir=tmp_path / "data")
    assert prepare(glue, tmp_path / "data", ["mrpc"])[1] == Prepared(
        "mrpc", "validation", 7, f"from {glue}/MRPC/dev.tsv (7 rows)"
    )


def test_a_task_folder_by_itself_can_be_prepared(glue: Path, tmp_path: Path) -> None:
    assert {found.task for found in prepare(glue / "MRPC", tmp_path / "data")} == {"mrpc"}


@pytest.mark.integration
def test_the_default_directory_is_that_of_tensorflow_datasets(glue: Path, tmp_path: Path) -> None:
    variables = {**os.environ, "TFDS_DATA_DIR": str(tmp_path / "own")}
    command = [sys.executable, "-m", "bertjax", "data", "prepare", "--from", str(glue), "--tasks", "stsb"]
    process = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert (process.returncode, process.stderr) == (0, "")
    found = load_examples("stsb", data_dir=tmp_path / "own")
    assert (found.first, found.second) == (("a", "c"), ("b", "d"))


def test_a_mistake_in_one_split_prepares_nothing_of_the_task(glue: Path, tmp_path: Path) -> None:
    write(glue / "MRPC" / "train.tsv.gz", [("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"), (1, 2)])
    with pytest.raises(DataError, match=r"MRPC/train.tsv.gz, line 2: 2 fields"):
        prepare(glue, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_what_cannot_be_prepared_is_refused(glue: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: cannot be read"):
        prepare(tmp_path / "nowhere", tmp_path / "data")
    with pytest.raises(DataError, match=r"no TSV files of rte found; expected RTE/dev.tsv"):
        prepare(glue, tmp_path / "data", ["rte"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no task of GLUE found; expected folders MRPC, STS-B"):
        prepare(tmp_path / "empty", tmp_path / "data")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file/data: cannot be written"):
        prepare(glue, tmp_path / "file" / "data")


def test_unprepared_data_gives_one_line_with_the_command(glue: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"bertjax data prepare --from GLUE_DIR --data-dir {tmp_path},") as raised:
        load_examples("rte", data_dir=tmp_path)
    assert "\n" not in str(raised.value)
    prepare(glue, tmp_path, ["stsb"])
    with pytest.raises(DataError, match=r"has no split train of stsb; it has validation, test|test, validation"):
        load_examples("stsb", split="train", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("dataset_info.json", b'{"name": "gl', "cannot be read; prepare it again with .*Failed to load JSON"),
        ("dataset_info.json", b"{}", "cannot be read; .*AssertionError"),
        ("metadata.json", b"{", "cannot be read; .*Expecting property name"),
        ("glue-validation.array_record-00000-of-00001", b"", "cannot be read; .*should be at least 64KB"),
        ("dataset_info.json", None, "prepared as tfrecord, which needs TensorFlow"),
    ],
)
def test_a_damaged_copy_is_refused_in_one_line(
    file: str, content: bytes | None, message: str, glue: Path, tmp_path: Path
) -> None:
    prepare(glue, tmp_path, ["mrpc"])
    path = tmp_path / "glue" / "mrpc" / "2.0.0" / file
    if content is None:
        content = path.read_bytes().replace(b"array_record", b"tfrecord")
        assert json.loads(content)["fileFormat"] == "tfrecord"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as raised:
        load_examples("mrpc", data_dir=tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.integration
def test_reading_and_preparing_do_not_import_tensorflow_or_print(glue: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from bertjax import load_examples; from bertjax.data.tfds_glue import prepare\n"
        "prepare(sys.argv[1], sys.argv[2], ['mrpc'])\n"
        "examples = load_examples('mrpc', data_dir=sys.argv[2])\n"
        "print(len(examples), 'tensorflow' in sys.modules, 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(glue), str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert (found.stdout, found.stderr) == ("7 False False\n", "")


def test_a_directory_whose_name_is_no_utf8_is_refused(glue: Path, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="TensorFlow Datasets needs a name in UTF-8"):
        prepare(glue, os.fsdecode(bytes(tmp_path) + b"/\xff\xfe"))
