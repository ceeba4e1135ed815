"""Ablations: sets of heads and how each of them is replaced, as hashable values.

An `Ablation` describes one run, so that a plan can compare runs. `to_overrides` makes its arrays, the `Overrides`.
"""

import hashlib
import itertools
import math
import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from bertjax import arguments
from bertjax.checkpoints import BertConfig
from bertjax.errors import InputError, OverrideError
from bertjax.formatting import format_bytes, visible
from bertjax.interventions import overrides as ov
from bertjax.interventions.modes import find_mode
from bertjax.interventions.parameters import PARAMETER_SITES
from bertjax.interventions.patching import at_tokens, patched, replaced
from bertjax.models import SITES, ModelOutput, Overrides
from bertjax.paths import is_file, read_text, user_path

MOST_SETS, MOST_HEADS = 100_000, 500_000  # of a sweep: listing them takes seconds, and the results have 100 MB
SET_BYTES, HEAD_BYTES = 600, 320  # memory of a set and its node in a plan, and of each of its heads

# The default site of a change: a head's output.
HEAD_OUTPUTS = "head_outputs"
SWEPT = tuple(name for name in SITES if name not in ("weights", "feed_forward_inputs"))  # sites that a sweep can change
OF_SITES = ("nothing", "source")  # the replacements at sites other than heads' outputs

# The advice in errors about mode 'mean'.
GIVE_MEANS = "give means=bertjax.mean_head_outputs(model, batches)"


@dataclass(frozen=True, order=True)
class Change:
    """The change of one head, or of another site of a layer.

    Args:
        layer: index of the layer, from 0.
        head: index of the head in its layer, from 0; 0 for a site of a whole layer.
        mode: 'uniform', 'zero', 'mean', 'patched', 'restored', or another of `MODES`.
        share: share of the mode's replacement, 1 for all of it.
        site: one of `models.SITES`, by default the head's output. Other sites can be set to zero or patched. With
            mode 'restored' one of `PARAMETER_SITES`: a part of the layer whose parameters come from another model.
        at: ids of the spans of tokens at which it acts (`spans` of a sweep); empty for all tokens.

    Attributes:
        replacement: the mode's replacement, one of `modes.REPLACEMENTS`.
        replaced: the share of the activation that is replaced.

    Raises:
        InputError: an unknown mode or site, a share that is not a finite number, or a mode that the site does not have.
    """

    layer: int
    head: int
    mode: str = "uniform"
    share: float = 1.0
    site: str = HEAD_OUTPUTS
    at: tuple[int, ...] = ()
    # Copied from the mode, so that later edits of `MODES` do not change it.
    replacement: str = field(init=False, repr=False)
    replaced: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        mode = find_mode(self.mode)
        for name in ("layer", "head"):
            object.__setattr__(self, name, arguments.check_int(getattr(self, name), name, 0, OverrideError))
        if not (isinstance(self.share, Real) and abs(self.share) <= sys.float_info.max):
            raise InputError(f"the share of head {self.layer}.{self.head} must be a finite number")
        arguments.check_choice(self.site, "site", (*SWEPT, *PARAMETER_SITES))
        if mode.replacement == "parameters" or self.site in PARAMETER_SITES:
            _check_parameters(self, mode.replacement, mode.share * self.share)
        elif self.site != HEAD_OUTPUTS and mode.replacement not in OF_SITES:
            raise InputError(
                f"mode {self.mode!r} is only for heads' outputs: {self.site} can be set to zero or patched"
            )
        if not self.of_heads and self.head:
            raise InputError(f"{self.site} belong to a whole layer: give head 0")
        spans = arguments.check_sequence(self.at, "at", "a tuple of span ids", error=OverrideError)
        ids = {arguments.check_int(span, "a span id", 0, OverrideError) for span in spans}
        object.__setattr__(self, "at", tuple(sorted(ids)))
        object.__setattr__(self, "replacement", mode.replacement)
        object.__setattr__(self, "replaced", mode.share * self.share)

    @property
    def of_heads(self) -> bool:
        """Whether it changes a head; otherwise it changes a whole layer."""
        return (SITES.get(self.site) or PARAMETER_SITES[self.site]).of_heads

    @property
    def of_parameters(self) -> bool:
        """Whether it changes parameters; otherwise it changes activations."""
        return self.site in PARAMETER_SITES


def _check_parameters(change: Change, replacement: str, share: float) -> None:
    """Raise `InputError` for a change of parameters that is none, or that is not of all tokens and the full share."""
    if change.site not in PARAMETER_SITES:
        raise InputError(f"mode {change.mode!r} replaces parameters: give site= one of {', '.join(PARAMETER_SITES)}")
    if replacement != "parameters":
        raise InputError(f"{change.site} can only be restored or redrawn: give mode='restored'")
    if share != 1 or change.at:
        raise InputError(f"{change.site} are replaced for all tokens and in full: leave share and at out")


@dataclass(frozen=True)
class Ablation:
    """A set of heads, or other sites, that are changed together.

    Args:
        name: the name in tables and figures, such as '3.0', or '3' for a whole layer.
        changes: one for each head or site; empty for the base run. They are sorted.
    """

    name: str
    changes: tuple[Change, ...]

    def __post_init__(self) -> None:
        arguments.check_instance(self.name, "an ablation's name", str, "a string")
        arguments.check_sequence(self.changes, "changes", "a tuple of Change", Change)
        sites = [(change.layer, change.head, change.site) for change in self.changes]
        if len(set(sites)) < len(sites):
            raise InputError(f"ablation {self.name} names a head, or a site, twice")
        object.__setattr__(self, "changes", tuple(sorted(self.changes)))


def ablation(config: BertConfig, heads: Iterable[ov.Head], mode: str = "uniform", name: str | None = None) -> Ablation:
    """Make an ablation of heads in one mode.

    Args:
        config: the config of the model.
        heads: the heads, such as '3.0', 'L3H10' or (3, 10).
        mode: what replaces the heads, one of `MODES`.
        name: the name of the set; by default the names of the heads.

    Raises:
        OverrideError: a head that does not exist.

    >>> ablation(BertConfig(), ["3.0", "1.7"]).name
    '1.7+3.0'
    """
    if name is not None:
        arguments.check_instance(name, "name", str, "a string")
    parsed = sorted(ov.parse_head(head, config) for head in _heads(heads, "heads"))
    changes = tuple(Change(layer, head, mode) for layer, head in parsed)
    return Ablation(name or "+".join(f"{layer}.{head}" for layer, head in parsed) or "base", changes)


def name_layer_head(ablation: Ablation, config: BertConfig, mode: str) -> tuple[str, int | None, int | None]:
    """Name, layer and head of an ablation; head is None for a whole layer, both are None for other sets.

    A single head or a whole layer in another mode than `mode` counts as another set.

    Args:
        ablation: the ablation.
        config: the config of the model.
        mode: the mode of the other ablations.
    """
    layers = {change.layer for change in ablation.changes}
    if len(ablation.changes) == 1 and ablation.changes[0].of_parameters:
        (change,) = ablation.changes
        return ablation.name, change.layer, change.head if change.of_heads else None
    if any(change.site != HEAD_OUTPUTS or change.at for change in ablation.changes):
        return ablation.name, None, None
    if len(layers) == 1 and {change.mode for change in ablation.changes} == {mode}:
        (layer,) = layers
        if len(ablation.changes) == len(config.heads_of(layer)) and ablation.name == str(layer):
            return ablation.name, layer, None
        if len(ablation.changes) == 1:
            return ablation.name, layer, ablation.changes[0].head
    return ablation.name, None, None


def head_names(ablation: Ablation) -> tuple[str, ...]:
    """The names of an ablation's heads, with modes if these differ; sites of whole layers are left out.

    Args:
        ablation: the ablation.
    """
    one_mode = len({change.mode for change in ablation.changes}) < 2
    heads = [change for change in ablation.changes if change.of_heads]
    return tuple(f"{change.layer}.{change.head}" + ("" if one_mode else f"={change.mode}") for change in heads)


def check_count(sets: int, heads: int) -> None:
    """Raise `InputError` for more sets, or more heads in all, than a sweep can have.

    Args:
        sets: the number of sets.
        heads: the number of heads in all sets.
    """
    if sets > MOST_SETS or heads > MOST_HEADS:
        needed = format_bytes(SET_BYTES * sets + HEAD_BYTES * heads)
        raise InputError(
            f"these are {sets:,} sets with {heads:,} heads in all: listing them alone takes {needed} of memory. "
            f"A sweep has at most {MOST_SETS:,} sets and {MOST_HEADS:,} heads: choose fewer, or run several sweeps"
        )


def single_heads(config: BertConfig, mode: str = "uniform") -> list[Ablation]:
    """Every single head.

    Args:
        config: the config of the model.
        mode: what replaces a head, one of `MODES`.
    """
    return [ablation(config, [head], mode) for head in ov.every_head(config)]


def whole_layers(config: BertConfig, mode: str = "uniform") -> list[Ablation]:
    """Every layer: all of its heads together.

    Args:
        config: the config of the model.
        mode: what replaces the heads, one of `MODES`.
    """
    return [
        ablation(config, ov.heads_of_layer(config, layer), mode, str(layer))
        for layer in dict.fromkeys(layer for layer, _ in ov.every_head(config))
    ]


def head_pairs(config: BertConfig, mode: str = "uniform", *, heads: Iterable[ov.Head] | None = None) -> list[Ablation]:
    """Every pair of heads: 10,296 for a 12 x 12 model.

    Args:
        config: the config of the model.
        mode: what replaces a head, one of `MODES`.
        heads: the heads whose pairs are made; by default all.

    Raises:
        OverrideError: a head that does not exist.
        InputError: more pairs than a sweep can have.
    """
    chosen = ov.every_head(config) if heads is None else _heads(heads, "heads")
    check_count(math.comb(len(chosen), 2), 2 * math.comb(len(chosen), 2))
    return [ablation(config, pair, mode) for pair in itertools.combinations(chosen, 2)]


def all_but_one(config: BertConfig, mode: str = "uniform") -> list[Ablation]:
    """All heads but one, for every head; named 'all but 3.0'.

    Args:
        config: the config of the model.
        mode: what replaces the heads, one of `MODES`.

    Raises:
        InputError: more heads than a sweep can have.
    """
    every = ov.every_head(config)
    check_count(len(every), len(every) * (len(every) - 1))
    return [
        ablation(config, [other for other in every if other != head], mode, f"all but {head[0]}.{head[1]}")
        for head in every
    ]


def one_of_layer(config: BertConfig, mode: str = "uniform") -> list[Ablation]:
    """All heads of a layer but one, for every head; named 'layer 3 but 3.0'. Layers of one head are left out.

    Source: Michel et al. 2019, section 3.3.

    Args:
        config: the config of the model.
        mode: what replaces the heads, one of `MODES`.
    """
    return [
        ablation(
            config,
            [other for other in ov.heads_of_layer(config, layer) if other != (layer, head)],
            mode,
            f"layer {layer} but {layer}.{head}",
        )
        for layer, head in ov.every_head(config)
        if len(config.heads_of(layer)) > 1
    ]


def cumulative(config: BertConfig, mode: str = "uniform", *, order: Sequence[ov.Head]) -> list[Ablation]:
    """The first head of an order, the first two heads, and so on; named 'first 1', 'first 2' ...

    Args:
        config: the config of the model.
        mode: what replaces the heads, one of `MODES`.
        order: the heads in the order of removal.

    Raises:
        OverrideError: a head that does not exist.
        InputError: too many heads.
    """
    heads = _heads(order, "order")
    check_count(len(heads), math.comb(len(heads) + 1, 2))
    return [ablation(config, heads[:count], mode, f"first {count}") for count in range(1, len(heads) + 1)]


def random_subsets(
    config: BertConfig, mode: str = "uniform", *, size: int, count: int, seed: int = 0
) -> list[Ablation]:
    """`count` random sets of `size` different heads; sets may be repeated.

    Args:
        config: the config of the model.
        mode: what replaces the heads, one of `MODES`.
        size: the number of heads in each subset.
        count: the number of subsets.
        seed: the seed of the draws.

    Raises:
        InputError: more heads than the model has, or none; or more sets than a sweep can have.

    >>> [len(one.changes) for one in random_subsets(BertConfig(), "zero", size=2, count=3)]
    [2, 2, 2]
    """
    every = ov.every_head(config)
    size, count = arguments.check_int(size, "size"), arguments.check_int(count, "count", 1)
    seed = arguments.check_int(seed, "seed", 0)
    if not 1 <= size <= len(every):
        raise InputError(f"a subset of {size} heads cannot be drawn: the model has {len(every)}")
    check_count(count, count * size)
    draw = random.Random(seed)
    return [ablation(config, draw.sample(every, size), mode) for _ in range(count)]


def read_sets(path: Path, config: BertConfig, mode: str = "uniform") -> list[Ablation]:
    """Read sets of heads from a text file.

    Each line is a set: heads as LAYER.HEAD or L3H10, separated by spaces or commas. '3.0=zero' sets the mode of a head.
    Text before a colon is the name of the set. Empty lines, and text after a #, are ignored.

    Args:
        path: the text file.
        config: the config of the model.
        mode: the mode of heads without a mode.

    Raises:
        InputError: the file cannot be read, or a line is not a set; with the line number.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "sets.txt"
    >>> _ = path.write_text("syntax: 3.0 4.1  # two heads")
    >>> [(one.name, len(one.changes)) for one in read_sets(path, BertConfig())]
    [('syntax', 2)]
    """
    path = user_path(path, InputError)
    sets: list[Ablation] = []
    for number, name, heads in _set_lines(path):
        check_count(len(sets) + 1, 0)
        try:
            sets.append(_parse_set(name, heads, config, mode))
        except (InputError, OverrideError) as error:
            raise InputError(f"{path}, line {number}: {error}") from error
    if not sets:
        raise InputError(f"{path} holds no set of heads")
    return sets


def hash_sets(path: Path) -> str | None:
    """SHA-256 of the sets in a file, without their names; None if there is no file.

    Args:
        path: the text file of sets.

    Raises:
        InputError: the file cannot be read.
    """
    if not is_file(path, InputError):
        return None
    lines = [" ".join(sorted(map(_plain_word, heads))) for _, _, heads in _set_lines(path)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _set_lines(path: Path) -> list[tuple[int, str, list[str]]]:
    """Line number, name and heads of each set in a file. Raises `InputError` if it cannot be read."""
    set_lines = []
    for number, line in enumerate(read_text(path, InputError).split("\n"), start=1):
        if "\r" in line.removesuffix("\r"):
            problem = "a carriage return without a line feed; save the file with Unix or Windows line endings"
            raise InputError(f"{path}, line {number}: {problem}")
        content = line.split("#")[0].strip()
        if content:
            name, _, heads = content.rpartition(":")
            set_lines.append((number, name.strip(), heads.replace(",", " ").split()))
    return set_lines


def _parse_set(name: str, heads: Sequence[str], config: BertConfig, mode: str) -> Ablation:
    """Parse one line of a file of sets."""
    if name != visible(name):
        raise InputError(f"the name {visible(name)!r} holds a control character: use visible characters")
    changes = []
    for word in heads:
        head, _, mode_of_head = word.partition("=")
        changes.append(Change(*ov.parse_head(head, config), mode_of_head or mode))
    if not changes:
        raise InputError("a set needs at least one head")
    return Ablation(name or "+".join(map(_plain_word, heads)), tuple(changes))


def _plain_word(word: str) -> str:
    """A head of a set, with its mode if there is one, in the form LAYER.HEAD=MODE."""
    head, equals, mode = word.partition("=")
    return f"{arguments.plain_head_name(head)}{equals}{mode}"


def _heads(heads: Iterable[ov.Head], name: str) -> tuple[ov.Head, ...]:
    return arguments.check_sequence(heads, name, "a list of heads such as ['3.0', '4.1']", error=OverrideError)


def to_overrides(
    config: BertConfig,
    ablation: Ablation,
    means: Float[np.ndarray, "layers heads head_dim"] | None = None,
    source: ModelOutput | None = None,
    spans: Int[np.ndarray, "batch token"] | None = None,
) -> Overrides:
    """Make the arrays of an ablation.

    Args:
        config: the config of the model.
        ablation: the heads to replace, each with its mode.
        means: the heads' mean outputs, for mode 'mean'.
        source: another run of the model, for mode 'patched'.
        spans: the span of each token, -1 for none, for changes that act at some spans.

    Raises:
        OverrideError: a head that does not exist, mode 'mean' without means, 'patched' without a source, or changes at
            spans without `spans`.
    """
    arguments.check_instance(ablation, "ablation", Ablation, "an Ablation (bertjax.ablations.ablation)")
    overrides = [ov.identity(config)]
    groups: dict[tuple[str, float, tuple[int, ...]], list[ov.Head]] = {}
    for change in ablation.changes:
        if change.of_parameters:
            raise OverrideError(
                f"ablation {ablation.name} changes parameters, not activations: run it by bertjax.sweep"
            )
        if change.site == HEAD_OUTPUTS:
            kind = (change.replacement, 1 - change.replaced, change.at)
            groups.setdefault(kind, []).append((change.layer, change.head))
        else:
            overrides.append(_replace_site(config, ablation.name, change, source, spans))
    for (replacement, gate, at), heads in groups.items():
        override = _replace_outputs(config, ablation.name, heads, replacement, gate, means=means, source=source)
        overrides.append(at_tokens(override, _mask(ablation.name, at, spans)) if at else override)
    return ov.combine(*overrides)


def _mask(name: str, at: tuple[int, ...], spans: Int[np.ndarray, "batch token"] | None) -> Float[np.ndarray, "..."]:
    """The tokens at which an ablation acts: all, if `at` is empty."""
    if not at:
        return np.ones((1, 1))
    if spans is None:
        raise OverrideError(f"ablation {name} acts at spans of tokens: give spans=")
    return np.isin(spans, at).astype(float)


def _replace_outputs(
    config: BertConfig,
    name: str,
    heads: Sequence[ov.Head],
    replacement: str,
    gate: float,
    *,
    means: Float[np.ndarray, "layers heads head_dim"] | None,
    source: ModelOutput | None,
) -> Overrides:
    """Replace the outputs of heads in the same way."""
    if replacement == "mean":
        if means is None:
            raise OverrideError(f"ablation {name} replaces heads by their mean outputs: {GIVE_MEANS}")
        return ov.mean(config, heads, means, gate)
    if replacement == "source":
        return ov.patched_outputs(config, heads, _require_source(name, source), gate)
    return (ov.uniform if replacement == "uniform" else ov.factor)(config, heads, gate)


def _replace_site(
    config: BertConfig,
    name: str,
    change: Change,
    source: ModelOutput | None,
    spans: Int[np.ndarray, "batch token"] | None,
) -> Overrides:
    """Patch a site other than heads' outputs from the source, or set it to zero."""
    mask = change.replaced * _mask(name, change.at, spans)
    where: ov.Head | int = (change.layer, change.head) if change.of_heads else change.layer
    if change.replacement == "source":
        return patched(config, change.site, [where], _require_source(name, source), tokens=mask)
    width = config.head_dim if change.of_heads else config.hidden_size
    return replaced(config, change.site, {where: np.zeros(width)}, tokens=mask)


def _require_source(name: str, source: ModelOutput | None) -> ModelOutput:
    if source is None:
        raise OverrideError(f"ablation {name} uses values of another run: give source=model(...) of other texts")
    return source
