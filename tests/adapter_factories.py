"""Tiny models of transformers with random LoRA adapters of peft, and the weights that peft merges them into."""

import dataclasses
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

Arrays = dict[str, np.ndarray]

SIZES = {
    "vocab_size": 31,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 7,
    "max_position_embeddings": 11,
}

OTHER_SIZES: dict[str, dict[str, Any]] = {
    "DistilBert": {"vocab_size": 31, "dim": 12, "n_layers": 2, "n_heads": 3, "hidden_dim": 7},
    "Albert": SIZES | {"embedding_size": 5},
    "Electra": SIZES | {"embedding_size": 5},
    "DebertaV2": SIZES | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "ModernBert": SIZES | {"num_attention_heads": 2, "pad_token_id": 0},
}

FAMILIES = ("Bert", "Roberta", "MPNet", *OTHER_SIZES)

CLASSES = "ForSequenceClassification"


@dataclasses.dataclass
class AdapterCase:
    """A base and an adapter on disk, and what peft makes of them."""

    base: Path
    adapter: Path
    expected: Arrays

    @property
    def weights(self) -> Arrays:
        return load_file(self.base / "model.safetensors")


def make_torch_model(name: str, **sizes: Any) -> Any:
    import torch
    import transformers

    family = next(family for family in FAMILIES if name.startswith(family))
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**OTHER_SIZES.get(family, SIZES) | sizes)
    return randomised(getattr(transformers, name)(config), lambda parameter: True)


def randomised(model: Any, chosen: Callable[[Any], bool]) -> Any:
    for parameter in model.parameters():
        if chosen(parameter):
            parameter.data.normal_(std=0.3)
    return model


def edit_json(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def make_adapter_case(
    directory: Path, model: str | Any = f"Bert{CLASSES}", *, edit: dict[str, Any] | None = None, **settings: Any
) -> AdapterCase:
    """Save a model and a random adapter for it; peft merges the two after reading both from disk.

    Args:
        edit: what adapter_config.json says beside what peft saved.
    """
    import peft

    base, adapter = directory / "base", directory / "adapter"
    model = make_torch_model(model) if isinstance(model, str) else model
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save_pretrained(base)
        adapted = peft.get_peft_model(model, peft.LoraConfig(**{"r": 2, "lora_alpha": 3} | settings))
        randomised(adapted, lambda parameter: parameter.requires_grad).save_pretrained(adapter)
        edit_json(adapter / "adapter_config.json", **edit or {})
        again = type(model).from_pretrained(base, dtype=model.dtype)
        merged = peft.PeftModel.from_pretrained(again, adapter).merge_and_unload()
    return AdapterCase(base, adapter, {name: to_numpy(tensor) for name, tensor in merged.state_dict().items()})


def to_numpy(tensor: Any) -> np.ndarray:
    import torch

    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()
