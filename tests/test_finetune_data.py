"""What fine-tuning learns from and is judged by."""

from argparse import Namespace

import pytest

from bertjax.errors import DataError
from experiments.finetune import read_data
from experiments.shared.samples import read_examples, read_published_examples
from tests.factories import SENTENCES
from tests.training_runs import finetune_run

pytestmark = pytest.mark.integration


def test_one_file_is_not_both_learnt_from_and_judged_by(encoder, glue):
    path = glue / "MRPC" / "train.tsv"
    with pytest.raises(DataError, match="--hold-out"):
        read_data(finetune_run(encoder, path), "mrpc")
    assert len(read_data(finetune_run(encoder, path, hold_out=6), "mrpc").validation) == 6


def test_a_task_without_validation_data_names_what_can_be_done(encoder, glue, tmp_path):
    (tmp_path / "MRPC").mkdir()
    (tmp_path / "MRPC" / "train.tsv").write_bytes((glue / "MRPC" / "train.tsv").read_bytes())
    with pytest.raises(DataError, match=r"no dev.tsv for mrpc validation; found train.tsv \(--hold-out N judges"):
        read_data(finetune_run(encoder, tmp_path), "mrpc")
    assert len(read_data(finetune_run(encoder, tmp_path, hold_out=6), "mrpc").validation) == 6


def test_examples_that_are_held_out_are_not_learnt_from(encoder, glue):
    data = read_data(finetune_run(encoder, glue, hold_out=6), "mrpc")
    assert (len(data.train), len(data.validation)) == (15, 6)
    assert not set(data.train.ids) & set(data.validation.ids)
    assert read_data(finetune_run(encoder, glue, hold_out=6), "mrpc").validation.ids == data.validation.ids
    assert read_data(finetune_run(encoder, glue, hold_out=6, seed=1), "mrpc").validation.ids != data.validation.ids
    limited = read_data(finetune_run(encoder, glue, hold_out=6, limit=4), "mrpc")
    assert len(limited.train) == 4
    assert set(limited.train.ids) <= set(data.train.ids)
    with pytest.raises(DataError, match="21 examples"):
        read_data(finetune_run(encoder, glue, hold_out=21), "mrpc")


def test_other_experiments_use_the_held_out_examples(encoder, glue):
    data = read_data(finetune_run(encoder, glue, hold_out=6, limit=8, seed=3), "mrpc")
    asked = {"task": "mrpc:held-out-6", "split": "validation", "data": str(glue), "data_dir": None, "seed": 3}
    found = read_examples(Namespace(**asked, limit=None))
    assert (found.ids, found.first, found.split) == (data.validation.ids, data.validation.first, "held-out-6")
    assert found.source.endswith("train.tsv (21 rows), 6 held out with seed 3")
    fewer = read_examples(Namespace(**asked, limit=4))
    assert len(fewer) == 4
    assert set(fewer.ids) < set(found.ids)
    assert set(read_published_examples(Namespace(**asked, limit=4)).ids) <= set(fewer.ids)
    assert set(read_published_examples(Namespace(**asked, limit=None)).ids) <= set(found.ids)
    for count in (0, 21):
        with pytest.raises(DataError, match=f"21 examples for training: {count} cannot be held out"):
            read_examples(Namespace(**asked | {"task": f"mrpc:held-out-{count}"}, limit=None))


def test_as_published_trains_on_all_rows(encoder, glue, tmp_path):
    """The authors' program reads without quote handling, which would make one row of these four lines."""
    folder = tmp_path / "MRPC"
    folder.mkdir()
    for part in ("train", "dev"):
        rows = (glue / "MRPC" / f"{part}.tsv").read_text().splitlines()
        swallowed = f'1\t1\t2\t"{SENTENCES[0]}\t{SENTENCES[1]}'
        rows[3:3] = [swallowed, *rows[1:3], f'0\t1\t2\t{SENTENCES[2]}\t"{SENTENCES[3]}']
        (folder / f"{part}.tsv").write_text("\n".join(rows) + "\n")
    for published in (False, True):
        data = read_data(finetune_run(encoder, tmp_path, as_published=published), "mrpc")
        assert (len(data.train), len(data.validation)) == (25, 13)
