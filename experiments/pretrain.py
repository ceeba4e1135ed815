"""What does a small BERT learn from a million words? A masked language model from scratch, to study heads of.

Makes a vocabulary of word pieces, and trains a BERT (Devlin et al. 2019) with random weights to name hidden words of
open texts: 15 % of the words, of which 80 % are hidden, 10 % replaced and 10 % left. No next-sentence task, as in
RoBERTa (Liu et al. 2019). Words are drawn anew in each step. Texts held out by a hash judge it after each stretch of
`--save-every` steps. No text that shares eight words in a row with what the model is measured by is learnt from.

A killed run resumes after its last stretch, on a CPU to the same bytes (the same command without --overwrite). DIR gets
`result.json` (settings, texts, scores of each stretch) and `last/`, the model with its tokenizer for `transformers` and
bertjax; its weights are rounded to float16, and the last scores are of those.

    python -m experiments.pretrain --data TEXTS --output DIR    an hour, two CPU cores: 4.608 nats (frequencies 6.935)

For the results see `RESULTS.md`.
"""

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import BertConfig, BertForMaskedLM, Tokenizer
from bertjax.checkpoints import MODEL, MODEL_FILES, saving, write_weights
from bertjax.cli import Parser, guarded, positive
from bertjax.console import say
from bertjax.errors import Interrupted, OutputError
from bertjax.machine import use_compile_cache
from bertjax.paths import user_path
from bertjax.progress import ProgressBar, Report
from experiments.pretraining.corpus import Corpus, read_corpus
from experiments.pretraining.masking import Rows, WordBatch, encode_texts
from experiments.pretraining.vocabulary import make_tokenizer, save_tokenizer, train_vocabulary
from experiments.pretraining.words import score_frequencies, score_rows, word_loss
from experiments.shared.program import above_zero, fraction, whole
from experiments.training.state import LAST, Epoch, RunDirectory
from experiments.training.trainer import Learner, Parameters, Recipe, learning_rates, random_batches

MASKS = 2  # tells the draw of hidden words from others with the same seed


@dataclasses.dataclass(frozen=True)
class Material:
    """What a run learns from.

    Args:
        corpus: its texts.
        pieces: the vocabulary.
        tokenizer: which uses it.
        train: the texts in rows.
        held_out: those that judge.
    """

    corpus: Corpus
    pieces: Sequence[str]
    tokenizer: Tokenizer
    train: Rows
    held_out: Rows

    def describe(self) -> dict[str, dict[str, Any]]:
        """The two parts of the data, for `result.json`."""
        parts = {"train": (self.corpus.train, self.train), "held_out": (self.corpus.held_out, self.held_out)}
        described: dict[str, dict[str, Any]] = {"left_out": dict(self.corpus.left_out)}
        for name, (texts, rows) in parts.items():
            origins = [text.origin for text in texts]
            sources = {origin: origins.count(origin) for origin in dict.fromkeys(origins)}
            described[name] = {"texts": sources, "rows": len(rows), "word_pieces": len(rows.words)}
        return described


def prepare(options: argparse.Namespace) -> Material:
    """Read the texts, make the vocabulary, tokenise. Raises `DataError`."""
    corpus = read_corpus(user_path(options.data))
    pieces = train_vocabulary([text.whole for text in corpus.train], options.vocabulary)
    tokenizer = make_tokenizer(pieces, options.length)
    train, held_out = (
        Rows.of(tokenizer, encode_texts(tokenizer, texts, options.length), options.length)
        for texts in (corpus.train, corpus.held_out)
    )
    return Material(corpus, pieces, tokenizer, train, held_out)


def make_model(options: argparse.Namespace, vocab: int) -> BertForMaskedLM:
    """A model of random weights."""
    config = BertConfig(
        vocab_size=vocab,
        hidden_size=options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        intermediate_size=options.mlp,
        max_position_embeddings=options.length,
    )
    return BertForMaskedLM(config.with_dropout(options.dropout), jax.random.key(options.seed))


def train(
    learner: Learner, material: Material, options: argparse.Namespace, directory: RunDirectory, report: Report
) -> list[Epoch]:
    """Train from the last saved state; save one, with the held-out scores, after each stretch of steps."""
    stretches: list[Epoch] = []
    state = directory.load_state((learner.parameters, learner.memory))
    if state is not None:
        (learner.parameters, learner.memory), stretches = state
    rates = learning_rates(learner.recipe, options.steps)
    done = min(len(stretches) * options.save_every, options.steps)
    if stretches:
        say(f"{done} of {options.steps} steps are there, resuming after them")
    while done < options.steps:
        end, losses = min(done + options.save_every, options.steps), []
        try:
            for step in range(done, end):
                batch = batch_of_step(material.train, learner.recipe, step, learner.rows)
                losses.append(learner.take_step(batch, step, rates[step]))
                report(float(step + 1), float(options.steps), f"loss {np.mean(losses[-50:]):.3f}{_last(stretches)}")
        except KeyboardInterrupt as interruption:
            raise Interrupted(f"{done} of {options.steps} steps are saved") from interruption
        scores = _judge(learner, learner.parameters, material)
        stretches.append(Epoch(float(np.mean(losses)), dict(scores)))
        directory.save_state((learner.parameters, learner.memory), stretches)
        done = end
    return stretches


def batch_of_step(rows: Rows, recipe: Recipe, step: int, count: int) -> WordBatch:
    """The batch of a step, of `count` rows; it depends on the step's number and the seed alone."""
    epoch, number = divmod(step, -(-len(rows) // recipe.batch_size))
    places = random_batches(len(rows), recipe.batch_size, recipe.seed, epoch)[number]
    return rows.hide(places, count, (recipe.seed, MASKS, step))


def _last(stretches: Sequence[Epoch]) -> str:
    return f", held out {stretches[-1].scores['loss']:.3f}" if stretches else ""


def _judge(learner: Learner, parameters: Parameters, material: Material) -> dict[str, float]:
    return score_rows(learner.skeleton, parameters, material.held_out, learner.rows)[0]


def save_half(learner: Learner, material: Material, directory: Path) -> Parameters:
    """Export the model with its tokenizer, in float16, which `transformers` is told to compute with in float32.

    Returns: the rounded parameters. Raises `OutputError`.
    """
    rounded = {name: value.astype(jnp.float16).astype(value.dtype) for name, value in learner.parameters.items()}
    model = learner.skeleton.merge(rounded)
    weights = {name: value.astype(np.float16) for name, value in model.weights().items()}
    save_tokenizer(material.tokenizer, material.pieces, directory)
    architecture = model.config.family.heads[model.task].architecture
    config = model.config.to_dict() | {"architectures": [architecture], "dtype": "float32"}
    with saving(directory, MODEL, MODEL_FILES):
        write_weights(directory, weights, config)
    return rounded


def compute(options: argparse.Namespace, report: Report) -> list[str]:
    """Perform a run, or what is left of it; returns lines to print."""
    path = user_path(options.output, OutputError)
    material = prepare(options)
    recipe = make_recipe(options)
    directory = RunDirectory(path, _facts(options, recipe, material), vars(options))
    if options.overwrite:
        directory.discard()
    if directory.is_finished():
        return [f"{path} holds this run already; --overwrite repeats it"]
    learner = Learner(make_model(options, material.tokenizer.vocab_size), recipe, word_loss)
    stretches = train(learner, material, options, directory, report)
    rounded = save_half(learner, material, path / LAST)
    scores, targets = score_rows(learner.skeleton, rounded, material.held_out, learner.rows)
    frequencies = score_frequencies(material.train, targets)
    parameters = sum(value.size for value in rounded.values())
    record = {
        **material.describe(),
        "model": {"parameters": parameters, "held_out_words": len(targets), **scores},
        "frequencies": frequencies,
    }
    directory.finish(record, stretches)
    named = {f"{parameters:,} parameters in float16": scores, "frequencies of words alone": frequencies}
    told = [
        f"{name}: {numbers['loss']:.3f} nats, {100 * numbers['accuracy']:.1f} % right"
        for name, numbers in named.items()
    ]
    return [f"{len(targets):,} hidden word pieces of held-out texts", *told, f"model in {path / LAST}"]


def make_recipe(options: argparse.Namespace) -> Recipe:
    """The recipe from the options."""
    names = ("learning_rate", "warmup", "batch_size", "weight_decay", "seed")
    return Recipe(**{name: getattr(options, name) for name in names}, epochs=1)


def _facts(options: argparse.Namespace, recipe: Recipe, material: Material) -> dict[str, Any]:
    """The facts that identify a run."""
    sizes = ("layers", "hidden", "heads", "mlp", "length", "dropout", "steps", "save_every")
    settings = {name: getattr(options, name) for name in sizes}
    texts = {"corpus_sha256": material.corpus.sha256, "tokenizer": material.tokenizer.digest}
    return {**settings, **dataclasses.asdict(recipe), **texts}


def make_parser() -> Parser:
    """The options."""
    parser = Parser(
        prog="python -m experiments.pretrain",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="directory for state, model and result")
    parser.add_argument("--data", required=True, metavar="DIR", help="directory of the texts")
    parser.add_argument("--overwrite", action="store_true", help="begin anew")
    add = partial(_add_number, parser)
    add("--seed", 0, "of weights, order and hidden words", whole)
    add("--steps", 4500, "batches to learn from", positive)
    add("--batch-size", 16, "rows of a step", positive)
    add("--save-every", 180, "steps between two saved states", positive)
    add("--learning-rate", 1e-3, "the highest", above_zero)
    add("--warmup", 0.05, "share of the steps until then", fraction)
    add("--weight-decay", 0.01, "of kernels and embeddings", fraction)
    add("--dropout", 0.0, "share of units dropped in training", fraction)
    add("--vocabulary", 8000, "word pieces", positive)
    add("--layers", 4, "of the model", positive)
    add("--hidden", 256, "width of the hidden states", positive)
    add("--heads", 8, "of each layer", positive)
    add("--mlp", 1024, "width of the feed-forward layers", positive)
    add("--length", 128, "tokens of a row, and the most of a text", positive)
    return parser


def _add_number(parser: Parser, name: str, default: int | float, words: str, kind: Callable[[str], float]) -> None:
    parser.add_argument(name, type=kind, default=default, metavar="N", help=f"{words} (default {default})")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = make_parser()

    def program() -> int:
        options = parser.parse_args(arguments)
        use_compile_cache()
        with ProgressBar("pretrain") as report:
            lines = compute(options, report)
        for line in lines:
            say(line)
        return 0

    return guarded(parser.prog, program)


if __name__ == "__main__":
    raise SystemExit(main())
