"""Train a small multilingual masked language model on the paragraphs of XQuAD, from random weights.

The model sees the 240 paragraphs of each language, never their questions, so that questions that are translations of
each other can test it (`bertjax languages`). Nothing tells the model which paragraphs are translations of each other:
each step draws a length, and windows of that many tokens from the joined paragraphs of one language or another. 15 % of
their tokens are predicted: 80 % of these are hidden, 10 % replaced and 10 % unchanged (Devlin et al. 2019). There are
as many windows of each language. The loss on the questions of each language is printed when the state is saved.

    python -m experiments.training.multilingual --data xquad.en.json.gz xquad.de.json.gz ... --output DIR

The same command continues a run that was interrupted, on the same device to the same weights. DIR/state.safetensors
has the parameters and the optimizer; DIR/last is the model in float16.
"""

import argparse
import gzip
import json
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

LENGTHS, TOKENS = (32, 64, 128), 1024  # tokens of a window, and of all windows of a step
PREDICTED, HIDDEN, REPLACED = 0.15, 0.8, 0.1
SIZES: dict[str, Any] = {
    "hidden_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 768,
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


def draw_batch(tokenizer: Tokenizer, streams: list[np.ndarray], seed: int, step: int) -> Batch:
    """The batch of a step: as many windows of each language, between [CLS] and [SEP]."""
    rng = np.random.default_rng((seed, step))
    length = int(rng.choice(LENGTHS))
    rows = []
    for number in range(TOKENS // length):
        stream = streams[number % len(streams)]
        start = rng.integers(len(stream) - length + 3)
        rows.append([tokenizer.cls_id, *stream[start : start + length - 2], tokenizer.sep_id])
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
    """`losses_of` with dropout."""
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
    options = parser.parse_args()
    texts = [read_texts(path) for path in options.data]
    tokenizer = make_tokenizer([text for contexts, _ in texts for text in contexts], options.output / "tokenizer")
    streams = [
        np.array([token for text in tokenizer.encode(contexts, max_length=10**6) for token in text.input_ids[1:-1]])
        for contexts, _ in texts
    ]
    train(options, tokenizer, streams, [questions for _, questions in texts])


def train(
    options: argparse.Namespace, tokenizer: Tokenizer, streams: list[np.ndarray], questions: list[list[str]]
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
        batch, key = draw_batch(tokenizer, streams, options.seed, step), jax.random.key(options.seed)
        *state, loss = train_step(
            skeleton,
            optimizer,
            *state,
            batch,
            jax.random.fold_in(key, step),
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
