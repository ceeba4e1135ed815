"""What `summary.json` and the lines of `examples.jsonl` hold.

A declaration writes its file (`msgspec.to_builtins`), validates it on reading (`msgspec.convert`), and is the source of
the JSON Schema in the documentation. A key that may be missing has the default `UNSET`. Readers ignore unknown keys, so
that later versions can add some; a change of what a key means requires a new `table.SCHEMA`.
"""

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Struct, UnsetType

Score: TypeAlias = float | None  # null where it is undefined


class FileHash(Struct):
    """SHA-256 and size in bytes of a file as it was written."""

    sha256: str
    bytes: int


class Model(Struct, kw_only=True):
    """The model: its name as the user gave it, its sizes, and the SHA-256 of all weights in its files.

    `new_parameters` are tensors that the outputs depend on and that are not in the files: they were initialised at
    random (`--allow-new-head`). `base` is the model that an adapter changes: the path or hub id in its files.
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

    `label_names` are in the order of class ids, and empty for a regression; `truncated` counts texts that were cut;
    `sha256` is of ids, texts and labels; `scale` is the lowest and highest rating, of the task or of the whole file.
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
    """A metric of the user's: the fields of `bertjax.statistics.Measure`, what it reads, and whether of one label."""

    label: str
    reads: Literal["predictions", "values", "outputs"]
    of_one_label: bool
    unit: str | UnsetType = UNSET
    greater_is_better: bool | UnsetType = UNSET
    of_effects: bool | UnsetType = UNSET
    compared_with: str | UnsetType = UNSET
    tested: bool | UnsetType = UNSET
    by: Literal["ablation", "gradients", "patching"] | UnsetType = UNSET


class Mode(Struct):
    """The mode of ablation, and in three words what happens to a head."""

    name: str
    definition: str
    title: str | UnsetType = UNSET


class Analysis(Struct):
    """The analysis, its options that are not among the settings, and the SHA-256 of all examples that it read."""

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

    `chosen_on` is the number of other examples that chose the orders (0 if none did), `points` the numbers of heads
    left.
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

    `into` is the text of a contrast that is patched, `score` what is computed; `own_score` is its mean over the texts
    that are patched, `donor_score` over the others. `right_way` counts contrasts whose clean text scores above the
    corrupted one, `other_way` other contrasts in these results. Paths have `receivers`, heads by site, and what becomes
    of feed-forward layers.
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


class Screen(Struct):
    """Ablations that gradients chose.

    `audited` are the ablations that were left out by the gradients and run anyway; `largest` has the largest effect
    among these; at most `most_larger` of all that were left out have a larger effect, with 95 % confidence.
    """

    chosen: int
    left_out: int
    audited: list[str]
    most_larger: int
    largest: str
    sentence: str


class Shapley(Struct):
    """Shapley values.

    `exact` if every set of heads was run, else estimated from this many `orders`. `half_widths` are half of each
    value's interval over orders (null for too few orders), `within` the half-width at which to stop, `without` the
    score with all of these heads replaced.
    """

    orders: int
    exact: bool
    half_widths: list[float | None]
    within: float | None
    without: float


class Derived(Struct):
    """The score on which these results are effects, its unit, and its value without ablation."""

    metric: str
    label: str
    unit: str
    base: float


class Halves(Struct):
    """The result of choosing the best ablation on a random half of the examples and scoring it on the other.

    `chosen` are names of ablations with the share of halves that chose them, the most frequent first.
    """

    chosen: list[list[str | float]]
    on_chosen: Score
    on_other: Score
    interval: list[Score]
    halves: int


class Statistics(Struct, kw_only=True):
    """How the numbers of a metric were computed.

    `level` is that of the intervals, `q` the rate of false discoveries below which an effect is significant, `least_p`
    and `least_best_p` the smallest values that random swaps can give (null where p is exact).
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
        outputs: what the model gives for each example, and `numbers` the names of its numbers where it is neither
            logits nor a single number; see docs/guides/tasks.md.
        tags: names of the model's tags by id.
        metrics: the main one first.
        own_metrics: metrics that are the user's, by name.
        positive: the id of the label that counts as yes.
        positive_label: the label that F1, ROC AUC and average precision are about; null where no metric is about one.
        settings: all options.
        seconds: of the job, loading included.
        without_effect: ablations that changed no output.
        float32: for bfloat16, how far scores and outputs are from float32.
        sentence: what was found.
        statistics: by metric; empty where fewer than two examples have a label.
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
        label: a class id or a number; null where there is none.
        group: the part of the data that has scores of its own, such as a paradigm.
        words, tags: of a sentence with a tag for each word.
        candidates: of a query: the relevant ones, and those that some run ranks first.
        choices: of a question with several answers to choose from.
        labels: of a text that may have several; missing where they are unknown.
        beside: of a contrast: good and bad words, and the text beside both.
        answers: of a question; empty where there is none.
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
    answers: list[str] | UnsetType = UNSET
    group: str | UnsetType = UNSET
