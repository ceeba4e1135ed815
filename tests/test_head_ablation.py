"""Disabling heads and layers: effects small enough to check by eye, outputs against single runs, files of a run."""

import json

import numpy as np
import pytest
from scipy.special import ndtr, softmax

import bertjax
from bertjax import BertModel
from bertjax.cli import main
from bertjax.engine import sizes
from bertjax.errors import OutputError
from bertjax.evidence.weighing import weigh
from bertjax.interventions import overrides
from bertjax.jobs.outputs import mean_outputs
from bertjax.results.directory import read_results
from bertjax.results.table import make_rows
from bertjax.tasks import encode_examples, load_examples
from experiments import head_ablation, layer_ablation
from experiments.disabling import program
from experiments.disabling.effects import (
    correlate_places,
    draw_changes,
    draw_means,
    format_extreme,
    make_effects,
    read_effects,
    summarise,
)
from experiments.disabling.program import MODES
from tests.factories import SENTENCES, add_tokenizer, make_classifier, make_config, make_embedder, write_pairs
from tests.interruptions import TINY_PARTS, StopAfter
from tests.tiny_models import arrays_of, largest_difference, random_model

pytestmark = pytest.mark.integration

HEADS = [(layer, head) for layer in range(2) for head in range(3)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A classifier, an embedder, pairs in MRPC's layout with an unbalanced quote, and some in STS-B's."""
    folder = tmp_path_factory.mktemp("models")
    make_classifier(folder / "classifier")
    make_embedder(folder / "embedder")
    for name in ("MRPC", "STS-B"):
        (folder / name).mkdir()
    path = write_pairs(folder / "MRPC" / "dev.tsv", 17)
    lines = path.read_text().splitlines()
    lines[4] = '\t"'.join(lines[4].rsplit("\t", 1))  # row 3's second text swallows rows 4 and 5
    lines[6] += '"'
    path.write_text("\n".join(lines) + "\n")
    rows = [f"{SENTENCES[n % 7]}\t{SENTENCES[(3 * n + 1) % 7]}\t{(n * 3) % 5}.5" for n in range(12)]
    (folder / "STS-B" / "dev.tsv").write_text("\n".join(["sentence1\tsentence2\tscore", *rows]) + "\n")
    return folder


def run_main(program, folder, model, task, output, *more):
    given = ["--model", str(folder / model), "--task", task, "--data", str(folder), "--output", str(output)]
    return program.main([*given, "--resamples", "20", *more])


@pytest.fixture(scope="module")
def all_heads(folder, tmp_path_factory):
    """What the ablation of all heads of the classifier in every mode leaves."""
    output = tmp_path_factory.mktemp("heads") / "out"
    assert run_main(head_ablation, folder, "classifier", "mrpc", output) == 0
    return output


def effects_of(metric, outputs, labels, positive=1):
    """The first run is the base."""
    evidence = weigh(metric, outputs[0], outputs[1:], labels, positive, resamples=200)
    runs = [{"name": "", "layer": None, "head": None, "heads": []} for _ in outputs[1:]]
    rows = make_rows(runs, {metric: evidence.base}, {metric: evidence})
    draws = draw_means(draw_changes(metric, outputs, labels, positive, 50, 0))
    return make_effects(rows, draws, evidence.least_p)


def answers(right):
    """Logits of runs `[runs, examples]` that are right (labels all 1) or wrong."""
    right = np.asarray(right, float)
    return np.stack([1 - right, right], axis=-1)


def test_effects_by_eye():
    """Four examples, all labelled 1; the base has two right; the third head helps, the fourth does nothing."""
    outputs = answers([[1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0], [1, 1, 0, 0]])
    found = effects_of("accuracy", outputs, np.ones(4, np.int32))
    assert found.base == 0.5
    assert found.change.tolist() == [-25, -50, 25, 0]
    assert (found.gains.tolist(), found.losses.tolist()) == ([0, 0, 1, 0], [1, 2, 0, 0])
    names = ["0.0", "0.1", "1.0", "1.1"]
    said = summarise(found, names)
    assert (said["raise"], said["leave"], said["lower"], said["undefined"]) == (1, 1, 2, 0)
    assert (said["raise_found"], said["lower_found"]) == (0, 0)
    gain, loss = said["largest_gain"], said["largest_loss"]
    assert (gain["name"], gain["change"], gain["gains"], gain["losses"], gain["ties"]) == ("1.0", 25, 1, 0, 0)
    assert (loss["name"], loss["change"], loss["losses"]) == ("0.1", -50, 2)
    assert found.mean == -12.5
    assert abs(found.spread - np.std([-25, -50, 25, 0], ddof=1)) < 1e-4
    assert format_extreme(gain).startswith("1.0 +25.0 (")
    assert format_extreme(gain).endswith("1 become right, 0 wrong; q 1)")


def test_found_heads_are_corrected_for_all_heads_as_in_bertjax():
    """Of forty heads one loses 40 of 100 examples; another loses 6, which alone has p = 0.031."""
    right = np.ones((41, 100), int)
    right[3, :40], right[7, :6] = 0, 0
    outputs, labels = answers(right), np.ones(100, np.int32)
    found = effects_of("accuracy", outputs, labels)
    evidence = weigh("accuracy", outputs[0], outputs[1:], labels, resamples=200)
    assert np.flatnonzero(found.significant).tolist() == [2]
    assert found.p[6] < 0.05 < found.q[6]
    for name, scale in (("p", 1), ("q", 1), ("low", 100), ("high", 100)):
        assert np.array_equal(getattr(found, name), scale * getattr(evidence, name))
    said = summarise(found, [str(place) for place in range(40)])
    assert (said["lower"], said["lower_found"]) == (2, 1)


def test_q_of_the_least_p_that_swaps_can_give_is_at_most_that(rng):
    labels = rng.normal(size=200)
    outputs = np.stack([labels, labels + rng.normal(size=200), labels + 1e-3 * rng.normal(size=200)])
    found = effects_of("pearson", outputs, labels)
    for effects in (found, read_effects("pearson", found.base, json.loads(json.dumps(found.to_dict())))):
        assert effects.format_q(0) == f"≤{effects.q[0]:.2g}"
        assert format_extreme(summarise(effects, ["0", "1"])["largest_loss"]).endswith(f"; q ≤{effects.q[0]:.2g})")
    assert effects_of("accuracy", answers(np.eye(9)), np.ones(9, np.int32)).least_p is None
    assert not found.format_q(1).startswith("≤") or found.p[1] == found.p[0]


def test_effects_outlive_numbers_json():
    outputs = answers([[1, 1, 0, 0], [0, 1, 0, 0], [1, 1, 1, 0]])
    found = effects_of("accuracy", outputs, np.ones(4, np.int32))
    again = read_effects("accuracy", found.base, json.loads(json.dumps(found.to_dict())))
    for name in ("change", "low", "high", "p", "q", "gains", "losses", "mean", "mean_interval"):
        assert np.allclose(getattr(again, name), getattr(found, name), atol=6e-5), name
    undefined = effects_of("f1", answers(np.zeros((3, 4))), np.zeros(4, np.int32))
    again = read_effects("f1", None, json.loads(json.dumps(undefined.to_dict())))
    assert np.isnan(again.change).all()
    assert np.isnan(again.mean)


def test_ties_of_the_largest_are_counted():
    right = [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 0, 1], [1, 0, 0, 0], [1, 1, 1, 0]]
    found = summarise(effects_of("accuracy", answers(right), np.ones(4, np.int32)), list("abcde"))
    assert (found["largest_gain"]["ties"], found["largest_loss"]["ties"]) == (2, 0)
    assert format_extreme(found["largest_gain"]).startswith("a and 2 more +25.0")


def test_draws_with_an_undefined_score_are_left_out_of_the_mean():
    drawn = np.array([[np.nan, 0.1, np.nan], [0.02, 0.3, np.nan], [np.nan] * 3])
    assert np.allclose(draw_means(drawn), [0.1, 0.16, np.nan], equal_nan=True)


def test_an_undefined_score_is_counted_and_never_the_largest():
    """F1 where no example is and none is called positive."""
    labels = np.zeros(4, np.int32)
    outputs = answers([[1, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0]])
    found = effects_of("f1", outputs, labels)
    assert np.isnan(found.change[0])
    said = summarise(found, ["a", "b", "c"])
    assert (said["leave"], said["undefined"]) == (2, 1)
    assert (said["largest_gain"], format_extreme(None)) == (None, "none")


def test_rank_correlation_of_effects_and_its_interval(rng):
    first, noise = rng.normal(size=60), rng.normal(size=60)
    close, far = (correlate_places(first, first + share * noise, 0) for share in (0.3, 3.0))
    assert close["spearman"] > far["spearman"]
    for found in (close, far):
        low, high = found["interval"]
        assert low < found["spearman"] < high
        assert high - low > 0.01
    assert correlate_places(first, -first, 0)["spearman"] == -1


def test_mean_outputs_use_real_tokens_of_the_first_examples(folder):
    model, tokenizer = bertjax.load(folder / "classifier"), bertjax.Tokenizer.from_pretrained(folder / "classifier")
    encoded = encode_examples(model, tokenizer, load_examples("mrpc", data=folder))
    total, count = 0.0, 0
    for row in encoded.encodings[:9]:
        inside = model(**bertjax.collate([row])).inside
        total, count = total + np.asarray(inside.head_outputs, np.float64)[:, 0].sum(1), count + len(row)
    for batch_size in (4, 16):
        assert largest_difference(mean_outputs(model, encoded, batch_size, 9), total / count) < 1e-5


def test_outputs_are_those_of_single_runs_in_each_mode(folder, all_heads):
    found = arrays_of(all_heads / "values.npz")
    model, tokenizer = bertjax.load(folder / "classifier"), bertjax.Tokenizer.from_pretrained(folder / "classifier")
    examples = load_examples("mrpc", data=folder)
    encoded = encode_examples(model, tokenizer, examples)
    means, config = mean_outputs(model, encoded, 4), model.config
    assert found["outputs"].shape == (3, 6, 17, 2)
    batch = bertjax.collate(encoded.encodings)
    for place, head in enumerate(HEADS):
        several = (overrides.uniform, lambda *of: overrides.factor(*of, 0.0), lambda *of: overrides.mean(*of, means))
        for mode, make in enumerate(several):
            logits = model(**batch, overrides=make(config, [head])).logits
            assert largest_difference(found["outputs"][mode, place], logits) < 1e-4
    results = json.loads((all_heads / "numbers.json").read_text())["results"]
    right = found["outputs"].argmax(-1) == examples.labels
    base = (found["base"].argmax(-1) == examples.labels).mean()
    assert (results["metric"], list(results["base"])) == ("accuracy", ["accuracy", "f1"])
    for number, mode in enumerate(MODES):
        saved, effects = read_results(all_heads / mode), results["effects"]["accuracy"][mode]
        assert np.array_equal(saved.outputs["outputs"], found["outputs"][number])
        assert (len(saved.examples), saved.summary["settings"]["precision"]) == (17, "float32")
        assert ("float32" in saved.summary, saved.kind, saved.names[:2]) == (False, "head", ["0.0", "0.1"])
        assert largest_difference(effects["change"], 100 * (right[number].mean(-1) - base)) < 1e-4
        rows = {row.name: row for row in saved.rows_of("accuracy")}
        for place, name in enumerate(results["names"]):
            for part, scale in (("low", 100), ("high", 100), ("p", 1), ("q", 1)):
                assert abs(effects[part][place] - scale * getattr(rows[name], part)) < 1e-3, (name, part)


def test_pictures_and_table_come_from_numbers_json_alone(folder, all_heads, tmp_path):
    layers = tmp_path / "layers"
    assert run_main(layer_ablation, folder, "classifier", "mrpc", layers) == 0
    for program_, out in ((head_ablation, all_heads), (layer_ablation, layers)):
        numbers = json.loads((out / "numbers.json").read_text())
        pictures = program_.figures(numbers)
        assert set(pictures) == {"figure", "modes"}
        for name, draw in pictures.items():
            draw(tmp_path / "again.png")
            assert (tmp_path / "again.png").read_bytes() == (out / f"{name}.png").read_bytes()
        lines = program_.tables(numbers).splitlines()
        assert [line.split(" | ")[0] for line in lines[2:]] == ["| uniform", "| zero", "| mean"]
        assert {line.count("|") for line in lines} == {8}


def test_one_mode_alone(folder, tmp_path, capsys):
    assert run_main(head_ablation, folder, "classifier", "mrpc", tmp_path, "--modes", "zero") == 0
    printed = capsys.readouterr().out
    assert "17 examples" in printed
    assert "compare" not in printed
    results = json.loads((tmp_path / "numbers.json").read_text())["results"]
    assert (list(results["effects"]["f1"]), results["rank_correlation"]) == (["zero"], {})
    assert not {"modes.png", "uniform", "mean"} & {path.name for path in tmp_path.iterdir()}
    assert run_main(head_ablation, folder, "classifier", "mrpc", tmp_path / "b", "--modes", "zero", "zero") == 2
    assert "twice" in capsys.readouterr().err


def literal_logits(weights, config, text, disabled):
    """A classifier's logits in float64 NumPy, the weights of some heads 1/n over the text's n tokens."""

    def norm(x, name):
        deviation = x - x.mean(-1, keepdims=True)
        scale = np.sqrt((deviation**2).mean(-1, keepdims=True) + config.layer_norm_eps)
        return deviation / scale * weights[f"{name}.scale"] + weights[f"{name}.bias"]

    def dense(x, name):
        return np.tensordot(x, weights[f"{name}.kernel"], 1) + weights[f"{name}.bias"]

    ids, types = np.array(text.input_ids), np.array(text.token_type_ids)
    words, segments = weights["bert.embeddings.word"][ids], weights["bert.embeddings.token_type"][types]
    x = norm(words + segments + weights["bert.embeddings.position"][: len(ids)], "bert.embeddings.norm")
    for layer in range(2):
        name = f"bert.encoder.layers.{layer}"
        queries, keys, values = (dense(x, f"{name}.attention.{part}") for part in ("query", "key", "value"))
        attended = x + weights[f"{name}.attention.output.bias"]
        for head in range(3):
            attention = softmax(queries[:, head] @ keys[:, head].T / np.sqrt(4), axis=-1)
            if (layer, head) in disabled:
                attention = np.full((len(ids), len(ids)), 1 / len(ids))
            attended = attended + attention @ values[:, head] @ weights[f"{name}.attention.output.kernel"][head]
        x = norm(attended, f"{name}.attention_norm")
        inner = dense(x, f"{name}.intermediate")
        x = norm(x + dense(inner * ndtr(inner), f"{name}.output"), f"{name}.output_norm")
    return dense(np.tanh(dense(x[0], "bert.pooler.dense")), "classifier")


def test_as_published_reads_all_rows_and_uses_uniform_weights(folder, tmp_path, capsys):
    """Rows as lines, texts cut to the model's own length; heads and a whole layer; one block is printed."""
    options = ("--as-published", "--modes", "uniform")
    assert run_main(head_ablation, folder, "classifier", "mrpc", tmp_path / "heads", *options) == 0
    printed = capsys.readouterr().out
    assert printed.count("nothing disabled") == 1
    assert "as published, which is the default" in printed
    assert run_main(layer_ablation, folder, "classifier", "mrpc", tmp_path / "layers", *options) == 0
    model, tokenizer = bertjax.load(folder / "classifier"), bertjax.Tokenizer.from_pretrained(folder / "classifier")
    weights = {name: np.asarray(value, np.float64) for name, value in model.parameters().items()}
    rows = [line.split("\t") for line in (folder / "MRPC" / "dev.tsv").read_text().splitlines()[1:]]
    labels = np.array([int(row[0]) for row in rows])
    texts = tokenizer.encode([row[-2] for row in rows], [row[-1] for row in rows], max_length=40)
    assert len(texts) == 17
    for output, several in (("heads", [{head} for head in HEADS]), ("layers", [set(HEADS[:3]), set(HEADS[3:])])):
        results = json.loads((tmp_path / output / "numbers.json").read_text())["results"]
        logits = arrays_of(tmp_path / output / "values.npz")["outputs"][0]
        for place, disabled in enumerate(several):
            expected = np.array([literal_logits(weights, model.config, text, disabled) for text in texts])
            assert largest_difference(logits[place], expected) < 1e-4
            change = 100 * ((expected.argmax(-1) == labels).mean() - results["base"]["accuracy"])
            assert abs(results["effects"]["accuracy"]["uniform"]["change"][place] - change) < 1e-4


def test_interrupted_it_goes_on_to_the_same_values(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sizes, "STEPS_OF_PART", TINY_PARTS)
    monkeypatch.setattr(sizes, "CACHED_FLOATS", 700)
    assert run_main(head_ablation, folder, "classifier", "mrpc", tmp_path / "whole") == 0
    with monkeypatch.context() as patch:
        advance = "bertjax.progress.ProgressBar._advance"
        patch.setattr(advance, lambda self, done, total: StopAfter(0.5)(done, total))
        assert run_main(head_ablation, folder, "classifier", "mrpc", tmp_path / "out") == 130
    assert "the same command resumes there" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["journal"]
    assert run_main(head_ablation, folder, "classifier", "mrpc", tmp_path / "out") == 0
    assert not (tmp_path / "out" / "journal").exists()
    whole, found = (arrays_of(tmp_path / name / "values.npz") for name in ("whole", "out"))
    assert all(np.array_equal(whole[name], found[name]) for name in whole)


def test_a_run_on_an_embedder_leaves_its_files_and_no_journal(folder, tmp_path, capsys):
    assert run_main(layer_ablation, folder, "embedder", "stsb", tmp_path / "out") == 0
    files = {path.name for path in (tmp_path / "out").iterdir()}
    pictures = {f"{name}.{kind}" for name in ("figure", "modes") for kind in ("png", "pdf")}
    assert files == {"numbers.json", "values.npz", *pictures, *MODES}
    results = json.loads((tmp_path / "out" / "numbers.json").read_text())["results"]
    assert results["names"] == ["0", "1"]
    assert set(results["rank_correlation"]) == {"uniform-zero", "uniform-mean", "zero-mean"}
    values = arrays_of(tmp_path / "out" / "values.npz")
    assert values["outputs"].shape == (len(MODES), 2, 12)
    model, tokenizer = bertjax.load(folder / "embedder"), bertjax.Tokenizer.from_pretrained(folder / "embedder")
    both = tokenizer.encode([SENTENCES[0], SENTENCES[1]])
    change = overrides.uniform(model.config, overrides.heads_of_layer(model.config, 1))
    vectors = model(**bertjax.collate(both), overrides=change).sentence_embedding
    assert abs(values["outputs"][0, 1, 0] - float(vectors[0] @ vectors[1])) < 1e-4
    for number, mode in enumerate(MODES):
        saved = read_results(tmp_path / "out" / mode)
        assert saved.summary["settings"]["mode"] == saved.summary["mode"]["name"] == mode
        assert np.array_equal(saved.outputs["outputs"], values["outputs"][number])
        changes = saved.printed("score") - 100 * results["base"]["spearman"]
        assert largest_difference(changes, results["effects"]["spearman"][mode]["change"]) < 1e-4
    assert saved.attention["weights_0_1"].shape[:3] == (3, 2, 3)  # base and two layers, layers, heads
    several = [str(tmp_path / "out" / mode) for mode in MODES]
    assert "bertjax compare " + " ".join(several) in capsys.readouterr().out.replace("\n", "")
    assert main(["compare", *several]) == 0
    assert "uniform" in capsys.readouterr().out
    assert run_main(layer_ablation, folder, "embedder", "stsb", tmp_path / "out") == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_failed_run_leaves_nothing_that_counts_as_complete(folder, tmp_path, monkeypatch, capsys):
    out, two = tmp_path / "out", ("--modes", "uniform", "zero")
    assert run_main(layer_ablation, folder, "embedder", "stsb", out, *two) == 0
    real, done = program.conclude, []

    def fail_at_the_second(*given, **options):
        if done:
            raise OutputError("no space left")
        done.append(real(*given, **options))
        return done[-1]

    monkeypatch.setattr(program, "conclude", fail_at_the_second)
    assert run_main(layer_ablation, folder, "embedder", "stsb", out, *two, "--limit", "7", "--overwrite") == 2
    assert "no space left" in capsys.readouterr().err
    assert not (out / "numbers.json").exists()
    monkeypatch.undo()
    assert run_main(layer_ablation, folder, "embedder", "stsb", out, *two, "--limit", "7") == 0
    assert all(read_results(out / mode).summary["data"]["examples"] == 7 for mode in two[1:])


def test_a_file_in_the_way_is_found_before_anything_is_computed(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(program, "sweep_examples", lambda *given, **options: pytest.fail("the sweep began"))
    (tmp_path / "zero").write_text("")
    assert run_main(layer_ablation, folder, "embedder", "stsb", tmp_path) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_mistakes_end_in_one_line(folder, tmp_path, capsys):
    random_model(BertModel, make_config()).save_pretrained(tmp_path / "bare")
    add_tokenizer(tmp_path / "bare")
    (tmp_path / "SST-2").mkdir()
    (tmp_path / "SST-2" / "dev.tsv").write_text("sentence\tlabel\nthe cat\t1\n")
    (tmp_path / "SST-2" / "test.tsv").write_text("index\tsentence\n0\tthe cat\n")
    for model, task, data, more in (
        (tmp_path / "bare", "mrpc", folder, ()),  # no classifier
        (folder / "embedder", "sst2", tmp_path, ()),  # no pairs
        (folder / "classifier", "stsb", folder, ()),  # two labels for one number
        (folder / "classifier", "sst2", tmp_path, ("--split", "test")),  # no labels
        (folder / "classifier", "rte", folder, ()),  # no such file
    ):
        given = ["--model", str(model), "--task", task, "--data", str(data), "--output", str(tmp_path / "out"), *more]
        assert head_ablation.main(given) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1, error
        assert not (tmp_path / "out").exists()
