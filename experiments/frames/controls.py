"""Controls that keep one end of a link: does a head attend along the link, or only to or from one of its ends?

The nulls (`null.py`) move both ends of a link, so a head that attends to predicates from everywhere passes them.

same key        The key stays. Queries are other words of the sentence.
same query      The query stays. Keys are other words of the sentence, of the class of the key's word (`classes.py`).
at distance     The key stays. Its mean weight from other words of all sentences at the same distance, before or after.

Other words are those of neither predicate nor elements, without punctuation, at least three words from the end that
stays, as elements are in the chosen sentences. Each pair of a link is compared with the mean of its replacements. Pairs
without replacements are left out, and so are sentences without pairs. Weights are means over pairs, since a maximum
would grow with their number.

The third control is needed because other words are farther from the predicate than elements are in long sentences, and
more often on its other side. (It was added after PropBank's sentences of up to 30 words had been seen; the heads that
remain without it are reported too.)

A head is above a control if its mean difference is above 0 (sign test over sentences) and not negligible: a quarter
more weight than the control, and a quarter of uniform attention (.018 with 14 tokens). This smallest effect was set
before any result was seen.
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
from experiments.shared.run import Run
from experiments.shared.sign_test import sign_test

CONTROLS = ("same_key", "same_query")  # within a sentence
AT_DISTANCE = "same_key_at_distance"
RULES = {"all": (*CONTROLS, AT_DISTANCE), "two_controls": CONTROLS}  # the controls that decide
SMALLEST_RATIO, SMALLEST_SHARE = 1.25, 0.25  # of the control's weight; of uniform attention
FEWEST_PAIRS = 20  # needed to estimate the weight at a distance
LEVEL = 1.96  # standard errors on each side of a mean, in 95 % intervals

Maps = Float[np.ndarray, "layers heads query key"]


@dataclass(frozen=True)
class Contrast:
    """Links against replacements of one of their ends, from elements to the predicate and back.

    Args:
        examples: the number of sentences that count.
        links: mean weight of their links.
        others: mean weight of the replacements.
        interval: half the width of the 95 % interval of the difference.
        p_values: for the difference being at most 0, by random signs of the sentences, (1 + hits) / (1 + draws).
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
        """Where the difference is large enough to count."""
        sizeable = self.links - self.others >= self.smallest[:, None, None]
        return sizeable & (self.links >= SMALLEST_RATIO * self.others)


@dataclass(frozen=True)
class Replaced:
    """The replaceable pairs of a sentence's links, and the replacements of each."""

    links: Pairs
    others: Sequence[Pairs]

    def compute_statistics(self, maps: Maps) -> Float[np.ndarray, "ends layers heads"]:
        """Mean weight of the links, and of their replacements. NaN where there are none."""
        if not self.links:
            return np.full((2, *maps.shape[:2]), np.nan)
        share = np.concatenate([np.full(len(pairs), 1 / len(pairs)) for pairs in self.others]) / len(self.links)
        others = weights_at(maps, [pair for pairs in self.others for pair in pairs]) @ share
        return np.stack([weights_at(maps, self.links).mean(-1), others])


def weights_at(maps: Maps, pairs: Sequence[tuple[int, int]]) -> Float[np.ndarray, "layers heads pairs"]:
    """The weights at pairs (query, key), in float64."""
    query, key = np.array(pairs).T
    return maps[:, :, query, key].astype(np.float64)


def replace_ends(
    links: Pairs, groups: Groups, words: Int[np.ndarray, " token"], classes: Sequence[str], keep: str
) -> Replaced:
    """The replacements of one end of each pair.

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
    kept, replacements = [], []
    for query, key in links:
        fixed = key if keep == "same_key" else query
        far = [piece for piece in free if abs(words[piece - 1] - words[fixed - 1]) > NEAR]
        if keep == "same_key":
            candidates = [(piece, key) for piece in far]
        else:
            key_class = classes[words[key - 1]]
            candidates = [(query, piece) for piece in far if classes[words[piece - 1]] == key_class]
        if candidates:
            kept.append((query, key))
            replacements.append(candidates)
    return Replaced(kept, replacements)


@dataclass
class AtDistance:
    """The mean weight to a key from other words at each distance before or behind it, accumulated by sentence."""

    total: dict[int, Float[np.ndarray, "layers heads"]]
    count: dict[int, int]

    def add(self, maps: Maps, pairs: Sequence[tuple[int, int]], words: Int[np.ndarray, " token"]) -> None:
        """Add pairs (query, key) of a sentence."""
        for query, key in sorted(set(pairs)):
            distance = int(words[query - 1] - words[key - 1])
            self.total[distance] = self.total.get(distance, 0) + maps[:, :, query, key].astype(np.float64)
            self.count[distance] = self.count.get(distance, 0) + 1

    def expect(
        self, pairs: Pairs, words: Int[np.ndarray, " token"]
    ) -> tuple[Pairs, Float[np.ndarray, "layers heads"] | None]:
        """The pairs whose distance occurred often enough, and the mean weight at those distances, None for no pairs."""
        means = {
            distance: self.total[distance] / count for distance, count in self.count.items() if count >= FEWEST_PAIRS
        }
        distances = [(pair, int(words[pair[0] - 1] - words[pair[1] - 1])) for pair in pairs]
        kept = [(pair, means[distance]) for pair, distance in distances if distance in means]
        return [pair for pair, _ in kept], np.mean([mean for _, mean in kept], axis=0) if kept else None


@dataclass(frozen=True)
class Plan:
    """The pairs and their replacements in one sentence.

    Args:
        words: the word of each piece; piece 0 is token 1.
        links: pairs (query, key) from elements to the predicate, and back.
        replaced: by control and direction.
    """

    words: Int[np.ndarray, " token"]
    links: tuple[Pairs, Pairs]
    replaced: Mapping[str, Sequence[Replaced]]


def plan_controls(links: Links, sentences: Sequence[Sentence]) -> list[Plan]:
    """The replacements for the ends of each sentence's links."""
    plans = []
    for text, groups, sentence in zip(links.texts, links.groups, sentences, strict=True):
        words, directions = word_numbers(text, sentence), link_pairs(groups)
        replaced = {
            name: [replace_ends(pairs, groups, words, sentence.classes, name) for pairs in directions]
            for name in CONTROLS
        }
        plans.append(Plan(words, directions, replaced))
    return plans


def measure_controls(run: Run, links: Links, plans: Sequence[Plan]) -> dict[str, Contrast]:
    """The contrast with each control."""
    names = (*CONTROLS, AT_DISTANCE)
    values = {name: np.full((2, 2, len(plans), *links.both.shape[2:]), np.nan) for name in names}  # ends, directions
    profiles = [AtDistance({}, {}) for _ in range(2)]
    pair_weights: list[dict[tuple[int, int], np.ndarray]] = [{} for _ in plans]
    for index, maps in _each(run, links):
        plan = plans[index]
        for direction, pairs in enumerate(plan.links):
            for name, replaced in plan.replaced.items():
                values[name][:, direction, index] = replaced[direction].compute_statistics(maps)
            others = plan.replaced["same_key"][direction].others
            profiles[direction].add(maps, [pair for group in others for pair in group], plan.words)
            pair_weights[index] |= dict(zip(pairs, np.moveaxis(weights_at(maps, pairs), -1, 0), strict=True))
    for index, plan in enumerate(plans):
        for direction, profile in enumerate(profiles):
            pairs, expected = profile.expect(plan.links[direction], plan.words)
            if expected is not None:
                values[AT_DISTANCE][0, direction, index] = np.mean(
                    [pair_weights[index][pair] for pair in pairs], axis=0
                )
                values[AT_DISTANCE][1, direction, index] = expected
    uniform = np.array([1 / len(text) for text in links.texts])
    return {name: contrast(ends[0], ends[1], uniform, run) for name, ends in values.items()}


def _each(run: Run, links: Links) -> Iterator[tuple[int, Maps]]:
    """The maps of each sentence; no more than a batch of them is in memory."""
    for places, batch in stream_attention(run.model, links.texts, whole_maps, norms=run.norms):
        yield from zip(places.tolist(), batch, strict=True)


def contrast(
    links: Float[np.ndarray, "directions examples layers heads"],
    others: Float[np.ndarray, "directions examples layers heads"],
    uniform: Float[np.ndarray, " examples"],
    run: Run,
) -> Contrast:
    """Means, intervals and p-values in each direction, over the sentences that have values in it.

    Args:
        uniform: for each sentence, what a token gets under uniform attention.
    """
    rows = []
    for direction in range(2):
        defined = np.isfinite(links[direction]).all((1, 2))
        link_weights, other_weights = links[direction][defined], others[direction][defined]
        examples = len(link_weights)
        if not examples:
            zeros = np.zeros(links.shape[2:])
            rows.append((0, zeros, zeros, zeros, np.ones_like(zeros), 0.0))
            continue
        differences = link_weights - other_weights
        spread = differences.std(0, ddof=1) if examples > 1 else np.full(differences.shape[1:], np.inf)
        p_values = sign_test(differences, run.options.draws, np.random.default_rng((run.options.seed, direction)))
        smallest = SMALLEST_SHARE * uniform[defined].mean()
        interval = np.minimum(LEVEL * spread / np.sqrt(examples), 1.0)
        rows.append((examples, link_weights.mean(0), other_weights.mean(0), interval, p_values, smallest))
    return Contrast(*(np.array(column) for column in zip(*rows, strict=True)))


def score_all(
    nulls: Mapping[str, Chance], contrasts: Mapping[str, Contrast]
) -> dict[str, Float[np.ndarray, "directions layers heads"]]:
    """q-values by each null and control, by `both` nulls, and by each rule: of the largest p-value among what decides.

    Corrected over all heads and both directions (Benjamini and Hochberg 1995).
    """
    p_values = {name: result.p_values for name, result in contrasts.items()}
    for rule, names in RULES.items():
        deciding = [*(null.p_values for null in nulls.values()), *(contrasts[name].p_values for name in names)]
        p_values[rule] = np.max(deciding, axis=0)
    return score_nulls(nulls) | {name: correct(values) for name, values in p_values.items()}


def heads_left(
    q_values: Mapping[str, np.ndarray], contrasts: Mapping[str, Contrast], level: float, rule: str = "all"
) -> Bool[np.ndarray, "directions layers heads"]:
    """The heads that both nulls and a rule's controls leave: q below the level, and no effect too small to count."""
    return (q_values[rule] < level) & np.all([contrasts[name].large for name in RULES[rule]], axis=0)
