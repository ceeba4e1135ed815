"""What a sweep costs before it runs: floating-point operations and bytes, from the plan and the sizes alone.

A product of `[m, k]` and `[k, n]` counts 2 m k n operations; element-wise work is left out. For each token, with E
the embedding's width, F the feed-forward layer's and S the slots of a row: queries, keys and values 6 E^2, scores
and mixing 4 S E, output projection 2 E^2, feed-forward 4 E F.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from bertjax.checkpoints import BertConfig
from bertjax.engine.blocks import Blocks, is_worth_branching
from bertjax.engine.plan import Plan


@dataclass(frozen=True)
class Cost:
    """The price of a sweep.

    Args:
        flops: of the sweep as the engine runs it, rows filled up and blocks too.
        necessary: of the same on real tokens alone: attention within examples, no slot empty.
        plain: of one full forward pass for each ablation and the base, on real tokens alone.
        states: runs with hidden states of their own after each layer.
        state_bytes: hidden states of one run on all rows, in float32.
    """

    flops: float
    necessary: float
    plain: float
    states: tuple[int, ...]
    state_bytes: int


@dataclass(frozen=True)
class Work:
    """How often a plan takes each kind of step on one chunk of rows.

    Args:
        full: layers of one run alone, all tokens.
        shared: attention of a run from which several branch off, all tokens.
        branched: the rest of a layer of one run that branched off, all tokens.
        last_full, last_shared, last_branched: the same in a last layer that only [CLS] goes through.
    """

    full: int = 0
    shared: int = 0
    branched: int = 0
    last_full: int = 0
    last_shared: int = 0
    last_branched: int = 0


def count_work(plan: Plan, runs: int, first_only: bool) -> Work:
    """Go through a plan as the engine does.

    Args:
        runs: slots of a block.
        first_only: whether the readout needs [CLS] alone.
    """
    counts = dict.fromkeys(Work.__annotations__, 0)
    for layer, alone, groups in _layers(plan, runs, first_only):
        prefix = "last_" if first_only and layer == plan.layers - 1 else ""
        counts[prefix + "full"] += alone
        counts[prefix + "shared"] += len(groups)
        counts[prefix + "branched"] += sum(groups)
    return Work(**counts)


def _layers(plan: Plan, runs: int, first_only: bool) -> Iterator[tuple[int, int, list[int]]]:
    """For each node and layer: how many runs go through it alone, and how many in each branch."""
    for node in plan.nodes():
        for layer in range(node.layer + 1, plan.layers):
            alone = int(node.ends(plan.layers) > layer)
            waiting, groups = len(node.children.get(layer, ())), []
            while is_worth_branching(waiting, runs, first_only and layer == plan.layers - 1):
                groups.append(min(waiting, runs))
                waiting -= groups[-1]
            yield layer, alone + waiting, groups


def flops(
    work: Work, config: BertConfig, tokens: int | float, span: int | float, examples: int | float, kinds: int = 1
) -> float:
    """Operations of some work.

    Args:
        tokens: how many the layers are computed on.
        span: tokens that each token attends to.
        examples: how many [CLS] there are.
        kinds: how many ways of overriding a plan mixes: a branch projects each once more.
    """
    embed, mlp = config.hidden_size, config.intermediate_size
    attention, merge, inner = 6 * embed**2 + 4 * span * embed, 2 * embed**2, 4 * embed * mlp
    total = tokens * (
        work.full * (attention + merge + inner)
        + work.shared * (attention + (1 + kinds) * merge)
        + work.branched * (inner + 2 * kinds * config.num_attention_heads * embed)
    )
    # At [CLS]: queries through W_Q and W_K, values through W_V (in a branch those of uniform weights too), and for
    # each head every token's hidden state twice.
    first = examples * (3 * merge + 4 * config.num_attention_heads * span * embed)
    total += (work.last_full + work.last_shared) * first + work.last_shared * examples * merge
    return total + (work.last_full + work.last_branched) * examples * (merge + inner)


def price(
    plan: Plan, config: BertConfig, blocks: Blocks, rows: int, row_length: int, lengths: list[int], first_only: bool
) -> Cost:
    """The cost of a plan on packed examples.

    Args:
        blocks: how large the pieces are.
        rows, row_length: of the packing.
        lengths: tokens of each text.
        first_only: whether the readout needs [CLS] alone.
    """
    work, kinds = count_work(plan, blocks.runs, first_only), max(1, len(plan.modes()))
    real, examples = float(sum(lengths)), float(len(lengths))
    span = sum(length**2 for length in lengths) / real
    full = Work(full=plan.layers)
    slots = float(-(-rows // blocks.rows) * blocks.rows * row_length)
    return Cost(
        flops(work, config, slots, float(row_length), examples, kinds),
        flops(work, config, real, span, examples, 0),
        (len(plan.ablations) + 1) * flops(full, config, real, span, examples),
        tuple(plan.states()),
        int(slots) * config.hidden_size * 4,
    )
