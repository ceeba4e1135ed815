"""The command line with models of other families: parity, plan, ablate, report; nothing asks which family it is."""

import json

import pytest

import bertjax
from bertjax.cli import main
from tests.families import saved_by_torch, sometimes
from tests.workshop import add_tokenizer

pytestmark = pytest.mark.needs_torch


@pytest.fixture(params=sometimes(["distilbert", "albert", "modernbert"], "modernbert"))
def checkpoint(request, tmp_path, monkeypatch):
    """A classifier with a tokenizer and a file of pairs, in the working directory."""
    monkeypatch.chdir(tmp_path)
    saved_by_torch(request.param, "sequence classification", tmp_path / "model", num_labels=2)
    add_tokenizer(tmp_path / "model")
    (tmp_path / "model" / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    rows = [
        f"the cat sat\t{'a dog ran' if number % 3 else 'red doors'}\t{('no', 'yes')[number % 2]}"
        for number in range(12)
    ]
    (tmp_path / "pairs.tsv").write_text("\n".join(["first\tsecond\tlabel", *rows]) + "\n")
    return tmp_path / "model"


def test_the_main_job_runs_from_the_command_line(checkpoint, capsys):
    task = ["--task", "custom", "--data", "pairs.tsv", "--text-columns", "first", "second"]
    task += ["--label-column", "label", "--label-names", "no", "yes", "--model", str(checkpoint)]
    assert main(["parity", "--model", str(checkpoint), "--examples", "2"]) == 0
    assert "agree" in capsys.readouterr().out
    assert main(["plan", *task]) == 0
    assert main(["ablate", *task, "--output", "out", "--mode", "mean"]) == 0
    assert main(["report", "out"]) == 0
    model, results = bertjax.load(checkpoint), bertjax.read_results("out")
    config = model.config
    assert len(results.names) == config.num_hidden_layers * config.num_attention_heads
    summary = json.loads((checkpoint.parent / "out" / "summary.json").read_text())
    assert (
        summary["model"]["class"]
        == model.class_name
        == json.loads((checkpoint / "config.json").read_text())["architectures"][0]
    )
