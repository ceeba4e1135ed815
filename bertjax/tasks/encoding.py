"""From a task's examples to what a model reads: which models can do a task, and what becomes of its texts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from bertjax.data import TASKS, Asks, Examples, Task, Tokenizer
from bertjax.errors import ConfigError, InputError, some_of
from bertjax.formatting import count_of
from bertjax.interventions import readouts
from bertjax.model import (
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSentenceEmbedding,
    BertForSequenceClassification,
    BertForTokenClassification,
    PretrainedModel,
)
from bertjax.tasks import answers, choices, masked_words, minimal_pairs, multi_label, ranking, tags
from bertjax.tasks.encoded import Encoded, encode_texts
from bertjax.tasks.forms import label_order, positive_label
from bertjax.tasks.losses import Objective, grade_logits, grade_score, grade_similarity, to_unit_range
from bertjax.tasks.options import Options


@dataclass(frozen=True)
class Asking:
    """How examples of tasks that ask for other things than labels are read.

    Args:
        models: classes of models that can do such a task.
        head: what these have, for messages.
        encode: makes what a model reads of examples.
        scores: whether classifiers among them must give a single number.
        takes_prompts: whether prompts may stand before texts.
    """

    models: tuple[type[PretrainedModel], ...]
    head: str
    encode: Callable[[Tokenizer, Examples, Options], Encoded]
    scores: bool = False
    takes_prompts: bool = False

    def fits(self, model: PretrainedModel) -> bool:
        """Whether a model can do such a task."""
        classifies = isinstance(model, BertForSequenceClassification)
        return isinstance(model, self.models) and not (self.scores and classifies and not is_regression(model))


def models_of(task: Task) -> tuple[type[PretrainedModel], ...]:
    """The classes of models with a head for a task; those without one, sentence embedders, come first."""
    return ASKINGS[task.asks].models if task.asks in ASKINGS else (BertForSequenceClassification,)


# Tokens after which texts of a task are cut, or of a window on them; 0 for all that the model takes.
LENGTHS: Mapping[Asks, int] = MappingProxyType({"pairs": 0, "agreement": 0, "tags": 0, "answers": 384, "order": 0})
_OF_WORDS = (BertForMaskedLM, BertForPreTraining)
# What prompts of queries and of candidates are called, as sentence-transformers looks for them.
OF_QUERIES, OF_CANDIDATES = ("query",), ("document", "passage", "corpus")
ASKINGS: Mapping[Asks, Asking] = MappingProxyType(
    {
        "words": Asking(_OF_WORDS, "masked-LM head", masked_words.encode),
        "pairs": Asking(_OF_WORDS, "masked-LM head", minimal_pairs.encode_pairs),
        "agreement": Asking(_OF_WORDS, "masked-LM head", minimal_pairs.encode_agreement),
        "tags": Asking((BertForTokenClassification,), "token-classification head", tags.encode),
        "choices": Asking((BertForMultipleChoice,), "multiple-choice head", choices.encode),
        "label-sets": Asking((BertForSequenceClassification,), "classification head", multi_label.encode),
        "answers": Asking((BertForQuestionAnswering,), "question-answering head", answers.encode),
        "order": Asking(
            (BertForSentenceEmbedding, BertForSequenceClassification),
            "sentence vector, nor a single score",
            ranking.encode,
            scores=True,
            takes_prompts=True,
        ),
    }
)


def encode_examples(
    model: PretrainedModel,
    tokenizer: Tokenizer,
    examples: Examples,
    max_length: int | None = None,
    *,
    prompts: Sequence[str] | None = None,
    options: Options | None = None,
) -> Encoded:
    """Tokenise examples for a model.

    Args:
        model: one that can do the task: for labels a `BertForSequenceClassification` or `BertForSentenceEmbedding`.
        max_length: tokens after which a text (pair) is cut; default what model and tokenizer say, and for classifiers
            that are no cross-encoders of sentence-transformers at most 128, as GLUE's reference scripts do.
        prompts: what is put before the first and the second texts, by names of the tokenizer's or as texts
            (`Tokenizer.with_prompt`); one for both; None for the tokenizer's own.
        options: what else may be chosen.

    Raises:
        ConfigError: the model has no outputs that the task's metrics could read.
        InputError: the maximum length is beyond the model's positions, or the tokenizer's ids are beyond its
            vocabulary.
    """
    options = options or Options()
    _check_options(examples.task, options)
    length = _choose_length(model, tokenizer, examples, max_length)
    task = examples.task
    if task.asks in ASKINGS:
        return _encode_asked(model, tokenizer, examples, replace(options, max_length=length), prompts)
    kind, order = _kind_of_outputs(model, examples)
    tokenizer, first, second = _with_prompts(model, tokenizer, examples, prompts)
    encodings = encode_texts(tokenizer, first, second, replace(options, max_length=length))
    copies = 2 if kind == "similarity" else 1
    return Encoded(
        kind,
        encodings,
        tokenizer.pad_id,
        len(examples),
        order,
        copies=copies,
        objective=_objective(kind, order, examples),
    )


def _objective(kind: str, order: tuple[int, ...], examples: Examples) -> Objective:
    """The loss of labels: of a classifier's or regression's outputs, of scores, or of similarities."""
    task, labels = examples.task, examples.labels
    classes = task.kind == "classification"
    if kind == "logits":
        definition, unit = ("cross-entropy of the label", "nats") if classes else ("squared error", "")
        return Objective(readouts.logits, partial(grade_logits, labels, order, classes), definition, unit)
    scale = examples.scale
    targets = to_unit_range(labels, positive_label(kind, task) if classes else None, scale)
    low, high = scale or (0.0, 1.0)
    scaled = "of 1 for yes and 0 for no" if classes else f"of the rating, {low:g} to {high:g} scaled to 0 to 1"
    if kind == "score":
        return Objective(readouts.logits, partial(grade_score, targets), f"binary cross-entropy {scaled}")
    return Objective(
        readouts.sentence_embedding, partial(grade_similarity, targets), f"squared error {scaled}, as cosine", ""
    )


def _encode_asked(
    model: PretrainedModel,
    tokenizer: Tokenizer,
    examples: Examples,
    options: Options,
    prompts: Sequence[str] | None,
) -> Encoded:
    """`encode_examples` of a task that asks for other things than labels."""
    task, asking = examples.task, ASKINGS[examples.task.asks]
    if not asking.fits(model):
        raise ConfigError(f"{model.class_name} has no {asking.head}, which {task.name} needs: {what_it_can_do(model)}")
    if prompts is not None and not asking.takes_prompts:
        raise InputError(f"--prompts stand before texts of labels and similarities: {task.name} takes none")
    if asking.takes_prompts:
        options = replace(options, prompts=_prompts_of_order(model, tokenizer, prompts))
        tokenizer = tokenizer.with_prompt("")
    names = tuple(name for _, name in sorted(model.config.id2label.items()))
    embeds = isinstance(model, BertForSentenceEmbedding)
    return asking.encode(tokenizer, examples, replace(options, label_names=names, embeds=embeds))


def _check_options(task: Task, options: Options) -> None:
    """Raise `InputError` where something was chosen that the task does not ask."""
    usual = Options()
    if options.every_word and task.asks != "words":
        raise InputError(f"--every-word masks words, which {task.name} does not: leave it out")
    alone = task.asks == "pairs" or (task.asks == "words" and options.every_word)
    if options.pll != usual.pll and not alone:
        raise InputError("--pll is for words that are masked by themselves: minimal-pairs, and mlm with --every-word")
    if options.stride != usual.stride and task.asks != "answers":
        raise InputError(f"--stride is for windows of question-answering, which {task.name} has none of: leave it out")


def _kind_of_outputs(model: PretrainedModel, examples: Examples) -> tuple[str, tuple[int, ...]]:
    """What a model gives for each example, and which of its logits stands for each label.

    Raises:
        ConfigError: nothing that the task's metrics could read.
    """
    task = examples.task
    if isinstance(model, BertForSentenceEmbedding):
        if examples.second is None:
            raise ConfigError(
                f"a sentence embedder scores pairs, but {task.name} has single texts: give a model that was "
                "fine-tuned on it"
            )
        return "similarity", ()
    if not isinstance(model, BertForSequenceClassification):
        raise ConfigError(f"{model.class_name} has no output for {task.name}: {what_it_can_do(model)}")
    if is_regression(model) and (_is_cross_encoder(model) or task.kind == "classification"):
        return "score", ()
    return "logits", label_order(model.config.id2label, task)


def what_it_can_do(model: PretrainedModel) -> str:
    """Which tasks fit a model, as the end of a message."""
    names = [task.name for task in TASKS.values() if task.asks in ASKINGS and ASKINGS[task.asks].fits(model)]
    if isinstance(model, BertForSequenceClassification):  # whether sets of labels were meant, it does not say
        labels, scores = count_of(model.config.num_labels, "label"), ", or ranking" if is_regression(model) else ""
        return f"it is a classifier of {labels}: give the task that it was fine-tuned on{scores}"
    if isinstance(model, BertForSentenceEmbedding):
        return f"it measures similarities: give a task of pairs, or --task {some_of(names, most=len(names))}"
    if names:
        return f"it can do --task {some_of(names, most=len(names))}"
    return "give a checkpoint with a head for a task, or one of sentence-transformers"


def _with_prompts(
    model: PretrainedModel, tokenizer: Tokenizer, examples: Examples, prompts: Sequence[str] | None
) -> tuple[Tokenizer, Sequence[str], Sequence[str] | None]:
    """The tokenizer, and the texts as it takes them: a sentence embedder's one after another, with their prompts.

    Raises:
        InputError: no such prompt, or two where both texts are read as one.
    """
    if not isinstance(model, BertForSentenceEmbedding):
        _check_for_one_text(model, prompts)
        return (tokenizer if prompts is None else tokenizer.with_prompt(prompts[0])), examples.first, examples.second
    second_texts = examples.second or ()
    if prompts is None:
        return tokenizer, [*examples.first, *second_texts], None
    before = [tokenizer.with_prompt(prompt).prompt for prompt in prompts]
    first, second = before[0], before[-1]
    texts = [*(first + text for text in examples.first), *(second + text for text in second_texts)]
    return tokenizer.with_prompt(""), texts, None


def _prompts_of_order(model: PretrainedModel, tokenizer: Tokenizer, prompts: Sequence[str] | None) -> tuple[str, str]:
    """What stands before queries and candidates; where nothing is said the prompts that are called so.

    Raises:
        InputError: there is no such prompt, or two where query and candidate are read as one text.
    """
    if not isinstance(model, BertForSentenceEmbedding):
        _check_for_one_text(model, prompts)
        return (tokenizer if prompts is None else tokenizer.with_prompt(prompts[0])).prompt, ""
    named = (prompts[0], prompts[-1]) if prompts else map(partial(_usual, tokenizer), (OF_QUERIES, OF_CANDIDATES))
    first, second = ((tokenizer if name is None else tokenizer.with_prompt(name)).prompt for name in named)
    return first, second


def _usual(tokenizer: Tokenizer, names: Sequence[str]) -> str | None:
    """The first of these prompts that a checkpoint has."""
    return next((name for name in names if name in tokenizer.prompts), None)


def _check_for_one_text(model: PretrainedModel, prompts: Sequence[str] | None) -> None:
    """Raise `InputError` for two prompts where a pair is read as one text."""
    if prompts is not None and len(prompts) > 1:
        name = model.class_name
        raise InputError(f"{name} reads a pair as one text, whose prompt stands before the first: give one prompt")


def _is_cross_encoder(model: PretrainedModel) -> bool:
    """Whether a classifier is one of sentence-transformers, which says what becomes of its logits."""
    return model.config.score_activation is not None


def is_regression(model: PretrainedModel) -> bool:
    """Whether a model has one output for each text or pair: a number."""
    return isinstance(model, BertForSequenceClassification) and model.config.num_labels == 1


def _choose_length(model: PretrainedModel, tokenizer: Tokenizer, examples: Examples, max_length: int | None) -> int:
    """Tokens after which a text (pair) is cut. Raises `InputError` where that or the tokenizer does not fit."""
    positions = model.config.max_tokens
    length = max_length or getattr(model, "max_length", None) or _default_length(model, tokenizer, examples.task.asks)
    if length > positions:
        raise InputError(
            f"max_length {length} is more than the {positions} tokens that the model takes: give --max-length "
            f"{positions} (max_length={positions}) or less"
        )
    if tokenizer.vocab_size > model.config.vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, the model only {model.config.vocab_size}: "
            "they do not belong together"
        )
    pairs = not isinstance(model, BertForSentenceEmbedding) and (
        examples.second is not None or examples.task.asks in ("choices", "order")
    )
    if length <= (special := tokenizer.special_tokens(pairs)):
        raise InputError(f"max_length {length} leaves no room for a text beside {special} special tokens")
    return length


def _default_length(model: PretrainedModel, tokenizer: Tokenizer, asks: Asks) -> int:
    """Where none is given: for models of sentence-transformers all that tokenizer and model take, as there."""
    most = min(model.config.max_tokens, tokenizer.max_length or model.config.max_tokens)
    if asks in LENGTHS:
        return min(LENGTHS[asks] or most, most)
    return most if isinstance(model, BertForSentenceEmbedding) or _is_cross_encoder(model) else min(128, most)
