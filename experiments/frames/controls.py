"""Is it the link that a head attends along, or only one of its ends?

The nulls (`null.py`) move both ends of a link, so that a head passes them that attends to predicates from everywhere.
Three controls keep one end and replace the other:

same key        The key stays. Queries are other words of the sentence.
same query      The query stays. Keys are other words of the sentence, of the class of the key's word (`classes.py`).
at distance     The key stays. Its weight from other words of all sentences that are as many words before it, or behind.

Other words are those of neither predicate nor elements, without marks, and at least as far from the end that stays as
the sentences were chosen to have elements and predicate: three words. Each pair of a link is compared with the mean of
all that may replace it; a pair without any, and a sentence without any such pair, is left out. Weights are means over
pairs, not the largest of them, which would grow with their number.

The third is needed where sentences are long, so that other words are farther away than elements are, and since most
elements stand before their predicate, other words as often behind it, and many heads look to one side. (The first two
alone were to decide. In PropBank's sentences of up to 30 words other words are half as far again as elements, and heads
were left that look at what is near, so the third was added; which heads the two leave is told beside it.)

A head is above a control if its mean difference is above 0 by random signs of the sentences, and not too small to speak
of. The smallest effect was set before any head was looked at: a quarter more weight than the control has, and a quarter
of what each token gets where attention is uniform (with 14 tokens, .018): less moves neither a head's attention nor a
picture of it to be seen.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from experiments.frames.classes import MARK
from experiments.frames.links import Groups, Links, Pairs, link_pairs
from experiments.frames.null import Chance, correct, score_nulls, word_numbers
from experiments.frames.sources import NEAR, Sentence
from experiments.shared.attention import stream_attention, whole_maps
from experiments.shared.program import Run
from experiments.shared.signs import sign_test

CONTROLS = ("same_key", "same_query")  # within a sentence
AT_DISTANCE = "same_key_at_distance"
RULES = {"all": (*CONTROLS, AT_DISTANCE), "two_controls": CONTROLS}  # what decides
SMALLEST_RATIO, SMALLEST_SHARE = 1.25, 0.25  # of the control's weight; of uniform attention
FEWEST_PAIRS = 20  # that tell what weight there is at a distance
LEVEL = 1.96  # standard errors on each side of a mean, in 95 % intervals

Maps = Float[np.ndarray, "layers heads query key"]


@dataclass(frozen=True)
class Contrast:
    """Links against what replaces one of their ends, from elements to the predicate and back.

    Args:
        examples: how many sentences count.
        links: mean weight of their links.
        others: mean weight of what replaces them.
        interval: half the width of the 95 % interval of the difference.
        p_values: of the difference being at most 0, by random signs of the sentences, (1 + hits) / (1 + draws).
        smallest: the smallest difference that counts, a share of uniform attention.
    """

    examples: Int[np.ndarray, " directions"]
    links: Float[np.ndarray, "directions layers heads"]
    others: Float[np.ndarray, "directions layers heads"]
    interval: Float[np.ndarray, "directions layers heads"]
    p_values: Float[np.ndarray, "directions layers heads"]
    smallest: Float[np.ndarray, " directions"]

    @property
    def large(self) -> Bool[np.ndarray, "directions layers heads"]:
        """Where the difference is not smaller than the smallest that counts."""
        enough = self.links - self.others >= self.smallest[:, None, None]
        return enough & (self.links >= SMALLEST_RATIO * self.others)


@dataclass(frozen=True)
class Replaced:
    """The pairs of a sentence's links that can be replaced, and for each of them what replaces it."""

    links: Pairs
    others: Sequence[Pairs]

    def weigh(self, maps: Maps) -> Float[np.ndarray, "ends layers heads"]:
        """Mean weight of the links, and of what replaces them. NaN where nothing does."""
        if not self.links:
            return np.full((2, *maps.shape[:2]), np.nan)
        share = np.concatenate([np.full(len(pairs), 1 / len(pairs)) for pairs in self.others]) / len(self.links)
        others = weights_at(maps, [pair for pairs in self.others for pair in pairs]) @ share
        return np.stack([weights_at(maps, self.links).mean(-1), others])


def weights_at(maps: Maps, pairs: Sequence[tuple[int, int]]) -> Float[np.ndarray, "layers heads pairs"]:
    """The weights at pairs of (query, key), in float64."""
    query, key = np.array(pairs).T
    return maps[:, :, query, key].astype(np.float64)


def replace_ends(
    links: Pairs, groups: Groups, words: Int[np.ndarray, " token"], classes: Sequence[str], keep: str
) -> Replaced:
    """What may stand in the place of one end of each pair.

    Args:
        links: pairs (query, key) of pieces.
        groups: pieces of the predicate, then of each element.
        words: the word of each piece; piece 0 is token 1.
        classes: the class of each word.
        keep: the end that stays, `same_key` or `same_query`.

    >>> words, classes = np.arange(7), ["noun", "verb", "noun", "mark", "noun", "verb", "noun"]
    >>> replace_ends([(1, 6)], [[6], [1]], words, classes, "same_key")
    Replaced(links=[(1, 6)], others=[[(2, 6), (3, 6)]])
    >>> replace_ends([(6, 1)], [[6], [1]], words, classes, "same_query")
    Replaced(links=[(6, 1)], others=[[(6, 3)]])
    """
    taken = {words[piece - 1] for group in groups for piece in group}
    free = [token + 1 for token, word in enumerate(words.tolist()) if word not in taken and classes[word] != MARK]
    kept, several = [], []
    for query, key in links:
        stays = key if keep == "same_key" else query
        far = [piece for piece in free if abs(words[piece - 1] - words[stays - 1]) > NEAR]
        if keep == "same_key":
            others = [(piece, key) for piece in far]
        else:
            own = classes[words[key - 1]]
            others = [(query, piece) for piece in far if classes[words[piece - 1]] == own]
        if others:
            kept.append((query, key))
            several.append(others)
    return Replaced(kept, several)


@dataclass
class AtDistance:
    """The mean weight to a key from other words that are so many words before or behind it, gathered by sentence."""

    total: dict[int, Float[np.ndarray, "layers heads"]]
    count: dict[int, int]

    def add(self, maps: Maps, pairs: Sequence[tuple[int, int]], words: Int[np.ndarray, " token"]) -> None:
        """Take in pairs (query, key) of a sentence."""
        for query, key in sorted(set(pairs)):
            apart = int(words[query - 1] - words[key - 1])
            self.total[apart] = self.total.get(apart, 0) + maps[:, :, query, key].astype(np.float64)
            self.count[apart] = self.count.get(apart, 0) + 1

    def expect(
        self, pairs: Pairs, words: Int[np.ndarray, " token"]
    ) -> tuple[Pairs, Float[np.ndarray, "layers heads"] | None]:
        """The pairs whose distance was met often enough, and the mean weight at these distances, if there are any."""
        known = {apart: self.total[apart] / count for apart, count in self.count.items() if count >= FEWEST_PAIRS}
        found = [(pair, int(words[pair[0] - 1] - words[pair[1] - 1])) for pair in pairs]
        kept = [(pair, known[apart]) for pair, apart in found if apart in known]
        return [pair for pair, _ in kept], np.mean([mean for _, mean in kept], axis=0) if kept else None


@dataclass(frozen=True)
class Plan:
    """What is weighed in one sentence.

    Args:
        words: the word of each piece; piece 0 is token 1.
        links: pairs (query, key) from elements to the predicate, and back.
        replaced: of each control and direction.
    """

    words: Int[np.ndarray, " token"]
    links: tuple[Pairs, Pairs]
    replaced: Mapping[str, Sequence[Replaced]]


def plan_controls(links: Links, sentences: Sequence[Sentence]) -> list[Plan]:
    """What may replace the ends of each sentence's links."""
    plans = []
    for text, groups, sentence in zip(links.texts, links.groups, sentences, strict=True):
        words, both = word_numbers(text, sentence), link_pairs(groups)
        replaced = {
            name: [replace_ends(pairs, groups, words, sentence.classes, name) for pairs in both] for name in CONTROLS
        }
        plans.append(Plan(words, both, replaced))
    return plans


def mean_distances(plans: Sequence[Plan]) -> dict[str, list[list[float | None]]]:
    """Words between the ends of links, and of what replaces them: a pair of means by control, forth and back."""

    def mean_of(several: Sequence[tuple[Plan, Pairs]]) -> float | None:
        apart = [
            np.mean([abs(int(plan.words[query - 1] - plan.words[key - 1])) for query, key in pairs])
            for plan, pairs in several
            if pairs
        ]
        return float(np.mean(apart)) if apart else None

    found = {}
    for name in CONTROLS:
        several = [[(plan, plan.replaced[name][direction]) for plan in plans] for direction in range(2)]
        found[name] = [
            [
                mean_of([(plan, one.links) for plan, one in own]),
                mean_of([(plan, [pair for pairs in one.others for pair in pairs]) for plan, one in own]),
            ]
            for own in several
        ]
    return found


def measure_controls(run: Run, links: Links, plans: Sequence[Plan]) -> dict[str, Contrast]:
    """Each control."""
    names = (*CONTROLS, AT_DISTANCE)
    values = {name: np.full((2, 2, len(plans), *links.both.shape[2:]), np.nan) for name in names}  # ends, directions
    profiles = [AtDistance({}, {}) for _ in range(2)]
    single: list[dict[tuple[int, int], np.ndarray]] = [{} for _ in plans]
    for place, maps in _each(run, links):
        plan = plans[place]
        for direction, pairs in enumerate(plan.links):
            for name, replaced in plan.replaced.items():
                values[name][:, direction, place] = replaced[direction].weigh(maps)
            others = plan.replaced["same_key"][direction].others
            profiles[direction].add(maps, [pair for several in others for pair in several], plan.words)
            single[place] |= dict(zip(pairs, np.moveaxis(weights_at(maps, pairs), -1, 0), strict=True))
    for place, plan in enumerate(plans):
        for direction, profile in enumerate(profiles):
            pairs, expected = profile.expect(plan.links[direction], plan.words)
            if expected is not None:
                values[AT_DISTANCE][0, direction, place] = np.mean([single[place][pair] for pair in pairs], axis=0)
                values[AT_DISTANCE][1, direction, place] = expected
    uniform = np.array([1 / len(text) for text in links.texts])
    return {name: contrast(found[0], found[1], uniform, run) for name, found in values.items()}


def _each(run: Run, links: Links) -> Iterator[tuple[int, Maps]]:
    """The maps of each sentence: a batch of them is in memory, never all."""
    for places, several in stream_attention(run.model, links.texts, whole_maps, report=run.report):
        yield from zip(places.tolist(), several, strict=True)


def contrast(
    links: Float[np.ndarray, "directions examples layers heads"],
    others: Float[np.ndarray, "directions examples layers heads"],
    uniform: Float[np.ndarray, " examples"],
    run: Run,
) -> Contrast:
    """Means, interval and p-values over the sentences that have a number in each direction.

    Args:
        uniform: of each sentence, what a token gets where attention is uniform.
    """
    rows = []
    for direction in range(2):
        there = np.isfinite(links[direction]).all((1, 2))
        own, other = links[direction][there], others[direction][there]
        examples = len(own)
        if not examples:
            nothing = np.zeros(links.shape[2:])
            rows.append((0, nothing, nothing, nothing, np.ones_like(nothing), 0.0))
            continue
        apart = own - other
        spread = apart.std(0, ddof=1) if examples > 1 else np.full(apart.shape[1:], np.inf)
        p_values = sign_test(apart, run.options.draws, np.random.default_rng((run.options.seed, direction)))
        smallest = SMALLEST_SHARE * uniform[there].mean()
        interval = np.minimum(LEVEL * spread / np.sqrt(examples), 1.0)
        rows.append((examples, own.mean(0), other.mean(0), interval, p_values, smallest))
    return Contrast(*(np.array(column) for column in zip(*rows, strict=True)))


def score_all(
    nulls: Mapping[str, Chance], contrasts: Mapping[str, Contrast]
) -> dict[str, Float[np.ndarray, "directions layers heads"]]:
    """q-values by each null and control, by `both` nulls, and by each rule: of the largest p-value of what decides.

    Corrected over all heads and both directions (Benjamini and Hochberg 1995).
    """
    p_values = {name: found.p_values for name, found in contrasts.items()}
    for rule, names in RULES.items():
        deciding = [*(null.p_values for null in nulls.values()), *(contrasts[name].p_values for name in names)]
        p_values[rule] = np.max(deciding, axis=0)
    return score_nulls(nulls) | {name: correct(found) for name, found in p_values.items()}


def heads_left(
    q_values: Mapping[str, np.ndarray], contrasts: Mapping[str, Contrast], level: float, rule: str = "all"
) -> Bool[np.ndarray, "directions layers heads"]:
    """The heads that both nulls and a rule's controls leave: q below the level, and no effect too small to speak of."""
    return (q_values[rule] < level) & np.all([contrasts[name].large for name in RULES[rule]], axis=0)
