"""A custom metric, mode or task is one entry, with the same features as those of bertjax."""

import itertools
import pickle
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import bertjax
from bertjax import ablations, overrides, readouts
from bertjax.data import Examples, Source, Tokenizer
from bertjax.errors import ConfigError, DataError, InputError
from bertjax.interventions import MODES, Change, Mode, to_overrides
from bertjax.models import HeadOutputs
from bertjax.results import NumberDisplay, show_table, show_text
from bertjax.results.page import page_data
from bertjax.statistics.effects import compute_statistics
from bertjax.tasks import TASKS, Form, Task, TaskOptions, TextClassification, TextEncodings, cosine, encode_examples
from bertjax.tasks.multiple_choice import Choices
from tests.factories import SENTENCES, make_classifier, make_embedder, make_masked, write_pairs
from tests.random_outputs import DRAWS, draw_outputs
from tests.tiny_models import encodings, largest_difference, random_model


def balanced_accuracy(predictions, labels, positive):
    """The mean of the accuracies on each class."""
    classes = np.unique(labels)
    return np.stack([(predictions[:, labels == one] == one).mean(1) for one in classes]).mean(0)


BALANCED = bertjax.Metric("balanced", "Balanced accuracy", "predictions", "classes", balanced_accuracy, needs="two")


def mean_error(values, labels, positive):
    """One less the mean absolute error: it changes with the scale of the outputs."""
    return 1 - np.abs(values - labels).mean(1)


ERROR = bertjax.Metric("error", "One less the mean error", "values", "numbers", mean_error, lowest=-np.inf)


@pytest.mark.parametrize(("metric", "like"), [(BALANCED, "accuracy"), (ERROR, "pearson")])
def test_a_custom_metric_has_statistics(rng, metric, like):
    outputs, labels = draw_outputs(rng, like, 4, 40, 2)
    found = compute_statistics(metric, outputs[0], outputs[1:], labels, resamples=300, draws=DRAWS)
    readings = outputs.argmax(-1) if metric is BALANCED else outputs.reshape(outputs.shape[:2]).astype(float)
    scores = metric.function(readings, labels, 1)
    assert largest_difference(found.difference, scores[1:] - scores[0]) < 1e-12

    def difference(places):
        some = metric.function(readings[:2][:, places], labels[places], 1)
        return some[1] - some[0]

    expected = stats.bootstrap(
        (np.arange(len(labels)),),
        difference,
        n_resamples=300,
        vectorized=False,
        method="percentile",
        random_state=np.random.default_rng(0),
    )
    assert largest_difference(found.percentile[:, 0], np.array(expected.confidence_interval)) < 1e-9
    same = compute_statistics(metric, outputs[0], outputs[:1], labels, resamples=99, draws=99)
    assert same.p.tolist() == [1.0]
    assert ((found.p > 0) & (found.p <= 1)).all()
    assert found.metric.effect_size.text.startswith("Cohen's d")


def test_swaps_of_a_scale_sensitive_metric_use_the_raw_outputs(rng):
    """Outputs that are all shifted are worse by the shift; a metric of correlations would not see it."""
    labels = rng.normal(size=60)
    base = labels + 0.1 * rng.normal(size=60)
    found = compute_statistics(ERROR, base, np.stack([base + 1, base]), labels, resamples=99, draws=999)
    assert found.p[0] <= 0.002
    assert found.difference[0] < -0.8


def test_the_main_job_takes_it(tmp_path, capsys):
    model, pairs = make_classifier(tmp_path / "model"), write_pairs(tmp_path / "pairs.tsv", 40)
    options = {"model": model, "task": "mrpc", "data": pairs, "metric": BALANCED, "progress": False}
    results = bertjax.ablate(**options, output=tmp_path / "results")
    again = bertjax.read_results(tmp_path / "results")
    assert (again.metric, again.summary["metrics"][0]) == ("balanced", "balanced")
    assert again.rows == results.rows
    assert "(Balanced accuracy)" in results.sentence
    predictions = results.outputs["outputs"].argmax(-1)
    expected = balanced_accuracy(predictions, results.outputs["labels"], 1)
    assert largest_difference(results.printed("score") / 100, expected) < 1e-12
    assert results.frame[results.frame.main].metric.unique().tolist() == ["balanced"]
    assert "Balanced accuracy" in show_text(again, "md")
    assert "Balanced accuracy" in str(show_table(again).renderables[1])
    again.plot().savefig(tmp_path / "map.png")
    again.plot("ranking")
    assert "Balanced accuracy" in again.report().read_text()
    assert again.compare(results).pairs[0].common == len(again.names)


def test_one_that_does_not_fit_is_refused_before_the_sweep(tmp_path):
    model, pairs = make_classifier(tmp_path / "model"), write_pairs(tmp_path / "pairs.tsv", 40)
    with pytest.raises(InputError, match="error cannot score predicted classes of mrpc: choose accuracy"):
        bertjax.ablate(model, "mrpc", data=pairs, metric=ERROR, progress=False)
    with pytest.raises(DataError, match="no metric is called 'nonsense'"):
        bertjax.ablate(model, "mrpc", data=pairs, metric="nonsense", progress=False)


MODES_OF_ONES_OWN = {
    "half": Mode("the head's output times 1/2", "halved", share=0.5),
    "flattened": Mode("30 % of uniform weights", "made more even", "uniform", 0.3),
    "overshot": Mode("beyond the mean", "pushed beyond its mean", "mean", 1.5),
    "leaning": Mode("a fifth from another text", "leaning to its source", "source", 0.2),
}


@pytest.mark.parametrize("name", MODES_OF_ONES_OWN)
def test_a_custom_mode_is_the_same_in_reference_and_engine(name, small, rng, monkeypatch):
    """And both are what the definition says, put in place by hand."""
    mode = MODES_OF_ONES_OWN[name]
    monkeypatch.setitem(MODES, name, mode)
    with jax.enable_x64(True):
        model = random_model(bertjax.BertForSequenceClassification, small, "float64")
        texts, sources = (encodings(small, rng, [7, 4, 9]) for _ in range(2))
        means, heads = rng.normal(size=(2, 3, 4)), ablations.single_heads(small, name)
        options = {"means": means, "sources": sources} if mode.replacement in ("mean", "source") else {}
        found = bertjax.sweep(model, texts, heads, readouts.logits, **options, progress=False)
        batch, source = bertjax.collate(texts), model(**bertjax.collate(sources))
        run, real = model(**batch), batch["attention_mask"][..., None, None].astype(float)
        values = np.asarray(run.record.values)
        replacements = {
            "nothing": np.zeros_like(run.record.head_outputs),
            "uniform": np.broadcast_to(
                ((values * real).sum(2) / real.sum(1))[:, :, None], run.record.head_outputs.shape
            ),
            "mean": np.broadcast_to(means[:, None, None], run.record.head_outputs.shape),
            "source": source.record.head_outputs,
        }
        for number, one in enumerate(heads):
            (change,) = one.changes
            by_plain = model(**batch, overrides=to_overrides(small, one, means, source)).logits
            head_values, other = (
                np.asarray(outputs[change.layer, :, :, change.head])
                for outputs in (run.record.head_outputs, replacements[mode.replacement])
            )
            by_hand = replaced(small, change, (1 - mode.share) * head_values + mode.share * other)
            expected = model(**batch, overrides=by_hand).logits
            assert largest_difference(by_plain, expected) < 1e-12
            assert largest_difference(found.outputs[number], expected) < 1e-12
    assert largest_difference(found.outputs, found.base[None]) > 1e-4


def replaced(config, change, values):
    """Overrides that replace the outputs of one head by these."""
    gates = overrides.identity(config)
    place = jnp.array([change.layer]), jnp.array([change.head])
    outputs = HeadOutputs(*place, jnp.asarray(values)[None], -jnp.ones((1, 1, 1), int))
    return replace(gates, output_gate=gates.output_gate.at[place].set(0), outputs=outputs)


def test_ablate_takes_a_custom_mode(tmp_path, monkeypatch):
    model, pairs = make_classifier(tmp_path / "model"), write_pairs(tmp_path / "pairs.tsv", 40)
    options = {"model": model, "task": "mrpc", "data": pairs, "progress": False}
    with pytest.raises(InputError, match="mode 'half' is not one of uniform, zero, mean"):
        bertjax.ablate(**options, mode="half")
    monkeypatch.setitem(MODES, "half", MODES_OF_ONES_OWN["half"])
    results = bertjax.ablate(**options, mode="half", output=tmp_path / "results")
    monkeypatch.undo()
    again = bertjax.read_results(tmp_path / "results")
    assert again.summary["mode"] == {"name": "half", "definition": "the head's output times 1/2", "title": "halved"}
    assert "one head halved" in again.plot().texts[0].get_text()
    assert "half" in again.report().read_text()
    assert largest_difference(results.outputs["outputs"], results.outputs["base"][None]) > 1e-5


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"replacement": "noise"}, "replacement 'noise' is not one of nothing, uniform, mean, source"),
        ({"share": 0.0}, "share must be a finite number other than 0, found 0.0"),
        ({"share": float("nan")}, "share must be a finite number other than 0, found nan"),
    ],
)
def test_a_mode_that_is_none_is_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        Mode("a definition", "a title", **wrong)


def test_a_custom_task_has_its_name_and_metrics(tmp_path, monkeypatch):
    """One entry: which columns, which classes, which metrics."""
    task = TextClassification(
        "paraphrase", ("#1 String", "#2 String"), "Quality", ("no", "yes"), metrics=("matthews", "accuracy")
    )
    monkeypatch.setitem(TASKS, task.name, task)
    model, pairs = make_classifier(tmp_path / "model"), write_pairs(tmp_path / "pairs.tsv", 40)
    results = bertjax.ablate(model, "paraphrase", data=pairs, progress=False)
    assert results.summary["metrics"] == ["matthews", "accuracy"]
    assert results.summary["data"]["task"] == "paraphrase"
    assert results.summary["data"]["label_names"] == ["no", "yes"]


def compare_texts(text, similar, other):
    """The similarities of the first text to both others, the bad one first."""
    return np.stack([cosine(text, other), cosine(text, similar)], axis=-1)


class TripletDisplay(NumberDisplay):
    """The similarity of the good text."""

    value, note, number = "similarity", "It is that of the similar text.", 1


TRIPLETS = Form(
    "triplets",
    readouts.sentence_embedding,
    compare_texts,
    numbers=("bad", "good"),
    predicts=True,
    display=TripletDisplay,
)


@dataclass(frozen=True)
class TripletOptions(TaskOptions):
    swapped: bool = False


@dataclass(frozen=True)
class Triplets(Task):
    models = (bertjax.BertForSentenceEmbedding,)
    needs = "sentence vector"
    forms = (TRIPLETS,)
    options = TripletOptions

    def read_table(self, table, source):
        choices = tuple(map(Choices, zip(table.texts("similar"), table.texts("other"), strict=True)))
        labels = np.ones(len(table), np.int32)
        rows = tuple(table.indices), table.texts("text"), None, labels, str(table.path), source.split
        return Examples(self, *rows, content=choices)

    def encode(self, model, tokenizer, examples, arguments):
        pairs = zip(*(choices.texts for choices in examples.content), strict=True)
        similar, others = reversed([*pairs]) if arguments.options.swapped else pairs
        encodings = tokenizer.encode([*examples.first, *similar, *others], None, arguments.max_length)
        return TextEncodings(TRIPLETS, encodings, tokenizer.pad_id, len(examples), examples.labels, copies=3)


def test_a_custom_kind_of_task_is_one_class(tmp_path, monkeypatch):
    """It has its outputs, metrics, options and page."""
    task = Triplets("triplets", ("text",), label_names=("bad", "good"), metrics=("accuracy", "margin"))
    monkeypatch.setitem(TASKS, task.name, task)
    folder = make_embedder(tmp_path)
    rows = [{"text": one, "similar": one, "other": other} for one, other in itertools.pairwise(SENTENCES)]
    results = bertjax.ablate(folder, "triplets", data=rows, heads=["0.0", "1.1"], progress=False)
    assert results.summary["outputs"] == "triplets"
    assert results.summary["numbers"] == ["bad", "good"]
    np.testing.assert_allclose(results.outputs["base"][:, 1], 1, atol=1e-6)  # a text is similar to itself
    assert results.rows_of("accuracy")[0].base == 1
    assert (results.outputs["base"][:, 0] < 1).all()
    assert page_data(results)["examples"]["note"] == "It is that of the similar text."
    model, tokenizer, examples = bertjax.load(folder), Tokenizer.from_pretrained(folder), task.read(Source(data=rows))
    swapped = encode_examples(model, tokenizer, examples, swapped=True)
    assert swapped.encodings[2 * len(rows)].input_ids == swapped.encodings[0].input_ids
    with pytest.raises(InputError, match="--swapped is an option of triplets, not of mlm: leave it out"):
        encode_examples(model, tokenizer, bertjax.load_examples("mlm", limit=2), swapped=True)
    with pytest.raises(InputError, match="--nonsense is not an option of a task: leave it out"):
        encode_examples(model, tokenizer, examples, nonsense=1)
    with pytest.raises(ConfigError, match="BertForMaskedLM has no sentence vector, which triplets needs: give --task"):
        bertjax.ablate(make_masked(tmp_path / "masked"), "triplets", data=rows, progress=False)


def test_an_entry_of_metrics_is_read_where_there_is_none(tmp_path, monkeypatch):
    """Results describe every metric that is not in bertjax, from any module."""
    monkeypatch.setitem(bertjax.METRICS, "balanced", BALANCED)
    model, pairs = make_classifier(tmp_path / "model"), write_pairs(tmp_path / "pairs.tsv", 40)
    results = bertjax.ablate(
        model, "mrpc", data=pairs, metric="balanced", heads=["0.0", "1.1"], output=tmp_path / "results", progress=False
    )
    monkeypatch.undo()
    again = bertjax.read_results(tmp_path / "results")
    assert again.rows == results.rows
    assert again.outputs["outputs"].shape == results.outputs["outputs"].shape
    assert "Balanced accuracy" in again.report().read_text()


def test_custom_modes_in_sets_are_read_again(tmp_path, monkeypatch):
    monkeypatch.setitem(MODES, "half-2", MODES_OF_ONES_OWN["half"])
    (tmp_path / "sets").write_text("mixed: 0.0=half-2 1.1=zero\nother: 1.0=half-2\n")
    model, pairs = make_classifier(tmp_path / "model"), write_pairs(tmp_path / "pairs.tsv", 40)
    options = {"model": model, "task": "mrpc", "data": pairs, "progress": False}
    bertjax.ablate(**options, ablate=tmp_path / "sets", output=tmp_path / "results")
    monkeypatch.undo()
    assert bertjax.read_results(tmp_path / "results").names == ["mixed", "other"]


@pytest.mark.parametrize("name", ["Half", "zéro", "a b", "=", "1st"])
def test_a_name_that_no_file_of_sets_could_hold_is_refused(name, monkeypatch):
    monkeypatch.setitem(MODES, name, MODES_OF_ONES_OWN["half"])
    with pytest.raises(InputError, match="a mode's name must be lower-case letters, digits, - and _"):
        Change(0, 0, name)


def test_a_change_keeps_its_meaning(monkeypatch):
    monkeypatch.setitem(MODES, "half", MODES_OF_ONES_OWN["half"])
    change = Change(0, 0, "half", 0.5)
    monkeypatch.undo()
    assert (change.replacement, change.replaced) == ("nothing", 0.25)
    assert pickle.loads(pickle.dumps(change)) == change
    monkeypatch.setitem(MODES, "half", MODES_OF_ONES_OWN["flattened"])
    assert Change(0, 0, "half", 0.5) != change


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": ""}, "a metric's name must be a text"),
        ({"label": None}, "a metric's label must be a text, found None"),
        ({"reads": "nonsense"}, "reads of metric own 'nonsense' is not one of predictions, values"),
        ({"targets": "words"}, "targets of metric own 'words' is not one of classes, numbers"),
        ({"needs": 3}, "needs of metric own must be one of nothing, two, positive, both, found 3"),
        ({"function": 1}, "function of metric own must be a function of outputs, labels and the positive class"),
    ],
)
def test_a_metric_that_is_none_is_refused(wrong, message, unchecked):
    options = {"name": "own", "label": "Own", "reads": "predictions", "targets": "classes", "function": len}
    with pytest.raises(DataError, match=message):
        bertjax.Metric(**options | wrong)


@pytest.mark.parametrize("function", [lambda *args: 0.5, lambda *args: np.array(["a", "b", "c"]), lambda *args: None])
def test_a_metric_that_returns_something_else_is_refused(function):
    wrong = bertjax.Metric("wrong", "Wrong", "predictions", "classes", function)
    outputs, labels = np.eye(2)[np.zeros((3, 4), int)], np.array([0, 1, 0, 1])
    with pytest.raises(DataError, match="the function of metric wrong must return one number for each of the 3"):
        compute_statistics(wrong, outputs[0], outputs[1:], labels, resamples=9, draws=9)


def test_an_invalid_custom_task_is_refused(tmp_path, monkeypatch):
    task = TextClassification("paraphrase", ("#1 String", "#2 String"), "Quality", ("no", "yes"), metrics=("nonsense",))
    monkeypatch.setitem(TASKS, task.name, task)
    model, pairs = make_classifier(tmp_path / "model"), write_pairs(tmp_path / "pairs.tsv", 40)
    with pytest.raises(DataError, match="no metric is called 'nonsense'"):
        bertjax.ablate(model, "paraphrase", data=pairs, progress=False)
    with pytest.raises(DataError, match=r"has no task paraphrase: give its .tsv, .csv, .jsonl or .parquet file"):
        bertjax.ablate(model, "paraphrase", progress=False)


@pytest.mark.parametrize("wrong", [{"text_columns": "sentence"}, {"metrics": "f1"}, {"label_names": "no yes"}])
def test_a_task_with_a_text_in_place_of_several_is_refused(wrong, unchecked):
    options = {"name": "own", "text_columns": ("a",), "label_column": "b", "label_names": None, "metrics": ("f1",)}
    (name,) = wrong
    with pytest.raises(DataError, match=f"{name} of task own must be a tuple of str, found the string"):
        TextClassification(**options | wrong)
