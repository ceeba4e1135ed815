"""`ablate` from input files to output files, on a tiny model and invented sentences."""

import json
from dataclasses import replace

import numpy as np
import pytest

import bertjax
from bertjax.cli import main
from bertjax.data.tokenizer import Encoding
from bertjax.engine import reference
from bertjax.engine.reference import SweepResult
from bertjax.errors import ConfigError, DataError, InputError, OutputError, OverrideError
from bertjax.interventions import overrides as ov
from bertjax.jobs.finalize import NoEffectWarning, choose_examples, within_budget
from bertjax.jobs.outputs import sampled_attention
from bertjax.jobs.run import run_analysis
from bertjax.jobs.settings import check_settings
from bertjax.statistics.metrics import score
from bertjax.tasks import TASKS, TextEncodings, encode_examples, form_named, label_order, load_examples, positive_label
from tests.factories import SENTENCES, make_classifier, write_pairs
from tests.job_factories import changed, options_of, settings_of
from tests.schema_checks import check_by_jsonschema
from tests.tiny_models import arrays_of, largest_difference


@pytest.fixture
def settings(classifier, tmp_path):
    """All heads of the classifier on ten invented paraphrase pairs."""
    data = write_pairs(tmp_path / "pairs.tsv", 10)
    return settings_of(model=str(classifier), task="mrpc", data=str(data), output=str(tmp_path / "out"))


def summary_of(settings):
    return json.loads((settings.directory / "summary.json").read_text())


def test_all_files_are_written_and_agree_with_each_other(settings):
    run_analysis(settings)
    summary, arrays = summary_of(settings), arrays_of(settings.directory / "outputs.npz")
    names = {path.name for path in settings.directory.iterdir()}
    assert names == {"summary.json", "results.parquet", "outputs.npz", "examples.jsonl", "attention.npz", "heads.png"}
    check_by_jsonschema(summary)
    assert arrays["outputs"].shape == (6, 10, 2)
    assert list(zip(arrays["layer"].tolist(), arrays["head"].tolist(), strict=True)) == [
        (entry["layer"], entry["head"]) for entry in summary["ablations"]
    ]
    for name in ("f1", "accuracy"):
        scores = score(name, arrays["outputs"], arrays["labels"])
        found = np.array([entry["scores"][name] for entry in summary["ablations"]], float)
        assert np.array_equal(scores, found, equal_nan=True)
        assert summary["base"]["scores"][name] == score(name, arrays["base"][None], arrays["labels"])[0]
    deltas = [entry["delta"] for entry in summary["ablations"]]
    assert deltas == [entry["score"] - summary["base"]["score"] for entry in summary["ablations"]]
    lines = [json.loads(line) for line in (settings.directory / "examples.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == arrays["ids"].tolist() == list(range(10))
    assert lines[0]["first"] in SENTENCES
    assert (settings.directory / "heads.png").read_bytes().startswith(b"\x89PNG")


def test_the_summary_records_provenance(settings):
    run_analysis(settings)
    summary = summary_of(settings)
    assert summary["model"]["name"] == settings.model
    assert len(summary["model"]["weights_sha256"]) == len(summary["data"]["sha256"]) == 64
    assert summary["data"]["examples"] == 10
    assert "1/n" in summary["mode"]["definition"]
    assert {"python", "jax", "flax", "bertjax"} <= set(summary["versions"])
    assert summary["device"]["platform"] == "cpu"
    assert summary["settings"]["precision"] == "float32"


@pytest.mark.parametrize("mode", ["uniform", "zero", "mean"])
def test_outputs_are_those_of_single_runs(settings, mode):
    results = run_analysis(changed(settings, mode=mode))
    model = bertjax.load(settings.model)
    encodings = _encode(settings, results.examples)
    outputs = []
    for encoding in encodings:  # one by one, without padding: the means are over all real tokens
        call = {"input_ids": [encoding.input_ids], "token_type_ids": [encoding.token_type_ids]}
        outputs.append((call, model(**call).record.head_outputs))
    means = np.concatenate([np.asarray(found[:, 0]) for _, found in outputs], axis=1).mean(axis=1)
    some = [0, 4, 7]
    for number, head in enumerate(ov.every_head(model.config)):
        make = {
            "uniform": ov.uniform,
            "zero": ov.zero,
            "mean": lambda c, h: ov.mean(c, h, means.astype(np.float32)),
        }[mode]
        override = make(model.config, [head])
        expected = np.concatenate([model(**outputs[place][0], overrides=override).logits for place in some])
        assert largest_difference(results.outputs["outputs"][number, some], expected) < 1e-4


def _encode(settings, examples):
    from bertjax.data.tokenizer import Tokenizer

    first, second = ([example[name] for example in examples] for name in ("first", "second"))
    return Tokenizer.from_pretrained(settings.model).encode(first, second)


def test_whole_layers(settings):
    results = run_analysis(changed(settings, ablate="layers"))
    assert [(entry["layer"], entry["head"]) for entry in results.summary["ablations"]] == [(0, None), (1, None)]
    assert (settings.directory / "layers.png").is_file()
    model = bertjax.load(settings.model)
    encoding = _encode(settings, results.examples)[4]
    call = {"input_ids": [encoding.input_ids], "token_type_ids": [encoding.token_type_ids]}
    expected = model(**call, overrides=ov.uniform(model.config, ov.heads_of_layer(model.config, 1))).logits[0]
    assert largest_difference(results.outputs["outputs"][1, 4], expected) < 1e-4


def test_pairs_are_scored_by_similarity_with_a_sentence_embedder(settings, embedder):
    results = run_analysis(changed(settings, model=str(embedder), heads=("1.1", "0.2")))
    assert [(entry["layer"], entry["head"]) for entry in results.summary["ablations"]] == [(1, 1), (0, 2)]
    assert list(results.summary["base"]["scores"]) == ["roc_auc", "average_precision"]
    model = bertjax.load(embedder)
    from bertjax.data.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_pretrained(embedder)
    override = ov.uniform(model.config, ["1.1"])
    vectors = [
        np.asarray(model([tokenizer.encode([text])[0].input_ids], overrides=override).sentence_embedding[0])
        for text in (results.examples[7]["first"], results.examples[7]["second"])
    ]
    cosine = vectors[0] @ vectors[1] / np.linalg.norm(vectors[0]) / np.linalg.norm(vectors[1])
    assert abs(results.outputs["outputs"][0, 7] - cosine) < 1e-5


def test_a_file_of_sets(settings, tmp_path):
    (tmp_path / "sets.txt").write_text("two layers: 0.0 1.2  # a name\n\n1.0=zero, 1.1=mean\n0.2\n")
    results = run_analysis(changed(settings, ablate=str(tmp_path / "sets.txt")))
    assert results.names == ["two layers", "1.0=zero+1.1=mean", "0.2"]
    heads = [entry["heads"] for entry in results.summary["ablations"]]
    assert heads == [["0.0", "1.2"], ["1.0=zero", "1.1=mean"], ["0.2"]]
    assert [(entry["layer"], entry["head"]) for entry in results.summary["ablations"]] == [
        (None, None),
        (None, None),
        (0, 2),
    ]
    arrays = arrays_of(settings.directory / "outputs.npz")
    assert arrays["names"].tolist() == results.names
    assert (settings.directory / "sets.png").is_file()
    model = bertjax.load(settings.model)
    encoding = _encode(settings, results.examples)[4]
    call = {"input_ids": [encoding.input_ids], "token_type_ids": [encoding.token_type_ids]}
    expected = model(**call, overrides=ov.uniform(model.config, ["0.0", "1.2"])).logits[0]
    assert largest_difference(results.outputs["outputs"][0, 4], expected) < 1e-4


@pytest.mark.parametrize(
    ("change", "count"),
    [
        ({"ablate": "pairs"}, 15),
        ({"ablate": "pairs", "heads": ("0.0", "0.1", "1.1")}, 3),
        ({"ablate": "all-but-one"}, 6),
        ({"ablate": "one-of-layer"}, 6),
        ({"ablate": "subsets", "subset_size": 3, "subset_count": 7}, 7),
        ({"ablate": "cumulative", "heads": ("1.1", "0.0")}, 2),
    ],
)
def test_ready_made_collections(settings, change, count):
    chosen = changed(settings, **change)
    assert len(chosen.analysis.ablations(bertjax.load(settings.model).config)) == count
    check_settings(chosen)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("0.0 9.9", "line 1: there is no head 9.9"),
        ("0.0\n0.0 0.0", "line 2: .* names a head, or a site, twice"),
        ("a: 0.0=gone", "'gone' is not one of"),
        ("name:", "at least one head"),
        ("# nothing", "holds no set of heads"),
    ],
)
def test_mistakes_in_a_file_of_sets(settings, tmp_path, content, message):
    (tmp_path / "sets.txt").write_text(content)
    with pytest.raises(InputError, match=message):
        run_analysis(changed(settings, ablate=str(tmp_path / "sets.txt")))


def test_attention_is_saved_for_changed_and_spaced_examples(rng):
    """The second ablation flips example 30, the first 11 and, less than it changes others, 12."""
    base = np.tile(np.array([2.0, 0.0]), (41, 1))
    outputs = np.tile(base, (2, 1, 1)) + 1e-3 * rng.normal(size=(2, 41, 2))
    outputs[0, 20] += 9  # changes much, and flips nothing
    outputs[0, 11], outputs[0, 12], outputs[1, 30] = [0, 3], [1, 1.1], [0, 1]
    chosen = choose_examples(form_named("logits"), SweepResult(base, outputs))
    assert {0, 13, 27, 40, 11, 12, 30} < set(chosen)
    assert chosen == sorted(chosen)
    assert len(chosen) == 8
    values = base[:, 0]
    changed = np.tile(values, (2, 1))
    changed[0, [5, 6]], changed[1, [7, 8]] = [9, 8], [7, 6]
    assert choose_examples(form_named("similarity"), SweepResult(values, changed)) == sorted(
        [0, 13, 27, 40, 5, 6, 7, 8]
    )
    assert choose_examples(form_named("similarity"), SweepResult(values[:3], changed[:, :3])) == [0, 1, 2]


def test_fewer_long_texts_have_saved_attention(monkeypatch):
    encodings = [
        Encoding((1,) * length, (0,) * length, ("",) * length, ((0, 0),) * length, False) for length in (3, 9, 4)
    ]
    encoded = TextEncodings(form_named("logits"), tuple(encodings), 0, 3, np.zeros(3))
    monkeypatch.setattr("bertjax.jobs.finalize.ATTENTION_BYTES", 2 * (9 + 16))
    assert within_budget([0, 1, 2], encoded, 2) == [0, 2]
    assert within_budget([0, 1, 2], encoded, 1) == [0, 2]
    assert within_budget([1], encoded, 2) == [1]
    monkeypatch.undo()
    assert within_budget([0, 1, 2], encoded, 2) == [0, 1, 2]


def test_attention_of_the_largest_effects_is_saved(settings):
    results = run_analysis(settings)
    kept = arrays_of(settings.directory / "attention.npz")
    assert kept["runs"][0] == "base"
    assert len(kept["runs"]) == 6
    effects = dict(zip(results.names, np.abs(results.printed()), strict=True))
    assert min(effects[name] for name in kept["runs"][1:]) >= max(
        [effect for name, effect in effects.items() if name not in kept["runs"]], default=0
    )
    assert len(kept["examples"]) == 8
    tokens, weights = kept["tokens_3_0"], kept["weights_3_0"]
    assert tokens[0] == "[CLS]"
    assert weights.shape == (6, 2, 3, len(tokens), len(tokens))
    assert largest_difference(weights.sum(-1), np.ones(weights.shape[:-1])) < 1e-5
    layer, head = map(int, str(kept["runs"][1]).split("."))
    assert largest_difference(weights[1, layer, head], np.full((len(tokens),) * 2, 1 / len(tokens))) < 1e-6


def test_a_limit_draws_by_seed(settings):
    several = [run_analysis(changed(settings, limit=4, seed=seed, overwrite=True)) for seed in (1, 1, 2)]
    ids = [[example["id"] for example in results.examples] for results in several]
    assert len(ids[0]) == 4
    assert ids[0] == ids[1] != ids[2]


def test_results_are_replaced_only_with_overwrite(settings):
    run_analysis(settings)
    before = (settings.directory / "summary.json").read_bytes()
    with pytest.raises(OutputError, match="--overwrite"):
        run_analysis(changed(settings, mode="zero"))
    assert (settings.directory / "summary.json").read_bytes() == before
    run_analysis(changed(settings, mode="zero", ablate="layers", overwrite=True))
    assert not (settings.directory / "heads.png").exists()


def test_a_failed_figure_keeps_the_outputs(settings, monkeypatch):
    def fail(*arguments, **options):
        raise OSError(28, "No space left on device")

    run_analysis(settings)
    monkeypatch.setattr("bertjax.results.directory.save_page", fail)
    with pytest.raises(OutputError, match="No space left"):
        run_analysis(changed(settings, mode="zero", overwrite=True))
    # The outputs are complete and new; no old file that contradicts them is left. The journal
    # stays until all is written.
    assert {path.name for path in settings.directory.iterdir()} == {
        ".bertjax-writing",
        "outputs.npz",
        "examples.jsonl",
        "journal",
    }
    assert arrays_of(settings.directory / "outputs.npz")["outputs"].shape == (6, 10, 2)


def test_unscorable_outputs_are_refused_before_the_sweep(settings, embedder, tmp_path, monkeypatch):
    monkeypatch.setattr("bertjax.jobs.analysis.sweep_examples", lambda *a, **o: pytest.fail("the sweep began"))
    rows = ["first\tsecond\tlabel", *(f"{SENTENCES[i]}\t{SENTENCES[i + 1]}\t{'AB'[i % 2]}" for i in range(5))]
    (tmp_path / "ab.tsv").write_text("\n".join(rows) + "\n")
    custom = changed(settings, task="custom", data=str(tmp_path / "ab.tsv"), text_columns=("first", "second"))
    with pytest.raises(DataError, match="A, B means that a pair is similar"):
        run_analysis(changed(custom, model=str(embedder)))
    ratings = ["first\tsecond\tlabel", *(f"{SENTENCES[i]}\t{SENTENCES[i + 1]}\t{i}" for i in range(5))]
    (tmp_path / "ab.tsv").write_text("\n".join(ratings) + "\n")
    with pytest.raises(DataError, match="give --label-names without names"):
        run_analysis(changed(custom, model=str(embedder)))
    with pytest.raises(ConfigError, match="2 labels, but custom has 5"):
        run_analysis(custom)
    assert not settings.directory.exists()


def test_an_ablation_without_effect_is_warned_about(classifier, settings, tmp_path):
    model = bertjax.load(classifier)
    kernel = model.bert.encoder.layers[1].attention.output.kernel
    kernel[...] = kernel[...].at[2].set(0)
    copy = make_classifier(tmp_path / "copy", model)
    with pytest.warns(NoEffectWarning, match=r"ablating 1\.2 changed no output"):
        run_analysis(changed(settings, model=str(copy)))
    assert summary_of(settings)["without_effect"] == ["1.2"]


def test_bfloat16_is_near_float32(settings):
    exact = run_analysis(settings).outputs["outputs"]
    coarse = run_analysis(changed(settings, precision="bfloat16", overwrite=True)).outputs["outputs"]
    assert 1e-5 < largest_difference(coarse, exact) < 0.2
    apart = summary_of(settings)["float32"]
    assert apart["runs"][0] == "base"
    assert len(apart["runs"]) == len(apart["scores"]) == 6
    assert 1e-5 < apart["largest_output_difference"] <= largest_difference(coarse, exact) + 1e-4
    assert apart["largest_score_difference"] >= abs(apart["scores"][0] - apart["scores_in_bfloat16"][0])


def test_labels_are_mapped_to_the_order_of_the_task():
    rte = TASKS["rte"]
    assert label_order({0: "LABEL_0", 1: "LABEL_1"}, rte) == (0, 1)
    assert label_order({0: "not_entailment", 1: "entailment"}, rte) == (1, 0)
    assert label_order({0: "CONTRADICTION", 1: "ENTAILMENT", 2: "NEUTRAL"}, TASKS["mnli"]) == (1, 2, 0)
    with pytest.raises(ConfigError, match="3 labels, but rte has 2"):
        label_order({0: "a", 1: "b", 2: "c"}, rte)
    with pytest.raises(ConfigError, match="id2label"):
        label_order({0: "yes", 1: "no"}, rte)
    signs = replace(rte, label_names=("-", "+"))
    assert label_order({0: "-", 1: "+"}, signs) == (0, 1)
    with pytest.raises(ConfigError, match="id2label"):
        label_order({0: "+", 1: "-"}, signs)
    numbers = replace(rte, name="custom", label_names=("0", "1", "2"))
    with pytest.raises(ConfigError, match=r"with --label-names \(label_names=\): --label-names no maybe yes, if that"):
        label_order({0: "no", 1: "maybe", 2: "yes"}, numbers)
    with pytest.raises(ConfigError, match=r"2 labels, but custom has 3: 0, 1, 2; give all classes .* --label-names"):
        label_order({0: "no", 1: "yes"}, numbers)
    assert label_order({0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}, numbers) == (0, 1, 2)
    assert positive_label(form_named("similarity"), rte) == 0
    assert positive_label(form_named("similarity"), TASKS["qqp"]) == 1


def test_impossible_settings_are_refused_before_computing(settings, embedder):
    for change, error, message in (
        ({"mode": "delete"}, InputError, "uniform, zero, mean"),
        ({"precision": "float8"}, InputError, "float32, bfloat16"),
        ({"heads": ("2.0",)}, OverrideError, "no head 2.0"),
        ({"ablate": "head"}, InputError, "heads, layers, pairs, .* or a file of sets: found 'head'"),
        ({"ablate": "cumulative"}, InputError, "give --heads"),
        ({"ablate": "layers", "heads": ("1.0",)}, InputError, "--ablate layers"),
        ({"memory": "lots"}, InputError, "not an amount of memory"),
        ({"memory": "1GB", "engine": "reference"}, InputError, "--batch-size"),
        ({"resume": True, "engine": "reference"}, InputError, "nothing to resume"),
        ({"resume": True, "overwrite": True}, InputError, "give one of them"),
        ({"batch_size": 4}, InputError, "for --engine reference"),
        ({"chunk_size": 4}, InputError, "for --engine reference"),
        ({"subset_size": 3}, InputError, "for --ablate subsets, not for heads"),
        ({"subset_count": 3, "ablate": "pairs"}, InputError, "for --ablate subsets, not for pairs"),
        ({"max_length": 100}, InputError, "more than the model's 40 tokens"),
        (
            {"task": "mnli", "text_columns": ("#1 String", "#2 String"), "label_column": "Quality"},
            ConfigError,
            "2 labels, but mnli has 3",
        ),
    ):
        with pytest.raises(error, match=message):
            run_analysis(changed(settings, **change))
    assert not (settings.directory / "summary.json").exists()


def test_the_plan_estimates_the_cost_and_writes_nothing(settings, capsys):
    arguments = options_of(settings)
    assert main(["plan", *arguments, "--ablate", "pairs"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "15 sets of heads" in printed
    assert "runs with their own after each layer: 7, 16" in printed
    for name in ("examples 10, ", "rows of", "GFLOP/s, measured", "peak memory", "time about"):
        assert name in printed
    assert not settings.directory.exists()
    assert main(["plan", *arguments, "--memory", "1MB"]) == 2
    assert "but the budget is 1 MB" in capsys.readouterr().err


def test_the_command_prints_the_table(settings, capsys):
    arguments = options_of(settings)
    assert main(["ablate", *arguments, "--mode", "zero", "--limit", "6"]) == 0
    printed = capsys.readouterr().out
    assert "F1" in printed
    assert "change" in printed.lower()
    assert "heads.png" in printed.replace("\n", "")


def test_heads_in_another_mode_and_parts_of_a_layer_are_sets(settings, tmp_path):
    sets = tmp_path / "sets.txt"
    sets.write_text("0.0=zero\n0.0=mean\n0: 0.0 0.1\n1: 1.0 1.1 1.2\n1.1")
    run_analysis(changed(settings, ablate=str(sets)))
    places = [(entry["name"], entry["layer"], entry["head"]) for entry in summary_of(settings)["ablations"]]
    only_named = [(name, None, None) for name in ("0.0=zero", "0.0=mean", "0")]
    assert places == [*only_named, ("1", 1, None), ("1.1", 1, 1)]
    assert (settings.directory / "sets.png").exists()


def test_attention_of_other_samples_reuses_the_compiled_program(settings):
    model, tokenizer = bertjax.load(settings.model), bertjax.Tokenizer.from_pretrained(settings.model)
    encoded = encode_examples(model, tokenizer, load_examples("mrpc", data=settings.data))
    lengths = [len(text) for text in encoded.encodings]
    by_length = np.argsort(lengths).tolist()
    samples = by_length[:2], by_length[-2:]
    assert max(lengths[text] for text in samples[0]) < min(lengths[text] for text in samples[1])
    overrides = [ov.identity(model.config), ov.zero(model.config, ["0.1"])]
    compiled = set()
    for sample in samples:
        found = sampled_attention(model, encoded, sample, overrides)
        compiled.add(reference._run._cache_size())
        for place, text in enumerate(sample):
            alone = [model(bertjax.collate([encoded.encodings[text]]), overrides=one).attentions for one in overrides]
            # Rounding of scores of ten and more, which padding sums in another order.
            assert largest_difference(found[f"weights_{place}_0"], np.stack(alone)[:, :, 0]) < 1e-5
            assert found[f"tokens_{place}_0"].tolist() == list(encoded.encodings[text].tokens)
    assert len(compiled) == 1
