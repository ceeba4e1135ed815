"""Public functions with an argument of another type, shape or size, by seed; and what bertjax makes of them.

`cases(seed, count)` gives the same cases for the same seed, `outcome(case)` what came of one. What is accepted has to
give what a plainer way gives, or at least finite numbers of the right shapes.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np

import bertjax
from bertjax import BertConfig, BertForSentenceEmbedding, Tokenizer, collate
from bertjax.engine import plain
from bertjax.errors import BertjaxError
from bertjax.evidence import score
from bertjax.interventions import ablations as ab
from bertjax.interventions import overrides as ov
from bertjax.interventions import patching as pt
from bertjax.interventions import readouts
from tests.factories import SENTENCES, add_tokenizer, make_config
from tests.fuzz_utilities import LONGEST_MESSAGE, scratch, time_limit
from tests.tiny_models import random_model

OUTCOMES = ("accepted", "refused in one line")
BROKEN = ("traceback", "a message of more than a line", "argument not named", "hang", "silently wrong")
SECONDS, CLOSE = 60, 2e-5
FUNCTIONS = ("readout", "progress")
SWEEPS = 25  # one of so many cases runs a sweep or an estimate, which may compile
Call = tuple[Callable[..., Any], dict[str, Any], Callable[[Any, dict[str, Any]], bool]]


@dataclass(frozen=True)
class Case:
    """One case: `call` is a key of `calls()`, `number` the seed of which argument becomes what."""

    call: str
    number: int


def cases(seed: int, count: int) -> Iterator[Case]:
    """So many cases of all functions in turn."""
    slow = ("sweep", "estimate", "plain.run", "plain.sweep", "model")
    quick = [name for name in calls() if name not in slow]
    for place in range(count):
        name = slow[place // SWEEPS % len(slow)] if place % SWEEPS == SWEEPS - 1 else quick[place % len(quick)]
        yield Case(name, seed * 1_000_003 + place)


@cache
def fixtures() -> SimpleNamespace:
    """A model, a tokenizer, texts, a batch, and the model's output for it."""
    directory = scratch() / "python_fixtures"
    directory.mkdir()
    model = random_model(BertForSentenceEmbedding, make_config())
    model.save_pretrained(directory)
    tokenizer = Tokenizer.from_pretrained(add_tokenizer(directory))
    texts = tokenizer.encode(SENTENCES[:2])
    batch = collate(texts)
    named = {"directory": directory, "model": model, "config": model.config, "tokenizer": tokenizer}
    return SimpleNamespace(**named, texts=texts, batch=batch, output=model(batch))


@cache
def pool() -> dict[str, Callable[[], Any]]:
    """Values of many kinds, each made anew."""
    d = fixtures()
    numbers = (None, True, False, 0, 1, -1, 2, 3, 10**9, 2**31, 2**63, 10**400, 10**5000, -(10**5000), 0.5, 1.0, -0.0)
    more = (float("nan"), float("inf"), 1e308, 1e-320, 1j, "", "0.1", "0.1=zero", "x" * 5000, "\x1b[31m", "\ud800")
    texts = ("a\nb", "the cat", "float32", "uniform", "~nosuchuser", "nul\0", b"", b"\xff", (), [], {}, set(), [None])
    nested = (
        [[]],
        [[[]]],
        ["0.1"],
        [(0, 1)],
        [(0, 10**5000)],
        [0.5],
        [float("nan")],
        [1, "a"],
        [[1, 2], [3]],
        [10**400],
    )
    others = (
        {0: 1},
        {"0.1": 1},
        {"0.1": np.eye(4)},
        {(0, 1, 0, 0): 0.5},
        {"input_ids": [[2, 3]]},
        range(3),
        3 + 10**30,
    )
    arrays = (np.zeros(0), np.zeros((2, 3)), np.ones((2, 3), int), np.ones((3, 2)), np.ones((2, 3, 4)), np.array(0.5))
    odd = (np.full((2, 3), np.nan), np.ones((2, 3), complex), np.ones((2, 3), bool), np.array([None, "a"]))
    odder = (np.array(["a"]), np.zeros(2, "M8[s]"), np.zeros(2, [("a", int)]), np.float16(3), np.zeros((2, 0)))
    tall = (np.full((2, 3), 2**63 - 1), np.full((1, 99), 2), np.ma.masked_array([1, 2], [0, 1]), np.float64(1e300))
    device = (jnp.ones((2, 3)), jnp.ones((2, 3), int), jnp.array(2), jnp.ones((2, 3, 4)), jax.devices()[0])
    things = (object(), int, ValueError("x"), len, lambda *_: None, d.model, d.tokenizer, d.texts, d.texts[0], d.output)
    last = (d.config, d.batch, d.directory, Path("/nowhere"), ov.identity(d.config), ab.single_heads(d.config))
    each = (*numbers, *more, *texts, *nested, *others, *arrays, *odd, *odder, *tall, *device, *things, *last)
    made: dict[str, Callable[[], Any]] = {
        f"{place} ({type(one).__name__})": lambda one=one: one for place, one in enumerate(each)
    }  # type: ignore[misc]
    return {**made, "generator": lambda: (one for one in ("0.1", "1.1")), "iterator": lambda: iter([1, 2])}


# ---- what is called, and what must come of it -----------------------------------------------------------------------
def _finite(found: Any, given: dict[str, Any]) -> bool:
    """All numbers of overrides, and whatever else is a tree of arrays, are finite."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(found) if hasattr(leaf, "dtype")]
    return all(bool(np.isfinite(leaf).all()) for leaf in leaves if leaf.dtype.kind in "fc")


def _overrides(found: Any, given: dict[str, Any]) -> bool:
    """Overrides that run, and change no layer before the first one that they name."""
    return isinstance(found, bertjax.Overrides) and _finite(found, given) and found.weights_gate.shape == (2, 3)


def _ran(found: Any, given: dict[str, Any]) -> bool:
    ids = np.asarray(given["input_ids"])
    width = fixtures().config.hidden_size
    return _finite(found, given) and (ids.ndim != 2 or found.last_hidden_state.shape == (*ids.shape, width))


def _encoded(found: Any, given: dict[str, Any]) -> bool:
    """[CLS] and [SEP] at the ends, ids of the vocabulary, no more tokens than were asked for."""
    most, size = given["max_length"] or 10**9, fixtures().tokenizer.vocab_size
    rows = [one.input_ids for one in found]
    return all(row[0] == 2 and row[-1] == 3 and len(row) <= most and max(row) < size for row in rows)


def _swept(found: Any, given: dict[str, Any]) -> bool:
    """A row for each ablation, equal to a run of the model with its overrides."""
    if not isinstance(given["readout"], type(readouts.logits)) or given["readout"] is not readouts.sentence_embedding:
        return True
    if given["examples"] is not fixtures().texts or given["model"] is not fixtures().model:
        return bool(np.isfinite(found.base).all())
    runs = [
        fixtures().model(fixtures().batch, overrides=ab.to_overrides(fixtures().config, one))
        for one in given["ablations"]
    ]
    apart = [np.abs(ours - run.sentence_embedding).max() for ours, run in zip(found.outputs, runs, strict=True)]
    return max(apart) < CLOSE


def _any(found: Any, given: dict[str, Any]) -> bool:
    return found is not None


@cache
def calls() -> dict[str, Call]:
    """Functions with arguments that fit, and what says whether a result is sensible."""
    changes = _calls_of_overrides() | _calls_of_patching() | _calls_of_ablations()
    return _calls_of_models() | changes | _calls_of_statistics()


def _calls_of_models() -> dict[str, Call]:
    d, reads = fixtures(), readouts.sentence_embedding
    sweep = {"model": d.model, "examples": d.texts, "ablations": ab.single_heads(d.config)[:2], "readout": reads}
    limits: dict[str, Any] = {"memory": None, "attention": "auto", "means": None, "donors": None, "at": None}
    more = {"row_length": None, "one_per_row": False, "tokens_at_once": None, "devices": None, "progress": False}
    one = ov.zero(d.config, ["0.1"])
    stacked = ov.stack([one])
    return {
        "load": (bertjax.load, {"name_or_path": d.directory, "dtype": "float32", "precision": None, "seed": 0}, _any),
        "Tokenizer": (Tokenizer.from_pretrained, {"name_or_path": d.directory}, _any),
        "encode": (d.tokenizer.encode, {"first": ["the cat"], "second": None, "max_length": None}, _encoded),
        "decode": (d.tokenizer.decode, {"ids": [2, 9, 3], "skip_special_tokens": False}, _any),
        "collate": (collate, {"encodings": d.texts, "length": None, "pad_id": 0}, _any),
        "model": (d.model, {**d.batch, "position_ids": None, "overrides": None}, _ran),
        "BertConfig": (BertConfig, {"hidden_size": 12, "num_attention_heads": 3, "layer_norm_eps": 1e-12}, _any),
        "read_results": (bertjax.read_results, {"directory": d.directory}, _any),
        "sweep": (bertjax.sweep, {**sweep, **limits, **more}, _swept),
        "estimate": (bertjax.estimate, {**sweep, "memory": None, "attention": "auto"}, _any),
        "plain.run": (plain.run, {"model": d.model, "inputs": d.batch, "overrides": stacked, "readout": reads}, _any),
        "plain.sweep": (
            plain.sweep,
            {"model": d.model, "batches": [([0, 1], d.batch)], "overrides": [one], "readout": reads},
            _any,
        ),
    }


def _calls_of_overrides() -> dict[str, Call]:
    d, heads, edges = fixtures(), ["0.1", "1.2"], [(0, 1, 0, 0)]
    c: dict[str, Any] = {"config": d.config}
    one = ov.zero(d.config, ["0.1"])
    return {
        "uniform": (ov.uniform, {**c, "heads": heads, "gate": 0.5}, _overrides),
        "factor": (ov.factor, {**c, "heads": heads, "factor": 0.5}, _overrides),
        "zero": (ov.zero, {**c, "heads": heads}, _overrides),
        "mean": (ov.mean, {**c, "heads": heads, "means": np.ones((2, 3, 4)), "gate": 0.0}, _overrides),
        "fixed": (ov.fixed, {**c, "weights": {"0.1": np.eye(4)}}, _overrides),
        "patched_weights": (ov.patched_weights, {**c, "heads": heads, "donor": d.output}, _overrides),
        "patched_outputs": (ov.patched_outputs, {**c, "heads": heads, "donor": d.output, "gate": 0.0}, _overrides),
        "forbidden_edges": (ov.forbidden_edges, {**c, "edges": edges, "example": 0}, _overrides),
        "fixed_edges": (ov.fixed_edges, {**c, "edges": {edges[0]: 0.5}, "example": 0}, _overrides),
        "parse_head": (ov.parse_head, {"head": "0.1", **c}, _any),
        "heads_of_layer": (ov.heads_of_layer, {**c, "layer": 1}, _any),
        "stack": (ov.stack, {"overrides": [one, one]}, _finite),
    }


def _calls_of_patching() -> dict[str, Call]:
    d, mask, vector = fixtures(), np.ones((2, _length()), np.float32), np.ones(4, np.float32)
    c: dict[str, Any] = {"config": d.config, "place": "head_outputs"}
    one = ov.zero(d.config, ["0.1"])
    return {
        "patched": (pt.patched, {**c, "where": ["0.1"], "donor": d.output, "tokens": [1], "share": 0.5}, _overrides),
        "replaced": (pt.replaced, {**c, "values": {"0.1": vector}, "tokens": mask}, _overrides),
        "at_tokens": (pt.at_tokens, {"override": one, "tokens": mask}, _overrides),
        "token_mask": (pt.token_mask, {"tokens": [1, 2], "batch": 2, "length": 5}, _finite),
    }


def _length() -> int:
    """Tokens of each text of the batch, with its padding."""
    return int(fixtures().batch["input_ids"].shape[1])


def _calls_of_statistics() -> dict[str, Call]:
    rng = np.random.default_rng(0)
    outputs, labels = rng.normal(size=(2, 6, 2)), np.array([0, 1, 1, 0, 1, 0])
    given = {"metric": "accuracy", "base": rng.normal(size=(6, 2)), "outputs": outputs, "labels": labels}
    more = {"positive": 1, "resamples": 20, "draws": 20, "seed": 0, "units": None, "progress": False}
    return {
        "weigh": (bertjax.weigh, {**given, **more}, _any),
        "score": (score, {"metric": "f1", "outputs": outputs, "labels": labels, "positive": 1}, _any),
    }


def _calls_of_ablations() -> dict[str, Call]:
    d, heads = fixtures(), ["0.1", "1.2"]
    c: dict[str, Any] = {"config": d.config}
    single = ab.single_heads(d.config)[0]
    return {
        "ablation": (ab.ablation, {**c, "heads": heads, "mode": "zero", "name": "x"}, _any),
        "single_heads": (ab.single_heads, {**c, "mode": "zero"}, _any),
        "head_pairs": (ab.head_pairs, {**c, "mode": "zero", "heads": heads}, _any),
        "cumulative": (ab.cumulative, {**c, "mode": "zero", "order": heads}, _any),
        "random_subsets": (ab.random_subsets, {**c, "mode": "zero", "size": 2, "count": 3, "seed": 0}, _any),
        "Change": (ab.Change, {"layer": 0, "head": 1, "mode": "zero", "share": 1.0}, _any),
        "Ablation": (ab.Ablation, {"name": "x", "changes": (ab.Change(0, 1),)}, _any),
        "to_overrides": (
            ab.to_overrides,
            {**c, "ablation": single, "means": None, "donor": None},
            _overrides,
        ),
    }


# Other words for an argument in messages.
WORDS = {
    "name_or_path": ("path", "directory", "model", "home", "hub"),
    "directory": ("path", "directory", "results", "home"),
    "first": ("text",),
    "second": ("text",),
    "ids": ("token", "id "),
    "encodings": ("text", "Encoding", "encoding"),
    "row_length": ("row",),
    "heads": ("head",),
    "head": ("head",),
    "order": ("head",),
    "layer": ("head", "layer"),
    "size": ("subset",),
    "count": ("sets",),
    "share": ("share",),
    "changes": ("Change", "head"),
    "examples": ("text", "input_ids", "batch", "row", "example"),
    "ablations": ("ablat", "head", "mode"),
    "batches": ("batch", "input_ids", "numbers"),
    "inputs": ("input_ids", "batch", "row", "attention_mask", "tokenizer="),
    "input_ids": ("batch", "row", "attention_mask", "texts", "tokenizer"),
    "attention_mask": ("mask", "token"),
    "overrides": ("override", "Overrides", "head"),
    "gate": ("gate", "factor"),
    "factor": ("factor", "gate", "head"),
    "edges": ("edge", "head"),
    "donor": ("donor", "model"),
    "donors": ("donor", "text", "batch"),
    "weights": ("weights", "head"),
    "ablation": ("blation",),
    "at": ("`at`", "position"),
    "where": ("head",),
    "place": ("place",),
    "values": ("head", "layer"),
    "override": ("Overrides", "overrides"),
    "length": ("length", "position"),
    "hidden_size": ("hidden_size", "num_attention_heads"),
    "num_attention_heads": ("hidden_size",),
}


def outcome(case: Case) -> str:
    """What comes of a case: one of `OUTCOMES` or, with what is wrong behind a colon, of `BROKEN`."""
    rng = random.Random(case.number)
    function, fitting, sensible = calls()[case.call]
    name, value = rng.choice(list(fitting)), rng.choice(list(pool()))
    if name in FUNCTIONS and callable(pool()[value]()):  # what a user's own function raises is the user's
        value = "generator"
    given = {**fitting, name: pool()[value]()}
    what = f"{case.call}({name} = number {value})"
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)  # users have no checks of types
    try:
        with time_limit(SECONDS):
            found = function(**given)
            return "accepted" if sensible(found, given) else f"silently wrong: {what} gives {str(found)[:300]}"
    except BertjaxError as error:
        text = str(error)
        if len(text) > LONGEST_MESSAGE or not text.isprintable():
            return f"a message of more than a line: {what}: {text[:500]!r}"
        if not any(word in text for word in (name, *WORDS.get(name, ()))):
            return f"argument not named: {what}: {text}"
        return "refused in one line"
    except TimeoutError:
        return f"hang: {what}"
    except Exception as error:
        return f"traceback: {what}: {type(error).__name__}: {str(error)[:300]}"
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
