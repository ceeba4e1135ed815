"""The same checkpoint in PyTorch, by `transformers`: loading it, running it, and overriding a head of it.

Heads are overridden from outside, the same way in every family: the projection of values and the output projection are
modules of their own everywhere, and what the second reads is all heads' outputs side by side. Needs the extra `torch`.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub.errors import StrictDataclassError
from jaxtyping import Int

from bertjax.checkpoints import BertConfig, architecture, holds_adapter, locate_base, tensor_names
from bertjax.errors import CheckpointError, MissingDependencyError
from bertjax.models import PretrainedModel

Arguments = dict[str, Int[np.ndarray, "batch token"]]


def load_torch(model: PretrainedModel, directory: Path) -> Any:
    """The checkpoint as `transformers` reads it: eager attention, no dropout, the dtype of `model`.

    An adapter is merged into its base by `peft`.

    Args:
        model: the model of bertjax that was loaded from the checkpoint.
        directory: the directory of the checkpoint.

    Raises:
        MissingDependencyError: PyTorch or transformers is not installed.
        CheckpointError: `transformers` cannot read it.
    """
    try:
        import torch
        import transformers
    except ImportError as error:
        raise MissingDependencyError(
            f"parity compares with PyTorch and transformers ({error}): pip install 'bertjax[torch]'"
        ) from error
    if model.config.pruned_heads:
        raise CheckpointError(
            f"{directory} has pruned heads, which transformers reads no more: compare a checkpoint of the same shape "
            "(bertjax remove-heads without --smaller)"
        )
    cls = getattr(transformers, model.config.family.heads[model.task].architecture)
    options = {"attn_implementation": "eager", "local_files_only": True}
    try:
        if holds_adapter(directory):
            reference = _merged(cls, model, directory, options)
        else:
            reference = cls.from_pretrained(directory, **options)
    except (OSError, ValueError, RuntimeError, StrictDataclassError) as error:
        raise CheckpointError(f"transformers cannot read {directory}: {str(error).splitlines()[0]}") from error
    return reference.eval().to(torch.float64 if model.numerics.dtype == "float64" else torch.float32)


def _merged(cls: Any, model: PretrainedModel, directory: Path, options: dict[str, Any]) -> Any:
    """The base of an adapter with the adapter merged in, as its user would do it with `peft`."""
    from peft import PeftModel

    base = locate_base(directory)
    if directory.samefile(base):  # transformers finds an adapter in the directory of the model
        return cls.from_pretrained(base, **options)
    labels = {"num_labels": model.config.num_labels, "ignore_mismatched_sizes": True}
    return PeftModel.from_pretrained(cls.from_pretrained(base, **labels, **options), directory).merge_and_unload()


def run_torch(reference: Any, arguments: Mapping[str, Any]) -> Any:
    """A forward pass in PyTorch, with attentions and hidden states.

    Arguments that its family does not take, such as token types, are left out. In float64 all of it is float64: what
    `transformers` rounds to float32 inside (`WIDE`) is computed without.

    Args:
        reference: a model of transformers.
        arguments: a batch: token ids, mask and token types.
    """
    import torch

    taken = inspect.signature(reference.forward).parameters
    tensors = {
        name: torch.tensor(np.asarray(value), dtype=torch.long) for name, value in arguments.items() if name in taken
    }
    with torch.no_grad(), ExitStack() as patches:
        if reference.dtype == torch.float64:
            for patch in WIDE.get(reference.config.model_type, ()):
                patches.enter_context(patch())
        return reference(**tensors, output_attentions=True, output_hidden_states=True)


@contextmanager
def overridden_head(
    reference: Any, config: BertConfig, head: tuple[int, int], mode: str, real: np.ndarray
) -> Iterator[None]:
    """`transformers`' model with one head made uniform (1/n over the real tokens that it may see) or zero.

    Args:
        reference: a model of `transformers`.
        config: the config of the model.
        head: the layer and index of the head.
        mode: 'uniform' or 'zero'.
        real: `[batch, token]`, true where a token is real.
    """
    layer, number = head
    parameters = config.architecture.parameters_of
    application = parameters[:layer].count(parameters[layer])  # of those that share these parameters
    own = slice(number * config.head_dim, (number + 1) * config.head_dim)
    value, part = _module(reference, config, parameters[layer], "value")
    output, _ = _module(reference, config, parameters[layer], "output")
    shares = _uniform_shares(config, layer, real)
    calls, values = [0, 0], {}

    def keep_values(module: Any, inputs: Any, projected: Any) -> None:
        if calls[0] == application:
            width = projected.shape[-1] // (1 if part is None else part[1])
            start = 0 if part is None else part[0] * width
            values["own"] = projected[..., start : start + width][..., own]
        calls[0] += 1

    def replace_outputs(module: Any, inputs: Any) -> Any:
        outputs = inputs[0]
        if calls[1] == application:
            outputs = outputs.clone()
            outputs[..., own] = 0 if mode == "zero" else shares.to(outputs.dtype) @ values["own"]
        calls[1] += 1
        return (outputs, *inputs[1:])

    hooks = [value.register_forward_hook(keep_values), output.register_forward_pre_hook(replace_outputs)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _module(reference: Any, config: BertConfig, parameters: int, name: str) -> tuple[Any, tuple[int, int] | None]:
    """The linear module of a layer's attention, and which part of its outputs is meant; the family's table names it."""
    path = f"bert.encoder.layers.{parameters}.attention.{name}.kernel"
    entry = tensor_names.entry_of_parameter(path, config, architecture.BODY)
    module = entry.tensor.removesuffix(".weight")
    if not hasattr(reference, config.family.prefix):  # the encoder alone
        module = module.removeprefix(f"{config.family.prefix}.")
    return reference.get_submodule(module), entry.part


def _uniform_shares(config: BertConfig, layer: int, real: np.ndarray) -> Any:
    """Uniform weights `[batch, query, key]`."""
    import torch

    tokens, window = real.shape[1], config.architecture.layers[layer].window
    seen = np.repeat(real[:, None].astype(np.float64), tokens, axis=1)
    if window is not None:
        seen = seen * (np.abs(np.arange(tokens)[:, None] - np.arange(tokens)[None]) <= window)
    return torch.tensor(seen / np.maximum(seen.sum(-1, keepdims=True), 1))


@contextmanager
def _replaced(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _wide_scale() -> Any:
    """DeBERTa's scale, which transformers takes as a float32 root."""
    import torch
    from transformers.models.deberta_v2 import modeling_deberta_v2 as module

    def scale(queries: Any, factor: int) -> Any:
        return torch.sqrt(torch.tensor(queries.size(-1) * factor, dtype=queries.dtype))

    return _replaced(module, "scaled_size_sqrt", scale)


def _wide_rotation() -> Any:
    """ModernBERT's rotation, which transformers applies to queries and keys as float32."""
    from transformers.models.modernbert import modeling_modernbert as module

    def rotate(queries: Any, keys: Any, cosine: Any, sine: Any, unsqueeze_dim: int = 1) -> tuple[Any, Any]:
        cosine, sine = cosine.unsqueeze(unsqueeze_dim), sine.unsqueeze(unsqueeze_dim)
        return tuple(x * cosine + module.rotate_half(x) * sine for x in (queries, keys))

    return _replaced(module, "apply_rotary_pos_emb", rotate)


def _wide_angles() -> Any:
    """ModernBERT's angles, which transformers makes of float32 frequencies."""
    import torch
    from transformers.models.modernbert import modeling_modernbert as module

    def angles(self: Any, x: Any, position_ids: Any, layer_type: str) -> tuple[Any, Any]:
        base = self.config.rope_parameters[layer_type]["rope_theta"]
        width = self.config.hidden_size // self.config.num_attention_heads
        frequencies = base ** (-torch.arange(0, width, 2, dtype=x.dtype) / width)
        turned = position_ids[..., None].to(x.dtype) * frequencies
        turned = torch.cat((turned, turned), dim=-1)
        return turned.cos(), turned.sin()

    return _replaced(module.ModernBertRotaryEmbedding, "forward", angles)


def _wide_softmax() -> Any:
    """ModernBERT's softmax, which transformers takes in float32."""
    import torch
    from transformers.models.modernbert import modeling_modernbert as module

    def attend(_: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float, **options: Any) -> tuple[Any, Any]:
        scores = torch.matmul(query, key.transpose(2, 3)) * scaling
        weights = torch.softmax(scores if mask is None else scores + mask, dim=-1)
        return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights

    return _replaced(module, "eager_attention_forward", attend)


WIDE: dict[str, tuple[Callable[[], Any], ...]] = {
    "deberta-v2": (_wide_scale,),
    "modernbert": (_wide_rotation, _wide_angles, _wide_softmax),
}
"""What `transformers` computes in float32 inside a float64 model, by family, and how to compute it in float64."""
