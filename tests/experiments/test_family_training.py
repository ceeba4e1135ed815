"""Fine-tuning each family as PyTorch does: losses and gradients, where units are dropped, saving in between."""

from functools import partial

import jax
import numpy as np
import pytest

import bertjax
from bertjax.checkpoints import FAMILIES, architecture
from experiments.training.dropout import train_logits
from experiments.training.trainer import Skeleton, batch_loss, make_optimizer, train_step
from tests.family_models import DISTINCT, arguments, saved_by_torch, sometimes
from tests.tiny_models import largest_difference

pytestmark = [pytest.mark.integration, pytest.mark.needs_torch]
RATES = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "dropout", "attention_dropout"),
    *("seq_classif_dropout", "classifier_dropout_prob", "pooler_dropout", "embedding_dropout", "mlp_dropout"),
)


def rates_of(family: str, rate: float) -> dict[str, float]:
    """Each of the family's rates."""
    import transformers

    known = transformers.AutoConfig.for_model(family).to_dict()
    return {key: rate for key in RATES if key in known}


def twins(family: str, directory, rate: float = 0.0):
    """A classifier of bertjax's and the same of transformers, in training mode."""
    import transformers

    saved_by_torch(family, architecture.SEQUENCE, directory, **rates_of(family, rate))
    cls = getattr(transformers, FAMILIES[family].heads[architecture.SEQUENCE].architecture)
    return bertjax.load(directory), cls.from_pretrained(directory, attn_implementation="eager").train()


def torch_logits(twin, batch):
    import inspect

    import torch

    taken = inspect.signature(twin.forward).parameters
    arrays = {
        name: torch.tensor(np.asarray(batch[name])).long() for name in batch if name in taken and name != "labels"
    }
    return twin(**arrays).logits


@pytest.mark.parametrize("family", sometimes(DISTINCT, "distilbert", "electra", "deberta-v2", "modernbert"))
def test_each_dropout_acts_on_what_transformers_lets_it_act_on(family, rng, tmp_path, monkeypatch):
    """In place of chance, the n-th dropout of a pass multiplies by 1 + n / 10, here and in PyTorch."""
    import torch

    calls = {"ours": 0, "theirs": 0}

    def scaled(x, whose):
        calls[whose] += 1
        return x * (1 + calls[whose] / 10)

    def of_torch(x, p=0.5, training=True, inplace=False):
        return scaled(x, "theirs") if p > 0 else x

    model, twin = twins(family, tmp_path, 0.1)
    arrays = arguments(model.config, rng)
    replaced = lambda key: lambda x, rate: scaled(x, "ours") if rate > 0 else x  # noqa: E731
    monkeypatch.setattr("experiments.training.dropout.dropper", replaced)
    ours = train_logits(model, model.inputs(**arrays), jax.random.key(0))
    monkeypatch.setattr(torch.nn.functional, "dropout", of_torch)
    with torch.no_grad():
        theirs = torch_logits(twin, arrays)
    assert calls["ours"] == calls["theirs"] > 2 + model.config.num_hidden_layers
    assert largest_difference(ours, theirs.numpy()) < 1e-4
    monkeypatch.undo()
    assert largest_difference(ours, model(**arrays).logits) > 1e-2


@partial(jax.jit, static_argnums=0)
def gradients_of(skeleton, parameters, batch):
    return jax.grad(lambda values: batch_loss(skeleton, values, batch, jax.random.key(0)))(parameters)


BIASES_OF_KEYS = ("key.bias", "k_lin.bias", "attn.k.bias")


def bound_of(name, gradient):
    """What a tensor's gradient may differ by: 1e-4, and a thousandth of its largest number.

    A bias that all keys share moves all scores of a row alike: its gradient is zero but for rounding.
    """
    largest = float(np.abs(gradient).max())
    if name.endswith(BIASES_OF_KEYS):
        assert largest < 1e-6, name
        return 1e-6
    return min(1e-4, 1e-3 * largest)


@pytest.mark.parametrize("family", sometimes(DISTINCT, "albert", "deberta-v2"))
def test_steps_losses_and_gradients_are_pytorchs(family, rng, tmp_path):
    """Three steps of AdamW without clipping or decay of weights, the last from a checkpoint saved before it."""
    import torch

    model, twin = twins(family, tmp_path / "first")
    assert rates_of(family, 0.0)
    arrays = arguments(model.config, rng, tokens=8)
    # The padding's token within a text has no gradient in PyTorch (`padding_idx`).
    padded = (arrays["input_ids"] == (model.config.pad_token_id or 0)) & (arrays["attention_mask"] == 1)
    batch = arrays | {
        "input_ids": np.where(padded, 7, arrays["input_ids"]),
        "labels": rng.integers(0, 3, 4).astype(np.int32),
        "share": np.ones(4, np.float32),
    }
    optimizer = torch.optim.AdamW(twin.parameters(), lr=0.003, weight_decay=0.0)
    skeleton, adam = Skeleton.of(model), make_optimizer(0.0, 1e9)
    parameters = model.parameters()
    memory = adam.init(parameters)
    for step in range(3):
        optimizer.zero_grad()
        theirs = torch.nn.functional.cross_entropy(torch_logits(twin, batch), torch.tensor(batch["labels"]).long())
        theirs.backward()
        gradients = gradients_of(skeleton, parameters, batch)
        named = skeleton.merge(gradients).weights()
        their_own = {name: value.grad.numpy() for name, value in twin.named_parameters() if value.grad is not None}
        assert set(named) == set(their_own), step
        for name, gradient in their_own.items():
            assert largest_difference(named[name], gradient) < bound_of(name, gradient), name
        with jax.numpy_dtype_promotion("standard"):
            parameters, memory, loss = train_step(
                skeleton, adam, parameters, memory, batch, jax.random.key(0), rate=np.float32(0.003)
            )
        assert abs(float(loss) - theirs.item()) < 1e-4, step
        optimizer.step()
        if step == 1:
            skeleton.merge(parameters).save_pretrained(tmp_path / "second")
            again = bertjax.load(tmp_path / "second")
            assert all(np.array_equal(value, parameters[name]) for name, value in again.parameters().items())
            parameters = again.parameters()
