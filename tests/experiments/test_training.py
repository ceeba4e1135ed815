"""Fine-tuning's mathematics: the training pass, its gradients and steps against PyTorch, batches, several devices."""

import dataclasses
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import BertForSequenceClassification
from experiments.training.dropout import dropper, train_logits
from experiments.training.trainer import (
    Recipe,
    Skeleton,
    Trainer,
    batch_loss,
    learning_rates,
    make_batch,
    make_optimizer,
    order_batches,
    predict,
    published_rates,
    random_batches,
    train_step,
)
from tests.tiny_models import arguments, arrays_of, comparable_environment, largest_difference, random_model
from tests.training_runs import NO_DROPOUT, make_training_examples, make_training_model, train_two_epochs

pytestmark = pytest.mark.integration


def test_without_dropout_the_training_pass_is_the_model(config, rng):
    model = make_training_model(config, **NO_DROPOUT)
    inputs = model.inputs(**arguments(config, rng))
    found, expected = jax.jit(lambda: (train_logits(model, inputs, jax.random.key(0)), model.forward(inputs).logits))()
    assert largest_difference(found, expected) < 1e-6


def test_dropout_changes_training_alone_and_anew_with_each_key(small, rng):
    model = make_training_model(small, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2)
    arrays = arguments(small, rng)
    inputs = model.inputs(**arrays)
    train = jax.jit(lambda key: train_logits(model, inputs, key))
    first, second, again = (np.asarray(train(jax.random.key(key))) for key in (1, 2, 1))
    assert largest_difference(first, second) > 1e-3
    assert np.array_equal(first, again)
    still = make_training_model(small, **NO_DROPOUT)
    assert np.array_equal(np.asarray(model(**arrays).logits), np.asarray(still(**arrays).logits))


def test_dropout_sets_its_share_to_zero_and_keeps_the_mean(rng):
    drop = dropper(jax.random.key(int(rng.integers(1000))))
    x = jnp.asarray(rng.normal(3.0, 1.0, (200, 100)), jnp.float32)
    first, second = drop(x, 0.25), drop(x, 0.25)
    assert abs(float((first == 0).mean()) - 0.25) < 0.02
    assert abs(float(first.mean() / x.mean()) - 1) < 0.02
    assert largest_difference(first, jnp.where(first == 0, 0, x / 0.75)) < 1e-5
    assert not np.array_equal(first == 0, second == 0)
    assert drop(x, 0.0) is x


@pytest.mark.parametrize(
    ("rate", "name"), [("hidden_dropout_prob", "hidden"), ("attention_probs_dropout_prob", "attention")]
)
def test_dropout_is_where_transformers_has_it(small, rng, rate, name):
    """With every unit kept or dropped alike the rates cannot be told apart, so the places are counted."""
    calls = []
    model = make_training_model(small, **{**NO_DROPOUT, rate: 0.5})
    inputs = model.inputs(**arguments(small, rng, batch=4, tokens=9))

    def drop(x, chance):
        calls.append((x.shape, chance))
        return x

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("experiments.training.dropout.dropper", lambda key: drop)
        train_logits(model, inputs, jax.random.key(0))
    hidden, weights = (4, 9, 12), (4, 3, 9, 9)
    expected = [hidden, *[weights, hidden, hidden] * 2, (4, 12)]
    assert [shape for shape, _ in calls] == expected
    assert [chance for _, chance in calls] == [0.5 * ((len(shape) == 4) == (name == "attention")) for shape in expected]


@pytest.mark.needs_torch
def test_each_dropout_acts_on_what_transformers_lets_it_act_on(small, rng, tmp_path, monkeypatch):
    """In place of chance, the n-th dropout of a pass multiplies by 1 + n / 10, here and in PyTorch."""
    import torch

    calls = {"ours": 0, "theirs": 0}

    def scaled(x, whose):
        calls[whose] += 1
        return x * (1 + calls[whose] / 10)

    model = make_training_model(small, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    twin = torch_twin(model, tmp_path)
    arrays = arguments(small, rng, batch=4, tokens=9)
    monkeypatch.setattr("experiments.training.dropout.dropper", lambda key: lambda x, rate: scaled(x, "ours"))
    ours = train_logits(model, model.inputs(**arrays), jax.random.key(0))
    monkeypatch.setattr(torch.nn.functional, "dropout", lambda x, *rest, **options: scaled(x, "theirs"))
    with torch.no_grad():
        theirs = twin(**{name: torch.tensor(np.asarray(array)).long() for name, array in arrays.items()}).logits
    assert calls == {"ours": 8, "theirs": 8}
    assert largest_difference(ours, theirs.numpy()) < 1e-5
    monkeypatch.undo()
    assert largest_difference(ours, model(**arrays).logits) > 1e-2


def torch_twin(model, directory):
    """The same model in PyTorch, in training mode (its dropout rates are 0)."""
    import transformers

    model.save_pretrained(directory)
    return transformers.BertForSequenceClassification.from_pretrained(directory, attn_implementation="eager").train()


def torch_loss(twin, batch):
    """The loss of the rows that count, as transformers computes it."""
    import torch

    real = batch["share"] > 0
    labels = torch.tensor(batch["labels"][real])
    names = ("input_ids", "attention_mask", "token_type_ids")
    found = twin(**{name: torch.tensor(batch[name][real]).long() for name in names})
    if labels.dtype == torch.float32:
        return torch.nn.functional.mse_loss(found.logits[:, 0], labels)
    return torch.nn.functional.cross_entropy(found.logits, labels.long())


@pytest.mark.needs_torch
@pytest.mark.parametrize("labels", [1, 3])
def test_loss_and_gradients_are_pytorchs(small, rng, tmp_path, labels):
    model = make_training_model(small, labels, **NO_DROPOUT)
    encoded, targets = make_training_examples(model, rng, 5, labels)
    batch = make_batch(encoded.encodings, targets, 8, 0, 19)
    twin, skeleton = torch_twin(model, tmp_path), Skeleton.of(model)
    theirs = torch_loss(twin, batch)
    theirs.backward()
    differentiate = jax.value_and_grad(lambda parameters: batch_loss(skeleton, parameters, batch, jax.random.key(0)))
    loss, gradients = jax.jit(differentiate)(model.parameters())
    assert abs(float(loss) - theirs.item()) < 1e-5
    ours = skeleton.merge(gradients).weights()  # gradients under transformers' names and in its layout
    named = dict(twin.named_parameters())
    assert len(named) == len(ours)
    for name, parameter in named.items():
        assert largest_difference(ours[name], parameter.grad) < 2e-5, name


@pytest.mark.needs_torch
def test_steps_of_the_optimizer_are_pytorchs(small, rng, tmp_path):
    """Four steps with clipping, decay, warm-up and fall, against torch.optim.AdamW and transformers' schedule."""
    import torch
    from transformers import get_linear_schedule_with_warmup

    model = make_training_model(small, **NO_DROPOUT)
    twin, skeleton = torch_twin(model, tmp_path), Skeleton.of(model)
    recipe = Recipe(learning_rate=3e-2, warmup=0.3, weight_decay=0.1, largest_gradient=0.5)
    optimizer, rates = make_optimizer(recipe.weight_decay, recipe.largest_gradient), learning_rates(recipe, 7)
    plain = [p for name, p in twin.named_parameters() if name.endswith("bias") or "LayerNorm" in name]
    decayed = [p for name, p in twin.named_parameters() if not (name.endswith("bias") or "LayerNorm" in name)]
    groups = [{"params": plain, "weight_decay": 0.0}, {"params": decayed, "weight_decay": 0.1}]
    theirs = torch.optim.AdamW(groups, lr=3e-2, betas=(0.9, 0.999), eps=1e-8)
    schedule = get_linear_schedule_with_warmup(theirs, 2, 7)
    before = model.weights()
    parameters = {name: jnp.array(value) for name, value in model.parameters().items()}
    with jax.numpy_dtype_promotion("standard"):
        memory = optimizer.init(parameters)
    steady = {name: np.ones(parameter.shape, np.bool_) for name, parameter in twin.named_parameters()}
    for step in range(4):
        encoded, targets = make_training_examples(model, rng, 6)
        batch = make_batch(encoded.encodings, targets, 6, 0, 19)
        state, rate_now = (parameters, memory), jnp.asarray(rates[step])
        parameters, memory, _ = train_step(skeleton, optimizer, *state, batch, jax.random.key(0), rate=rate_now)
        torch_loss(twin, batch).backward()
        torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
        for name, parameter in twin.named_parameters():
            size = np.abs(parameter.grad.numpy())
            steady[name] &= (size == 0) | (size > 3e-5)
        theirs.step()
        schedule.step()
        theirs.zero_grad()
    ours = skeleton.merge(parameters).weights()
    moved = 0.0
    for name, parameter in twin.named_parameters():
        # Where a gradient is 0 but for rounding, as of all key biases, Adam scales the rounding up to whole steps.
        kept = steady[name]
        if kept.any():
            assert largest_difference(ours[name][kept], parameter.detach().numpy()[kept]) < 2e-4, name
            moved = max(moved, largest_difference(ours[name][kept], before[name][kept]))
    assert moved > 0.03
    assert sum(kept.sum() for kept in steady.values()) > 0.5 * sum(kept.size for kept in steady.values())


@pytest.mark.needs_torch
def test_steps_as_published_are_those_of_bert_adam(small, rng, tmp_path):
    """Five steps against the update rule of the authors' optimizer, written out on PyTorch's gradients.

    m and v are not corrected for their bias, epsilon is 1e-6, each parameter's gradient is clipped by itself.
    """
    import torch

    model = make_training_model(small, **NO_DROPOUT)
    twin, skeleton = torch_twin(model, tmp_path), Skeleton.of(model)
    recipe = Recipe(learning_rate=3e-2, warmup=0.4, weight_decay=0.1, largest_gradient=0.02, batch_size=3, epochs=2)
    optimizer, rates = make_optimizer(0.1, 0.02, published=True), published_rates(recipe, 7)
    assert len(rates) == 6
    parameters = {name: jnp.array(value) for name, value in model.parameters().items()}
    memory, moments, before, clipped = optimizer.init(parameters), {}, model.weights(), set()
    for step in range(5):
        encoded, targets = make_training_examples(model, rng, 3)
        batch = make_batch(encoded.encodings, targets, 3, 0, 19)
        state, rate_now = (parameters, memory), jnp.asarray(rates[step])
        parameters, memory, _ = train_step(skeleton, optimizer, *state, batch, jax.random.key(0), rate=rate_now)
        torch_loss(twin, batch).backward()
        rate = 3e-2 * (step / 4 / 0.4 if step / 4 < 0.4 else max(1 - step / 4, 0) / 0.6)
        with torch.no_grad():
            for name, parameter in twin.named_parameters():
                norm = torch.nn.utils.clip_grad_norm_([parameter], 0.02)
                clipped.add(bool(norm > 0.02))
                m, v = moments.get(name, (0.0, 0.0))
                m, v = 0.9 * m + 0.1 * parameter.grad, 0.999 * v + 0.001 * parameter.grad**2
                decay = 0.0 if name.endswith("bias") or "LayerNorm" in name else 0.1
                moments[name] = m, v
                parameter -= rate * (m / (v.sqrt() + 1e-6) + decay * parameter)
        twin.zero_grad()
    assert clipped == {True, False}
    ours, moved = skeleton.merge(parameters).weights(), 0.0
    for name, parameter in twin.named_parameters():
        if "key.bias" in name:  # its gradient is 0 but for rounding, which Adam scales up to whole steps
            continue
        assert largest_difference(ours[name], parameter.detach()) < 2e-4, name
        moved = max(moved, largest_difference(ours[name], before[name]))
    assert moved > 0.03


def test_as_published_batches_are_unsorted_and_rate_ends_at_0(rng):
    batches = random_batches(103, 8, seed=3, epoch=0)
    assert sorted(place for batch in batches for place in batch) == list(range(103))
    assert [len(batch) for batch in batches] == [8] * 12 + [7]
    assert batches == random_batches(103, 8, seed=3, epoch=0)
    assert batches != random_batches(103, 8, seed=3, epoch=1)
    rates = published_rates(Recipe(batch_size=8, learning_rate=1.0), 103)
    assert len(rates) == 39  # 3 epochs of 13, of which 36 are counted
    assert rates.argmax() == 4  # 10 % of 36
    assert np.count_nonzero(rates == 0) == 1 + 3
    assert np.allclose(np.diff(rates[4:36]), -1 / (0.9 * 36))


def test_the_recipe_decides_how_a_trainer_trains(small, rng, monkeypatch):
    model, steps = make_training_model(small), []
    encoded, _ = make_training_examples(model, rng, 64)
    numbers = np.arange(64, dtype=np.int32)  # in place of labels: which examples a step sees

    def step(skeleton, optimizer, parameters, memory, batch, key, rate, loss_of_batch):
        steps.append((batch["labels"][batch["share"] > 0].tolist(), float(rate)))
        return parameters, memory, jnp.float32(0)

    monkeypatch.setattr("experiments.training.trainer.train_step", step)
    trainers = [
        Trainer(model, encoded, numbers, Recipe(batch_size=24, learning_rate=1.0, published=published))
        for published in (False, True)
    ]
    for trainer in trainers:
        assert len(list(trainer.run_epoch(2))) == 3
    lengths = [len(row) for row in encoded.encodings]
    assert [places for places, _ in steps[:3]] == order_batches(lengths, 24, 0, 2)
    assert [places for places, _ in steps[3:]] == random_batches(64, 24, 0, 2)
    assert steps[2][1] > 0
    assert steps[5][1] == 0  # 9 steps, of which 6 are counted
    memories = [jax.tree.structure(trainer.memory) for trainer in trainers]
    assert memories[0] != memories[1]


def test_rows_that_fill_up_a_batch_count_for_nothing(small, rng):
    model = make_training_model(small, **NO_DROPOUT)
    encoded, targets = make_training_examples(model, rng, 5)
    skeleton, key = Skeleton.of(model), jax.random.key(0)
    loss_of = jax.jit(lambda batch: batch_loss(skeleton, model.parameters(), batch, key))
    losses = [float(loss_of(make_batch(encoded.encodings, targets, rows, 0, 19))) for rows in (5, 8)]
    assert abs(losses[0] - losses[1]) < 1e-6
    each = [
        float(loss_of(make_batch([row], targets[[place]], 1, 0, 19))) for place, row in enumerate(encoded.encodings)
    ]
    assert abs(losses[0] - np.mean(each)) < 1e-5


def test_every_epoch_sees_every_example_once_in_another_order(rng):
    lengths = rng.integers(2, 60, 1203).tolist()
    first, second = (order_batches(lengths, 8, seed=3, epoch=epoch) for epoch in (0, 1))
    for batches in (first, second):
        assert sorted(place for batch in batches for place in batch) == list(range(1203))
        assert sorted(len(batch) for batch in batches)[1:] == [8] * 150
    assert first != second
    assert first == order_batches(lengths, 8, seed=3, epoch=0)
    assert first != order_batches(lengths, 8, seed=4, epoch=0)
    padded = sum(len(batch) * max(lengths[place] for place in batch) for batch in first)
    assert padded < 1.25 * sum(lengths)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_training_learns(small, rng, dtype):
    """Whether a text begins with token 5 or 6 can be learnt; parameters stay float32."""
    model = random_model(BertForSequenceClassification, small, dtype, seed=1)
    encoded, _ = make_training_examples(model, rng, 64)
    targets = rng.integers(0, 2, 64, np.int32)
    rows = [
        dataclasses.replace(row, input_ids=(5 + int(label), *row.input_ids[1:]))
        for row, label in zip(encoded.encodings, targets, strict=True)
    ]
    encoded = dataclasses.replace(encoded, encodings=tuple(rows))
    trainer = Trainer(model, encoded, targets, Recipe(learning_rate=0.01, epochs=8, batch_size=16))
    for epoch in range(8):
        losses = list(trainer.run_epoch(epoch))
        assert len(losses) == 4
    logits = predict(trainer.model, encoded)
    assert (logits.argmax(1) == targets).mean() > 0.9
    assert all(value.dtype == jnp.float32 for value in trainer.parameters.values())
    assert largest_difference(predict(model, encoded), logits) > 0.1  # the model itself stays as it was


def test_each_step_drops_other_units_and_the_seed_says_which(small, rng, monkeypatch):
    model, keys = make_training_model(small), []
    encoded, targets = make_training_examples(model, rng, 11)

    def step(skeleton, optimizer, parameters, memory, batch, key, rate, loss_of_batch):
        keys.append(tuple(jax.random.key_data(key).tolist()))
        return parameters, memory, jnp.float32(0)

    monkeypatch.setattr("experiments.training.trainer.train_step", step)
    for seed in (0, 0, 1):
        trainer = Trainer(model, encoded, targets, Recipe(batch_size=4, seed=seed))
        assert [len(list(trainer.run_epoch(epoch))) for epoch in range(3)] == [3, 3, 3]
    assert len(set(keys[:9])) == 9
    assert keys[:9] == keys[9:18]
    assert not set(keys[:9]) & set(keys[18:])


TWO_DEVICES = """
import sys
import jax, numpy as np
from tests.training_runs import train_two_epochs
assert jax.device_count() == 2, jax.devices()
losses, logits, model, devices = train_two_epochs()
assert devices == 2
np.savez(sys.argv[1], losses=losses, logits=logits, **model.weights())
"""


def test_two_devices_train_as_one_does(tmp_path):
    """Batches of 3 among 2 devices: one row fills up."""
    path = tmp_path / "two.npz"
    command = [sys.executable, "-c", TWO_DEVICES, str(path)]
    subprocess.run(command, check=True, env=comparable_environment(2), timeout=300)
    two, (losses, logits, model, _) = arrays_of(path), train_two_epochs()
    assert largest_difference(two["losses"], losses) < 1e-5
    assert largest_difference(two["logits"], logits) < 1e-4
    for name, weights in model.weights().items():
        if "key.bias" not in name:  # its gradient is 0 but for rounding, which Adam scales up to whole steps
            assert largest_difference(two[name], weights) < 1e-4, name
