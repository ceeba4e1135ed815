"""What a sweep computes, checked: a model, a plan, texts, and what to keep of each run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import jax
import numpy as np
from jaxtyping import Float, Int, Int32, Shaped

from bertjax import arguments
from bertjax.arguments import HoldsArray
from bertjax.checkpoints import BertConfig
from bertjax.data import Encoding, Tokenizer
from bertjax.engine.packing import is_new, total_lengths
from bertjax.engine.plan import Plan, make_plan
from bertjax.errors import InputError, OverrideError, some_of
from bertjax.interventions import (
    GIVE_MEANS,
    Ablation,
    Inspected,
    Readout,
    check_at_positions,
    inspect_readout,
    readouts,
)
from bertjax.models import (
    Numerics,
    PretrainedModel,
    check_attention,
    check_not_traced,
    check_parameters,
    packed_layer,
    pallas_attention,
    read_batch,
    unsupported_features,
)

# The form of attention with which a sweep is fastest, by device and dtype; elsewhere the explicit one. On a GPU it was
# measured (`benchmarks.sweep`), for a TPU its compiler counts bytes (`benchmarks.tpu_compile`): benchmarks/RESULTS.md.
FASTEST = {("gpu", "bfloat16"): "fused", ("gpu", "float16"): "fused", ("tpu", "bfloat16"): "pallas"}

# Makes one output of those of an example's texts.
Combine = Callable[..., np.ndarray]
# Tokenised texts (`Tokenizer.encode`), their token ids, plain texts, or for each example several of them, that are run
# apart; or a batch as `collate` and the tokenizers of `transformers` make it.
Examples: TypeAlias = Sequence[Encoding] | Sequence[Sequence[Encoding]] | Sequence[Any] | Mapping[str, Any] | HoldsArray
# Up to which share of all tokens the last layer is computed at asked ones alone, whose scores cost more each: measured
# with 384 dimensions and 12 heads, 0.15 of them took 0.82 of the time of a whole sweep, 0.30 0.92, 0.45 1, 0.60 1.14.
LARGEST_SHARE = 0.4
LARGEST_NUMBER = 2**31 - 1  # of a token, in a row
Texts: TypeAlias = list[tuple[Encoding, ...]]
# Of each example, for each of its texts, the span of each token.
Spans: TypeAlias = list[tuple[Int32[np.ndarray, " _"], ...]]

EXPECTED = (
    "a list of tokenised texts (Tokenizer.encode), a batch, rows of token ids, or with a tokenizer a list of texts"
)


@dataclass(frozen=True)
class SweepInput:
    """What a sweep computes.

    Args:
        texts: of each example, one or several.
        combine: makes one output of the readouts of an example's texts.
        means: outputs that mode 'mean' puts in place of the heads' own.
        sources: texts whose head outputs mode 'patched' puts there, as many and as long as `texts`.
        positions: tokens of each example at which the readout is taken; None for all.
        targets: what the readout takes of each example beside the model's output.
        reading: what the readout asks for and gives.
        attention: the form of attention (`Numerics.attention`) of all layers but a last one at [CLS] alone.
        few_asked: whether the readout reads tokens one at a time, so few that the last layer is computed there alone.
        spans: of each text the span of each token, -1 for none, where changes act at some spans alone.
    """

    model: PretrainedModel
    plan: Plan
    texts: Texts
    readout: Readout
    combine: Combine
    means: Float[np.ndarray, "layers heads head_dim"] | None
    sources: Texts | None
    positions: Int[np.ndarray, "examples wanted"] | None
    targets: Shaped[np.ndarray, "examples ..."] | None
    reading: Inspected
    attention: str
    few_asked: bool = False
    spans: Spans | None = None

    @property
    def numerics(self) -> Numerics:
        """The model's, with this sweep's form of attention; narrow on accelerators, whose limit is what they move."""
        narrow = self.model.numerics.narrow or jax.default_backend() != "cpu"
        return replace(self.model.numerics, attention=self.attention, narrow=narrow)

    @property
    def first_only(self) -> bool:
        """Whether [CLS] is all that the readout needs of the last layer."""
        return self.reading.first_only and self.positions is None and not self._needs_whole_last

    @property
    def _needs_whole_last(self) -> bool:
        """Whether the last layer's queries, keys or values are changed, which are not computed for some tokens."""
        return bool({"queries", "keys", "values"} & {*self.plan.sites(self.plan.layers - 1)})

    @property
    def by_token(self) -> bool:
        """Whether the readout reads chosen tokens one at a time, so that each is computed by itself."""
        positions, targets = self.positions, self.targets
        alike = targets is None or (positions is not None and targets.shape[:2] == positions.shape)
        return positions is not None and alike and readouts.reads_each_token(self.readout)

    @property
    def short_last(self) -> bool:
        """Whether the last layer is computed at some tokens alone."""
        return self.first_only or self.few_asked

    @cached_property
    def asked(self) -> Int[np.ndarray, " examples"]:
        """How often the readout of each example is taken: for each text, or for each token where it reads those."""
        if self.by_token:
            assert self.positions is not None
            return is_new(self.positions, self.targets).sum(axis=1)
        return np.full(len(self.texts), len(self.texts[0]))

    def row_bytes(self, asked: int, ahead: int) -> int:
        """Bytes that reading a row takes, by how often the readout is taken there and by how many readouts wait.

        Texts are taken apart, each as long as the longest, and what the readout asks for is made of them.
        """
        config, given = self.model.config, self.reading.given
        tokens = 1 if self.first_only else self.tokens
        parts = self.tokens if self.by_token else 1  # of what is known of a whole text
        hidden = tokens * config.hidden_size * np.dtype(self.model.numerics.wide).itemsize
        waiting = given.size * given.dtype.itemsize * ahead
        return -(-asked * (2 * hidden + 2 * self.reading.read_bytes + waiting) // parts)

    @cached_property
    def tokens(self) -> int:
        """At how many tokens of a text the readout is taken."""
        longest = max(len(text) for several in self.texts for text in several)
        return longest if self.positions is None else self.positions.shape[1]

    @property
    def output_bytes(self) -> int:
        """Bytes of all outputs."""
        given = self.reading.given
        output = self.combine(*np.ones((len(self.texts[0]), *given.shape), given.dtype))
        return (len(self.plan.ablations) + 1) * len(self.texts) * output.nbytes


def make_sweep_input(
    model: PretrainedModel,
    examples: Examples,
    ablations: Sequence[Ablation],
    readout: Readout,
    *,
    combine: Combine | None = None,
    means: Float[np.ndarray, "layers heads head_dim"] | None = None,
    sources: Examples | None = None,
    at: Sequence[Sequence[int]] | Int[np.ndarray, "examples wanted"] | None = None,
    targets: Any = None,
    attention: str = "auto",
    tokenizer: Tokenizer | None = None,
    spans: Sequence[Any] | None = None,
) -> SweepInput:
    """Check what a sweep is to compute; the arguments are those of `engine.sweep`.

    Raises:
        OverrideError: a head that the model does not have, mode 'mean' without means or 'patched' without sources.
        InputError: examples, sources or positions that do not fit each other, nothing to ablate, or a form of attention
            that there is not.
    """
    _check_model(model, examples)
    form = choose_attention(attention, model.numerics, model.config)
    check_attention(model.config, form)
    plan = make_plan(model.config, ablations)
    find: Callable[[], Tokenizer | None] = (lambda: model.tokenizer) if tokenizer is None else lambda: tokenizer
    texts = read_texts(examples, find)
    given = texts if sources is examples else None if sources is None else read_texts(sources, find, "sources")
    if len(texts[0]) > 1 and combine is None:
        raise InputError(f"each example has {len(texts[0])} texts: give combine, which makes one output of theirs")
    means = None if means is None else _check_means(model, means)
    if means is None and "mean" in plan.replacements():
        raise OverrideError(f"mode 'mean' replaces heads by their mean outputs: {GIVE_MEANS}")
    if given is None and "source" in plan.replacements():
        raise OverrideError("mode 'patched' takes heads' outputs from other texts: give sources=, of equal lengths")
    if given is not None and given is not texts:
        _check_sources(texts, given)
    positions = None if at is None else _check_positions(texts, at)
    longest = max(len(text) for several in texts for text in several)
    targets = None if targets is None else _check_targets(texts, targets)
    shape = None if targets is None else jax.ShapeDtypeStruct((1, *targets.shape[1:]), targets.dtype)
    reading = inspect_readout(model, readout, longest if positions is None else positions.shape[1], shape)
    if positions is not None:
        check_at_positions(model, reading)
    if combine is not None:
        _check_combine(combine, len(texts[0]), reading.given)
    made = SweepInput(
        model=model,
        plan=plan,
        texts=texts,
        readout=readout,
        combine=combine or only_text,
        means=means,
        sources=given,
        positions=positions,
        targets=targets,
        reading=reading,
        attention=form,
        spans=_check_spans(texts, plan, spans),
    )
    return replace(made, few_asked=_few_asked(made))


def _check_model(model: PretrainedModel, examples: Examples) -> None:
    """Refuse what is no model, a call where no sweep can run, and weights that are not finite."""
    arguments.check_instance(model, "model", PretrainedModel, "a model of bertjax (bertjax.load)")
    check_not_traced("a sweep", model.parameters(), examples)
    check_parameters(model)


def _few_asked(sweep_input: SweepInput) -> bool:
    """Whether it is worth while to compute the last layer at asked tokens alone, and it can be."""
    if not sweep_input.by_token or sweep_input._needs_whole_last:
        return False
    share = sweep_input.asked.sum() / total_lengths(sweep_input.texts).sum()
    return bool(
        share <= LARGEST_SHARE and packed_layer.may_ask_anywhere(sweep_input.model.config.architecture.layers[-1])
    )


def choose_attention(asked: str, numerics: Numerics | None = None, config: BertConfig | None = None) -> str:
    """The form of attention of a sweep: as asked, or for 'auto' the model's own, or else what is fastest here.

    Args:
        asked: 'auto' or a form.
        numerics: the model's; a form other than 'explicit' was chosen for it.
        config: the model's; for 'auto' no form is chosen that cannot compute its layers. None where it is not known.

    Raises:
        InputError: there is no such form.
    """
    if not (isinstance(asked, str) and asked == "auto"):
        return replace(numerics or Numerics(), attention=asked).attention  # refused where there is no such form
    numerics = numerics or Numerics()
    if numerics.attention != "explicit":
        return numerics.attention
    return fastest_attention(jax.default_backend(), numerics, config)


def fastest_attention(platform: str, numerics: Numerics, config: BertConfig | None = None) -> str:
    """The form of attention with which a sweep is fastest on a platform; explicit where that lacks what a model does.

    Heads that do not fill a TPU's lanes have a kernel there that moves more than the explicit form.
    """
    fastest = FASTEST.get((platform, numerics.dtype), "explicit")
    if config is None or fastest != "pallas":
        return fastest
    fits = pallas_attention.fills_lanes(config.head_dim) and not unsupported_features(config, fastest)
    return fastest if fits else "explicit"


def only_text(vectors: Shaped[np.ndarray, "*readout"]) -> Shaped[np.ndarray, "*readout"]:
    """What stands for an example of a single text: its readout."""
    return vectors


def _check_means(model: PretrainedModel, means: Any) -> Float[np.ndarray, "layers heads head_dim"]:
    config = model.config
    wanted = (config.num_hidden_layers, config.num_attention_heads, config.head_dim)
    means = np.asarray(arguments.as_array(means, "means", OverrideError))
    if means.shape != wanted:
        raise OverrideError(f"means have shape {means.shape}, expected [layers, heads, head_dim] {wanted}")
    if not np.isfinite(means).all():
        raise OverrideError("means are not finite: look for NaN or infinity in them")
    return means


def _check_sources(texts: Texts, sources: Texts) -> None:
    if len(sources) != len(texts):
        raise InputError(f"there are {len(sources)} sources for {len(texts)} examples")
    for number, (texts_of_example, texts_of_source) in enumerate(zip(texts, sources, strict=True)):
        lengths, source_lengths = ([len(text) for text in several] for several in (texts_of_example, texts_of_source))
        if lengths != source_lengths:
            raise InputError(
                f"source {number} has {source_lengths} tokens, its example {lengths}: patching needs them alike"
            )


def _check_spans(texts: Texts, plan: Plan, spans: Sequence[Any] | None) -> Spans | None:
    """Spans of all tokens, where something is changed at some of them alone.

    Raises:
        InputError: spans that do not fit the examples' tokens.
        OverrideError: changes at spans that are not given.
    """
    asked = {span for ablation in plan.ablations for change in ablation.changes for span in change.at}
    if spans is None:
        if asked:
            raise OverrideError("an ablation acts at spans of tokens: give spans=, the span of each token, -1 for none")
        return None
    given = arguments.check_sequence(spans, "spans", "for each example the span of each token")
    if len(given) != len(texts):
        raise InputError(f"spans are given for {len(given)} examples, but there are {len(texts)}")
    checked = []
    for number, (several, own) in enumerate(zip(texts, given, strict=True)):
        parts = [own] if len(several) == 1 and np.ndim(own) == 1 else list(own)
        arrays = [np.asarray(arguments.as_array(part, "spans")) for part in parts]
        lengths, wanted = [len(array) for array in arrays], [len(text) for text in several]
        if lengths != wanted or any(array.ndim != 1 or array.dtype.kind not in "iu" for array in arrays):
            raise InputError(f"spans of example {number} must be whole numbers for {wanted} tokens, found {lengths}")
        checked.append(tuple(array.astype(np.int32) for array in arrays))
    most = max(int(array.max()) for several in checked for array in several)
    if asked and max(asked) > most:
        raise OverrideError(f"an ablation acts at span {max(asked)}, but no token is in one beyond {most}")
    return checked if asked else None


def _check_combine(combine: Combine, texts: int, given: jax.ShapeDtypeStruct) -> None:
    """Raise `InputError` where it does not make one array, with an output for each example."""
    arguments.check_function(combine, "combine", "a function of the readouts of an example's texts")
    combined = combine(*np.ones((texts, 2, *given.shape[1:]), given.dtype))
    if not isinstance(combined, np.ndarray | np.generic | jax.Array) or combined.shape[:1] != (2,):
        arguments.refuse("what combine returns for 2 examples", "an array [examples, ...]", combined)


def _check_positions(
    texts: Texts, at: Sequence[Sequence[int]] | Int[np.ndarray, "examples wanted"]
) -> Int[np.ndarray, "examples wanted"]:
    expected = "for each example a list of positions"
    rows = at if isinstance(at, np.ndarray) and at.ndim == 2 and at.dtype.kind in "iu" else None
    if rows is None:
        given = (
            arguments.check_sequence(wanted, "`at`", expected)
            for wanted in arguments.check_sequence(at, "`at`", expected)
        )
        lists = [[arguments.check_int(position, "a position of `at`") for position in wanted] for wanted in given]
        rows = np.array(lists, np.int64) if len({len(wanted) for wanted in lists}) == 1 else np.zeros((0, 0), np.int64)
    if len(rows) != len(texts) or not rows.shape[1]:
        raise InputError("`at` needs the same number of positions for each example, at least one")
    if any(len(several) != 1 for several in texts):
        raise InputError("`at` is for examples of a single text")
    lengths = total_lengths(texts)
    outside = np.flatnonzero(((rows < 0) | (rows >= lengths[:, None])).any(axis=1)).tolist()
    if outside:
        number = outside[0]
        asked = some_of([*map(str, rows[number].tolist())])
        raise InputError(f"example {number} has tokens 0 to {lengths[number] - 1}, but `at` asks for {asked}")
    return rows.astype(np.int32)


def _check_targets(texts: Texts, targets: Any) -> Shaped[np.ndarray, "examples ..."]:
    """Targets with an entry for each example. Raises `InputError` where they are none."""
    array = np.asarray(arguments.as_array(targets, "targets"))
    if array.shape[:1] != (len(texts),):
        raise InputError(f"targets have shape {array.shape}, but there are {len(texts)} examples: give one for each")
    if any(len(several) != 1 for several in texts):
        raise InputError("`targets` are for examples of a single text")
    wide = {"i": np.int32, "u": np.int32, "b": np.bool_}.get(array.dtype.kind)
    return array if wide is None or array.dtype.itemsize <= 4 else array.astype(wide)


def read_texts(examples: Examples, find_tokenizer: Callable[[], Tokenizer | None], name: str = "examples") -> Texts:
    """The tokenised texts of each example.

    Args:
        find_tokenizer: for texts that are not tokenised; called only if there are some.
        name: of the argument, for messages.

    Raises:
        InputError: something that is not a text, a batch padded on the left, or examples with different numbers of
            texts.
    """
    if isinstance(examples, Mapping):
        texts: Texts = [(text,) for text in _rows_of(examples)]
    else:
        given = arguments.check_sequence([examples] if isinstance(examples, str) else examples, name, EXPECTED)
        texts = _tokenised([(text,) if _is_text(text) else text for text in given], find_tokenizer, name)
    total_lengths(texts)
    counts = sorted({len(several) for several in texts})
    if len(counts) > 1:
        raise InputError(f"{name} have {counts[0]} to {counts[-1]} texts: all need the same number")
    return texts


def _tokenised(examples: Sequence[Any], find_tokenizer: Callable[[], Tokenizer | None], name: str) -> Texts:
    """Examples with their plain texts tokenised, all at once."""
    texts: list[tuple[Any, ...]] = []
    for number, example in enumerate(examples):
        several = isinstance(example, list | tuple) or getattr(example, "ndim", None) == 2
        if not several or not all(map(_is_text, example)):
            raise InputError(
                f"{name} must be {EXPECTED}, but number {number} (from 0) is {arguments.describe(example)}"
            )
        texts.append(tuple(text if isinstance(text, str | Encoding) else _of_ids(text, name) for text in example))
    plain = [text for several in texts for text in several if isinstance(text, str)]
    if not plain:
        return texts
    tokenizer = find_tokenizer()
    if tokenizer is None:
        raise InputError(
            f"{name} are plain texts, and the model has no tokenizer: give tokenizer=bertjax.Tokenizer.from_pretrained"
            "(...) as well"
        )
    expected = "a bertjax.Tokenizer (Tokenizer.from_pretrained)"
    encodings = iter(arguments.check_instance(tokenizer, "tokenizer", Tokenizer, expected).encode(plain))
    return [tuple(next(encodings) if isinstance(text, str) else text for text in several) for several in texts]


def _is_text(value: Any) -> bool:
    """Whether something stands for one text: the text itself, tokenised or not, or its token ids."""
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(number, int | np.integer) for number in value)
    return isinstance(value, str | Encoding) or getattr(value, "ndim", None) == 1


def _of_ids(ids: Any, name: str) -> Encoding:
    """A text of token ids alone, all of them real."""
    row = np.asarray(arguments.as_array(ids, name))
    if not np.issubdtype(row.dtype, np.integer):
        arguments.refuse(f"rows of {name}", "token ids", ids)
    _check_range(row, name)
    return Encoding(tuple(row.tolist()), (0,) * len(row), (), (), False)


def _check_range(row: Shaped[np.ndarray, " _token"], name: str) -> None:
    """Raise `InputError` for numbers that are none of a token, and that rows of a sweep could not hold."""
    beyond = row[(row < 0) | (row > LARGEST_NUMBER)]
    if beyond.size:
        raise InputError(f"{beyond[0]} in {name} is no number of a token: these are from 0 to {LARGEST_NUMBER}")


def _rows_of(batch: Mapping[str, Any]) -> list[Encoding]:
    """The texts of a batch, without padding."""
    given = read_batch({"input_ids": batch})
    if given.get("position_ids") is not None:
        raise InputError("a sweep numbers the positions of each text itself: leave out position_ids")
    ids = _rows(given, "input_ids")
    masks = _rows(given, "attention_mask", [row * 0 + 1 for row in ids])
    types = _rows(given, "token_type_ids", [row * 0 for row in ids])
    encodings = []
    for number, row in enumerate(ids):
        if not (number < min(len(masks), len(types)) and row.shape == masks[number].shape == types[number].shape):
            raise InputError(f"row {number} of the batch has arrays of unequal lengths, or lacks one")
        length = int((masks[number] != 0).sum())
        if not masks[number][:length].all():
            raise InputError(f"row {number} of the batch is padded on the left or within: pad it on the right")
        real = slice(0, length)
        encodings.append(Encoding(tuple(row[real].tolist()), tuple(types[number][real].tolist()), (), (), False))
    return encodings


def _rows(
    given: Mapping[str, Any], name: str, default: list[Int[np.ndarray, " _token"]] | None = None
) -> list[Int[np.ndarray, " _token"]]:
    """The rows of one array of a batch; without padding they may be of different lengths."""
    if default is not None and given.get(name) is None:
        return default
    rows = [
        np.asarray(arguments.as_array(row, name))
        for row in arguments.check_sequence(given[name], name, "[batch, token]")
    ]
    for row in rows:
        if row.ndim != 1 or not (np.issubdtype(row.dtype, np.integer) or row.dtype == np.bool_):
            arguments.refuse(name, "integers [batch, token]", given[name])
        _check_range(row, name)
    return rows
