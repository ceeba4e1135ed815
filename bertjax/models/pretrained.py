"""Base class of all models: calls, loading from a checkpoint, saving."""

import copy
import dataclasses
import inspect
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, DTypeLike, PyTree

from bertjax import arguments
from bertjax.checkpoints import (
    MODEL,
    MODEL_FILES,
    BertConfig,
    CheckpointWarning,
    HubOptions,
    architecture,
    holds_adapter,
    locate,
    read_checkpoint,
    saving,
    tensor_names,
    texts_directory,
    write_weights,
)
from bertjax.data import Tokenizer
from bertjax.errors import (
    BertjaxError,
    CheckpointError,
    ConfigError,
    InputError,
    OutputError,
    error_prefix,
    some_of,
)
from bertjax.models import ops
from bertjax.models.checks import FIELDS, check_overrides, check_process, prepare_inputs, read_batch
from bertjax.models.encoder import Body
from bertjax.models.origin import ORIGINS, Origin
from bertjax.models.sites import SITES, Site
from bertjax.models.types import EncoderRecord, Inputs, ModelOutput, Numerics, Overrides
from bertjax.paths import is_directory, user_path

T = TypeVar("T")
M = TypeVar("M", bound="PretrainedModel")
# The structure of a module, from `nnx.split`.
Graph: TypeAlias = nnx.GraphDef[Any]
State: TypeAlias = PyTree[Array]  # the parameters of a module, from `nnx.split`
TOKENIZER = "a bertjax.Tokenizer (Tokenizer.from_pretrained)"


class PretrainedModel(nnx.Module):
    """Base of `BertModel` and of the models with task heads."""

    config: BertConfig
    numerics: Numerics
    task: ClassVar[str] = architecture.BODY  # the task head
    new_parameters: tuple[str, ...] = ()
    """Paths of the parameters that `from_pretrained` initialised at random because the checkpoint lacks them."""

    def __repr__(self) -> str:
        """Sizes and label names in a few lines."""
        config, numerics = self.config, self.numerics
        count = sum(value.size for value in self.parameters().values())
        lines = [
            f"{config.num_hidden_layers} layers, {config.num_attention_heads} heads, hidden size {config.hidden_size}",
            f"vocabulary {config.vocab_size:,}, at most {config.max_position_embeddings:,} tokens",
            f"{count:,} parameters, {numerics.dtype}, {numerics.attention} attention",
        ]
        if self.task in (architecture.SEQUENCE, architecture.TOKENS):
            lines.append(f"labels: {some_of([*config.id2label.values()])}")
        return "\n  ".join([f"{self.class_name}(", *lines]) + "\n)"

    def __str__(self) -> str:
        return repr(self)

    @property
    def origin(self) -> Origin:
        """Name and tokenizer of the checkpoint; empty for a model from `nnx.merge`."""
        return ORIGINS.get(self, Origin())

    @origin.setter
    def origin(self, origin: Origin) -> None:
        ORIGINS[self] = origin

    @property
    def name(self) -> str:
        """Name of the checkpoint as the user wrote it, or a name such as 'BertModel in memory'."""
        return self.origin.name or f"{self.class_name} in memory"

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Tokenizer of the model's checkpoint, read on first use, or None.

        It can be set: `model.tokenizer = bertjax.Tokenizer.from_pretrained(name)`.
        """
        return self.origin.tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Any) -> None:
        if tokenizer is not None:
            arguments.check_instance(tokenizer, "tokenizer", Tokenizer, TOKENIZER)
        self.origin = Origin(self.origin.name, tokenizer)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set properties past Flax, which would list them among the attributes for `nnx.split`."""
        if isinstance(getattr(type(self), name, None), property):
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def __deepcopy__(self: M, memo: Any = None) -> M:
        copied: M = super().__deepcopy__(memo)
        copied.origin = copy.deepcopy(self.origin, memo)
        return copied

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"origin": self.origin}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        self.origin = state.pop("origin")
        super().__setstate__(state)

    @property
    def body(self) -> Body:
        """The encoder, a `BertModel`."""
        raise TypeError(f"{type(self).__name__} has no computation: use BertModel or a task model")

    @property
    def fields_of_first_token(self) -> frozenset[str]:
        """Fields of `ModelOutput` that depend only on the last hidden state of [CLS]."""
        return frozenset({"pooler_output"})

    @property
    def class_name(self) -> str:
        """Name of the class in transformers for the model's family, or a similar name for a sentence embedder."""
        heads = self.config.family.heads
        if self.task != architecture.BODY:
            return heads[self.task].architecture
        prefix = heads[architecture.BODY].architecture.removesuffix("Model")
        return prefix + type(self).__name__.removeprefix("Bert")

    def sites(self) -> Mapping[str, Site]:
        """Sites of each layer, by name.

        Read them in `output.record`, replace them with `bertjax.patching`, sweep them with `bertjax.sweep` or `patch`.

        >>> from bertjax import BertConfig, BertModel
        >>> config = BertConfig(vocab_size=50, hidden_size=12, num_hidden_layers=2, num_attention_heads=3)
        >>> BertModel(config, jax.random.key(0)).sites()["queries"].axes
        ('batch', 'token', 'heads', 'head_dim')
        """
        kept = [name for name in SITES if name != "weights" or self.numerics.attention == "explicit"]
        return MappingProxyType({name: SITES[name] for name in kept})

    def finish(self, hidden: Array, keep: Array, record: EncoderRecord | None = None) -> ModelOutput:
        """Apply what follows the layers; defined in subclasses."""
        raise TypeError(f"{type(self).__name__} has no computation: use BertModel or a task model")

    def forward(self, inputs: Inputs, overrides: Overrides | None = None) -> ModelOutput:
        """The pure computation; defined in subclasses."""
        raise TypeError(f"{type(self).__name__} has no computation: use BertModel or a task model")

    def inputs(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        position_ids: Any = None,
        *,
        tokenizer: Any = None,
    ) -> Inputs:
        """Check and complete the arguments of a call: the inputs of `forward`. Raises `InputError`."""
        check_process()
        batch = self._read_batch((input_ids, attention_mask, token_type_ids, position_ids), tokenizer)
        return prepare_inputs(self.config, self.numerics, **batch)

    def _read_batch(self, arrays: Sequence[Any], tokenizer: Any) -> dict[str, Any]:
        """The arrays of a call; texts are tokenized by the tokenizer of the call, or that of the model."""
        return read_batch(dict(zip(FIELDS, arrays, strict=True)), self._tokenize if tokenizer is None else tokenizer)

    def _tokenize(self, texts: Sequence[str]) -> dict[str, Any]:
        """A batch of texts from the model's tokenizer."""
        return self._own_tokenizer()(texts)

    def _own_tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises `InputError` if it has none."""
        if self.tokenizer is None:
            raise InputError(
                "input_ids are texts, but the model has no tokenizer: pass tokenizer=, or set "
                "model.tokenizer = bertjax.Tokenizer.from_pretrained(name)"
            )
        return self.tokenizer

    def __call__(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        position_ids: Any = None,
        overrides: Overrides | None = None,
        *,
        tokenizer: Any = None,
    ) -> ModelOutput:
        """Run the model, compiled once for each shape of input.

        Args:
            input_ids: integers `[batch, token]` of NumPy, JAX, PyTorch or nested lists; or a batch, a dict of these
                arguments, as tokenizers return it; or a str or a list of str.
            attention_mask: 1 or True for real tokens: `[batch, token]`, or `[batch, query, key]`.
            token_type_ids: segment 0 or 1 of each token, `[batch, token]`.
            position_ids: `[batch, token]`; default 0, 1, 2 ...
            overrides: interventions on heads and sites (`bertjax.overrides`).
            tokenizer: tokenizer for texts, such as a `bertjax.Tokenizer`; default: the model's.

        Returns: the output; fields that the model does not compute are None.

        Raises:
            InputError: ids, masks or positions that do not fit the model.
            OverrideError: overrides that do not fit the model or the input.
        """
        inputs = self.inputs(input_ids, attention_mask, token_type_ids, position_ids, tokenizer=tokenizer)
        if overrides is not None:
            check_overrides(self.config, overrides, inputs)
        return _run(*nnx.split(self), inputs, overrides).from_call(inputs.input_ids, self.origin)

    def parameters(self) -> dict[str, Array]:
        """All parameters by path, e.g. `bert.encoder.layers.0.attention.query.kernel`.

        Paths of the encoder begin with `bert.` in every class, including `BertModel`.
        """
        return by_path(nnx.split(self)[1])

    def weights(self) -> dict[str, np.ndarray]:
        """Tensors of the weights file, under HuggingFace's names and in its layout."""
        return self._weights_for(self.config)

    def _file_parameters(self) -> dict[str, Array]:
        """Parameters in the weights file, by path."""
        return self.parameters()

    @classmethod
    def from_pretrained(
        cls: type[M],
        name_or_path: str | Path,
        *,
        dtype: DTypeLike = jnp.float32,
        precision: str | None = None,
        attention: str = "explicit",
        config: BertConfig | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        cache_dir: str | Path | None = None,
        token: str | bool | None = None,
        seed: int = 0,
        **options: Any,
    ) -> M:
        """Load a checkpoint of HuggingFace's `transformers`.

        Args:
            name_or_path: a directory, a hub id such as 'bert-base-uncased', or 'package:NAME' for weights in an
                installed Python package. An adapter of `peft` is merged into its base (needs the extra `adapters`).
            dtype: dtype of the computation; parameters are stored in float32 (float64 for float64).
            precision: precision of matrix products: 'highest' (default in float32), 'high' or 'default'.
            attention: 'explicit', or without attention weights 'fused' or 'pallas' (`Numerics`).
            config: replaces the checkpoint's config, e.g. with another number of labels.
            revision: branch, tag or commit on the hub.
            local_files_only: do not ask the network.
            cache_dir: directory of the hub's files.
            token: access token for private repositories.
            seed: seed of parameters that the checkpoint lacks. A `CheckpointWarning` and `new_parameters` of the model
                name them.
            options: options of the class, such as `add_pooling_layer=False` of `BertModel`.

        Raises:
            ConfigError: a configuration that bertjax does not support.
            CheckpointError: missing, damaged or unfitting weights.
            MissingDependencyError: `pytorch_model.bin` without PyTorch.
        """
        hub: HubOptions = {"revision": revision, "local_files_only": local_files_only}
        hub |= {"cache_dir": cache_dir, "token": token}
        directory = locate(name_or_path, **hub)
        if config is not None:
            check_config(config)
        arguments.check_int(seed, "seed", 0)
        _check_options(cls, options)
        numerics = make_numerics(dtype, precision, attention)
        config, weights = read_checkpoint(directory, config, **hub)
        config = untie_if_different(config, weights, cls.task)
        texts = texts_directory(directory, **hub)
        options = cls._read_options(texts) | options
        extra = cls._read_extra_parameters(texts, options)

        def create(key: Array) -> M:
            return cls(config, key, numerics, **options)  # type: ignore[call-arg]

        with error_prefix(f"{directory}: "):
            model = build(create, weights, config, cls.task, seed, extra)
        model.origin = Origin(os.fsdecode(name_or_path), texts.absolute())
        return model

    @classmethod
    def _read_options(cls, directory: Path) -> dict[str, Any]:
        """Options from the files of a checkpoint, for subclasses to override."""
        return {}

    @classmethod
    def _read_extra_parameters(cls, directory: Path, options: dict[str, Any]) -> dict[str, np.ndarray]:
        """Parameters by path in other files than the weights file, for subclasses to override."""
        return {}

    def save_pretrained(
        self,
        directory: str | Path,
        tokenizer: Tokenizer | None = None,
        *,
        without: Iterable[str | tuple[int, int]] = (),
    ) -> None:
        """Write `config.json` and `model.safetensors`, which `transformers` (PyTorch) reads, and the tokenizer's files.

        `bertjax.json` lists the written files; saving again replaces only these.

        Args:
            directory: a new or empty directory, or one with a checkpoint that bertjax saved.
            tokenizer: tokenizer to save; default: the model's. Without tokenizer files transformers would silently make
                a tokenizer that maps every word to the unknown token.
            without: heads whose weights are not written, such as ["3.0", (2, 7)]. The checkpoint is smaller and has
                `pruned_heads` in its config.json, as in transformers 4; transformers 5 does not read it.

        Raises:
            ConfigError: not a list of heads, a head does not exist, or layers that share weights would differ.
            OutputError: the directory holds files that bertjax did not save, or cannot be written; its content is
                unchanged.

        Warns:
            CheckpointWarning: the model's tokenizer cannot be read, and is not saved.
        """
        directory = user_path(directory, OutputError)
        if is_directory(directory, OutputError) and holds_adapter(directory):
            raise OutputError(
                f"{directory}: holds an adapter, which would be merged again on loading; use another directory"
            )
        if tokenizer is None:
            tokenizer = self._readable_tokenizer()
        else:
            arguments.check_instance(tokenizer, "tokenizer", Tokenizer, TOKENIZER)
        config = self.config.without_heads(without)
        weights, family = self._weights_for(config), config.family
        if self.task == architecture.BODY:
            weights = {name.removeprefix(f"{family.prefix}."): value for name, value in weights.items()}
        names = [family.heads[self.task].architecture]
        with saving(directory, MODEL, [*MODEL_FILES, *self._extra_files()]):
            if tokenizer is not None:
                tokenizer.save_pretrained(directory)
            write_weights(directory, weights, config.to_dict() | {"architectures": names})
            self._write_extra_files(directory, tokenizer)

    def _readable_tokenizer(self) -> Tokenizer | None:
        """The model's tokenizer, or None with a warning if it cannot be read: the model must be saved anyway."""
        try:
            return self.tokenizer
        except BertjaxError as error:
            _warn(f"the model's tokenizer is not saved: {error}")
            return None

    def _extra_files(self) -> list[str]:
        """Names of further files, for subclasses to override."""
        return []

    def _write_extra_files(self, directory: Path, tokenizer: Tokenizer | None) -> None:
        """Write the further files, for subclasses to override."""

    def _weights_for(self, config: BertConfig) -> dict[str, np.ndarray]:
        """`weights` of the heads that a config keeps."""
        arrays = {name: np.asarray(value) for name, value in self._file_parameters().items()}
        if config != self.config:
            arrays = tensor_names.keep_heads(arrays, self.config, config, self.task)
        return tensor_names.write_parameters(arrays, config, self.task)


@partial(jax.jit, static_argnums=0)
def _run(graphdef: Graph, state: State, inputs: Inputs, overrides: Overrides | None) -> ModelOutput:
    return nnx.merge(graphdef, state).forward(inputs, overrides)


def compute(function: Callable[..., T], model: PretrainedModel, inputs: Inputs, *arrays: Any) -> T:
    """Compute a function of a model's output, compiled with the model; activations that it does not use are not stored.

    Args:
        function: function of the `ModelOutput` and the arrays; each new function object is compiled again.
        model: the model to apply.
        inputs: inputs of the model.
        arrays: further arguments of the function.
    """
    graph, state = nnx.split(model)
    value: T = _compute(graph, state, inputs, arrays, function)
    return value


@partial(jax.jit, static_argnums=(0, 4))
def _compute(graphdef: Graph, state: State, inputs: Inputs, arrays: tuple[Any, ...], function: Callable[..., T]) -> T:
    return function(nnx.merge(graphdef, state).forward(inputs), *arrays)


def check_config(config: Any) -> BertConfig:
    """Raise `ConfigError` if a value is not a config."""
    expected = "a BertConfig (from_pretrained loads that of a checkpoint)"
    return arguments.check_instance(config, "config", BertConfig, expected, ConfigError)


def check_attention(config: BertConfig, attention: str) -> None:
    """Raise `InputError` if an attention implementation does not support the model's layers."""
    if unsupported := unsupported_features(config, attention):
        raise InputError(
            f"attention='pallas' does not support the {' and '.join(unsupported)} of {config.family.name}: use "
            "'explicit' or 'fused'"
        )


def unsupported_features(config: BertConfig, attention: str) -> list[str]:
    """Features of the model's layers that an attention implementation does not support."""
    if attention != "pallas":
        return []
    kinds, relative = config.architecture.layers, config.architecture.relative
    features = [
        *(["windows"] if any(kind.window is not None for kind in kinds) else []),
        *(["scores by distance"] if relative is not None else []),
    ]
    if not features and any(ops.other_scale(kind.scale, config.head_dim) for kind in kinds):
        return ["scale of scores"]
    return features


def check_numerics(numerics: Any) -> Numerics:
    """Numerics of a model, by default those of float32. Raises `InputError` for another type."""
    if numerics is None:
        return Numerics()
    return arguments.check_instance(numerics, "numerics", Numerics, "bertjax.Numerics, e.g. Numerics('bfloat16')")


def split_key(key: Array | None, count: int) -> Array:
    """Keys for the parts of a model; the default key has seed 0. Raises `InputError` if it is not a key."""
    if key is None:
        key = jax.random.key(0)
    if not (isinstance(key, jax.Array) and (jnp.issubdtype(key.dtype, jax.dtypes.prng_key) or key.shape == (2,))):
        arguments.refuse("key", "a JAX key (jax.random.key(0))", key)
    return jax.random.split(key, count)


def _check_options(cls: type, options: dict[str, Any]) -> None:
    """Raise `InputError` for an option that a class does not have."""
    options_of_class = _keywords(cls.__init__)  # type: ignore[misc]
    unknown = [name for name in options if name not in options_of_class]
    if unknown:
        known = [*_keywords(PretrainedModel.from_pretrained), *options_of_class]
        raise InputError(f"{cls.__name__} has no option {some_of(unknown)}: it takes {', '.join(known)}")


def _keywords(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


def make_numerics(dtype: DTypeLike, precision: str | None = None, attention: str = "explicit") -> Numerics:
    """`Numerics` from any dtype-like value of NumPy or JAX.

    >>> make_numerics("bfloat16")
    Numerics(dtype='bfloat16', precision='default', attention='explicit', narrow=False)
    """
    if isinstance(dtype, jax.Array | np.ndarray):  # JAX and NumPy would use the array's dtype
        arguments.refuse("dtype", "'float32', 'bfloat16', 'float16' or 'float64'", dtype)
    try:
        name = jnp.dtype(dtype).name
    except (TypeError, ValueError):  # ValueError if NumPy cannot print the value
        arguments.refuse("dtype", "'float32', 'bfloat16', 'float16' or 'float64'", dtype)
    if precision is None:
        precision = "highest" if name in ("float32", "float64") else "default"
    return Numerics(name, precision, attention)


def build(
    create: Callable[[Array], M],
    weights: Mapping[str, np.ndarray],
    config: BertConfig,
    task: str,
    seed: int | None,
    extra: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> M:
    """Build a model with the parameters of a checkpoint; missing ones are newly initialised.

    Args:
        create: makes the model from a key.
        weights: tensors of the checkpoint under canonical names.
        config: config of the model.
        task: task head of the model.
        seed: seed of the missing parameters; None if none may be missing.
        extra: parameters by path that are not among the weights.

    Raises:
        CheckpointError: the weights do not fit.
    """
    tensor_names.check_layers(weights, config)
    unknown = sorted(name for name in weights if not tensor_names.is_known(name, config.family))
    if unknown:
        _warn(f"tensors that no {config.family.name} class knows were not used: {some_of(unknown)}")
    graphdef, state = nnx.split(nnx.eval_shape(create, jax.random.key(0)))
    shapes = by_path(state)
    in_file = {path: leaf.shape for path, leaf in shapes.items() if path not in extra}
    loaded, missing = tensor_names.read_parameters(weights, in_file, config, task)
    loaded |= extra
    fresh: dict[str, Any] = {}
    if missing:
        absent = some_of(list(dict.fromkeys(missing.values())))
        if seed is None:
            raise CheckpointError(f"the model has no tensor {absent}")
        _warn(f"not in the checkpoint, newly initialised: {absent}")
        fresh = by_path(nnx.split(create(jax.random.key(seed)))[1])
    # A copy: on a CPU, JAX may share the memory of the array, which may be that of a file.
    leaves = [
        jax.device_put(np.array(loaded[path], shape.dtype)) if path in loaded else fresh[path]
        for path, shape in shapes.items()
    ]
    model: M = nnx.merge(graphdef, jax.tree.unflatten(jax.tree.structure(state), leaves))
    if missing:
        model.new_parameters = tuple(missing)
    return model


def tensor_name(model: PretrainedModel, path: str) -> str:
    """The tensor of a parameter in HuggingFace's files; its path if it is in another file."""
    try:
        return tensor_names.entry_of_parameter(path, model.config, model.task).tensor
    except KeyError:
        return path


def check_parameters(model: Any) -> PretrainedModel:
    """Check that a value is a model whose parameters are finite, which takes 0.04 s for BERT-base on a CPU.

    Raises:
        InputError: not a model, or a tensor holds NaN or infinity; the first such tensor is named.
    """
    checked = arguments.check_instance(model, "model", PretrainedModel, "a model of bertjax (bertjax.load)")
    broken = {path: value for path, value in checked.parameters().items() if not _is_finite(value)}
    if broken:
        path, value = next(iter(broken.items()))
        count = int((~np.isfinite(np.asarray(value))).sum())
        others = f" (and values of {len(broken) - 1} other tensors)" if len(broken) > 1 else ""
        raise InputError(
            f"the model's weights are not finite: {count:,} of the {value.size:,} values of "
            f"{tensor_name(checked, path)} are NaN or infinite{others}; copy or train the checkpoint again"
        )
    return checked


def _is_finite(value: Any) -> bool:
    if not isinstance(value, jax.Array | np.ndarray) or arguments.is_traced(value):
        return True
    elsewhere = isinstance(value, jax.Array) and any(device.platform != "cpu" for device in value.devices())
    return bool(jnp.isfinite(value).all() if elsewhere else np.isfinite(np.asarray(value)).all())


_PARTS_OF_BODY = ("embeddings.", "encoder.", "pooler.", "final_norm.")


def by_path(state: Any) -> dict[str, Any]:
    """Leaves of a module's state by path, in order."""
    named = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        name = ".".join(str(part.key) for part in path if isinstance(part, jax.tree_util.DictKey))
        named[f"bert.{name}" if name.startswith(_PARTS_OF_BODY) else name] = leaf
    return named


def untie_if_different(config: BertConfig, weights: Mapping[str, np.ndarray], task: str) -> BertConfig:
    """Untie a decoder that differs from the word embeddings, as transformers does."""
    head = config.family.heads.get(task)
    decoder, words = None if head is None else head.decoder, tensor_names.word_embeddings(config.family)
    if not config.tie_word_embeddings or decoder is None or decoder not in weights or words not in weights:
        return config
    if np.array_equal(weights[decoder], weights[words]):
        return config
    _warn(f"the config ties {decoder} to the word embeddings, but the file has a different decoder: it is used")
    return dataclasses.replace(config, tie_word_embeddings=False)


def _warn(message: str) -> None:
    warnings.warn(message, CheckpointWarning, stacklevel=4)
