"""Train a small multilingual masked language model on the paragraphs of XQuAD, from random weights.

The model sees the 240 paragraphs of each language, never their questions, so that questions that are translations of
each other can test it (`bertjax languages`). Each step draws a length, and windows of that many tokens from the joined
paragraphs of one language or another. 15 % of their tokens are predicted: 80 % of these are hidden, 10 % replaced and
10 % unchanged (Devlin et al. 2019). There are as many windows of each language. With `--translations 0.5` half of the
windows have tokens of one language and the same part of their translation (translation language modelling, Conneau and
Lample 2019); by default no window shows which paragraphs are translations of each other. There is no dropout. The loss
on the questions of each language is printed when the state is saved.

    python -m experiments.training.multilingual --data xquad.en.json.gz xquad.de.json.gz ... --output DIR

The same command continues a run that was interrupted, on the same device to the same weights. DIR/state.safetensors
has the parameters and the optimizer; DIR/last is the model in float16.
"""

import argparse
import gzip
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from tokenizers import BertWordPieceTokenizer

from bertjax import BertConfig, BertForMaskedLM, Tokenizer
from experiments.training.dropout import Drop, dropper, train_body
from experiments.training.trainer import (
    Batch,
    Parameters,
    Skeleton,
    make_optimizer,
    train_step,
)

LENGTHS, TOKENS = (32, 64, 128), 2048  # tokens of a window, and of all windows of a step
PREDICTED, HIDDEN, REPLACED = 0.15, 0.8, 0.1
SIZES: dict[str, Any] = {
    "hidden_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 768,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
SAVED_EVERY = 100  # steps
RATE, WARMUP, FALL = 1e-3, 200, 0.2  # the highest rate, the steps before it, and the share of the steps that end at 0
VOCABULARY, SPECIAL = 8000, 5  # word pieces; the first ones are [PAD], [UNK], [CLS], [SEP] and [MASK]
TESTED = 256  # questions of each language whose loss is printed


def read_texts(path: Path) -> tuple[list[str], list[str]]:
    """The paragraphs and the questions of a file of SQuAD's layout, packed with gzip or not."""
    content = path.read_bytes()
    articles = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    return [each["context"] for each in paragraphs], [qa["question"] for each in paragraphs for qa in each["qas"]]


def make_tokenizer(texts: list[str], directory: Path) -> Tokenizer:
    """The tokenizer of a directory, or a new one whose word pieces are trained on texts.

    Training may number the pieces in another order each time, so the vocabulary is saved first.
    """
    if not (directory / "vocab.txt").exists():
        backend = BertWordPieceTokenizer(lowercase=True)
        backend.train_from_iterator(texts, VOCABULARY, min_frequency=2, limit_alphabet=3000, show_progress=False)
        directory.mkdir(parents=True, exist_ok=True)
        settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": max(LENGTHS)}
        (directory / "tokenizer_config.json").write_text(json.dumps(settings))
        backend.save_model(str(directory))
    return Tokenizer.from_pretrained(directory)


def hide(ids: Int[np.ndarray, "batch token"], mask_id: int, vocab: int, rng: np.random.Generator) -> Batch:
    """A batch with hidden tokens: `input_ids`, and `at` and `targets` `[batch, predicted]`."""
    count = round(PREDICTED * ids.shape[1])
    candidates = ids >= SPECIAL
    at = np.argsort(np.where(candidates, rng.random(ids.shape), 2.0), axis=1)[:, :count]
    targets = np.take_along_axis(ids, at, axis=1)
    draw, others = rng.random(at.shape), rng.integers(SPECIAL, vocab, at.shape)
    shown = np.where(draw < HIDDEN, mask_id, np.where(draw < HIDDEN + REPLACED, others, targets))
    share = np.take_along_axis(candidates, at, axis=1)
    hidden = ids.copy()
    np.put_along_axis(hidden, at, np.where(share, shown, targets), axis=1)
    return {"input_ids": hidden.astype(np.int32), "at": at, "targets": targets, "share": share.astype(np.float32)}


@dataclass(frozen=True)
class Paragraphs:
    """The tokens of all paragraphs of a language.

    Args:
        tokens: the token ids of the paragraphs, joined.
        starts: the index of the first token of each paragraph, and the number of all tokens.
    """

    tokens: Int[np.ndarray, " token"]
    starts: Int[np.ndarray, " _"]

    @classmethod
    def of(cls, tokenizer: Tokenizer, contexts: list[str]) -> "Paragraphs":
        """The tokens of texts, without special tokens."""
        ids = [np.array(text.input_ids[1:-1]) for text in tokenizer.encode(contexts, max_length=10**6)]
        return cls(np.concatenate(ids), np.cumsum([0, *map(len, ids)]))

    def window(self, start: float, length: int) -> Int[np.ndarray, " _"]:
        """The tokens from a place on: paragraph 3 from its middle is 3.5. The last window of all ends with the text."""
        index = int(start)
        first, after = self.starts[index : index + 2]
        at = min(int(first + (start - index) * (after - first)), len(self.tokens) - length)
        return self.tokens[at : at + length]


def draw_batch(
    tokenizer: Tokenizer, languages: list[Paragraphs], seed: int, step: int, translations: float = 0.0
) -> Batch:
    """The batch of a step: as many windows of each language, between [CLS] and [SEP].

    Args:
        tokenizer: has the ids of special tokens.
        languages: the paragraphs of each language.
        seed: of all random draws.
        step: the number of the step.
        translations: the share of the windows that have a [SEP] in the middle and a translation after it.
    """
    rng = np.random.default_rng((seed, step))
    length = int(rng.choice(LENGTHS))
    rows, count, inside = [], TOKENS // length, length - 2
    for number in range(count):
        first, second = rng.permutation(len(languages))[:2]
        start = rng.uniform(0, len(languages[0].starts) - 1)
        if number < translations * count:
            half = (inside - 1) // 2
            one, two = languages[first].window(start, half), languages[second].window(start, inside - 1 - half)
            rows.append([tokenizer.cls_id, *one, tokenizer.sep_id, *two, tokenizer.sep_id])
        else:
            window = languages[number % len(languages)].window(start, inside)
            rows.append([tokenizer.cls_id, *window, tokenizer.sep_id])
    return hide(np.array(rows), tokenizer.mask_token_id, tokenizer.vocab_size, rng)


def losses_of(skeleton: Skeleton, parameters: Parameters, batch: Batch, drop: Drop) -> Float[Array, ""]:
    """The mean cross-entropy (nats) of the hidden tokens of a batch; [PAD] has id 0."""
    model = skeleton.merge(parameters)
    ids = jnp.asarray(batch["input_ids"])
    hidden = train_body(model, model.inputs(ids, (ids > 0).astype(jnp.int32)), drop).last_hidden_state
    chosen = jnp.take_along_axis(hidden, jnp.asarray(batch["at"])[:, :, None], axis=1)
    scores = jax.nn.log_softmax(model.predictions(chosen, model.bert.embeddings.word[...]))
    losses = -jnp.take_along_axis(scores, jnp.asarray(batch["targets"])[:, :, None], axis=2)[..., 0]
    return jnp.sum(losses * batch["share"]) / jnp.sum(batch["share"])


def word_loss(skeleton: Skeleton, parameters: Parameters, batch: Batch, key: Key[Array, ""]) -> Float[Array, ""]:
    """`losses_of` with the dropout of the config."""
    return losses_of(skeleton, parameters, batch, dropper(key))


@partial(jax.jit, static_argnums=0)
def test_loss(skeleton: Skeleton, parameters: Parameters, batch: Batch) -> Float[Array, ""]:
    """`losses_of` without dropout."""
    return losses_of(skeleton, parameters, batch, lambda x, rate: x)


def save_model(skeleton: Skeleton, parameters: Parameters, tokenizer: Tokenizer, directory: Path) -> None:
    """Save the model with its tokenizer, the weights in float16; `config.json` says that it computes in float32."""
    skeleton.merge(parameters).save_pretrained(directory, tokenizer)
    path = directory / "model.safetensors"
    weights = {name: value.astype(np.float16) for name, value in load_file(path).items()}
    save_file(weights, path, metadata={"format": "pt"})
    config = json.loads((directory / "config.json").read_text()) | {"dtype": "float32"}
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    """Train, or continue a run."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter, allow_abbrev=False)
    parser.add_argument("--data", required=True, nargs="+", type=Path, metavar="FILE", help="a file for each language")
    parser.add_argument("--output", required=True, type=Path, metavar="DIR", help="directory of state and model")
    parser.add_argument("--steps", type=int, default=6000, metavar="N", help="steps in total (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all random draws (default %(default)s)")
    parser.add_argument(
        "--translations", type=float, default=0.0, metavar="SHARE", help="of windows with a translation (default 0)"
    )
    options = parser.parse_args()
    texts = [read_texts(path) for path in options.data]
    tokenizer = make_tokenizer([text for contexts, _ in texts for text in contexts], options.output / "tokenizer")
    languages = [Paragraphs.of(tokenizer, contexts) for contexts, _ in texts]
    train(options, tokenizer, languages, [questions for _, questions in texts])


def train(
    options: argparse.Namespace, tokenizer: Tokenizer, languages: list[Paragraphs], questions: list[list[str]]
) -> None:
    """Take the steps that are left, and save state and model every 100 steps."""
    config = BertConfig(vocab_size=tokenizer.vocab_size, max_position_embeddings=max(LENGTHS), **SIZES)
    model = BertForMaskedLM(config, jax.random.key(options.seed))
    skeleton, optimizer = Skeleton.of(model), make_optimizer(weight_decay=0.01, largest_gradient=1.0)
    parameters = {name: jnp.array(value) for name, value in model.parameters().items()}
    state = (parameters, optimizer.init(parameters))
    path, step, losses = options.output / "state.safetensors", 0, []
    if path.exists():
        state, step = load_state(path, state)
    padded, length = [], LENGTHS[1]
    for number, of_language in enumerate(questions):
        rows = [text.input_ids[:length] for text in tokenizer.encode(of_language[:TESTED])]
        ids = np.array([[*row, *[0] * (length - len(row))] for row in rows])
        rng = np.random.default_rng((options.seed, number))
        padded.append(hide(ids, tokenizer.mask_token_id, tokenizer.vocab_size, rng))
    while step < options.steps:
        batch = draw_batch(tokenizer, languages, options.seed, step, options.translations)
        *state, loss = train_step(
            skeleton,
            optimizer,
            *state,
            batch,
            jax.random.fold_in(jax.random.key(options.seed), step),
            rate=jnp.float32(rate_of(step, options.steps)),
            loss_of_batch=word_loss,
        )
        losses.append(float(loss))
        step += 1
        if step % SAVED_EVERY == 0 or step == options.steps:
            save_state(path, state, step)
            save_model(skeleton, state[0], tokenizer, options.output / "last")
            found = [round(float(test_loss(skeleton, state[0], batch)), 3) for batch in padded]
            print(f"step {step}, loss {np.mean(losses[-SAVED_EVERY:]):.3f}, questions {found}", flush=True)


def rate_of(step: int, steps: int) -> float:
    """The learning rate of a step: constant between a linear rise and a linear fall over the last steps.

    The number of steps matters only in the fall, so that a run can be continued with more steps from a state before it.
    """
    return RATE * min(1.0, (step + 1) / WARMUP, (steps - step) / (FALL * steps))


def save_state(path: Path, state: Any, step: int) -> None:
    """Save parameters, optimizer and the number of steps."""
    arrays = {str(index): np.asarray(leaf) for index, leaf in enumerate(jax.tree.leaves(state))}
    temporary = path.with_suffix(".new")
    save_file(arrays, temporary, metadata={"step": str(step)})
    temporary.replace(path)


def load_state(path: Path, template: Any) -> tuple[Any, int]:
    """Load what `save_state` saved, in the form of a template."""
    with safe_open(path, framework="numpy") as file:
        leaves = [jnp.asarray(file.get_tensor(str(index))) for index in range(len(jax.tree.leaves(template)))]
        return jax.tree.unflatten(jax.tree.structure(template), leaves), int(file.metadata()["step"])


if __name__ == "__main__":
    main()
