"""The checked input of a sweep: a model, a plan, texts and a readout."""

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
    check_source_model,
    inspect_readout,
    readouts,
)
from bertjax.models import (
    BertForSequenceClassification,
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

# The fastest form of attention in a sweep, by device and dtype; "explicit" for all others. Measured on a GPU
# (`benchmarks.sweep`); for a TPU, its compiler counted bytes (`benchmarks.tpu_compile`): benchmarks/RESULTS.md.
FASTEST = {("gpu", "bfloat16"): "fused", ("gpu", "float16"): "fused", ("tpu", "bfloat16"): "pallas"}

# Combines the readouts of an example's texts into one output.
Combine = Callable[..., np.ndarray]
# Tokenised texts (`Tokenizer.encode`), token ids, strings, or several of these for each example, which are run
# separately; or a batch from `collate` or a tokenizer of `transformers`.
Examples: TypeAlias = Sequence[Encoding] | Sequence[Sequence[Encoding]] | Sequence[Any] | Mapping[str, Any] | HoldsArray
# The last layer is computed only at the readout's tokens if they are at most this share of all tokens, since attention
# costs more for each of them. Measured with 384 dimensions and 12 heads: a share of 0.15 took 0.82 of the time of a
# full last layer, 0.30 took 0.92, 0.45 took 1, 0.60 took 1.14.
LARGEST_SHARE = 0.4
LARGEST_TOKEN_ID = 2**31 - 1
Texts: TypeAlias = list[tuple[Encoding, ...]]
# For each text of each example, the span of each token.
Spans: TypeAlias = list[tuple[Int32[np.ndarray, " _"], ...]]

EXPECTED = "a list of tokenised texts (Tokenizer.encode), a batch, rows of token ids, or a list of str with a tokenizer"


@dataclass(frozen=True)
class SweepInput:
    """What a sweep computes.

    Args:
        model: the model.
        plan: the trie of the ablations.
        texts: one or several for each example.
        readout: computes the outputs of a text.
        combine: combines the readouts of an example's texts into one output.
        means: the heads' mean outputs, for mode 'mean'.
        sources: texts whose activations mode 'patched' uses, with as many tokens as `texts`.
        positions: token positions of each example that the readout reads; None for all.
        targets: second argument of the readout, for each example.
        reading: the fields that the readout uses, and the shape of its result.
        attention: the form of attention (`Numerics.attention`) of all layers but a `cls_only` one.
        few_picks: whether the readout reads so few tokens, each by itself, that the last layer is computed only there.
        spans: the span of each token, -1 for none, if changes act at some spans; else None.
        source_model: the model whose parameters modes 'restored' and 'redrawn' use.
    """

    model: PretrainedModel
    plan: Plan
    texts: Texts
    readout: Readout
    combine: Combine
    means: Float[np.ndarray, "layers heads head_dim"] | None
    sources: Texts | None
    positions: Int[np.ndarray, "examples targets"] | None
    targets: Shaped[np.ndarray, "examples ..."] | None
    reading: Inspected
    attention: str
    few_picks: bool = False
    spans: Spans | None = None
    source_model: PretrainedModel | None = None

    @property
    def numerics(self) -> Numerics:
        """The model's numerics with this sweep's form of attention; narrow on accelerators, which are memory-bound."""
        narrow = self.model.numerics.narrow or jax.default_backend() != "cpu"
        return replace(self.model.numerics, attention=self.attention, narrow=narrow)

    @property
    def first_only(self) -> bool:
        """Whether the readout needs the last layer only at [CLS]."""
        return self.reading.first_only and self.positions is None and not self._needs_whole_last

    @property
    def models(self) -> int:
        """The number of models whose layers run: 2 if some parameters are those of a source model."""
        return 1 if self.source_model is None else 2

    @property
    def ignores_padding(self) -> bool:
        """Whether the readout uses only fields of whole texts, which do not depend on padding."""
        of_texts = {"sentence_embedding", "pooler_output", "score", "seq_relationship_logits"}
        classifies = isinstance(self.model, BertForSequenceClassification)
        return self.reading.fields <= of_texts | ({"logits"} if classifies else set())

    @property
    def _needs_whole_last(self) -> bool:
        """Whether the last layer's queries, keys or values are changed, which a `cls_only` layer does not compute."""
        return bool({"queries", "keys", "values"} & {*self.plan.sites(self.plan.layers - 1)})

    @property
    def by_token(self) -> bool:
        """Whether the readout reads each of its tokens by itself."""
        positions, targets = self.positions, self.targets
        same_shape = targets is None or (positions is not None and targets.shape[:2] == positions.shape)
        return positions is not None and same_shape and readouts.reads_each_token(self.readout)

    @property
    def cls_only(self) -> bool:
        """Whether the last layer is computed at [CLS], or at the tokens that the readout reads, and nowhere else."""
        return self.first_only or self.few_picks

    @cached_property
    def readings(self) -> Int[np.ndarray, " examples"]:
        """The number of readouts of each example: one for each text, or for each token that is read by itself."""
        if self.by_token:
            assert self.positions is not None
            return is_new(self.positions, self.targets).sum(axis=1)
        return np.full(len(self.texts), len(self.texts[0]))

    def row_bytes(self, readings: int, ahead: int) -> int:
        """Bytes needed to read a row: its texts padded to the longest, the fields that the readout uses, and results.

        Args:
            readings: number of readouts of the row.
            ahead: number of results that wait to be copied to the host.
        """
        config, result = self.model.config, self.reading.result
        tokens = 1 if self.first_only else self.tokens
        parts = self.tokens if self.by_token else 1  # `read_bytes` are those of a whole text
        hidden = tokens * config.hidden_size * np.dtype(self.model.numerics.wide).itemsize
        waiting = result.size * result.dtype.itemsize * ahead
        return -(-readings * (2 * hidden + 2 * self.reading.read_bytes + waiting) // parts)

    @cached_property
    def tokens(self) -> int:
        """The number of tokens of a text that the readout reads."""
        return _longest(self.texts) if self.positions is None else self.positions.shape[1]

    @property
    def output_bytes(self) -> int:
        """Bytes of all outputs."""
        result = self.reading.result
        output = self.combine(*np.ones((len(self.texts[0]), *result.shape), result.dtype))
        return (len(self.plan.ablations) + 1) * len(self.texts) * output.nbytes


def _longest(texts: Texts) -> int:
    return max(len(text) for texts_of_example in texts for text in texts_of_example)


def make_sweep_input(
    model: PretrainedModel,
    examples: Examples,
    ablations: Sequence[Ablation],
    readout: Readout,
    *,
    combine: Combine | None = None,
    means: Float[np.ndarray, "layers heads head_dim"] | None = None,
    sources: Examples | None = None,
    at: Sequence[Sequence[int]] | Int[np.ndarray, "examples targets"] | None = None,
    targets: Any = None,
    attention: str = "auto",
    tokenizer: Tokenizer | None = None,
    spans: Sequence[Any] | None = None,
    source_model: PretrainedModel | None = None,
) -> SweepInput:
    """Check the arguments of `engine.sweep`.

    Raises:
        OverrideError: a head that the model does not have, mode 'mean' without means or 'patched' without sources.
        InputError: examples, sources or positions that do not fit each other, nothing to ablate, or an unknown form of
            attention.
    """
    arguments.check_instance(model, "model", PretrainedModel, "a model of bertjax (bertjax.load)")
    check_not_traced("a sweep", model.parameters(), examples)
    check_parameters(model)
    form = choose_attention(attention, model.numerics, model.config)
    check_attention(model.config, form)
    plan = make_plan(model.config, ablations)
    find: Callable[[], Tokenizer | None] = (lambda: model.tokenizer) if tokenizer is None else lambda: tokenizer
    texts = read_texts(examples, find)
    source_texts = texts if sources is examples else None if sources is None else read_texts(sources, find, "sources")
    if len(texts[0]) > 1 and combine is None:
        raise InputError(f"each example has {len(texts[0])} texts: give combine=, which combines their readouts")
    means = _check_means(model, plan, means)
    if source_texts is None and "source" in plan.replacements():
        raise OverrideError("mode 'patched' takes heads' outputs from other texts: give sources=, of equal lengths")
    if source_texts is not None and source_texts is not texts:
        _check_sources(texts, source_texts)
    positions = None if at is None else _check_positions(texts, at)
    targets = None if targets is None else _check_targets(texts, targets)
    shape = None if targets is None else jax.ShapeDtypeStruct((1, *targets.shape[1:]), targets.dtype)
    reading = inspect_readout(model, readout, _longest(texts) if positions is None else positions.shape[1], shape)
    if positions is not None:
        check_at_positions(model, reading)
    if combine is not None:
        _check_combine(combine, len(texts[0]), reading.result)
    sweep_input = SweepInput(
        model=model,
        plan=plan,
        texts=texts,
        readout=readout,
        combine=combine or only_text,
        means=means,
        sources=source_texts,
        positions=positions,
        targets=targets,
        reading=reading,
        attention=form,
        spans=_check_spans(texts, plan, spans),
        source_model=_check_source_model(model, plan, source_model),
    )
    return replace(sweep_input, few_picks=_few_picks(sweep_input))


def _check_source_model(model: PretrainedModel, plan: Plan, source: PretrainedModel | None) -> PretrainedModel | None:
    """The source model; None if the plan changes no parameters."""
    return check_source_model(model, source) if plan.changes_parameters else None


def _few_picks(sweep_input: SweepInput) -> bool:
    """Whether computing the last layer only at the readout's tokens is possible, and faster."""
    if not sweep_input.by_token or sweep_input._needs_whole_last:
        return False
    share = sweep_input.readings.sum() / total_lengths(sweep_input.texts).sum()
    return bool(
        share <= LARGEST_SHARE and packed_layer.may_ask_anywhere(sweep_input.model.config.architecture.layers[-1])
    )


def choose_attention(attention: str, numerics: Numerics | None = None, config: BertConfig | None = None) -> str:
    """The form of attention of a sweep. 'auto' is the model's form if that is not 'explicit', else the fastest form.

    Args:
        attention: 'auto' or a form.
        numerics: dtypes and form of attention of the model.
        config: the model's, to leave out forms that cannot compute its layers; None if it is not known.

    Raises:
        InputError: there is no such form.
    """
    numerics = numerics or Numerics()
    if not (isinstance(attention, str) and attention == "auto"):
        return replace(numerics, attention=attention).attention  # which checks it
    if numerics.attention != "explicit":
        return numerics.attention
    return fastest_attention(jax.default_backend(), numerics, config)


def fastest_attention(platform: str, numerics: Numerics, config: BertConfig | None = None) -> str:
    """The fastest form of attention on a platform that can compute the model's layers.

    On a TPU, the kernel for heads that do not fill its lanes moves more bytes than the explicit form.
    """
    fastest = FASTEST.get((platform, numerics.dtype), "explicit")
    if config is None or fastest != "pallas":
        return fastest
    fits = pallas_attention.fills_lanes(config.head_dim) and not unsupported_features(config, fastest)
    return fastest if fits else "explicit"


def only_text(vectors: Shaped[np.ndarray, "*readout"]) -> Shaped[np.ndarray, "*readout"]:
    """The output of an example with a single text: its readout."""
    return vectors


def _check_means(model: PretrainedModel, plan: Plan, means: Any) -> Float[np.ndarray, "layers heads head_dim"] | None:
    if means is None:
        if "mean" in plan.replacements():
            raise OverrideError(f"mode 'mean' replaces heads by their mean outputs: {GIVE_MEANS}")
        return None
    config = model.config
    expected = (config.num_hidden_layers, config.num_attention_heads, config.head_dim)
    means = np.asarray(arguments.as_array(means, "means", OverrideError))
    if means.shape != expected:
        raise OverrideError(f"means have shape {means.shape}, expected [layers, heads, head_dim] {expected}")
    if not np.isfinite(means).all():
        raise OverrideError("means are not finite: look for NaN or infinity in them")
    return means


def _check_sources(texts: Texts, sources: Texts) -> None:
    if len(sources) != len(texts):
        raise InputError(f"there are {len(sources)} sources for {len(texts)} examples")
    for index, pair in enumerate(zip(texts, sources, strict=True)):
        lengths, source_lengths = ([len(text) for text in texts_of_example] for texts_of_example in pair)
        if lengths != source_lengths:
            raise InputError(
                f"source {index} has {source_lengths} tokens, its example {lengths}: patching needs equal lengths"
            )


def _check_spans(texts: Texts, plan: Plan, spans: Sequence[Any] | None) -> Spans | None:
    """The spans of all tokens, or None if all changes act at every token.

    Raises:
        InputError: spans that do not fit the examples' tokens.
        OverrideError: changes at spans that do not exist.
    """
    used = {span for ablation in plan.ablations for change in ablation.changes for span in change.at}
    if spans is None:
        if used:
            raise OverrideError("an ablation acts at spans of tokens: give spans=, the span of each token, -1 for none")
        return None
    spans = arguments.check_sequence(spans, "spans", "for each example the span of each token")
    if len(spans) != len(texts):
        raise InputError(f"there are spans for {len(spans)} examples, but there are {len(texts)} examples")
    checked = []
    for index, (texts_of_example, spans_of_example) in enumerate(zip(texts, spans, strict=True)):
        single = len(texts_of_example) == 1 and np.ndim(spans_of_example) == 1
        rows = [spans_of_example] if single else list(spans_of_example)
        arrays = [np.asarray(arguments.as_array(row, "spans")) for row in rows]
        lengths, expected = [len(array) for array in arrays], [len(text) for text in texts_of_example]
        if lengths != expected or any(array.ndim != 1 or array.dtype.kind not in "iu" for array in arrays):
            raise InputError(f"spans of example {index} must be integers for {expected} tokens, found {lengths}")
        checked.append(tuple(array.astype(np.int32) for array in arrays))
    most = max(int(array.max()) for arrays in checked for array in arrays)
    if used and max(used) > most:
        raise OverrideError(f"an ablation acts at span {max(used)}, but the last span of any token is {most}")
    return checked if used else None


def _check_combine(combine: Combine, texts: int, result: jax.ShapeDtypeStruct) -> None:
    """Raise `InputError` unless it returns one array with an output for each example."""
    arguments.check_function(combine, "combine", "a function of the readouts of an example's texts")
    combined = combine(*np.ones((texts, 2, *result.shape[1:]), result.dtype))
    if not isinstance(combined, np.ndarray | np.generic | jax.Array) or combined.shape[:1] != (2,):
        arguments.refuse("what combine returns for 2 examples", "an array [examples, ...]", combined)


def _check_positions(
    texts: Texts, at: Sequence[Sequence[int]] | Int[np.ndarray, "examples targets"]
) -> Int[np.ndarray, "examples targets"]:
    expected = "for each example a list of positions"
    rows = at if isinstance(at, np.ndarray) and at.ndim == 2 and at.dtype.kind in "iu" else None
    if rows is None:
        checked = [
            arguments.check_sequence(row, "`at`", expected) for row in arguments.check_sequence(at, "`at`", expected)
        ]
        lists = [[arguments.check_int(position, "a position of `at`") for position in row] for row in checked]
        rows = np.array(lists, np.int64) if len(set(map(len, lists))) == 1 else np.zeros((0, 0), np.int64)
    if len(rows) != len(texts) or not rows.shape[1]:
        raise InputError("`at` needs the same number of positions for each example, at least one")
    _require_single_texts(texts, "at")
    lengths = total_lengths(texts)
    outside = np.flatnonzero(((rows < 0) | (rows >= lengths[:, None])).any(axis=1)).tolist()
    if outside:
        index = outside[0]
        positions = some_of([*map(str, rows[index].tolist())])
        raise InputError(f"example {index} has tokens 0 to {lengths[index] - 1}, but `at` asks for {positions}")
    return rows.astype(np.int32)


def _require_single_texts(texts: Texts, name: str) -> None:
    if any(len(texts_of_example) != 1 for texts_of_example in texts):
        raise InputError(f"`{name}` needs examples of a single text")


def _check_targets(texts: Texts, targets: Any) -> Shaped[np.ndarray, "examples ..."]:
    """Targets as an array. Raises `InputError` unless it has an entry for each example."""
    array = np.asarray(arguments.as_array(targets, "targets"))
    if array.shape[:1] != (len(texts),):
        raise InputError(f"targets have shape {array.shape}, but there are {len(texts)} examples: give one for each")
    _require_single_texts(texts, "targets")
    wide = {"i": np.int32, "u": np.int32, "b": np.bool_}.get(array.dtype.kind)
    return array if wide is None or array.dtype.itemsize <= 4 else array.astype(wide)


def read_texts(examples: Examples, find_tokenizer: Callable[[], Tokenizer | None], name: str = "examples") -> Texts:
    """The tokenised texts of each example.

    Args:
        find_tokenizer: returns the tokenizer; called only if there are strings.
        name: name of the argument, for messages.

    Raises:
        InputError: something that is not a text, a batch padded on the left, or examples with different numbers of
            texts.
    """
    if isinstance(examples, Mapping):
        texts: Texts = [(text,) for text in _texts_of_batch(examples)]
    else:
        items = arguments.check_sequence([examples] if isinstance(examples, str) else examples, name, EXPECTED)
        texts = _tokenise([(item,) if _is_text(item) else item for item in items], find_tokenizer, name)
    total_lengths(texts)
    counts = sorted({*map(len, texts)})
    if len(counts) > 1:
        raise InputError(f"{name} have {counts[0]} to {counts[-1]} texts: all need the same number")
    return texts


def _tokenise(examples: Sequence[Any], find_tokenizer: Callable[[], Tokenizer | None], name: str) -> Texts:
    """Tokenise the strings among the texts of all examples, in one call."""
    texts: list[tuple[Any, ...]] = []
    for index, example in enumerate(examples):
        is_sequence = isinstance(example, list | tuple) or getattr(example, "ndim", None) == 2
        if not is_sequence or not all(map(_is_text, example)):
            raise InputError(f"{name} must be {EXPECTED}, but item {index} (from 0) is {arguments.describe(example)}")
        texts.append(tuple(text if isinstance(text, str | Encoding) else _from_ids(text, name) for text in example))
    strings = [text for texts_of_example in texts for text in texts_of_example if isinstance(text, str)]
    if not strings:
        return texts
    tokenizer = find_tokenizer()
    if tokenizer is None:
        raise InputError(
            f"{name} are strings, and the model has no tokenizer: give tokenizer=bertjax.Tokenizer.from_pretrained(...)"
        )
    expected = "a bertjax.Tokenizer (Tokenizer.from_pretrained)"
    encodings = iter(arguments.check_instance(tokenizer, "tokenizer", Tokenizer, expected).encode(strings))
    return [tuple(next(encodings) if isinstance(text, str) else text for text in row) for row in texts]


def _is_text(value: Any) -> bool:
    """Whether a value is one text: a string, a tokenised text, or token ids."""
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(token, int | np.integer) for token in value)
    return isinstance(value, str | Encoding) or getattr(value, "ndim", None) == 1


def _from_ids(ids: Any, name: str) -> Encoding:
    """A text from its token ids, none of which is padding."""
    row = np.asarray(arguments.as_array(ids, name))
    if not np.issubdtype(row.dtype, np.integer):
        arguments.refuse(f"rows of {name}", "token ids", ids)
    _check_range(row, name)
    return Encoding(tuple(row.tolist()), (0,) * len(row), (), (), False)


def _check_range(row: Shaped[np.ndarray, " _token"], name: str) -> None:
    """Raise `InputError` for numbers that are not token ids, or that int32 cannot hold."""
    beyond = row[(row < 0) | (row > LARGEST_TOKEN_ID)]
    if beyond.size:
        raise InputError(f"{beyond[0]} in {name} is not a token id: these are 0 to {LARGEST_TOKEN_ID}")


def _texts_of_batch(batch: Mapping[str, Any]) -> list[Encoding]:
    """The texts of a batch, without padding."""
    arrays = read_batch({"input_ids": batch})
    if arrays.get("position_ids") is not None:
        raise InputError("a sweep sets the position ids of each text: leave out position_ids")
    ids = _rows(arrays, "input_ids")
    masks = _rows(arrays, "attention_mask", [row * 0 + 1 for row in ids])
    types = _rows(arrays, "token_type_ids", [row * 0 for row in ids])
    encodings = []
    for index, row in enumerate(ids):
        if not (index < min(len(masks), len(types)) and row.shape == masks[index].shape == types[index].shape):
            raise InputError(f"row {index} of the batch has arrays of unequal lengths, or lacks one")
        length = int((masks[index] != 0).sum())
        if not masks[index][:length].all():
            raise InputError(f"row {index} of the batch has padding on the left or inside: pad it on the right")
        tokens, token_types = row[:length].tolist(), types[index][:length].tolist()
        encodings.append(Encoding(tuple(tokens), tuple(token_types), (), (), False))
    return encodings


def _rows(
    arrays: Mapping[str, Any], name: str, default: list[Int[np.ndarray, " _token"]] | None = None
) -> list[Int[np.ndarray, " _token"]]:
    """The rows of one array of a batch; without padding, their lengths may differ."""
    if default is not None and arrays.get(name) is None:
        return default
    rows = [
        np.asarray(arguments.as_array(row, name))
        for row in arguments.check_sequence(arrays[name], name, "[batch, token]")
    ]
    for row in rows:
        if row.ndim != 1 or not (np.issubdtype(row.dtype, np.integer) or row.dtype == np.bool_):
            arguments.refuse(name, "integers [batch, token]", arrays[name])
        _check_range(row, name)
    return rows
