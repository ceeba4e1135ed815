"""Are the outputs and scores of a task those of an independent computation?

Takes results of `bertjax ablate` and computes them once more, the base and a few ablated heads: texts are tokenised by
transformers, run in PyTorch without padding, reduced in NumPy; entities are scored by seqeval, answers (SQuAD 1.1's
official program) and rankings by torchmetrics. Prints the largest relative difference of an output, and both scores of
each run.

    python -m benchmarks.task_parity RESULTS [--heads 6]
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import bertjax
from bertjax.checkpoints import locate
from bertjax.jobs import torch_reference
from bertjax.results import Results, read_results
from bertjax.tasks import UNKNOWN, load_examples

BATCH = 64
LONGEST_ANSWER = 30  # tokens
Head = tuple[int, int]
Scores = dict[str, float]


@dataclass(frozen=True)
class Reference:
    """The checkpoint of some results in PyTorch.

    Args:
        results: the results.
        model: bertjax's, which names its parts.
        torch: that of transformers.
        tokenizer: that of transformers.
    """

    results: Results
    model: Any
    torch: Any
    tokenizer: Any

    @property
    def max_length(self) -> int:
        """Tokens after which texts are cut: all that the model takes where nothing is said."""
        return int(self.results.summary["settings"]["max_length"] or self.model.config.max_tokens)

    def run(
        self,
        texts: Sequence[Mapping[str, Sequence[int]]],
        head: Head | None,
        read: Callable[[Any], Any],
        *,
        as_choices: bool = False,
    ) -> list[Any]:
        """What `read` makes of the output of each text, in batches of equal length; a head is disabled, or none.

        Args:
            as_choices: each text is the one choice of a question of its own.
        """
        by_length, found = defaultdict(list), [None] * len(texts)
        mode = self.results.summary["mode"]["name"]
        for number, text in enumerate(texts):
            by_length[len(text["input_ids"])].append(number)
        for length, numbers in by_length.items():
            for batch in (numbers[start : start + BATCH] for start in range(0, len(numbers), BATCH)):
                names = [name for name in texts[0] if name in ("input_ids", "token_type_ids", "attention_mask")]
                arguments = {name: np.array([texts[number][name] for number in batch]) for name in names}
                real = np.ones((len(batch), length), bool)
                disabled = (
                    torch_reference.overridden_head(self.torch, self.model.config, head, mode, real)
                    if head
                    else nullcontext()
                )
                with disabled:
                    shaped = {name: array[:, None] if as_choices else array for name, array in arguments.items()}
                    output = torch_reference.run_torch(self.torch, shaped)
                for number, one in zip(batch, read(output), strict=True):
                    found[number] = one
        return found


def log_softmax(logits: Any) -> np.ndarray:
    """Log-probabilities in float64."""
    values = np.asarray(logits, np.float64)
    shifted = values - values.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def words(reference: Reference, head: Head | None) -> tuple[np.ndarray, Scores]:
    """Log-probability and rank of each masked word, at the places that the results name."""
    outputs, tokenizer = reference.results.outputs, reference.tokenizer
    units, places, true = (outputs[name] for name in ("units", "places", "labels"))
    texts, targets = [], []
    for number in np.unique(units).tolist():
        first = reference.results.examples[number]["first"].replace(UNKNOWN, tokenizer.unk_token)
        text, own = tokenizer(first, truncation=True, max_length=reference.max_length), units == number
        ids = np.array(text["input_ids"])
        if not np.array_equal(ids[places[own]], true[own]):
            raise ValueError(f"the words of example {number} are others")
        ids[places[own]] = tokenizer.mask_token_id
        texts.append({**text, "input_ids": ids.tolist()})
        targets.append((places[own], true[own].astype(int)))
    # The vocabulary's scores of all words would not fit into memory: each text is reduced at once.
    found = [
        _words_of(reference.run([text], head, lambda output: output.logits.numpy())[0], *own)
        for text, own in zip(texts, targets, strict=True)
    ]
    numbers = np.concatenate(found)
    return numbers[:, :1], {
        "cross_entropy": float(-numbers[:, 0].mean()),
        "word_accuracy": float((numbers[:, 1] == 1).mean()),
    }


def _words_of(logits: np.ndarray, places: np.ndarray, true: np.ndarray) -> np.ndarray:
    rows = log_softmax(logits[places])
    correct = np.take_along_axis(rows, true[:, None], axis=1)
    return np.concatenate([correct, 1 + (rows > correct).sum(axis=1, keepdims=True)], axis=1)


def pairs(reference: Reference, head: Head | None) -> tuple[np.ndarray, Scores]:
    """Pseudo-log-likelihoods of the bad and the good sentence, each piece hidden in turn."""
    tokenizer, within = reference.tokenizer, reference.results.summary["settings"]["pll"] == "within-word"
    sums = np.zeros((len(reference.results.examples), 2))
    for column, name in enumerate(("second", "first")):
        texts, targets = [], []
        for number, example in enumerate(reference.results.examples):
            whole = tokenizer(example[name], truncation=True, max_length=reference.max_length)
            words = whole.word_ids()
            for place in (place for place, word in enumerate(words) if word is not None):
                ids = list(whole["input_ids"])
                for later in range(place, len(ids) if within else place + 1):
                    if words[later] == words[place]:
                        ids[later] = tokenizer.mask_token_id
                texts.append({**whole, "input_ids": ids})
                targets.append((number, place, whole["input_ids"][place]))
        rows = iter(reference.run(texts, head, lambda output: output.logits.numpy()))
        for (number, place, word), logits in zip(targets, rows, strict=True):
            sums[number, column] += log_softmax(logits[place])[word]
    return sums, _of_pairs(sums)


def agreement(reference: Reference, head: Head | None) -> tuple[np.ndarray, Scores]:
    """Log-probabilities of two forms at the one place where the sentences differ."""
    tokenizer, texts, targets = reference.tokenizer, [], []
    for example in reference.results.examples:
        good, bad = (tokenizer(example[name])["input_ids"] for name in ("first", "second"))
        (place,) = (place for place, (one, other) in enumerate(zip(good, bad, strict=True)) if one != other)
        ids = [*good[:place], tokenizer.mask_token_id, *good[place + 1 :]]
        texts.append({**tokenizer(example["first"]), "input_ids": ids})
        targets.append((place, [bad[place], good[place]]))
    rows = reference.run(texts, head, lambda output: output.logits.numpy())
    outputs = np.array([log_softmax(row[place])[forms] for row, (place, forms) in zip(rows, targets, strict=True)])
    return outputs, _of_pairs(outputs)


def _of_pairs(outputs: np.ndarray) -> Scores:
    margins = outputs[:, 1] - outputs[:, 0]
    return {"accuracy": float((margins > 0).mean()), "margin": float(margins.mean())}


def tags(reference: Reference, head: Head | None) -> tuple[np.ndarray, Scores]:
    """Mean log-probability of each sentence's true tags; entities by seqeval."""
    import transformers
    from seqeval import scheme
    from seqeval.metrics import accuracy_score, f1_score

    examples, names = reference.results.examples, reference.model.config.id2label
    numbers = {name: number for number, name in names.items()}
    tokenizer = reference.tokenizer
    if isinstance(tokenizer, transformers.RobertaTokenizer):  # as run_ner.py does
        tokenizer = type(tokenizer).from_pretrained(tokenizer.name_or_path, add_prefix_space=True)
    texts = [
        tokenizer(example["words"], is_split_into_words=True, truncation=True, max_length=reference.max_length)
        for example in examples
    ]
    means, predicted = [], []
    for text, example, logits in zip(
        texts, examples, reference.run(texts, head, lambda output: output.logits.numpy()), strict=True
    ):
        words = text.word_ids()
        first = {word: place for place, word in reversed([*enumerate(words)]) if word is not None}
        shares = log_softmax(logits)
        means.append(np.mean([shares[place, numbers[example["tags"][word]]] for word, place in first.items()]))
        found = [
            names[int(logits[first[word]].argmax())] if word in first else "O" for word in range(len(example["words"]))
        ]
        predicted.append(found)
    true = [example["tags"] for example in examples]
    scores = {"tag_accuracy": float(accuracy_score(true, predicted))}
    if "entity_f1" in reference.results.summary["metrics"]:
        scores["entity_f1"] = float(f1_score(true, predicted))
    if "strict_entity_f1" in reference.results.summary["metrics"]:
        settings = reference.results.summary["settings"]
        content: Any = load_examples("ner", data=settings["data"], text_columns=settings["text_columns"]).content
        scores["strict_entity_f1"] = float(
            f1_score(true, predicted, mode="strict", scheme=getattr(scheme, content[0].scheme))
        )
    return np.array(means)[:, None], scores


def answers(reference: Reference, head: Head | None) -> tuple[np.ndarray, Scores]:
    """Score of each question's best span over its windows; exact match and F1 of its text by torchmetrics."""
    from torchmetrics.functional.text import squad

    examples, settings = reference.results.examples, reference.results.summary["settings"]
    windows, owners, offsets = [], [], []
    for number, example in enumerate(examples):
        made = reference.tokenizer(
            example["first"],
            example["second"],
            truncation="only_second",
            max_length=settings["max_length"] or min(384, reference.max_length),
            stride=settings["stride"],
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )
        for window in range(len(made["input_ids"])):
            keys = [key for key in ("input_ids", "token_type_ids", "attention_mask") if key in made]
            windows.append({key: made[key][window] for key in keys})
            offsets.append(
                [
                    place if part == 1 else None
                    for place, part in zip(made["offset_mapping"][window], made.sequence_ids(window), strict=True)
                ]
            )
            owners.append(number)
    rows = reference.run(
        windows, head, lambda output: np.stack([output.start_logits.numpy(), output.end_logits.numpy()], -1)
    )
    best: list[tuple[float, str]] = [(-np.inf, "")] * len(examples)
    for number, row, places in zip(owners, rows, offsets, strict=True):
        for score, start, end in _spans(row, places):
            if score > best[number][0]:
                best[number] = (score, examples[number]["second"][start:end])
    predictions: Any = [{"prediction_text": text, "id": str(number)} for number, (_, text) in enumerate(best)]
    true: Any = [
        {"answers": {"answer_start": [0] * len(one["answers"]), "text": list(one["answers"])}, "id": str(number)}
        for number, one in enumerate(examples)
    ]
    scored = {name: float(value) / 100 for name, value in squad(predictions, true).items()}
    scores = {"exact_match": scored["exact_match"], "answer_f1": scored["f1"]}
    return np.array([[score] for score, _ in best]), scores


def _spans(row: np.ndarray, places: Sequence[tuple[int, int] | None]) -> Iterator[tuple[float, int, int]]:
    """The best span from each start: its score and its characters."""
    for first, place in enumerate(places):
        if place is not None:
            ends = [last for last in range(first, min(first + LONGEST_ANSWER, len(places))) if places[last] is not None]
            last = max(ends, key=lambda last: row[last, 1])
            end = places[last]
            assert end is not None
            yield float(row[first, 0] + row[last, 1]), place[0], end[1]


def choices(reference: Reference, head: Head | None) -> tuple[np.ndarray, Scores]:
    """The score of each choice, read behind its question."""
    examples, texts = reference.results.examples, []
    most = reference.results.summary["settings"]["max_length"] or min(128, reference.max_length)
    for example in examples:
        for choice in example["choices"]:
            second = f"{example['second']} {choice}" if "second" in example else choice
            texts.append(reference.tokenizer(example["first"], second, truncation=True, max_length=most))
    rows = reference.run(texts, head, lambda output: output.logits.numpy(), as_choices=True)
    outputs = np.array(rows).reshape(len(examples), -1)
    labels = np.array([example["label"] for example in examples])
    return outputs, {"accuracy": float((outputs.argmax(-1) == labels).mean())}


def rankings(reference: Reference, head: Head | None) -> tuple[np.ndarray, Scores]:
    """How far the best relevant candidate of each query is before the best other one; scores by torchmetrics."""
    import torch
    from torchmetrics.functional import retrieval

    settings = reference.results.summary["settings"]
    options = {"limit": settings["limit"], "seed": settings["seed"]}
    options["exclude_self"] = settings.get("exclude_self", False)  # results of earlier versions lack it
    examples = load_examples("ranking", data=settings["data"], **options)
    sought: Any = [_without_excluded(one) for one in examples.content or ()]
    embeds = reference.results.summary["outputs"] == "ranking"
    score = _similarities if embeds else _scores_of_pairs
    scored = score(
        reference, head, [(query, one.pool.texts) for query, one in zip(examples.first, sought, strict=True)]
    )
    true = [np.array([one.relevance.get(name, 0) for name in one.pool.names]) for one in sought]
    margins = [
        own[grades > 0].max() - own[grades == 0].max() if 0 < (grades > 0).sum() < len(grades) else 0.0
        for own, grades in zip(scored, true, strict=True)
    ]
    tensors = [  # torchmetrics takes what has no positive score as not found
        (torch.tensor(own - own.min() + 1), torch.tensor(grades)) for own, grades in zip(scored, true, strict=True)
    ]
    return np.array(margins)[:, None], {
        "ndcg_10": _mean(retrieval.retrieval_normalized_dcg(own, grades, top_k=10) for own, grades in tensors),
        "mrr_10": _mean(retrieval.retrieval_reciprocal_rank(own, grades > 0, top_k=10) for own, grades in tensors),
        "recall_10": _mean(retrieval.retrieval_recall(own, grades > 0, top_k=10) for own, grades in tensors),
    }


def _without_excluded(one: Any) -> Any:
    """Candidates without the one that is excluded."""
    pairs = [pair for pair in zip(one.pool.names, one.pool.texts, strict=True) if pair[0] != one.excluded]
    names, texts = zip(*pairs, strict=True)
    return replace(one, pool=replace(one.pool, names=names, texts=texts))


def _mean(values: Iterable[Any]) -> float:
    return float(np.mean([float(value) for value in values]))


def _similarities(
    reference: Reference, head: Head | None, queries: Sequence[tuple[str, Sequence[str]]]
) -> list[np.ndarray]:
    """Cosine similarities of each query and its candidates, of an embedder whose vector is the mean over tokens."""
    distinct = [*dict.fromkeys(text for query, texts in queries for text in (query, *texts))]
    most = getattr(reference.model, "max_length", None) or reference.max_length
    encoded = [reference.tokenizer(text, truncation=True, max_length=most) for text in distinct]
    rows = reference.run(encoded, head, lambda output: output.last_hidden_state.numpy().astype(np.float64).mean(axis=1))
    vectors = {text: row / np.linalg.norm(row) for text, row in zip(distinct, rows, strict=True)}
    return [np.array([vectors[query] @ vectors[text] for text in texts]) for query, texts in queries]


def _scores_of_pairs(
    reference: Reference, head: Head | None, queries: Sequence[tuple[str, Sequence[str]]]
) -> list[np.ndarray]:
    """The scores that a cross-encoder gives each query with each of its candidates: the logit's logistic function."""
    pairs_of_texts = [(query, text) for query, texts in queries for text in texts]
    encoded = [reference.tokenizer(*pair, truncation=True, max_length=reference.max_length) for pair in pairs_of_texts]
    logits = iter(reference.run(encoded, head, lambda output: output.logits.numpy().astype(np.float64)[:, 0]))
    return [1 / (1 + np.exp(-np.array([next(logits) for _ in texts]))) for _, texts in queries]


def label_sets(reference: Reference, head: Head | None) -> tuple[np.ndarray, Scores]:
    """Log-likelihood and exact match of each text's labels, and which are hit, found and true."""
    from sklearn.metrics import accuracy_score, f1_score
    from torch import from_numpy
    from torch.nn.functional import binary_cross_entropy_with_logits

    examples, names = reference.results.examples, reference.results.summary["data"]["label_names"]
    most = reference.results.summary["settings"]["max_length"] or min(128, reference.max_length)
    texts = [reference.tokenizer(one["first"], one.get("second"), truncation=True, max_length=most) for one in examples]
    columns = [number for name in names for number, own in reference.model.config.id2label.items() if own == name]
    logits = np.array(reference.run(texts, head, lambda output: output.logits.numpy()), np.float64)
    logits = logits[:, columns or range(len(names))]
    true = np.array([[name in example["labels"] for name in names] for example in examples])
    found = 1 / (1 + np.exp(-logits)) > 0.5
    targets = from_numpy(true.astype(np.float64))
    losses = binary_cross_entropy_with_logits(from_numpy(logits), targets, reduction="none")
    by_label = np.stack([found & true, found, true], axis=-1).reshape(len(examples), -1)
    outputs = np.column_stack([-losses.numpy().mean(-1), (found == true).all(-1), by_label])
    scores = {f"{way}_f1": float(f1_score(true, found, average=way, zero_division=0)) for way in ("micro", "macro")}
    return outputs, scores | {"subset_accuracy": float(accuracy_score(true, found))}


KINDS = {
    "mlm": words,
    "ranking": rankings,
    "multi-label": label_sets,
    "multiple-choice": choices,
    "minimal-pairs": pairs,
    "agreement": agreement,
    "token-classification": tags,
    "question-answering": answers,
}


@dataclass(frozen=True)
class Compared:
    """A run computed twice.

    Args:
        name: of the ablation, or 'base'.
        difference: the largest of an output, over its size where that is above 1.
        scores: by metric, ours and that of the independent computation.
    """

    name: str
    difference: float
    scores: dict[str, tuple[float, float]]


def compare(results: Results, heads: Sequence[str]) -> list[Compared]:
    """The base run and those of some ablated heads, computed once more.

    Args:
        results: of a task in `KINDS`, without scores of groups.
        heads: names of ablations.
    """
    import transformers

    directory = locate(results.summary["model"]["name"])
    model = bertjax.load(directory)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True)
    reference = Reference(results, model, torch_reference.load_torch(model, directory), tokenizer)
    computed, found = KINDS[results.summary["data"]["task"]], []
    for name in ("base", *heads):
        head = None if name == "base" else tuple(map(int, name.split(".")))
        place = None if head is None else results.names.index(name)
        own = results.outputs["base"] if place is None else results.outputs["outputs"][place]
        outputs, scores = computed(reference, head)  # type: ignore[arg-type]
        rows = {metric: results.rows_of(metric)[place or 0] for metric in scores}
        pairs_of_scores = {
            metric: (float(row.base if place is None else row.score), scores[metric])  # type: ignore[arg-type]
            for metric, row in rows.items()
        }
        difference = (np.abs(own[:, : outputs.shape[1]] - outputs) / np.maximum(1, np.abs(outputs))).max()
        found.append(Compared(name, float(difference), pairs_of_scores))
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("results", type=Path)
    parser.add_argument("--heads", type=int, default=6, help="how many ablations, the largest effects first")
    options = parser.parse_args()
    results = read_results(options.results)
    largest = sorted(results.rows_of(), key=lambda row: -abs(row.difference or 0))[: options.heads]
    table = Table("run", "largest relative difference", "metric", "bertjax", "independent")
    for run in compare(results, [row.name for row in largest]):
        for metric, (ours, theirs) in run.scores.items():
            table.add_row(run.name, f"{run.difference:.1e}", metric, f"{ours:.10f}", f"{theirs:.10f}")
    Console().print(table)


if __name__ == "__main__":
    main()
