"""Do attention weights say which tokens matter? (Abnar and Zuidema 2020; Kobayashi et al. 2020)

For each text, each of its words is replaced by the mask token in turn, and the change of the model's output is
measured: of a classifier that of the log-probability of its predicted label, of a sentence embedder 1 minus the cosine
of the vectors. Against the sizes of these changes stand several attributions to the same tokens, as rank correlations
over a text's tokens (special ones left out), whose mean over texts is given with a 95 % interval (bootstrap of texts):

    weights        the last layer's weights, the mean over heads, from what is read: [CLS], or all tokens of a mean
    all layers     the same, the mean over layers
    norms          the last layer's norms of what is added up, ||sum over heads of weight x transformed value||
    norms, all     the same, the mean over layers
    rollout        attention rollout
    flow           attention flow
    gradients      the change that first-order gradients predict when a token's embedding becomes the mask token's
    words          a control that knows nothing of the model: 1 for words, 0 for punctuation
    random         a draw for each token

    python -m experiments.beyond.faithfulness --model DIR --task mrpc --data GLUE --limit 200
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float
from matplotlib.style import context
from scipy.stats import rankdata
from tqdm import tqdm

from bertjax.attention import attention_flow, attention_rollout, tokens_of
from bertjax.data import Encoding, collate
from bertjax.models import BertForSentenceEmbedding, Inputs
from bertjax.plots import GREY, INK, PALE, WIDTH, add_axes, save_page, start_page
from experiments.shared.data import add_task_options, read_examples
from experiments.shared.run import Figures, Found, Numbers, Run, make_parser, run_script, short_name
from experiments.shared.tables import format_interval, make_table

ATTRIBUTIONS = ("weights", "all layers", "norms", "norms, all", "rollout", "flow", "gradients", "words", "random")
FEWEST, DRAWS, STEP = 5, 10_000, 8  # tokens of a text; bootstrap draws; texts are padded to multiples


@dataclass(frozen=True)
class Text:
    """What was found of one text, at its tokens that are not special.

    Args:
        changes: of the output where a token is masked.
        attributions: by name.
    """

    changes: Float[np.ndarray, " token"]
    attributions: Mapping[str, Float[np.ndarray, " token"]]

    def correlations(self) -> list[float]:
        """Rank correlations of each attribution with the changes; 0 where an attribution says nothing."""
        return [_rank_correlation(self.attributions[name], self.changes) for name in ATTRIBUTIONS]


def _rank_correlation(first: Float[np.ndarray, " token"], second: Float[np.ndarray, " token"]) -> float:
    ranks = [rankdata(values) - (len(values) + 1) / 2 for values in (first, second)]
    sizes = np.prod([np.linalg.norm(one) for one in ranks])
    return float(ranks[0] @ ranks[1] / sizes) if sizes > 0 else 0.0


def read_output(model: Any, output: Any) -> Float[Array, "batch numbers"]:
    """A sentence's vector, or the log-probabilities of a classifier's labels."""
    if isinstance(model, BertForSentenceEmbedding):
        vectors: Array = output.sentence_embedding
        return vectors
    return jax.nn.log_softmax(output.logits)


def changes_of(outputs: Float[np.ndarray, "variants numbers"], embeds: bool) -> Float[np.ndarray, " token"]:
    """How far each masked text's output, from the second row on, is from that of the text itself, the first."""
    own, masked = outputs[0].astype(np.float64), outputs[1:].astype(np.float64)
    if not embeds:
        label = int(own.argmax())
        return np.asarray(np.abs(masked[:, label] - own[label]))
    lengths = np.linalg.norm(masked, axis=1) * np.linalg.norm(own)
    return np.asarray(1 - masked @ own / lengths)


def reads_first(model: Any) -> bool:
    """Whether the model reads the first token of the last layer, and not the mean of all."""
    if isinstance(model, BertForSentenceEmbedding):
        return "cls" in model.poolings
    plan = model.config.architecture.heads.get(model.task)
    return plan is None or plan.reads in ("cls", "pooler")


@partial(jax.jit, static_argnums=0)
def _outputs(graph: Any, state: Any, inputs: Inputs) -> Float[Array, "batch numbers"]:
    model = nnx.merge(graph, state)
    return read_output(model, model.forward(inputs))


@partial(jax.jit, static_argnums=0)
def _inside(
    graph: Any, state: Any, inputs: Inputs, masked: Inputs
) -> tuple[Float[Array, "layers heads query key"], Float[Array, "layers query key"], Float[Array, "token numbers"]]:
    """Weights, norms of what all heads add up together, and the first-order change with each token masked."""
    model = nnx.merge(graph, state)
    encoder, embeddings = model.body.encoder, model.body.embeddings
    context, before = encoder.context(inputs), embeddings(inputs)
    record = encoder(before, context)[1]
    norms = []
    for number, layer in enumerate(encoder.applications()):
        kept = jnp.array(model.config.heads_of(number), jnp.int32)  # a checkpoint may lack some
        kernel = layer.attention.output.kernel[...]
        values = jnp.einsum("khd,hde->hke", record.values[number, 0][:, kept], kernel, precision="highest")
        added = jnp.einsum("hqk,hke->qke", record.weights[number, 0][kept], values, precision="highest")
        norms.append(jnp.linalg.norm(added, axis=-1))

    def read(hidden: Array) -> Array:
        last = encoder(hidden, context)[0]
        return read_output(model, model.finish(last, inputs.keep))[0]

    towards = embeddings(masked) - before  # [1, token, embed]
    tokens = jnp.eye(before.shape[1], dtype=before.dtype)

    def slope(token: Array) -> Array:
        return jax.jvp(read, (before,), (token[None, :, None] * towards,))[1]

    return record.weights[:, 0], jnp.stack(norms), jax.vmap(slope)(tokens)


def study_text(
    model: Any, encoding: Encoding, plain: np.ndarray, is_mark: np.ndarray, mask_id: int, rng: np.random.Generator
) -> Text:
    """The changes and attributions of one text.

    Args:
        plain: its tokens that are not special.
        is_mark: which of all are punctuation.
        rng: draws the random attribution.
    """
    length, pad_id = len(encoding), model.config.pad_token_id or 0
    width = min(-(-length // STEP) * STEP, model.config.max_tokens)
    batch = collate([encoding] * (1 + width), width, pad_id)
    ids = np.array(batch["input_ids"])
    rows = np.arange(1, 1 + length)
    ids[rows, rows - 1] = mask_id
    graph, state = nnx.split(model)
    embeds = isinstance(model, BertForSentenceEmbedding)
    outputs = np.asarray(_outputs(graph, state, model.inputs(**{**batch, "input_ids": ids})))[: 1 + length]
    one = {name: array[:1] for name, array in batch.items()}
    everything_masked = {**one, "input_ids": np.where(one["attention_mask"] > 0, mask_id, one["input_ids"])}
    weights, norms, slopes = map(
        np.asarray, _inside(graph, state, model.inputs(**one), model.inputs(**everything_masked))
    )
    weights, norms, slopes = weights[..., :length, :length], norms[:, :length, :length], slopes[:length]
    readers = np.eye(length)[0] if reads_first(model) else np.full(length, 1 / length)
    mean_weights = weights.mean(axis=1, dtype=np.float64)
    predicted = np.linalg.norm(slopes, axis=1) if embeds else np.abs(slopes[:, int(outputs[0].argmax())])
    found = {
        "weights": readers @ mean_weights[-1],
        "all layers": readers @ mean_weights.mean(axis=0),
        "norms": readers @ norms[-1],
        "norms, all": readers @ norms.mean(axis=0),
        "rollout": readers @ attention_rollout(weights),
        "flow": attention_flow(weights, readers),
        "gradients": predicted,
        "words": (~is_mark).astype(np.float64),
        "random": rng.uniform(size=length),
    }
    return Text(changes_of(outputs, embeds)[plain], {name: np.asarray(values)[plain] for name, values in found.items()})


def compute(run: Run) -> Found:
    """The correlations of each text, for a sentence embedder or a classifier that chooses one label."""
    model, tokenizer = run.model, run.tokenizer
    embeds = isinstance(model, BertForSentenceEmbedding)
    examples = read_examples(run.options)
    second = None if embeds else examples.second  # an embedder reads texts one by one: the first of each pair
    length = min(run.options.max_length, model.config.max_tokens)
    encodings = tokenizer.encode(examples.first, second, length, word_ids=True)
    rng, texts = np.random.default_rng(run.options.seed), list[Text]()
    pairs = zip(encodings, examples.first, second or ("",) * len(examples), strict=True)
    for encoding, *pair in tqdm(list(pairs), disable=None, leave=False):
        tokens = tokens_of(encoding, pair)
        if tokens.plain.sum() >= FEWEST:
            plain = np.flatnonzero(tokens.plain)
            texts.append(study_text(model, encoding, plain, tokens.punctuation, tokenizer.mask_token_id, rng))
    found = np.array([text.correlations() for text in texts])
    results = {**summarise(found, run.options.seed), "texts": len(texts), "read": "vector" if embeds else "label"}
    results |= {"source": examples.source, "task": examples.task.name, "sha256": examples.sha256}
    return results, {"correlations": found}


def summarise(found: Float[np.ndarray, "texts attributions"], seed: int) -> dict[str, Any]:
    """Means over texts with 95 % intervals, and their differences from the last layer's weights."""
    drawn = np.random.default_rng(seed).integers(0, len(found), (DRAWS, len(found)))
    counts = np.apply_along_axis(partial(np.bincount, minlength=len(found)), 1, drawn)

    def told(values: Float[np.ndarray, "texts attributions"]) -> dict[str, list[float]]:
        ends = np.quantile(counts @ values / len(values), [0.025, 0.975], axis=0)
        rows = np.stack([values.mean(axis=0), *ends], axis=1)
        return {name: [round(x, 4) for x in row] for name, row in zip(ATTRIBUTIONS, rows.tolist(), strict=True)}

    return {"correlation": told(found), "less_weights": told(found - found[:, :1])}


def tables(numbers: Numbers) -> str:
    """The table in Markdown, from a run's `numbers.json`."""
    results = numbers["results"]
    rows = [
        [name, *(_with_ends(results[part][name]) for part in ("correlation", "less_weights"))] for name in ATTRIBUTIONS
    ]
    what = f"{short_name(numbers['settings']['model'])}, {results['task']}, {results['texts']} texts"
    return make_table([what, "rank correlation (95 % CI)", "less that of weights"], rows)


def overview(runs: Mapping[str, Numbers]) -> str:
    """The correlations of several runs side by side, in Markdown, from their `numbers.json`."""
    columns = [
        f"{short_name(numbers['settings']['model'])}, {numbers['results']['task']} ({numbers['results']['texts']})"
        for numbers in runs.values()
    ]
    rows = [
        [name, *(_with_ends(numbers["results"]["correlation"][name]) for numbers in runs.values())]
        for name in ATTRIBUTIONS
    ]
    return make_table(["rank correlation (95 % CI)", *columns], rows)


def _with_ends(row: Sequence[float]) -> str:
    return format_interval(row[0], row[1:])


def figures(numbers: Numbers) -> Figures:
    """The figure, from a run's `numbers.json`."""
    return {"figure": partial(_draw, numbers)}


def _draw(numbers: Mapping[str, Any], path: Path) -> None:
    results, height, left = numbers["results"], 0.32 * len(ATTRIBUTIONS), 1.5
    with context("default"):
        subtitle = f"{short_name(numbers['settings']['model'])} on {results['task']}, {results['texts']} texts"
        figure = start_page("Do attention weights say which tokens matter?", subtitle, 0.8, height)
        axes = add_axes(figure, left, 0.8, WIDTH - left - 0.4, height)
        for place, name in enumerate(ATTRIBUTIONS):
            mean, low, high = results["correlation"][name]
            colour = GREY if name in ("words", "random") else INK
            axes.hlines(place, low, high, color=colour, linewidth=1.8)
            axes.scatter(mean, place, s=36, color=colour, zorder=3)
        axes.set_yticks(range(len(ATTRIBUTIONS)), ATTRIBUTIONS, fontsize=9)
        axes.set_ylim(len(ATTRIBUTIONS) - 0.5, -0.5)
        axes.axvline(0, color=INK, linewidth=1.0)
        axes.grid(axis="x", color=PALE, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.set_xlabel(
            "rank correlation with the change when a token is masked; 95 % intervals", fontsize=9, color=INK
        )
    save_page(figure, path)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser(__doc__)
    add_task_options(parser, limit=200, max_length=128)
    return run_script(parser, compute, (figures, tables), arguments)


if __name__ == "__main__":
    raise SystemExit(main())
