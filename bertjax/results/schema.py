"""The schema of `summary.json` and of the lines of `examples.jsonl`.

The classes write the files (`msgspec.to_builtins`), validate them on reading (`msgspec.convert`), and are the source of
the JSON Schema in the documentation. Optional keys have the default `UNSET`. Readers ignore unknown keys, so that later
versions can add keys; a change of the meaning of a key requires a new `table.SCHEMA`.
"""

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType

Score: TypeAlias = float | None  # null if it is undefined


class FileHash(Struct):
    """SHA-256 and size in bytes of a file."""

    sha256: str
    bytes: int


class Model(Struct, kw_only=True):
    """The model: its name as the user wrote it, its sizes, and the SHA-256 of all weights in its files.

    `new_parameters` are tensors that the outputs depend on but that are not in the files, and were initialised at
    random (`--allow-new-head`). `base` is the path or hub id of the model that an adapter changes.
    """

    name: str
    base: str | UnsetType = UNSET
    class_: str = msgspec.field(name="class")
    layers: int
    heads: int
    weights_sha256: str
    new_parameters: list[str] | UnsetType = UNSET


class Device(Struct):
    """The device that computed the outputs."""

    platform: str
    kind: str


class Data(Struct, kw_only=True):
    """The examples.

    `label_names` are in the order of class ids, and empty for a regression; `truncated` is the number of truncated
    examples; `sha256` is of ids, texts and labels; `scale` is the lowest and highest rating, of the task or of
    the whole file.
    """

    task: str
    label_names: list[str]
    split: str
    source: str
    examples: int
    truncated: int
    sha256: str
    scale: list[float] | UnsetType = UNSET


class MainMetric(Struct):
    """Name and label of the main metric."""

    name: str
    label: str


class OwnMetric(Struct, kw_only=True):
    """A metric of the user: the fields of `bertjax.statistics.Measure`, what it reads, and if it is of one label."""

    label: str
    reads: Literal["predictions", "values", "outputs"]
    of_one_label: bool
    unit: str | UnsetType = UNSET
    greater_is_better: bool | UnsetType = UNSET
    of_effects: bool | UnsetType = UNSET
    compared_with: str | UnsetType = UNSET
    tested: bool | UnsetType = UNSET
    by: Literal["ablation", "gradients", "patching", "comparison", "restoring", "redrawing"] | UnsetType = UNSET


class Mode(Struct):
    """The mode of ablation, its definition, and its title."""

    name: str
    definition: str
    title: str | UnsetType = UNSET


class Analysis(Struct):
    """The analysis, its options besides the settings, and the SHA-256 of all examples that it read."""

    name: str
    options: dict[str, Any]
    examples_sha256: str
    inputs_sha256: str | UnsetType = UNSET
    """SHA-256 of the tokenizer, the label names, and the model's class, options, config and precision."""


class Gradients(Struct):
    """Importance by gradients: the loss, its unit, and the number of steps from the model to all heads replaced."""

    loss: str
    unit: str
    steps: int


class Gates(Struct, kw_only=True):
    """Learned gates at one price: the closed set (null if none), the heads left, and how often each gate is open."""

    strength: float
    run: str | None
    left: int
    open: dict[str, float]


class Order(Struct):
    """An order of removal: its heads, the first removed first, and the name of the removed set by heads left."""

    name: str
    heads: list[str]
    runs: dict[str, str]


class Pruning(Struct, kw_only=True):
    """Orders of removal.

    `chosen_on` is the number of other examples on which the orders were chosen (0 for none), `points` are the numbers
    of heads left.
    """

    chosen_on: int
    points: list[int]
    orders: list[Order]
    gradient_share: float | UnsetType = UNSET
    greedy_share: float | UnsetType = UNSET
    gates: list[Gates] | UnsetType = UNSET


class Cell(Struct):
    """A patch: site, layer, head (null for a whole layer) and index of the span."""

    place: str
    layer: int
    head: int | None
    span: int


class Patching(Struct, kw_only=True):
    """A grid of patches, with a cell for each ablation.

    `into` is the text of a contrast that is patched, `score` the definition of the score; `own_score` is its mean over
    the patched texts, `donor_score` over the source texts. `right_way` counts contrasts whose clean text scores above
    the corrupted text, `other_way` all other contrasts. Paths have `receivers` (heads by site) and `feed_forward`.
    """

    places: list[str]
    into: Literal["corrupted", "clean"]
    spans: list[str]
    score: str
    own_score: float
    donor_score: float
    cells: list[Cell]
    right_way: int | UnsetType = UNSET
    other_way: int | UnsetType = UNSET
    receivers: dict[str, list[str]] | UnsetType = UNSET
    feed_forward: Literal["computed", "frozen"] | UnsetType = UNSET


class Silhouette(Struct):
    """Similarity of heads in one layer: mean silhouette of layers, the same for permuted layers, and p."""

    value: float
    permuted: float
    p: float


class Roles(Struct):
    """Roles of heads: the definition of each role, the criterion of each kind of head, and the kinds of each head."""

    definitions: dict[str, str]
    criteria: dict[str, str]
    kinds: dict[str, list[str]]
    silhouette: Silhouette | UnsetType = UNSET


class DescriptionLength(Struct):
    """The length in bits of the tags' code by online coding, and the length of a uniform code over it."""

    bits: float
    compression: float


class Mix(Struct):
    """The mix of all layers of an edge probe: the weight of each layer, a factor of all, and their mean layer."""

    weights: list[float]
    scale: float
    accuracy: float
    centre_of_gravity: float


class ExpectedLayer(Struct):
    """The expected layer of edge probes, and the accuracy of the mix of layers 0 to l, for each l.

    `layer` is null if the layers add nothing to the embeddings, `interval` (95 %) if they add nothing in some draws.
    """

    layer: float | None
    interval: list[float] | None
    accuracies: list[float]


class Probe(Struct):
    """Linear probes of words, or edge probes of spans.

    `tags` are the classes, `sentences` the numbers of sentences that train, select and test, `most_frequent` the share
    of the most frequent tag among the test words, `description_lengths` those of the embeddings and of each layer or
    head, if they were computed. Edge probes have `kind`, the source of the labels, the numbers of `targets`, `mix` and
    `expected_layer`.
    """

    tags: list[str]
    sentences: dict[str, int]
    most_frequent: float
    description_lengths: dict[str, DescriptionLength] | UnsetType = UNSET
    kind: str | UnsetType = UNSET
    targets: dict[str, int] | UnsetType = UNSET
    mix: Mix | UnsetType = UNSET
    expected_layer: ExpectedLayer | UnsetType = UNSET


class Structure(Struct):
    """Structural probes.

    `sentences` are the numbers of sentences that train, select and test, `rank` is that of the projection. `by_length`
    has the Spearman correlations of the embeddings and each layer, as means over the sentence lengths from 5 to 50;
    `linear_chain` the scores of a tree that joins each word with the next.
    """

    sentences: dict[str, int]
    rank: int
    by_length: dict[str, dict[str, float | None]]
    linear_chain: dict[str, float | None] | UnsetType = UNSET


class RandomEncoder(Struct):
    """Scores of one layer of a random encoder of the same shape."""

    retrieval_centred: float
    language_identification: float


class LanguagesOfLayer(Struct):
    """Languages at one layer.

    `distance` is the mean distance between the centroids of two languages, `spread` the root mean square distance of a
    sentence from its centroid, `shuffled` the centred retrieval of shuffled translations, `pairs` the centred retrieval
    by language of the query and of the candidates, such as 'en-de'.
    """

    distance: float
    spread: float
    shuffled: float
    random: RandomEncoder
    pairs: dict[str, float]


class Languages(Struct):
    """Language neutrality.

    `names` are the languages, `sentences` the numbers of sentences that train, select and test, `chance` the retrieval
    by chance, `layers` what was found in the embeddings and in each layer.
    """

    names: list[str]
    sentences: dict[str, int]
    chance: float
    layers: dict[str, LanguagesOfLayer]


class SensesOfLayer(Struct):
    """Controls at one layer: the AUC of a random encoder, and that of the other tokens; null if it is undefined."""

    random_auc: float
    context_auc: float | None


class Senses(Struct):
    """Senses of words: the number of pairs, the share of the most frequent label, and the controls at each layer."""

    pairs: int
    majority: float
    layers: dict[str, SensesOfLayer]


class Geometry(Struct):
    """The geometry of words: the number of words, and each measurement of a random encoder of the same shape.

    A measurement has a value for the embeddings and for each layer.
    """

    words: int
    random_encoder: dict[str, list[float]]


class Likeness(Struct, kw_only=True):
    """How alike representations are: of the layers `rows` and `columns`, matrices of rows by columns.

    `other` is the other checkpoint, if the columns are its layers; `words` the number of words that are compared.
    `chance` is the mean alignment over all permutations of words; `p` is from `permutations` random permutations of
    `sample` words.
    """

    other: str | UnsetType = UNSET
    words: int
    rows: list[str]
    columns: list[str]
    cka: list[list[float]]
    procrustes: list[list[float]]
    chance: list[list[float]]
    p: list[list[float]]
    permutations: int
    sample: int


class Restoring(Struct):
    """Restored parameters.

    `part` names the parameters of a run, `scores` are those with all layers restored, by metric, and `base_sha256` is
    the hash of the layers that the parameters come from.
    """

    part: str
    scores: dict[str, float | None]
    base_sha256: str


class Screen(Struct):
    """Ablations chosen by gradients.

    `audited` are ablations that were run although the gradients left them out; `largest` has the largest effect among
    them. With 95 % confidence, at most `most_larger` of all that were left out have a larger effect.
    """

    chosen: int
    left_out: int
    audited: list[str]
    most_larger: int
    largest: str
    sentence: str


class Shapley(Struct):
    """Shapley values.

    `exact` if every set of heads was run, else estimated from `orders` orders. `half_widths` are half of each value's
    interval over orders (null for too few orders), `within` is the half-width at which the estimate stops, `without`
    the score with all of these heads replaced.
    """

    orders: int
    exact: bool
    half_widths: list[float | None]
    within: float | None
    without: float


class Derived(Struct):
    """The score whose changes are the effects, its unit, and its value without ablation."""

    metric: str
    label: str
    unit: str
    base: float


class Halves(Struct):
    """The result of choosing the best ablation on a random half of the examples and scoring it on the other.

    `chosen` are names of ablations and the shares of halves that chose them, the most frequent first.
    """

    chosen: list[list[str | float]]
    on_chosen: Score
    on_other: Score
    interval: list[Score]
    halves: int


class Statistics(Struct, kw_only=True):
    """How the statistics of a metric were computed.

    `level` is the level of the intervals, `q` the false discovery rate below which an effect is significant; `least_p`
    and `least_best_p` are the smallest possible values with random swaps (null if p is exact).
    """

    sentence: str
    examples: int
    level: float
    q: float
    resamples: int
    test: str
    seed: int
    effect_size: str
    halves: Halves
    least_p: float | UnsetType | None = UNSET
    least_best_p: float | UnsetType | None = UNSET


class Base(Struct):
    """Scores without ablation, by the main metric and by all."""

    score: Score
    scores: dict[str, Score]


class Ablation(Struct):
    """An ablation: layer and head (null for a set), main score, its difference from the base's, scores by all metrics.

    Intervals and tests are in `results.parquet`.
    """

    name: str
    heads: list[str]
    layer: int | None
    head: int | None
    score: Score
    delta: Score
    scores: dict[str, Score]


class Summary(Struct, kw_only=True):
    """`summary.json`, versions 1 to 4.

    Version 1 has no hashes; 2 names heads 3.10 in `results.parquet`, later versions L3H10; 1 to 3 repeat intervals and
    tests under `ablations`, and 2 and 3 have a hash of the summary, which nothing reads.

    Attributes:
        files: the other files of the directory by name.
        command: the command line.
        outputs: the name of the model's outputs, and `numbers` the names of their numbers unless they are logits or a
            single number; see docs/guides/tasks.md.
        tags: names of the model's tags by id.
        metrics: the main one first.
        own_metrics: metrics of the user by name.
        positive: the id of the positive label.
        positive_label: the label of F1, ROC AUC and average precision; null if no metric is about one label.
        settings: all options.
        seconds: the seconds of the job, including loading.
        without_effect: ablations that changed no output.
        float32: the distance of scores and outputs in bfloat16 from float32.
        sentence: the summary sentence.
        statistics: the statistics by metric; empty if fewer than two examples have a label.
    """

    schema: int
    files: dict[str, FileHash] | UnsetType = UNSET
    command: str
    model: Model
    versions: dict[str, str]
    device: Device
    data: Data
    outputs: str
    numbers: list[str] | UnsetType = UNSET
    tags: list[str] | UnsetType = UNSET
    metrics: list[str]
    positive: int
    metric: MainMetric
    own_metrics: dict[str, OwnMetric] | UnsetType = UNSET
    settings: dict[str, Any]
    mode: Mode
    seconds: float
    without_effect: list[str]
    analysis: Analysis | UnsetType = UNSET
    gradients: Gradients | UnsetType = UNSET
    pruning: Pruning | UnsetType = UNSET
    patching: Patching | UnsetType = UNSET
    roles: Roles | UnsetType = UNSET
    probe: Probe | UnsetType = UNSET
    structure: Structure | UnsetType = UNSET
    languages: Languages | UnsetType = UNSET
    senses: Senses | UnsetType = UNSET
    geometry: Geometry | UnsetType = UNSET
    likeness: Likeness | UnsetType = UNSET
    restoring: Restoring | UnsetType = UNSET
    screen: Screen | UnsetType = UNSET
    shapley: Shapley | UnsetType = UNSET
    derived: Derived | UnsetType = UNSET
    float32: dict[str, Any] | UnsetType = UNSET
    positive_label: str | UnsetType | None = UNSET
    sentence: str
    statistics: dict[str, Statistics]
    base: Base
    ablations: list[Ablation]


class Candidate(Struct):
    """A candidate of a ranking: its index in the pool, name, text and relevance."""

    number: int
    name: str
    text: str
    relevance: int


class Example(Struct, kw_only=True):
    """A line of `examples.jsonl`.

    Attributes:
        label: a class id or a number; null for an example without a label.
        group: the group of the example, such as a paradigm, for scores by group.
        words: the words of a sentence with tags.
        tags: the tag of each word.
        candidates: the candidates of a query: the relevant candidates, and all that a run ranks first.
        choices: the choices of a multiple-choice question.
        labels: the labels of a text that may have several; missing if they are unknown.
        beside: the texts that both texts of a contrast share: good and bad words, and a second text.
        targets: start and end of the target word in both sentences of a pair, in characters.
        answers: the answers of a question; empty if there is no answer.
    """

    id: int | str
    label: int | float | None
    first: str
    second: str | UnsetType = UNSET
    words: list[str] | UnsetType = UNSET
    tags: list[str] | UnsetType = UNSET
    candidates: list[Candidate] | UnsetType = UNSET
    choices: list[str] | UnsetType = UNSET
    labels: list[str] | UnsetType = UNSET
    beside: dict[str, str] | UnsetType = UNSET
    targets: list[list[int]] | UnsetType = UNSET
    answers: list[str] | UnsetType = UNSET
    group: str | UnsetType = UNSET
