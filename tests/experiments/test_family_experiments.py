"""The paper's experiments with models of other families: fine-tuned, ablated, looked at."""

import json
from importlib import import_module

import pytest

import bertjax
from experiments import table1_finetuning as finetune
from tests.factories import add_tokenizer
from tests.family_models import arguments, saved_by_torch, sometimes
from tests.tiny_models import largest_difference

pytestmark = [pytest.mark.integration, pytest.mark.needs_torch]

OTHERS = ["deberta-v2", "distilbert", "modernbert", "roberta"]


@pytest.fixture
def checkpoint(request, tmp_path):
    """A random encoder with a tokenizer, long enough for pairs of sentences."""
    settings = {"vocab_size": 61, "max_position_embeddings": 140}
    if request.param == "roberta":
        settings["type_vocab_size"] = 2  # as this tokenizer gives
    directory = saved_by_torch(request.param, "sequence classification", tmp_path / "model", num_labels=2, **settings)
    add_tokenizer(directory)
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    return directory


@pytest.mark.parametrize("checkpoint", sometimes(OTHERS, "modernbert"), indirect=True)
def test_a_fine_tuned_family_loads_in_pytorch(checkpoint, glue, tmp_path, rng):
    import torch
    import transformers

    words = f"--model {checkpoint} --data {glue} --task mrpc --epochs 1 --batch-size 8 --init pretrained --output"
    assert finetune.main([*words.split(), str(tmp_path / "out")]) == 0
    last = tmp_path / "out" / "runs" / "mrpc-pretrained-0" / "last"
    model, loading = transformers.AutoModelForSequenceClassification.from_pretrained(
        last, attn_implementation="eager", output_loading_info=True
    )
    assert not any(loading[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    ours = bertjax.load(last)
    call = {name: value for name, value in arguments(ours.config, rng).items() if name != "token_type_ids"}
    with torch.no_grad():
        expected = model.eval()(**{name: torch.tensor(value) for name, value in call.items()}).logits
    assert largest_difference(ours(**call).logits, expected) < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint", OTHERS, indirect=True)
@pytest.mark.parametrize(
    ("program", "options"),
    [
        ("fig2_patterns", "--task qnli-sample"),
        ("fig5_change", "--task qnli-sample --tuned MODEL"),
        ("fig3_frames", ""),
        ("fig6_features", "--task qnli-sample --tagger experiments/data/ewt_dev_sample.conllu"),
        ("fig7_cls", "--task qnli-sample --tagger experiments/data/ewt_dev_sample.conllu"),
        ("fig8_heads", "--task qnli-sample"),
        ("fig9_layers", "--task qnli-sample"),
        ("beyond.layer_sets", "--task qnli-sample"),
        ("beyond.repeated_patterns", "--task qnli-sample"),
    ],
)
def test_each_experiment_runs_on_each_family(checkpoint, program, options, tmp_path):
    words = options.replace("MODEL", str(checkpoint)).split()
    command = ["--model", str(checkpoint), "--limit", "8", "--output", str(tmp_path / "out"), *words]
    assert import_module(f"experiments.{program}").main(command) == 0
    numbers = json.loads((tmp_path / "out" / "numbers.json").read_text())
    assert numbers["model"]["class"] == bertjax.load(checkpoint).class_name
    assert (tmp_path / "out" / "figure.png").stat().st_size > 5000
