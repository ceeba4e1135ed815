"""A LoRA adapter's directory is loaded as its base with the adapter merged in, whatever asks for it."""

import json

import jax
import numpy as np
import pytest

import bertjax
from bertjax.checkpoints import hash_checkpoint
from bertjax.cli import main
from bertjax.errors import OutputError
from bertjax.study import provenance
from tests.factories import add_tokenizer
from tests.family_models import arguments, saved_by_torch
from tests.tiny_models import largest_difference

pytestmark = [pytest.mark.needs_torch, pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")]


@pytest.mark.parametrize(("family", "targets"), [("bert", ["query", "value"]), ("modernbert", ["Wqkv", "Wi"])])
def test_an_adapter_is_its_base_with_it_merged_in(family, targets, tmp_path, rng, capsys):
    import peft
    import torch
    import transformers

    base = saved_by_torch(family, "sequence classification", tmp_path / "base", num_labels=3)
    cls = transformers.AutoModelForSequenceClassification
    model = cls.from_pretrained(base, num_labels=3, attn_implementation="eager")
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=5, target_modules=targets)
    adapted = peft.get_peft_model(model, config).eval()
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter += 0.1 * torch.randn_like(parameter)
    adapted.save_pretrained(tmp_path / "adapter")
    ours = bertjax.load(tmp_path / "adapter")
    assert (type(ours), ours.config.num_labels) == (bertjax.BertForSequenceClassification, 3)
    given = arguments(ours.config, rng)
    ids, mask = (torch.tensor(given[name]) for name in ("input_ids", "attention_mask"))
    with torch.no_grad():
        expected = adapted(input_ids=ids, attention_mask=mask).logits
    found = ours(given["input_ids"], given["attention_mask"])
    assert largest_difference(found.logits, expected) < 2e-5
    plain = bertjax.load(base)
    assert largest_difference(found.last_hidden_state, plain(**given).last_hidden_state) > 1e-3
    ours.save_pretrained(tmp_path / "merged")
    again = bertjax.load(tmp_path / "merged")
    assert np.array_equal(again(given["input_ids"], given["attention_mask"]).logits, found.logits)
    assert hash_checkpoint(tmp_path / "merged") == hash_checkpoint(tmp_path / "adapter") != hash_checkpoint(base)
    facts = provenance.where_from(ours, tmp_path / "adapter", "adapter")
    assert facts["model"]["weights_sha256"] == hash_checkpoint(tmp_path / "adapter")
    adapter = tmp_path / "adapter"
    settings = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(settings | {"base_model_name_or_path": "../base"}))
    try:
        assert main(["parity", "--model", str(adapter), "--precision", "float64"]) == 0
    finally:
        jax.config.update("jax_enable_x64", False)
    assert "components agree" in capsys.readouterr().out
    with pytest.raises(OutputError, match="holds an adapter, which would be merged again"):
        ours.save_pretrained(tmp_path / "adapter")


def test_an_adapters_tokenizer_is_its_bases(tmp_path):
    add_tokenizer(saved_by_torch("bert", "encoder", tmp_path / "base"))
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "../base"}')
    (adapter / "adapter_model.safetensors").touch()
    first, second = (bertjax.Tokenizer.from_pretrained(tmp_path / name) for name in ("base", "adapter"))
    assert first.digest == second.digest
