"""What gradients say of heads: against differences of the exact engine, for every task and every mode; and the call."""

import itertools
import json
import re

import numpy as np
import pytest

import bertjax
from bertjax.analyses import Importance, Prune, compare_with_exact, gradients, head_gradients, prune, trust_in
from bertjax.cli import main
from bertjax.engine import sweep
from bertjax.errors import InputError
from bertjax.interventions import Ablation, Change, every_head
from bertjax.jobs import run_analysis
from bertjax.jobs.job import load_job
from bertjax.jobs.outputs import mean_outputs
from bertjax.jobs.settings import for_this_device
from bertjax.results.page import page_data
from bertjax.tasks.classification import LOGITS, ClassifiedTexts
from bertjax.tasks.outputs import binary_cross_entropy, cosine_and_gradients, cross_entropy
from tests.factories import make_classifier, make_embedder, write_pairs
from tests.job_factories import changed, settings_of
from tests.schema_checks import check_by_jsonschema
from tests.task_factories import LABEL_TASK_FACTORIES, TASK_FACTORIES, example_losses, load_task_job

MODES = ("zero", "uniform", "mean")
SHARES = (-0.04, 0.04, -0.08, 0.08)  # of a head that is replaced


ALWAYS = ("mlm", "minimal-pairs", "question-answering", "embedder")  # the others in the slow suite
CASES = [
    pytest.param(case, mode, marks=() if case in ALWAYS else pytest.mark.slow)
    for case, mode in zip([*TASK_FACTORIES, *LABEL_TASK_FACTORIES], itertools.cycle(MODES), strict=False)
]


RATINGS = (2.6, 4.5, 3.0, 3.25, 0.5, 4.0, 2.75, 4.25, 3.5, 2.8, 4.4, 3.1)


def rated(folder, make, task, **changes):
    """A job of pairs with ratings in the layout of STS-B; a custom file may have the same columns."""
    rows = (f"{n}\tpair number {n}\tthe pair {n % 5}\t{rating}" for n, rating in enumerate(RATINGS))
    data = folder / "dev.tsv"
    data.write_text("index\tsentence1\tsentence2\tscore\n" + "".join(f"{row}\n" for row in rows))
    more = {} if task == "stsb" else {"text_columns": ("sentence1", "sentence2"), "label_column": "score"}
    model = folder / "model" if (folder / "model").exists() else make(folder / "model")
    options = {"model": str(model), "task": task, "data": str(data), "output": "unused", "mode": "zero"}
    return load_job(for_this_device(settings_of(**options, **more, **changes)))


def targets_of(job):
    """What a pair's cosine of 0 is away from, by the pair's id: the root of its loss."""
    vectors = np.eye(2)
    objective = job.encoded.objective
    return {key: objective.grade(number, vectors)[0] ** 0.5 for number, key in enumerate(job.examples.ids)}


def test_ratings_of_stsb_are_scaled_by_five(tmp_path):
    found = targets_of(rated(tmp_path, make_embedder, "stsb"))
    np.testing.assert_allclose([*found.values()], np.array(RATINGS) / 5, rtol=1e-6)
    some = targets_of(rated(tmp_path, make_embedder, "stsb", limit=4, seed=1))
    assert len(some) == 4
    assert some == {key: found[key] for key in some}


def test_losses_of_ratings_do_not_depend_on_others(tmp_path):
    """Ratings of a custom file are scaled by the lowest and highest rating of the whole file."""
    job = rated(tmp_path, make_embedder, "custom")
    whole = targets_of(job)
    np.testing.assert_allclose([*whole.values()], (np.array(RATINGS) - 0.5) / 4, rtol=1e-6)
    parts = [rated(tmp_path, make_embedder, "custom", limit=5, seed=seed) for seed in (1, 2)]
    parts += prune._halves(job, Prune())
    for part in parts:
        found = targets_of(part)
        assert len(found) < len(whole)
        assert found == {key: whole[key] for key in found}


def test_the_summary_says_the_scale_of_ratings(tmp_path):
    rated(tmp_path, make_embedder, "custom")
    options = {"data": tmp_path / "dev.tsv", "limit": 6, "progress": False}
    found = bertjax.importance(tmp_path / "model", "stsb", **options, output=tmp_path / "out")
    assert found.summary["data"]["scale"] == [0.0, 5.0]
    assert found.summary["gradients"]["loss"].startswith("squared error of the rating, 0 to 5 scaled to 0 to 1")
    check_by_jsonschema(json.loads((tmp_path / "out" / "summary.json").read_text()))
    columns = {"text_columns": ("sentence1", "sentence2"), "label_column": "score"}
    results = bertjax.importance(tmp_path / "model", "custom", **options, **columns)
    assert results.summary["data"]["scale"] == [0.5, 4.5]


@pytest.mark.parametrize(("case", "mode"), CASES)
def test_changes_are_the_slopes_of_exact_ablations(case, mode, tmp_path):
    job = load_task_job(case, tmp_path, mode)
    model, encoded = job.model, job.encoded
    means = mean_outputs(model, encoded, 4) if mode == "mean" else None
    found = head_gradients(model, encoded, mode, means=means)

    heads = every_head(model.config)
    both = [Ablation(f"{head} {share}", (Change(*head, mode, share),)) for share in SHARES for head in heads]
    swept = sweep(
        model,
        [(text,) for text in encoded.encodings],
        both,
        encoded.objective.readout,
        at=encoded.at,
        targets=encoded.targets,
        means=means,
        progress=False,
    )
    np.testing.assert_allclose(found.losses, example_losses(encoded, swept.base), rtol=1e-4, atol=1e-6)
    ends = np.split(np.array([example_losses(encoded, run) for run in swept.outputs]), 4)
    near, far = ((ends[place + 1] - ends[place]) / (2 * SHARES[place + 1]) for place in (0, 2))
    slopes = (4 * near - far) / 3  # without what grows as the square of the share
    assert np.abs(slopes).max() > 1e-4
    np.testing.assert_allclose(found.changes, slopes, atol=0.02 * np.abs(slopes).max())
    assert (found.at_tokens >= np.abs(found.changes) * (1 - 1e-4) - 1e-7).all()


@pytest.mark.parametrize("case", [*TASK_FACTORIES, *LABEL_TASK_FACTORIES])
def test_gradients_of_losses_are_their_differences(case, tmp_path):
    encoded = load_task_job(case, tmp_path).encoded
    rng = np.random.default_rng(2)
    width = {"similarity": (5,), "ranking": (5,), "logits": (2,), "label-sets": (4,)}.get(encoded.form.name, (1,))
    if encoded.at is not None:
        width = encoded.at.shape[1], *((2,) if encoded.form.name in ("words", "tags", "answers") else ())
    for example in range(min(encoded.examples, 5)):
        outputs = rng.normal(size=(len(encoded.numbers_of(example)), *width))
        loss, gradient = encoded.objective.grade(example, outputs)
        direction = rng.normal(size=outputs.shape)
        ends = [encoded.objective.grade(example, outputs + step * direction)[0] for step in (-1e-5, 1e-5)]
        assert np.isfinite(loss)
        np.testing.assert_allclose((ends[1] - ends[0]) / 2e-5, (gradient * direction).sum(), rtol=1e-5, atol=1e-8)


def test_losses_are_those_of_torch():
    import torch

    rng = np.random.default_rng(4)
    logits, first, others = rng.normal(size=7), rng.normal(size=5), rng.normal(size=(3, 5))
    functional = torch.nn.functional
    expected = functional.cross_entropy(torch.tensor(logits), torch.tensor(4))
    np.testing.assert_allclose(cross_entropy(logits, 4)[0], float(expected))
    true = (rng.random(7) > 0.5).astype(float)
    expected = functional.binary_cross_entropy_with_logits(torch.tensor(logits), torch.tensor(true))
    np.testing.assert_allclose(binary_cross_entropy(logits, true)[0], float(expected))
    expected = functional.cosine_similarity(torch.tensor(first)[None], torch.tensor(others))
    np.testing.assert_allclose(cosine_and_gradients(first, others)[0], expected.numpy())


def outputs_of(job):
    """What metrics read of the base run, and the losses of its texts."""
    form, texts = job.encoded.form, job.encoded
    few = [Ablation("0.0", (Change(0, 0, "zero"),))]
    options = {"at": texts.at, "targets": texts.targets}
    swept = sweep(job.model, texts.texts, few, form.readout, combine=form.combine, progress=False, **options)
    return texts.outputs_of(swept).base.astype(np.float64), head_gradients(job.model, texts).losses


@pytest.mark.parametrize(
    ("case", "loss_of"),
    [
        ("minimal-pairs", lambda outputs: np.logaddexp(0, outputs[:, 0] - outputs[:, 1])),  # bad, good
        ("agreement", lambda outputs: np.logaddexp(0, outputs[:, 0] - outputs[:, 1])),
        ("token-classification", lambda outputs: -outputs[:, 0]),
        ("multi-label", lambda outputs: -outputs[:, 0]),
    ],
)
def test_losses_are_of_what_metrics_read(case, loss_of, tmp_path):
    outputs, losses_of_texts = outputs_of(load_task_job(case, tmp_path))
    np.testing.assert_allclose(losses_of_texts, loss_of(outputs), rtol=1e-4, atol=1e-5)
    assert np.ptp(losses_of_texts) > 1e-3


def test_the_loss_of_words_is_their_mean_surprisal(tmp_path):
    job = load_task_job("mlm", tmp_path)
    outputs, losses_of_texts = outputs_of(job)
    for example in np.unique(job.encoded.units):
        in_text = job.encoded.units == example
        np.testing.assert_allclose(losses_of_texts[example], -outputs[in_text, 0].mean(), rtol=1e-5)


def test_losses_of_labels_are_of_the_columns_that_labels_name(tmp_path):
    job = load_task_job("classifier", tmp_path)
    outputs, losses_of_texts = outputs_of(job)
    expected = [cross_entropy(row, label)[0] for row, label in zip(outputs, job.examples.labels.tolist(), strict=True)]
    np.testing.assert_allclose(losses_of_texts, expected, rtol=1e-5)


@pytest.mark.parametrize("case", ["embedder", "cross-encoder"])
def test_losses_of_pairs_are_lowest_where_yes_is_most_similar(case, tmp_path):
    job = load_task_job(case, tmp_path)
    for example, label in enumerate(job.examples.labels.tolist()):
        similar, apart = (
            (np.array([[1.0, 0.0], end]) for end in ([1.0, 0.0], [0.0, 1.0]))
            if case == "embedder"
            else (np.array([[9.0]]), -np.array([[9.0]]))
        )
        best, worst = (similar, apart) if label == 1 else (apart, similar)
        assert job.encoded.objective.grade(example, best)[0] < job.encoded.objective.grade(example, worst)[0]


def test_the_answer_loss_is_least_for_the_most_likely_tokens(tmp_path):
    encoded = load_task_job("question-answering", tmp_path).encoded
    seen = 0
    for example in range(encoded.examples):
        numbers = list(encoded.numbers_of(example))
        outputs = np.zeros((len(numbers), encoded.at.shape[1], 2))
        for window, number in enumerate(numbers):
            tokens = [encoded.encodings[number].tokens[place] for place in encoded.at[number]]
            place = tokens.index("cat") if "cat" in tokens else 0
            seen += place > 0
            outputs[window, place] = 60
        assert encoded.objective.grade(example, outputs)[0] < 1e-9
    assert seen


def test_the_ranking_loss_is_least_with_relevant_texts_first(tmp_path):
    encoded = load_task_job("ranking", tmp_path).encoded
    for example in range(encoded.examples):
        count, relevant = len(encoded.members[example]) - 1, int(encoded.labels[example])
        outputs = np.tile([[0.0, 1.0]], (count + 1, 1))
        outputs[: relevant + 1] = [1.0, 0.0]  # the query, and what stands first among its texts
        np.testing.assert_allclose(encoded.objective.grade(example, outputs)[0], np.log(relevant), atol=1e-6)


def test_integrated_gradients_sum_to_the_effect_of_all_heads(tmp_path):
    job = load_task_job("classifier", tmp_path, "uniform")
    found = head_gradients(job.model, job.encoded, "uniform", steps=24)
    everything = Ablation("all", tuple(Change(*head, "uniform") for head in every_head(job.model.config)))
    readout = job.encoded.objective.readout
    swept = sweep(job.model, job.encoded.texts, [everything], readout, progress=False)
    exact = example_losses(job.encoded, swept.outputs[0]) - example_losses(job.encoded, swept.base)
    assert np.abs(exact).max() > 1e-3
    np.testing.assert_allclose(found.changes.sum(axis=0), exact, atol=0.01 * np.abs(exact).max())
    once = head_gradients(job.model, job.encoded, "uniform")
    assert np.abs(once.changes.sum(axis=0) - exact).max() > 0.02 * np.abs(exact).max()


def test_an_example_without_a_label_has_no_gradient(tmp_path):
    job = load_task_job("classifier", tmp_path)
    whole = head_gradients(job.model, job.encoded)
    job.examples.labels[3] = -1
    found = head_gradients(job.model, job.encoded)
    assert np.isnan(found.losses[3])
    assert np.isnan(found.changes[:, 3]).all()
    rest = np.arange(24) != 3
    np.testing.assert_allclose(found.changes[:, rest], whole.changes[:, rest], atol=1e-7)


def test_importance_is_normalised_within_layers():
    importance = np.abs(np.random.default_rng(1).normal(size=(3, 4)))
    normalised = gradients.normalise_by_layer(importance)
    np.testing.assert_allclose((normalised**2).sum(axis=1), 1)
    np.testing.assert_allclose(normalised[1] / normalised[1, 0], importance[1] / importance[1, 0])
    assert not gradients.normalise_by_layer(np.zeros((2, 3))).any()


@pytest.fixture(scope="module")
def importance_results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("importance")
    model, data = make_classifier(folder / "model"), write_pairs(folder / "pairs.tsv", 40)
    exact = bertjax.ablate(model, "mrpc", data=data, mode="zero", output=folder / "exact", progress=False)
    found = bertjax.importance(model, "mrpc", data=data, output=folder / "gradients", progress=False)
    return folder, exact, found


@pytest.mark.integration
def test_results_are_read_like_those_of_ablations(importance_results, capsys):
    folder, exact, _ = importance_results
    again = bertjax.read_results(folder / "gradients")
    assert again.names == exact.names
    check_by_jsonschema(json.loads((folder / "gradients" / "summary.json").read_text()))
    assert again.summary["gradients"] == {"loss": "cross-entropy of the label", "unit": "nats", "steps": 1}
    changes, losses = again.outputs["outputs"][..., 1], again.outputs["base"][:, 0]
    for row in again.rows_of("importance"):
        place = again.names.index(row.name)
        np.testing.assert_allclose(row.score, np.abs(changes[place]).mean())
        assert row.low < row.score < row.high
    for row in again.rows_of():
        assert row.metric == "predicted_loss"
        np.testing.assert_allclose(row.base, losses.mean())
        np.testing.assert_allclose(row.difference, changes[again.names.index(row.name)].mean(), atol=1e-12)
    assert main(["show", str(folder / "gradients"), "--metric", "importance"]) == 0
    assert main(["compare", str(folder / "gradients"), str(folder / "exact")]) == 0
    assert main(["plot", str(folder / "gradients"), "--metric", "importance", "-o", str(folder / "map.png")]) == 0
    assert main(["report", str(folder / "gradients")]) == 0
    assert "Gradient importance" in capsys.readouterr().out


def test_the_command_compares_gradients_with_exact_effects(importance_results, capsys):
    folder, exact, found = importance_results
    options = ["--data", str(folder / "pairs.tsv"), "--against", str(folder / "exact"), "--overwrite"]
    options += ["--model", str(folder / "model"), "--task", "mrpc", "--output", str(folder / "again")]
    assert main(["importance", *options, "--no-compile-cache"]) == 0
    printed = capsys.readouterr().out
    trust = trust_in(found, exact)
    assert f"{trust.correlation:.2f}" in printed
    assert "of the first 5, found" in printed
    best = max(found.rows_of("importance"), key=lambda row: row.score)
    assert best.name in printed


def test_agreement_of_orders_is_counted():
    names = [f"{layer}.{head}" for layer in range(4) for head in range(5)]
    exact = np.random.default_rng(6).normal(size=20)
    perfect = compare_with_exact(names, np.abs(exact) ** 3, exact)
    assert perfect.correlation == pytest.approx(1)
    assert set(perfect.precision.values()) == {1.0}
    assert perfect.chance == {5: 0.25, 10: 0.5}
    reversed_order = compare_with_exact(names, -np.abs(exact), exact)
    assert reversed_order.precision == {5: 0.0, 10: 0.0}
    name, estimated, place = reversed_order.worst[0]
    assert {estimated, place} == {1, 20}
    assert name in (names[np.abs(exact).argmax()], names[np.abs(exact).argmin()])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mode": "patched"}, "mode 'patched' is not one of uniform, zero, mean"),
        ({"steps": 0}, "steps must be an integer of at least 1"),
    ],
    ids=str,
)
def test_impossible_options_of_gradients_are_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        Importance(**wrong)


def test_gradients_of_another_model_are_not_compared(importance_results, tmp_path):
    _, exact, _ = importance_results
    model, data = make_embedder(tmp_path / "model"), write_pairs(tmp_path / "pairs.tsv", 12)
    other = bertjax.importance(model, "mrpc", data=str(data), progress=False)
    with pytest.raises(InputError, match="are those of different models"):
        trust_in(other, exact)


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("layers", "holds no single heads"),
        ("gradients", "not exact effects: give results of bertjax ablate"),
        ("another task", "of task custom, the ablations those of mrpc"),
    ],
)
def test_incomparable_results_are_refused_before_computing(which, message, importance_results, monkeypatch):
    folder, heads, found = importance_results
    data = folder / "pairs.tsv"
    exact = {"gradients": found, "another task": heads}.get(which)
    if exact is None:
        exact = bertjax.ablate(folder / "model", "mrpc", ablate="layers", data=data, progress=False)
    settings = settings_of(Importance, model=str(folder / "model"), task="mrpc", data=str(data), against=exact)
    if which == "another task":
        settings = changed(settings, task="custom", label_column="Quality", label_names=("0", "1"))
        settings = changed(settings, text_columns=("#1 String", "#2 String"))
    place = "bertjax.analyses.importance.head_gradients"
    monkeypatch.setattr(place, lambda *args, **more: pytest.fail("computed"))
    with pytest.raises(InputError, match=message):
        run_analysis(settings, keep=False)


def test_the_page_has_the_labels_of_the_examples(importance_results):
    _, exact, found = importance_results
    assert [one["label"] for one in found.examples] == [one["label"] for one in exact.examples]
    assert len({one["label"] for one in found.examples}) == 2


def test_importance_is_drawn_and_not_tested(importance_results, capsys):
    folder, _, found = importance_results
    for name in ("importance", "token_importance"):
        rows = found.rows_of(name)
        assert {(row.p, row.q, row.holm, row.best_p, row.test) for row in rows} == {(None,) * 5}
        assert all(0 <= row.low < row.score < row.high for row in rows)
    assert all(row.q is not None for row in found.rows_of("predicted_loss"))
    for form in ("table", "md", "csv", "json"):
        assert main(["show", str(folder / "gradients"), "--metric", "importance", "--format", form]) == 0
        printed = capsys.readouterr().out
        assert "q <" not in printed
        assert "*" not in printed
        assert "above 0" not in printed
    assert [row["q"] for row in json.loads(printed)] == [None] * len(found.names)
    for figure in (found.plot(), found.plot("map"), found.plot("ranking")):
        texts = [text.get_text() for text in figure.texts]
        texts += [text.get_text() for legend in figure.legends for text in legend.get_texts()]
        assert texts[0] == "Gradient importance of each head, mode zero"
        assert "chance" not in " ".join(texts)
    assert page_data(found)["drawn"] == "importance"
    assert main(["compare", *[str(folder / "gradients")] * 2, "--metric", "importance"]) == 0
    assert "not tested" in capsys.readouterr().out


def test_texts_about_gradients_do_not_mention_ablation(importance_results):
    _, _, found = importance_results
    measure = found.measure("predicted_loss")
    assert found.sentence.startswith("Gradients predict a higher score without ")
    assert "blat" not in found.sentence
    assert not re.search("largest (loss|gain)", found.sentence)
    assert measure.base == "of the model as it is"
    legend = [text.get_text() for text in found.plot(metric="predicted_loss").legends[0].get_texts()]
    assert any(text.startswith("largest rise: head ") and "+" in text for text in legend)
    assert not re.search("largest (loss|gain)", " ".join(legend))
    assert found.summary["without_effect"] == []
    assert "ablation" not in found._repr_html_()


def test_gradients_of_a_ranking_are_results_too(tmp_path):
    make, write, name = TASK_FACTORIES["ranking"]
    found = bertjax.importance(make(tmp_path / "model"), "ranking", data=write(tmp_path / name), progress=False)
    assert found.rows_of("importance")[0].score > 0
    assert {one["relevance"] > 0 for one in found.examples[0]["candidates"]} == {True}


def test_texts_without_a_target_word_are_left_out(tmp_path):
    make, write, name = TASK_FACTORIES["mlm"]
    data, model = write(tmp_path / name), make(tmp_path / "model")
    whole = bertjax.importance(model, "mlm", data=data, progress=False)
    data.write_text("☃\n" + data.read_text() + "☃\n")
    found = bertjax.importance(model, "mlm", data=data, progress=False)
    assert len(found.outputs["ids"]) == len(whole.outputs["ids"])
    assert found.examples[0]["first"] == whole.examples[0]["first"]


def test_without_any_label_there_is_no_loss(importance_results, tmp_path):
    folder, *_ = importance_results
    (tmp_path / "dev.tsv").write_text("sentence1\tsentence2\tlabel\na cat\ta dog\t-1\na door\ta cat\t-1\n")
    with pytest.raises(InputError, match="no example has a label"):
        bertjax.importance(folder / "model", "mrpc", data=tmp_path / "dev.tsv", split="test", progress=False)


def test_the_label_loss_uses_the_models_column_of_the_label():
    outputs = np.array([[3.0, -1.0, 0.5]])
    loss, gradient = ClassifiedTexts(LOGITS, (), 0, 1, np.array([0]), label_order=(2, 0, 1)).grade(0, outputs)
    expected, slopes = cross_entropy(outputs[0], 2)
    np.testing.assert_allclose(loss, expected)
    np.testing.assert_allclose(gradient, slopes[None])


def test_lists_of_a_call_are_accepted(importance_results):
    folder, *_ = importance_results
    header = (folder / "pairs.tsv").read_text().splitlines()[0].split("\t")
    columns = {"text_columns": header[-2:], "label_column": header[0], "label_names": ["0", "1"]}
    found = bertjax.importance(folder / "model", "custom", data=folder / "pairs.tsv", progress=False, **columns)
    assert list(found.summary["settings"]["label_names"]) == ["0", "1"]
    with pytest.raises(InputError, match="text_columns must be a list of str"):
        bertjax.importance(folder / "model", "custom", data=folder / "pairs.tsv", text_columns="sentence1")
