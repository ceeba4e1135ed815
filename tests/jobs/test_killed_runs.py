"""What a killed or failed run leaves blocks nobody, and nothing of the user's is removed."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from bertjax import BertConfig, BertForSequenceClassification
from bertjax.atomic_files import remove_leftovers
from bertjax.cli import guarded
from bertjax.engine import run as engine
from bertjax.engine.journal import count_parts, is_unfinished, open_journal
from bertjax.errors import EXIT_MISTAKE, InputError, OutputError
from bertjax.interventions import ablations as ab
from bertjax.interventions import readouts
from tests.tiny_models import SIZES, encodings, random_model

pytestmark = pytest.mark.integration

FACTS, CHOSEN = {"weights": "a"}, {"rows": 2, "runs": 3}


def test_leftovers_of_known_names_are_removed_and_no_others(tmp_path):
    theirs = (".deadbeef-notes", ".deadbeef-summary.json.bak", "summary.json", ".deadbee-summary.json")
    for name in (*theirs, ".deadbeef-summary.json"):
        (tmp_path / name).write_text("")
    remove_leftovers(tmp_path, ("summary.json", "outputs.npz"))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(theirs)


@pytest.mark.parametrize("sizes", [{"rows": 0, "runs": 3}, {"rows": 10**300, "runs": 3}, {}, {"rows": "x"}])
def test_a_journal_with_odd_sizes_is_reported_and_overwritten(tmp_path, sizes):
    with open_journal(tmp_path, FACTS, CHOSEN) as journal:
        journal.write(0, np.ones(3, np.float32))
    head = tmp_path / "journal.json"
    head.write_text(json.dumps(json.loads(head.read_text()) | {"sizes": sizes}))
    with pytest.raises(OutputError, match=r"is damaged, .* --overwrite discards"):
        open_journal(tmp_path, FACTS, CHOSEN)
    with open_journal(tmp_path, FACTS, CHOSEN, replace=True) as journal:
        assert (journal.sizes, journal.finished) == (CHOSEN, 0)


def test_an_empty_journal_does_not_block_another_sweep(tmp_path):
    open_journal(tmp_path, FACTS, CHOSEN).__exit__()
    with open_journal(tmp_path, {"weights": "b"}, CHOSEN) as journal:
        journal.write(0, np.ones(3, np.float32))
    with pytest.raises(OutputError, match="unfinished sweep with other settings"):
        open_journal(tmp_path, FACTS, CHOSEN)


def test_outputs_that_are_not_finite_leave_no_journal(tmp_path, rng):
    config = BertConfig(**SIZES["three heads"])
    model = random_model(BertForSequenceClassification, config)
    largest = np.float32(3e38) * np.array([1, -1], np.float32)  # finite, with a sum that is not
    model.classifier.kernel[...] = np.broadcast_to(largest, model.classifier.kernel[...].shape)
    model.classifier.bias[...] = abs(largest)
    inputs = (encodings(config, rng, [4, 5]), ab.single_heads(config), readouts.logits)
    with pytest.raises(InputError, match="the model's own outputs are not finite"):
        engine.sweep(model, *inputs, journal=tmp_path / "journal")
    assert not is_unfinished(tmp_path / "journal")
    good = random_model(BertForSequenceClassification, config)
    engine.sweep(good, *inputs, journal=tmp_path / "journal")
    assert count_parts(tmp_path / "journal") > 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a disk that is full")
@pytest.mark.parametrize("command", ["print('results')", "raise SystemExit(print('help') or 0)"])
def test_an_output_that_is_full_is_one_line(command):
    program = f"import sys\nfrom bertjax.cli import guarded\ndef run():\n    {command}\n    return 0\n"
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", program + "sys.exit(guarded('bertjax', run))"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert ended.returncode == EXIT_MISTAKE
    assert ended.stderr.splitlines() == [
        "bertjax: error: cannot print (No space left on device); files that were written before are complete"
    ]


def test_other_system_errors_are_not_reported_as_full_output(capsys):
    def run():
        raise OSError(5, "Input/output error")

    assert guarded("bertjax", run) == EXIT_MISTAKE
    assert capsys.readouterr().err == "bertjax: error: Input/output error (--debug shows where)\n"
