"""Edge probes against PyTorch, and on labels that a probe can or cannot learn."""

import jax
import numpy as np
import pytest
import torch

from bertjax.errors import InputError
from bertjax.representations import centre_of_gravity, edges, expected_layer, fit_edge_probe
from bertjax.representations.edges import _batches, _initial, _loss


def random_spans(rng, count, slots=2, units=40, longest=3):
    first = rng.integers(0, units - longest, (count, slots))
    return np.stack([first, first + rng.integers(1, longest + 1, (count, slots))], axis=-1)


def loss_by_torch(values, states, spans, labels):
    """The loss of the network, one target and one span after another."""
    states = torch.tensor(states)
    mixed = values["scale"] * torch.einsum("l,lue->ue", torch.softmax(values["mix"], 0), states)
    logits = []
    for pair in spans.tolist():
        pooled = []
        for slot, (first, end) in enumerate(pair):
            projected = mixed[first:end] @ values["projection"][slot] + values["projection_bias"][slot]
            weights = torch.softmax(projected @ values["attention"][slot], 0)
            pooled.append(weights @ projected)
        hidden = torch.tanh(torch.cat(pooled) @ values["hidden"] + values["hidden_bias"])
        hidden = torch.nn.functional.layer_norm(hidden, hidden.shape, values["norm"], values["norm_bias"])
        logits.append(hidden @ values["output"] + values["output_bias"])
    return torch.nn.functional.cross_entropy(torch.stack(logits), torch.tensor(labels))


def test_loss_and_gradients_are_those_of_pytorch(rng, x64, monkeypatch):
    monkeypatch.setattr(edges, "WIDTH", 6)
    states, spans, labels = rng.normal(size=(4, 40, 5)), random_spans(rng, 9), rng.integers(0, 3, 9)
    values = {
        name: np.asarray(value) + 0.3 * rng.normal(size=value.shape)
        for name, value in _initial(rng, states, 2, 3, False, None).items()
    }
    batch = jax.tree.map(lambda array: array[0], _batches(spans, labels, np.arange(9), 11))  # two of weight 0
    arrays = jax.tree.map(jax.numpy.asarray, (values, states))
    loss, gradients = jax.value_and_grad(_loss)(*arrays, batch)
    tensors = {name: torch.tensor(value, requires_grad=True) for name, value in values.items()}
    expected = loss_by_torch(tensors, states, spans, labels)
    expected.backward()
    assert float(loss) == pytest.approx(expected.item(), rel=1e-12)
    for name, tensor in tensors.items():
        np.testing.assert_allclose(gradients[name], tensor.grad, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.fixture(scope="module")
def learnable():
    """Pairs of spans, whose label says in which half of the units each span begins."""
    rng = np.random.default_rng(4)
    states, spans = rng.normal(size=(3, 40, 8)).astype(np.float32), random_spans(rng, 300, longest=1)
    states[1, :20, 3] += 6
    labels = 2 * (spans[:, 0, 0] < 20) + (spans[:, 1, 0] < 20)
    return states, spans, labels, np.arange(150), np.arange(150, 200)


@pytest.mark.parametrize("linear", [False, True])
def test_probes_learn_what_the_spans_have(learnable, linear):
    states, spans, labels, train, select = learnable
    probe = fit_edge_probe(states[1:2], spans, labels, train, select, linear=linear)
    assert (probe.predict(states[1:2], spans[200:]) == labels[200:]).mean() > 0.9
    again = fit_edge_probe(states[1:2], spans, labels, train, select, linear=linear)
    assert all(np.array_equal(value, again.parameters[name]) for name, value in probe.parameters.items())


def test_a_mix_is_of_its_layers_alone(learnable):
    states, spans, labels, train, select = learnable
    every = fit_edge_probe(states, spans, labels, train, select)
    assert every.mix_weights.argmax() == 1
    assert every.mix_weights.sum() == pytest.approx(1, abs=1e-6)
    two = fit_edge_probe(states, spans, labels, train, select, mixed=2)
    assert two.mix_weights[2] == 0
    changed = states + np.array([0, 0, 100], np.float32)[:, None, None]
    np.testing.assert_array_equal(two.predict(changed, spans), two.predict(states, spans))


def test_summaries_of_layers_are_weighted_means():
    assert centre_of_gravity(np.array([0.5, 0.1, 0.4])) == pytest.approx(0.9)
    assert expected_layer(np.array([0.2, 0.5, 0.4, 0.6])) == pytest.approx((0.3 - 0.2 + 0.6) / 0.4)
    assert expected_layer(np.array([0.6, 0.7, 0.6])) is None


def test_empty_spans_and_empty_training_are_refused(learnable):
    states, spans, labels, train, select = learnable
    with pytest.raises(InputError, match="at least one target"):
        fit_edge_probe(states, spans, labels, train[:0], select)
    with pytest.raises(InputError, match="target 3 has an empty span"):
        fit_edge_probe(states, np.where(np.arange(300)[:, None, None] == 3, 5, spans), labels, train, select)
