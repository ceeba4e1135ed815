"""The plan of a sweep: a trie by layer, in which runs share the layers that they have in common.

An override in layer l changes nothing below l. So the hidden states of a run equal those of its parent up to the first
layer in which they differ. The root is the run without any override.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from bertjax import arguments
from bertjax.checkpoints import BertConfig
from bertjax.errors import InputError, OverrideError
from bertjax.interventions import HEAD_OUTPUTS, Ablation, Change, parse_head

BEFORE_ATTENTION = ("hidden_states", "queries", "keys", "values")  # sites that a layer's attention depends on


@dataclass(eq=False)
class Node:
    """A run that differs from its parent in one layer.

    Args:
        layer: the layer in which the run changes; -1 for the root.
        changes: changes in that layer; changes in lower layers belong to the parent.
        ablations: ids of the ablations that equal this run; empty for a run that only has children.
        children: the runs whose parent it is, by the layer in which they differ from it.
    """

    layer: int
    changes: tuple[Change, ...]
    ablations: list[int] = field(default_factory=list)
    children: dict[int, "list[Node]"] = field(default_factory=dict)

    @property
    def shares_attention(self) -> bool:
        """Whether it computes the same attention as its parent, up to the heads' outputs."""
        return not any(change.of_parameters or change.site in BEFORE_ATTENTION for change in self.changes)

    def ends(self, layers: int) -> int:
        """The layer up to which its hidden states are needed: `layers` if they are read."""
        return layers if self.ablations else max(self.children, default=self.layer + 1)

    def subtree(self) -> Iterator["Node"]:
        """This run and its descendants, parents first."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += [child for layer in sorted(node.children, reverse=True) for child in node.children[layer][::-1]]

    def work(self, layers: int) -> int:
        """The number of layers to compute for this run and its descendants."""
        return sum(node.ends(layers) - max(node.layer, 0) for node in self.subtree())


@dataclass(frozen=True)
class Plan:
    """The trie of some ablations.

    Args:
        root: the run without any override; the id of its ablation is -1.
        ablations: ablations in the order of the sweep.
        layers: number of layers.
        heads: number of heads in each layer.
        duplicates: the number of ablations that equal an earlier one, or the base run.
    """

    root: Node
    ablations: tuple[Ablation, ...]
    layers: int
    heads: int
    duplicates: int

    def nodes(self) -> Iterator[Node]:
        """All runs, parents first."""
        return self.root.subtree()

    def states(self) -> list[int]:
        """The number of different runs after each layer."""
        counts = [0] * self.layers
        for node in self.nodes():
            for layer in range(max(node.layer, 0), node.ends(self.layers)):
                counts[layer] += 1
        return counts

    @cached_property
    def source_sites(self) -> dict[int, tuple[str, ...]]:
        """The sites of each layer that are patched from sources."""
        return self._sites_by_layer(lambda change: change.replacement == "source")

    @property
    def source_blocks(self) -> int:
        """The number of blocks of source activations."""
        return sum(map(len, self.source_sites.values()))

    def sites(self, layer: int) -> tuple[str, ...]:
        """The sites of a layer that are changed, without heads' outputs."""
        return tuple(name for name in self._changed.get(layer, ()) if name != HEAD_OUTPUTS)

    def changes_outputs(self, layer: int) -> bool:
        """Whether heads' outputs of a layer are changed. Also True if nothing is, so that both share a program."""
        return HEAD_OUTPUTS in self._changed.get(layer, (HEAD_OUTPUTS,))

    @cached_property
    def _changed(self) -> dict[int, tuple[str, ...]]:
        return self._sites_by_layer(lambda change: not change.of_parameters)

    def _sites_by_layer(self, counts: Callable[[Change], bool]) -> dict[int, tuple[str, ...]]:
        found: dict[int, set[str]] = {}
        for ablation in self.ablations:
            for change in filter(counts, ablation.changes):
                found.setdefault(change.layer, set()).add(change.site)
        return {layer: tuple(sorted(sites)) for layer, sites in found.items()}

    def modes(self) -> set[str]:
        """All modes in the plan."""
        return {change.mode for ablation in self.ablations for change in ablation.changes}

    def replacements(self) -> set[str]:
        """All replacements of activations in the plan, of `modes.REPLACEMENTS`."""
        return {change.replacement for one in self.ablations for change in one.changes if not change.of_parameters}

    @property
    def changes_parameters(self) -> bool:
        """Whether a run takes parameters from another model."""
        return any(change.of_parameters for one in self.ablations for change in one.changes)


def make_plan(config: BertConfig, ablations: Sequence[Ablation]) -> Plan:
    """Order ablations as a trie by layer. Equal sets become one run.

    Raises:
        InputError: no ablations.
        OverrideError: a head that the model does not have.

    >>> from bertjax.interventions.ablations import single_heads
    >>> make_plan(BertConfig(), single_heads(BertConfig())).states()
    [13, 25, 37, 49, 61, 73, 85, 97, 109, 121, 133, 145]
    """
    expected = "a list of Ablation (bertjax.ablations.single_heads(model.config))"
    ablations = arguments.check_sequence(ablations, "ablations", expected, Ablation)
    if not ablations:
        raise InputError("there is nothing to ablate")
    root = Node(-1, (), [-1])
    nodes: dict[tuple[int, tuple[Change, ...]], Node] = {}
    duplicates = 0
    for index, ablation in enumerate(ablations):
        node = root
        for layer, changes in _by_layer(config, ablation):
            key = (id(node), changes)
            if key not in nodes:
                nodes[key] = Node(layer, changes)
                node.children.setdefault(layer, []).append(nodes[key])
            node = nodes[key]
        duplicates += bool(node.ablations)
        node.ablations.append(index)
    return Plan(root, tuple(ablations), config.num_hidden_layers, config.num_attention_heads, duplicates)


def _by_layer(config: BertConfig, ablation: Ablation) -> list[tuple[int, tuple[Change, ...]]]:
    """An ablation's changes by layer, without those of share 0."""
    layers: dict[int, list[Change]] = {}
    for change in ablation.changes:
        if change.of_heads:
            parse_head((change.layer, change.head), config)
        elif change.layer >= config.num_hidden_layers:
            raise OverrideError(f"there is no layer {change.layer}: the model has 0 to {config.num_hidden_layers - 1}")
        if change.share != 0:
            layers.setdefault(change.layer, []).append(change)
    return [(layer, tuple(layers[layer])) for layer in sorted(layers)]
