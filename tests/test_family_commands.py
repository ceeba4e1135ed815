"""The command line with models of other families: parity, plan, ablate, report; nothing asks which family it is."""

import json

import numpy as np
import pytest
import torch
import transformers

import bertjax
from bertjax.cli import main
from tests.family_models import saved_by_torch, sometimes
from tests.tokenizer_factories import make_tokenizer

pytestmark = pytest.mark.integration

pytestmark = pytest.mark.needs_torch


TOKENIZERS = {
    "roberta": "RobertaTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "modernbert": "PreTrainedTokenizerFast",
}


@pytest.fixture(params=sometimes(TOKENIZERS, "roberta"))
def checkpoint(request, tmp_path, monkeypatch):
    """A classifier with a tokenizer of its family's class and a file of pairs, in the working directory."""
    monkeypatch.chdir(tmp_path)
    make_tokenizer(tmp_path / "model", TOKENIZERS[request.param])
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    size = {"vocab_size": len(tokenizer), "max_position_embeddings": 60, "pad_token_id": tokenizer.pad_token_id}
    saved_by_torch(request.param, "sequence classification", tmp_path / "model", num_labels=2, **size)
    rows = [f"{first}\t{second}\t{('no', 'yes')[number % 2]}" for number, (first, second) in enumerate(PAIRS)]
    (tmp_path / "pairs.tsv").write_text("\n".join(["first\tsecond\tlabel", *rows]) + "\n")
    return tmp_path / "model"


PAIRS = [("the cat sat", "a dog ran" if number % 3 else "red doors") for number in range(12)]


def logits_in_torch(directory):
    """Of the pairs, tokenised and computed by transformers."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(directory, attn_implementation="eager")
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    with torch.no_grad():
        batch = tokenizer(*map(list, zip(*PAIRS, strict=True)), padding=True, return_tensors="pt")
        return model.eval()(**batch).logits.numpy()


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
    with np.load("out/outputs.npz") as outputs:
        assert np.abs(outputs["base"] - logits_in_torch(checkpoint)).max() < 2e-5
    assert len(results.names) == config.num_hidden_layers * config.num_attention_heads
    summary = json.loads((checkpoint.parent / "out" / "summary.json").read_text())
    assert (
        summary["model"]["class"]
        == model.class_name
        == json.loads((checkpoint / "config.json").read_text())["architectures"][0]
    )
