"""`Study`: models and data in memory give the numbers of files, and everything is loaded once."""

import importlib
import inspect
import shutil
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import numpy as np
import pandas
import pytest

import bertjax
from bertjax.analyses import ANALYSES, Ablate, PatchPaths
from bertjax.cli import main
from bertjax.errors import InputError, OutputError, SweepInterrupted
from bertjax.interventions import single_heads
from bertjax.jobs import Analysis, descriptions, job, names, outcome_of_sweep
from bertjax.representations import edges
from bertjax.statistics import score
from bertjax.study import Study, StudyOptions
from tests.factories import SENTENCES, add_tokenizer, make_config, make_masked, write_lines, write_pairs
from tests.interruptions import StopAfter
from tests.tiny_models import random_model

CONTRAST = {"clean": "the cat sat", "corrupted": "the dog sat", "second": "a cat sleeps"}
OPTIONS = {
    "interactions": {"heads": ["0.0", "1.1"]},
    "restore": {"source": "random"},
    "shapley": {"heads": ["0.0", "1.1"]},
    "prune": {"orders": ["magnitude"], "points": 2},
    "patch": {"contrasts": [CONTRAST], "sites": ["hidden_states"]},
    "languages": {"parallel": [{"en": one, "de": two} for one, two in pairwise(SENTENCES)]},
    "senses": {
        "pairs": [
            {"sentence1": one, "sentence2": two, "start1": 0, "end1": 3, "start2": 0, "end2": 2, "label": len(one) > 13}
            for one, two in pairwise(SENTENCES)
        ]
    },
    "patch_paths": {"contrasts": [CONTRAST], "receivers": {"values": ["1.1"]}},
}


TAGGED = [
    {
        "tokens": words,
        "lemmas": words,
        "upos": [word[0] for word in words],
        "head": [*range(len(words))],
        "deprel": words,
    }
    for words in map(str.split, SENTENCES)
]


@pytest.fixture
def pairs(tmp_path):
    return write_pairs(tmp_path / "pairs.tsv", 20)


def data_of(analysis, pairs):
    """Task and data: words with tags and trees for probes."""
    if analysis in ("probe", "probe_edges", "structure"):
        return {"task": "token-classification", "data": TAGGED}
    return {"task": "mrpc", "data": pairs}


def numbers(results):
    return [(row.name, row.metric, row.score, row.difference, row.low, row.high, row.p, row.q) for row in results.rows]


@pytest.mark.parametrize("analysis", ANALYSES)
def test_methods_calls_and_models_in_memory_give_the_same(analysis, embedder, pairs, monkeypatch):
    monkeypatch.setattr(edges, "ROUNDS", 2)
    monkeypatch.setattr(edges, "STEPS", 3)
    options = {"progress": False, **OPTIONS.get(analysis, {})}
    data = data_of(analysis, pairs)
    found = getattr(Study(embedder, **data), analysis)(**options)
    assert found.rows
    assert numbers(found) == numbers(getattr(Study(bertjax.load(embedder), **data), analysis)(**options))
    data = {} if analysis.startswith(("patch", "languages", "senses")) else data
    assert numbers(found) == numbers(getattr(bertjax, analysis)(embedder, **data, **options))


def test_changed_parameters_are_studied(classifier, pairs, tmp_path):
    model = bertjax.load(classifier)
    kernel = model.bert.encoder.layers[1].attention.output.kernel
    kernel[...] = 3 * kernel[...]
    model.save_pretrained(tmp_path / "changed")
    found = Study(model, "mrpc", data=pairs).ablate(progress=False)
    assert numbers(found) == numbers(bertjax.ablate(tmp_path / "changed", "mrpc", data=pairs, progress=False))
    other = bertjax.ablate(classifier, "mrpc", data=pairs, progress=False)
    assert numbers(found) != numbers(other)
    assert found.summary["model"]["weights_sha256"] != other.summary["model"]["weights_sha256"]


def test_parameters_that_change_later_are_studied(classifier, pairs):
    model = bertjax.load(classifier)
    study = Study(model, "mrpc", data=pairs)
    before = study.ablate(progress=False)
    kernel = model.bert.encoder.layers[0].attention.value.kernel
    kernel[...] = -kernel[...]
    after = study.ablate(progress=False)
    assert numbers(before) != numbers(after)
    assert before.summary["model"]["weights_sha256"] != after.summary["model"]["weights_sha256"]


def test_changes_of_the_studys_model_are_studied(classifier, pairs, tmp_path):
    study = Study(classifier, "mrpc", data=pairs)
    before = study.ablate(output=tmp_path / "before", progress=False)
    kernel = study.model.bert.encoder.layers[1].attention.output.kernel
    assert numbers(study.ablate(output=tmp_path / "before", progress=False)) == numbers(before)  # not changed yet
    kernel[...] = 3 * kernel[...]
    study.model.save_pretrained(tmp_path / "changed")
    for analysis in ("ablate", "roles", "importance"):
        found = getattr(study, analysis)(progress=False)
        assert numbers(found) == numbers(
            getattr(bertjax, analysis)(tmp_path / "changed", "mrpc", data=pairs, progress=False)
        )
    with pytest.raises(OutputError, match="of other weights"):
        study.ablate(output=tmp_path / "before", progress=False)


def test_files_that_change_under_a_study_are_noticed(classifier, pairs, tmp_path):
    shutil.copytree(classifier, tmp_path / "model")
    study = Study(tmp_path / "model", "mrpc", data=pairs)
    study.baseline()
    model = bertjax.load(classifier)
    kernel = model.bert.encoder.layers[1].attention.output.kernel
    kernel[...] = 3 * kernel[...]
    (tmp_path / "model" / "model.safetensors").unlink()
    model.save_pretrained(tmp_path / "new")
    shutil.copy(tmp_path / "new" / "model.safetensors", tmp_path / "model")
    study.ablate(output=tmp_path / "out", progress=False)
    with pytest.raises(OutputError, match="of other weights"):
        bertjax.ablate(tmp_path / "model", "mrpc", data=pairs, output=tmp_path / "out", progress=False)
    study.baseline()
    pairs.write_text("\n".join(pairs.read_text().splitlines()[:-1]) + "\n")
    study.ablate(output=tmp_path / "data", progress=False)
    with pytest.raises(OutputError, match="data_sha256 "):
        bertjax.ablate(classifier, "mrpc", data=pairs, output=tmp_path / "data", progress=False)


def numbered_classes(class_names):
    """Pairs whose labels are numbers of classes with these names."""
    datasets = importlib.import_module("datasets")
    rows = {"first": SENTENCES[:6], "second": SENTENCES[1:7], "label": [0, 1, 0, 1, 1, 0]}
    return datasets.Dataset.from_dict(rows).cast_column("label", datasets.ClassLabel(names=class_names))


@pytest.mark.parametrize("change", ["tokenizer", "pooling", "label names"])
def test_results_of_other_inputs_in_memory_are_not_reused(change, pairs, tmp_path):
    tokenizer = bertjax.Tokenizer.from_pretrained(add_tokenizer(tmp_path))
    embedders = [random_model(bertjax.BertForSentenceEmbedding, make_config(), pooling=one) for one in ("mean", "cls")]
    options = {
        "tokenizer": [{"tokenizer": one} for one in (tokenizer, tokenizer.with_prompt("the old cat"))],
        "pooling": [{"model": one} for one in embedders],
        "label names": [{"data": numbered_classes(names_)} for names_ in (["no", "yes"], ["yes", "no"])],
    }[change]
    common = {"model": embedders[0], "task": "mrpc", "data": pairs, "tokenizer": tokenizer, "output": tmp_path / "out"}
    if change == "label names":
        common["task"] = "custom"
    bertjax.ablate(**{**common, **options[0]}, progress=False)
    with pytest.raises(OutputError, match="of another tokenizer, other label names or another model"):
        bertjax.ablate(**{**common, **options[1]}, progress=False)


def test_options_that_an_analysis_does_not_read_are_refused(embedder, pairs):
    for name, value in {"prompts": ["the old "], "precision": "bfloat16", "readout": "similarity"}.items():
        study = Study(embedder, "mrpc", data=pairs, **{name: value})
        with pytest.raises(InputError, match=f"roles does not read {name}"):
            study.roles(progress=False)


def test_roles_of_plain_texts_need_no_labels(embedder):
    found = Study(embedder, texts=SENTENCES).roles(progress=False)
    assert found.summary["data"]["examples"] == len(SENTENCES)


def test_heads_may_be_numpy_integers(classifier, pairs):
    heads = list(zip(*np.unravel_index([1, 4], (2, 3)), strict=True))
    assert Study(classifier, "mrpc", data=pairs).ablate(heads=heads, progress=False).names == ["0.1", "1.1"]


def test_another_tokenizer_reads_the_texts_anew(classifier, pairs):
    model = bertjax.load(classifier)
    study = Study(model, "mrpc", data=pairs)
    before = study.baseline().outputs
    model.tokenizer = bertjax.Tokenizer.from_pretrained(classifier).with_prompt("the old cat")
    assert not np.array_equal(study.baseline().outputs, before)


def test_model_and_examples_are_loaded_once(classifier, pairs, monkeypatch):
    calls = []
    for name in ("load_for", "load_examples", "encode_examples"):
        real = getattr(job, name)
        counted = lambda *args, _real=real, _name=name, **named: calls.append(_name) or _real(*args, **named)  # noqa: E731
        monkeypatch.setattr(job, name, counted)
    study = Study(classifier, "mrpc", data=pairs)
    assert not calls
    study.ablate(progress=False)
    study.importance(progress=False)
    study.baseline()
    assert study.examples.task.name == "mrpc"
    assert study.model is study.model
    assert sorted(calls) == ["encode_examples", "load_examples", "load_for"]


def test_the_baseline_is_what_the_model_gives(classifier, pairs):
    study = Study(classifier, "mrpc", data=pairs)
    baseline, examples = study.baseline(), study.examples
    tokenizer = bertjax.Tokenizer.from_pretrained(classifier)
    batch = bertjax.collate(tokenizer.encode(examples.first, examples.second))
    np.testing.assert_allclose(baseline.outputs, study.model(**batch).logits, atol=2e-5)
    for name, value in baseline.scores.items():
        assert value == score(bertjax.METRICS[name], baseline.outputs[None], examples.labels)[0]
    found = study.ablate(progress=False)
    assert baseline.scores == {name: found.rows_of(name)[0].base for name in baseline.scores}


def test_a_plan_says_what_a_sweep_costs(classifier, pairs):
    plan = Study(classifier, "mrpc", data=pairs).plan(ablate="layers")
    assert (plan.ablations, plan.examples) == (2, 20)
    assert plan.seconds > 0


def test_a_tokenizer_may_be_passed_with_the_model(pairs, tmp_path):
    model = random_model(bertjax.BertForSentenceEmbedding, make_config())
    with pytest.raises(InputError, match="has no tokenizer: give tokenizer="):
        Study(model, "mrpc", data=pairs).baseline()
    tokenizer = bertjax.Tokenizer.from_pretrained(add_tokenizer(tmp_path))
    assert Study(model, "mrpc", data=pairs, tokenizer=tokenizer).baseline().outputs.shape == (20,)


def test_data_make_the_task_custom(classifier, tmp_path):
    rows = ["text\tlabel", *(f"{text}\t{number % 2}" for number, text in enumerate(SENTENCES))]
    (tmp_path / "own.tsv").write_text("\n".join(rows) + "\n")
    study = Study(classifier, data=tmp_path / "own.tsv", label_names=["0", "1"])
    assert study.options.task == "custom"
    assert set(study.baseline().scores) == {"accuracy"}
    assert Study().options.task == "qnli-sample"


def test_texts_and_labels_may_be_lists(classifier):
    labels = [number % 2 for number in range(len(SENTENCES))]
    study = Study(classifier, texts=SENTENCES, labels=labels)
    assert study.examples.first == SENTENCES
    assert study.examples.labels.tolist() == labels
    assert "data in memory" in repr(Study(classifier, texts=SENTENCES, labels=labels))


def test_a_frame_gives_the_numbers_of_a_file(classifier, pairs):
    """Other objects have the hashes of files too (`test_data_in_memory.py`)."""
    frame = pandas.read_csv(pairs, sep="\t", dtype=str)
    study, named = (Study(classifier, "mrpc", data=data) for data in (frame, pairs))
    assert study.examples.sha256 == named.examples.sha256
    assert numbers(study.ablate(progress=False)) == numbers(named.ablate(progress=False))


def test_class_numbers_follow_the_models_order(tmp_path):
    config = replace(make_config(), id2label={0: "negative", 1: "positive"})
    model = random_model(bertjax.BertForSequenceClassification, config)
    tokenizer = bertjax.Tokenizer.from_pretrained(add_tokenizer(tmp_path))
    numbers_, names_ = [0, 1, 0, 0, 1, 1, 0], ["negative", "positive", *["negative"] * 2, *["positive"] * 2, "negative"]
    by_number, by_name = (
        Study(model, tokenizer=tokenizer, texts=SENTENCES, labels=labels) for labels in (numbers_, names_)
    )
    assert numbers(by_number.ablate(progress=False)) == numbers(by_name.ablate(progress=False))
    assert "negative, positive, the model's order" in by_number.examples.source


def test_results_of_models_in_memory_are_written(classifier, pairs, tmp_path):
    study = Study(bertjax.load(classifier), "mrpc", data=pairs)
    found = study.ablate(output=tmp_path / "out", progress=False)
    again = bertjax.read_results(tmp_path / "out")
    assert numbers(found) == numbers(again)
    assert numbers(study.ablate(output=tmp_path / "out", progress=False)) == numbers(found)  # they are complete
    with pytest.raises(InputError, match="shards are merged from files"):
        study.ablate(output=tmp_path / "shard", shard="1/2", progress=False)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Study(3), "model must be a hub id, a directory, or a model of bertjax"),
        (lambda: Study(limit=0), "limit must be an integer of at least 1"),
        (lambda: Study(limt=3), "limt is not an option of this call; did you mean limit"),
        (lambda: Study("a", "b", "c"), "may be passed without their name: model, task"),
        (lambda: Study(precision="half"), "precision 'half' is not one of auto"),
        (lambda: Study(prompts="query"), "prompts must be a list of str"),
        (lambda: Study(tokenizer="bert"), "tokenizer must be a bertjax.Tokenizer"),
        (lambda: Study().ablate(modes="zero"), "modes is not an option of this call; did you mean mode"),
        (lambda: Study().ablate(heads=[3]), "heads must be a list of heads"),
        (lambda: Study().ablate(mode="half"), "mode 'half' is not one of uniform, zero, mean"),
        (lambda: Study().roles(mode="zero"), "mode is not an option of this call"),
        (lambda: bertjax.roles(prompts=["query"]), "prompts is not an option of this call"),
        (lambda: bertjax.ablate("a", "mrpc", "zero"), "ablate: too many positional arguments; name the options"),
        (lambda: bertjax.ablate(limt=3), "limt is not an option of this call; did you mean limit"),
    ],
)
def test_wrong_options_get_one_line(make, message):
    with pytest.raises(InputError, match=message) as found:
        make()
    assert "\n" not in str(found.value)


def test_a_model_in_memory_keeps_its_numbers(classifier, pairs):
    half = bertjax.load(classifier, dtype="bfloat16")
    found = Study(half, "mrpc", data=pairs).ablate(progress=False)
    assert found.summary["settings"]["precision"] == "bfloat16"
    with pytest.raises(InputError, match="computes in bfloat16"):
        Study(half, "mrpc", data=pairs, precision="float32").ablate(progress=False)
    with pytest.raises(InputError, match="float32"):
        Study(half, "mrpc", data=pairs).importance(progress=False)
    fused = bertjax.load(classifier, attention="fused")
    with pytest.raises(InputError, match="fused attention, without weights"):
        Study(fused, "mrpc", data=pairs).ablate(progress=False)


def test_reprs_are_short(classifier, pairs):
    study = Study(classifier, "mrpc", data=pairs)
    assert repr(study) == f"Study({classifier}, mrpc, {pairs})"
    study.baseline()
    assert "20 examples" in repr(study)
    assert "<table>" in study._repr_html_()
    assert "<script" not in Study("<script>", "mrpc")._repr_html_()


def test_signatures_and_docstrings_list_every_option():
    for name in (*ANALYSES, "plan"):
        method = getattr(Study, name)
        for parameter in list(inspect.signature(method).parameters)[1:]:
            assert f"    {parameter}: " in method.__doc__, (name, parameter)
    assert {*inspect.signature(Study).parameters} == names(StudyOptions)
    assert {*inspect.signature(bertjax.ablate).parameters} == names(StudyOptions) | names(Ablate)
    assert inspect.signature(bertjax.ablate).parameters["mode"].default == "uniform"


def test_every_option_has_a_separate_sentence():
    for options in (StudyOptions, *ANALYSES.values()):
        texts = descriptions(options)
        assert {*texts} == {one.name for one in fields(options)}, options
        assert len({*texts.values()}) == len(texts)


@pytest.mark.parametrize(
    "command", ["ablate", "plan", "importance", "interactions", "shapley", "prune", "roles", "patch"]
)
def test_help_ends_with_an_example(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert f"example: bertjax {command}" in text
    assert "In Python" not in text


def test_receivers_are_needed():
    with pytest.raises(InputError, match="name receivers"):
        PatchPaths(contrasts=[])


def test_masked_words_in_memory(tmp_path):
    model = bertjax.load(make_masked(tmp_path / "model"))
    lines = write_lines(tmp_path / "lines.txt", 10)
    found, named = (Study(one, "mlm", data=lines, every_word=True) for one in (model, tmp_path / "model"))
    assert numbers(found.ablate(progress=False)) == numbers(named.ablate(progress=False))


@dataclass(frozen=True, kw_only=True)
class FirstHeads(Analysis):
    """The first heads, one after another."""

    name = "first-heads"

    count: int = 2
    mode: str = "zero"

    def run(self, context):
        config = context.job.model.config
        heads = single_heads(config, self.mode)[: self.count]
        parts = [context.sweep(replace(context.job, ablations=[head]))[0] for head in heads]
        outputs = np.concatenate([part.outputs for part in parts])
        return outcome_of_sweep(replace(context.job, ablations=heads), replace(parts[0], outputs=outputs), None)


def test_a_custom_analysis(classifier, pairs, tmp_path):
    study = Study(classifier, "mrpc", data=pairs)
    found = study.run(FirstHeads(count=3, output=tmp_path / "out", progress=False))
    exact = study.ablate(mode="zero", progress=False)
    assert found.names == ["0.0", "0.1", "0.2"]
    assert [row.score for row in found.rows_of()] == [row.score for row in exact.rows_of()[:3]]
    assert bertjax.read_results(tmp_path / "out").analysis == "first-heads"
    with pytest.raises(OutputError, match="of a custom analysis"):
        study.run(FirstHeads(count=3, output=tmp_path / "out", progress=False))


def test_an_interrupted_custom_analysis_resumes(classifier, pairs, tmp_path):
    study, output = Study(classifier, "mrpc", data=pairs), tmp_path / "out"
    with pytest.raises(SweepInterrupted):
        study.run(FirstHeads(output=output, progress=StopAfter(0.5)))
    found = study.run(FirstHeads(output=output, progress=False))
    assert found.names == ["0.0", "0.1"]
    assert not list(output.glob("journal*"))


def test_mistakes_in_a_custom_analysis(classifier, pairs):
    @dataclass(frozen=True, kw_only=True)
    class Nameless(FirstHeads):
        name = ""

    @dataclass(frozen=True, kw_only=True)
    class Modeless(Analysis):
        name = "modeless"

        def run(self, context):
            context.sweep(replace(context.job, ablations=single_heads(context.job.model.config, "zero")))

    study = Study(classifier, "mrpc", data=pairs)
    for analysis, message in (
        (Nameless(progress=False), "Nameless has no name"),
        (Modeless(progress=False), "ablations are in mode zero: give Modeless a field `mode`"),
    ):
        with pytest.raises(InputError, match=message):
            study.run(analysis)
