"""An adapter directory is loaded as its base with the adapter merged by peft."""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import bertjax
from bertjax.checkpoints import CheckpointWarning, hash_weights, holds_adapter, locate_base, name_base, read_checkpoint
from bertjax.cli import main
from bertjax.errors import BertjaxError, CheckpointError, ConfigError, MissingDependencyError, OutputError
from bertjax.jobs import provenance
from bertjax.results.schema import Model
from tests.factories import add_tokenizer
from tests.family_models import ADAPTED_MODULES, DISTINCT, arguments, saved_by_torch
from tests.tiny_models import largest_difference

pytestmark = [pytest.mark.needs_torch, pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")]

TARGETS = {"target_modules": ["query", "value", "intermediate.dense"]}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "LoRA": ("LoraConfig", TARGETS | {"r": 2, "lora_alpha": 5}),
    "LoRA by patterns": ("LoraConfig", TARGETS | {"r": 2, "rank_pattern": {"query": 4}, "alpha_pattern": {"value": 9}}),
    "LoRA with biases": ("LoraConfig", TARGETS | {"r": 2, "bias": "all"}),
    "LoRA of embeddings": ("LoraConfig", {"target_modules": ["word_embeddings", "query"], "r": 2}),
    "rsLoRA": ("LoraConfig", TARGETS | {"r": 5, "use_rslora": True}),
    "DoRA": ("LoraConfig", TARGETS | {"r": 2, "use_dora": True}),
    "PiSSA": ("LoraConfig", TARGETS | {"r": 2, "init_lora_weights": "pissa"}),
    "AdaLoRA": ("AdaLoraConfig", TARGETS | {"init_r": 4, "target_r": 2, "total_step": 10}),
    "IA3": ("IA3Config", TARGETS | {"feedforward_modules": ["intermediate.dense"]}),
    "LoHa": ("LoHaConfig", TARGETS | {"r": 2}),
}
# For each base: the class that the adapter is trained on, peft's task type, and the compared output.
BASES = {
    "sequences": ("ForSequenceClassification", "SEQ_CLS", "logits"),
    "tokens": ("ForTokenClassification", "TOKEN_CLS", "logits"),
    "encoder": ("Model", "FEATURE_EXTRACTION", "last_hidden_state"),
    "masked words": ("ForMaskedLM", None, "logits"),
}


def adapted(base: Path, cls: str, kind: str, settings: dict[str, Any], adapter: Path, **labels: Any) -> Any:
    """peft's model of a base with a random adapter, which is saved."""
    import peft
    import torch
    import transformers

    model = getattr(transformers, cls).from_pretrained(base, attn_implementation="eager", **labels)
    model = peft.get_peft_model(model, getattr(peft, kind)(**settings))
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(adapter)
    return model.eval()


def edit(adapter: Path, **values: Any) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def check(reference: Any, adapter: Path, field: str, rng: np.random.Generator) -> Any:
    """bertjax's model matches peft's at real tokens."""
    import torch

    ours = bertjax.load(adapter)
    inputs = arguments(ours.config, rng)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    with torch.no_grad():
        expected = getattr(reference(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask)), field).numpy()
    found = np.asarray(getattr(ours(ids, mask), field))
    real = mask > 0 if found.ndim == 3 else slice(None)
    assert found.dtype == np.float32
    assert largest_difference(found[real], expected[real]) < 2e-5
    return ours


CASES = [*((kind, "sequences") for kind in KINDS), ("LoRA", "tokens"), ("LoRA", "encoder")]


@pytest.mark.parametrize(("kind", "base"), CASES)
def test_every_mergeable_adapter_matches_peft(kind, base, tmp_path, rng):
    end, task, field = BASES[base]
    labels = {"num_labels": 3} if field == "logits" and task else {}
    saved_by_torch("bert", "pretraining", tmp_path / "base")  # which has no classifier
    (cls, settings), adapter = KINDS[kind], tmp_path / "adapter"
    reference = adapted(tmp_path / "base", f"Bert{end}", cls, settings | {"task_type": task}, adapter, **labels)
    ours = check(reference, adapter, field, rng)
    assert (ours.class_name, ours.new_parameters) == (f"Bert{end}", ())


@pytest.mark.parametrize("target", ["word_embeddings", "decoder"])
def test_updates_of_weights_that_two_modules_share_are_refused(target, tmp_path):
    saved_by_torch("bert", "pretraining", tmp_path / "base")
    settings = {"target_modules": [target], "r": 2, "task_type": None}
    adapted(tmp_path / "base", "BertForMaskedLM", "LoraConfig", settings, tmp_path / "adapter")
    with pytest.raises(CheckpointError, match=r"it changes a weight that .*word_embeddings.* share"):
        bertjax.load(tmp_path / "adapter")


@pytest.mark.parametrize("family", DISTINCT)
def test_an_adapter_of_every_family_is_merged(family, tmp_path, rng):
    base, adapter = saved_by_torch(family, "sequence classification", tmp_path / "base"), tmp_path / "adapter"
    cls = bertjax.checkpoints.FAMILIES[family].heads["sequence classification"].architecture
    settings = {"r": 2, "target_modules": ADAPTED_MODULES.get(family, ["query", "dense"]), "task_type": "SEQ_CLS"}
    check(adapted(base, cls, "LoraConfig", settings, adapter, num_labels=3), adapter, "logits", rng)


@pytest.fixture
def saved(tmp_path):
    """A base without a pooler or classifier, and an adapter for classification into three labels."""
    base, adapter = saved_by_torch("bert", "masked LM", tmp_path / "base"), tmp_path / "adapter"
    settings = {"r": 2, "target_modules": ["query"], "task_type": "SEQ_CLS"}
    adapted(base, "BertForSequenceClassification", "LoraConfig", settings, adapter, num_labels=3)
    edit(adapter, base_model_name_or_path="../base")
    return adapter


def test_parts_missing_in_base_and_adapter_are_named(saved):
    with pytest.warns(CheckpointWarning, match=r"newly initialised: bert\.pooler\.dense\.bias, bert\.pooler"):
        model = bertjax.load(saved)
    assert model.new_parameters == ("bert.pooler.dense.bias", "bert.pooler.dense.kernel")
    assert (model.config.architectures, model.config.num_labels) == (("BertForSequenceClassification",), 3)


@pytest.mark.filterwarnings("ignore::bertjax.checkpoints.CheckpointWarning")
def test_labels_are_those_of_the_adapters_config(saved):
    settings = json.loads((saved / "../base/config.json").read_text())
    settings |= {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "no", "1": "yes", "2": "maybe"}}
    (saved / "config.json").write_text(json.dumps(settings))
    assert dict(bertjax.load(saved).config.id2label) == {0: "no", 1: "yes", 2: "maybe"}


def refusal(adapter: Path, error: type[BertjaxError] = CheckpointError) -> str:
    with pytest.raises(error) as caught:
        bertjax.load(adapter)
    assert "\n" not in str(caught.value)
    assert str(adapter) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["PREFIX_TUNING", "PROMPT_TUNING", "XLORA", "NO_SUCH_KIND", None])
def test_a_kind_that_cannot_be_merged_is_refused(kind, saved):
    edit(saved, peft_type=kind)
    assert "cannot be merged into a model's weights" in refusal(saved, ConfigError)


SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"shears": 2}, "this version of peft does not know shears"),
    "other code": ({"megatron_config": {"a": 1}, "megatron_core": "antigravity"}, "megatron_config"),
    "at some tokens": ({"alora_invocation_tokens": [3]}, "aLoRA does not support merging"),
    "another rank": ({"r": 3}, "size mismatch"),
    "more targets": ({"target_modules": ["query", "key"]}, "missing adapter keys"),
    "fewer targets": ({"layers_to_transform": [0]}, "have no module for base_model.model.bert.encoder.layer.1."),
    "another class": ({"task_type": "FEATURE_EXTRACTION"}, "missing adapter keys"),
    "not of transformers": ({"target_modules": ["no such module"]}, "cannot be merged into"),
}


@pytest.mark.parametrize("settings", SETTINGS)
def test_settings_that_do_not_fit_are_refused(settings, saved):
    values, message = SETTINGS[settings]
    edit(saved, **values)
    assert message in refusal(saved, BertjaxError)


def test_copied_layers_are_refused(tmp_path):
    """peft merges the updates of all copies of a layer into one."""
    base, adapter = saved_by_torch("bert", "encoder", tmp_path / "base"), tmp_path / "adapter"
    copies = {"layer_replication": [[0, 2], [1, 3]], "task_type": "FEATURE_EXTRACTION"}
    adapted(base, "BertModel", "LoraConfig", TARGETS | copies, adapter)
    assert "cannot be merged into" in refusal(adapter)


def test_tensors_that_do_not_fit_are_refused(saved):
    path = saved / "adapter_model.safetensors"
    tensors = load_file(path)
    first = next(name for name in tensors if "lora_A" in name)
    save_file(tensors | {first.replace("lora_A", "lora_E"): tensors[first]}, path)
    assert "have no module for" in refusal(saved)
    save_file({name: array for name, array in tensors.items() if "classifier" not in name}, path)
    assert "classifier" in refusal(saved)
    save_file({name: array[:, :5] if name == first else array for name, array in tensors.items()}, path)
    assert "size mismatch" in refusal(saved)
    path.write_bytes(b"no tensors")
    assert "cannot be read" in refusal(saved)
    path.unlink()
    assert "has no adapter weights; looked for adapter_model.safetensors" in refusal(saved)


def test_updates_of_missing_modules_are_refused(saved):
    path = saved / "adapter_model.safetensors"
    pooler = {
        f"base_model.model.bert.pooler.dense.lora_{factor}.weight": np.ones((2, 12), np.float32) for factor in "AB"
    }
    pooler["base_model.model.bert.pooler.dense.lora_B.weight"] = np.ones((12, 2), np.float32)
    save_file(load_file(path) | pooler, path)
    edit(saved, target_modules=["query", "pooler.dense"])
    assert "the base does not have bert.pooler.dense.bias, bert.pooler.dense.weight" in refusal(saved)


def test_an_adapter_of_another_size_is_refused(saved):
    saved_by_torch("bert", "masked LM", saved.parent / "base", 1)
    assert "size mismatch" in refusal(saved)


def test_an_adapter_runs_no_code(saved, tmp_path):
    import torch

    class Code:
        def __reduce__(self):
            return Path.touch, (tmp_path / "ran",)

    (saved / "adapter_model.safetensors").unlink()
    torch.save({"base_model.model.classifier.weight": Code()}, saved / "adapter_model.bin")
    assert "only tensors are read from a pickle" in refusal(saved)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("package", ["peft", "torch"])
def test_without_its_packages_one_line_says_what_to_install(package, saved, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    assert "pip install 'bertjax[adapters]'" in refusal(saved, MissingDependencyError)


def make_base(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        (directory / name).touch()
    return directory


def make_adapter(directory: Path, base: str | None = None, **config: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    settings = {"peft_type": "LORA", "base_model_name_or_path": base} | config
    (directory / "adapter_config.json").write_text(json.dumps(settings))
    return directory


def test_a_base_is_found_where_the_adapter_says(tmp_path, monkeypatch):
    base, adapter = make_base(tmp_path / "models" / "base"), tmp_path / "adapter"
    assert locate_base(make_adapter(adapter, str(base))) == base
    assert locate_base(make_adapter(adapter, "../models/base")).samefile(base)
    monkeypatch.chdir(tmp_path)
    assert locate_base(make_adapter(adapter, "models/base")).samefile(base)
    make_base(adapter / "models" / "base")
    with pytest.raises(CheckpointError, match=r"may be .*; write its full path there"):
        locate_base(adapter)
    assert (holds_adapter(adapter), holds_adapter(base)) == (True, False)


def test_a_model_in_the_adapters_directory_is_its_base(tmp_path):
    both = make_adapter(make_base(tmp_path / "beside"))
    assert locate_base(both) == both
    make_adapter(both, str(make_base(tmp_path / "base")))
    assert name_base(both) == str(both)
    with pytest.warns(CheckpointWarning, match="into the weights in its directory, .* names the base .*delete"):
        assert locate_base(both) == both


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (None, "names no base; write its path or hub id there"),
        ("./gone", "the base is not found .*'./gone': no such directory"),
        ("package:no_such_package", "no installed package"),
        ("someone/some-bert", "someone/some-bert: no such directory here, .* at revision 'a1b2'"),
    ],
)
def test_a_missing_base_is_named(name, message, tmp_path):
    revision = {"revision": "a1b2"} if "revision" in message else {}
    with pytest.raises(CheckpointError, match=message):
        locate_base(make_adapter(tmp_path / "adapter", name, **revision), local_files_only=True)


def test_an_adapter_of_an_adapter_is_refused(tmp_path):
    first = make_adapter(make_base(tmp_path / "first"))
    with pytest.raises(CheckpointError, match="is an adapter too; merge that one first"):
        locate_base(make_adapter(tmp_path / "second", str(first)))


def test_an_adapters_tokenizer_is_its_bases(tmp_path):
    make_adapter(tmp_path / "adapter", "../base")
    add_tokenizer(saved_by_torch("bert", "encoder", tmp_path / "base"))
    first, second = (bertjax.Tokenizer.from_pretrained(tmp_path / name) for name in ("base", "adapter"))
    assert first.digest == second.digest


@pytest.mark.filterwarnings("ignore::bertjax.checkpoints.CheckpointWarning")
def test_the_merged_model_is_saved_and_hashed_as_any(tmp_path, rng, capsys):
    base, adapter = saved_by_torch("bert", "sequence classification", tmp_path / "base"), tmp_path / "adapter"
    settings = {"r": 2, "target_modules": ["query"], "task_type": "SEQ_CLS"}
    adapted(base, "BertForSequenceClassification", "LoraConfig", settings, adapter)
    before = sorted(tmp_path.rglob("*"))
    ours = bertjax.load(adapter)
    assert sorted(tmp_path.rglob("*")) == before  # nothing is written
    inputs = arguments(ours.config, rng)
    ours.save_pretrained(tmp_path / "merged")
    assert np.array_equal(bertjax.load(tmp_path / "merged")(**inputs).logits, ours(**inputs).logits)
    paths = (tmp_path / "merged", adapter, base)
    hash_merged, hash_adapter, hash_base = (hash_weights(read_checkpoint(path)[1]) for path in paths)
    assert hash_merged == hash_adapter != hash_base
    facts = provenance.describe_model(ours, str(adapter), hash_adapter, adapter)
    assert (
        facts["model"]["base"] == json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"]
    )
    assert msgspec.to_builtins(msgspec.convert(facts["model"], Model)) == facts["model"]
    assert "base" not in provenance.describe_model(ours, "merged", "", tmp_path / "merged")["model"]
    assert facts["model"]["name"] == str(adapter)
    with pytest.raises(OutputError, match="holds an adapter, which would be merged again"):
        ours.save_pretrained(adapter)
    try:
        assert main(["parity", "--model", str(adapter), "--precision", "float64"]) == 0
    finally:
        jax.config.update("jax_enable_x64", False)
    assert "components agree" in capsys.readouterr().out
