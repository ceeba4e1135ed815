"""Names of heads: no program reads them as numbers from our tables, and both spellings are understood everywhere."""

import io
from dataclasses import replace

import numpy as np
import pandas
import polars
import pytest

import bertjax
from bertjax import BertConfig, BertForSequenceClassification
from bertjax.analyses import PatchPaths
from bertjax.arguments import parse_head_name
from bertjax.cli import main
from bertjax.engine import SweepResult
from bertjax.formatting import plain_name, table_name
from bertjax.interventions import ablations as ab
from bertjax.interventions import overrides as ov
from bertjax.results.directory import read_results
from tests.factories import add_tokenizer, make_config, write_pairs
from tests.job_factories import settings_of
from tests.tiny_models import random_model

LAYERS, HEADS = 6, 12  # as MiniLM has: 3.1 and 3.10 are two heads
EVERY = {f"L{layer}H{head}" for layer in range(LAYERS) for head in range(HEADS)}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("seventy-two")
    config = replace(
        make_config(), hidden_size=24, num_attention_heads=HEADS, num_hidden_layers=LAYERS, intermediate_size=5
    )
    random_model(BertForSequenceClassification, config).save_pretrained(folder)
    return add_tokenizer(folder)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_pairs(tmp_path_factory.mktemp("data") / "pairs.tsv", 6)


@pytest.fixture(scope="module")
def heads(model, data, tmp_path_factory):
    output = tmp_path_factory.mktemp("results") / "heads"
    return bertjax.ablate(model, "mrpc", data=data, mode="zero", output=output, progress=False)


def shown(directory, form, capsys):
    capsys.readouterr()
    assert main(["show", str(directory), "--format", form]) == 0
    return io.StringIO(capsys.readouterr().out)


@pytest.mark.integration
def test_csv_has_seventy_two_names(heads, capsys):
    for read in (pandas.read_csv, polars.read_csv):
        table = read(shown(heads.directory, "csv", capsys))
        for column in ("name", "heads"):
            assert {*table[column]} == EVERY
        assert all(str(table[column].dtype).lower() == "int64" for column in ("layer", "head"))
        named = zip(table["name"], table["layer"], table["head"], strict=True)
        assert all(parse_head_name(name) == (layer, head) for name, layer, head in named)


def test_other_tables_have_the_same_names(heads, tmp_path, capsys):
    frame = heads.frame
    frame.to_csv(tmp_path / "frame.csv", index=False)
    for table in (
        frame,
        pandas.read_csv(tmp_path / "frame.csv"),
        pandas.read_json(shown(heads.directory, "json", capsys)),
        polars.read_json(shown(heads.directory, "json", capsys).read().encode()),
        polars.read_parquet(heads.directory / "results.parquet"),
    ):
        assert {*table["name"]} == EVERY
    read = read_results(heads.directory)
    assert read.names[:2] == ["0.0", "0.1"]
    assert {(row.name, *row.heads) for row in read.rows} == {(name, name) for name in read.names}
    pandas.testing.assert_frame_equal(read.frame, frame)


@pytest.mark.parametrize(
    ("ablate", "names"),
    [
        ("layers", [f"L{layer}" for layer in range(LAYERS)]),
        ("pairs", ["L3H1+L3H10", "L3H1+L4H2", "L3H10+L4H2"]),
        ("1.1: 3.1\n1.10: 3.10\nnan: 4.1\n4.2=mean\n4.1 4.2\nsyntax: 0.0", None),
    ],
)
def test_names_of_layers_pairs_and_sets_in_csv(ablate, names, model, data, tmp_path, capsys):
    chosen = {"heads": ["3.1", "L3H10", "4.2"]} if ablate == "pairs" else {}
    if names is None:
        (tmp_path / "sets.txt").write_text(ablate)
        ablate, names = tmp_path / "sets.txt", ["set 1.1", "set 1.10", "set nan", "L4H2=mean", "L4H1+L4H2", "syntax"]
    bertjax.ablate(
        model, "mrpc", data=data, mode="zero", ablate=ablate, output=tmp_path / "o", progress=False, **chosen
    )
    for read in (pandas.read_csv, polars.read_csv):
        table = read(shown(tmp_path / "o", "csv", capsys))
        assert [*dict.fromkeys(table["name"])] == names


def test_a_sweep_as_a_data_frame_has_them_too():
    config = BertConfig(hidden_size=24, num_attention_heads=12, num_hidden_layers=2)
    several = [*ab.single_heads(config)[:3], *ab.whole_layers(config)]
    outputs = np.zeros((5, 2), np.float32)
    frame = SweepResult(outputs[0], outputs, tuple(several)).to_pandas()
    assert [*frame.ablation.unique()] == ["L0H0", "L0H1", "L0H2", "L0", "L1"]


def test_both_spellings_name_the_same_head(tmp_path):
    config = BertConfig()
    assert ov.parse_head("L3H10", config) == ov.parse_head("3.10", config) == (3, 10)
    for wrong in ("L3", "H10", "LH", "L3H", "3H10", "L3.10", "L12H0"):
        with pytest.raises(bertjax.errors.OverrideError):
            ov.parse_head(wrong, config)
    first, second = (settings_of(ablate="heads", heads=heads) for heads in (("3.10", "L0H1"), ("L3H10", "0.1")))
    assert first.describe() == second.describe()
    assert first.directory == second.directory
    assert first.analysis.ablations(config) == second.analysis.ablations(config)
    for number, text in enumerate(("3.1 3.10=mean\na: 4.0", "L3H1, L3H10=mean\na: L4H0")):
        (tmp_path / str(number)).write_text(text)
    sets = [ab.read_sets(tmp_path / str(number), config, "zero") for number in range(2)]
    assert sets[0] == sets[1]
    assert ab.hash_sets(tmp_path / "0") == ab.hash_sets(tmp_path / "1")
    assert PatchPaths(receivers={"queries": ("L3H7",)}) == PatchPaths(receivers={"queries": [(3, 7)]})


def test_names_come_back_from_tables():
    named = [("3.10", 3), ("3", 3), ("3.1+3.10", None), ("all but 3.1", None), ("layer 3 but 3.10", None)]
    named += [("first 3", None), ("1.10", None), ("3.1 at 2", None), ("3.10=zero", None)]
    for name, layer in named:
        written = table_name(name, ["3.1", "3.10"], layer)
        assert plain_name(written) == name
        with pytest.raises(ValueError, match="could not convert"):
            float(written)


@pytest.mark.integration
def test_commands_take_both_spellings(heads, model, data, tmp_path, capsys):
    directory = heads.directory
    for number, run in enumerate(("3.10", "L3H10")):
        more = ["--run", run, "--output", str(tmp_path / f"saved{number}")]
        assert main(["remove-heads", "--from", str(directory), *more]) == 0
    weights = [(tmp_path / f"saved{number}" / "model.safetensors").read_bytes() for number in range(2)]
    assert weights[0] == weights[1]
    command = ["remove-heads", "--model", str(model), "--heads", "L3H10", "--output", str(tmp_path / "saved2")]
    assert main(command) == 0
    assert (tmp_path / "saved2" / "model.safetensors").read_bytes() == weights[0]
    for head in ("3.10", "L3H10"):
        more = ["--figure", "attention", "--head", head, "-o", str(tmp_path / f"{head}.svg")]
        assert main(["plot", str(directory), *more]) == 0
    assert (tmp_path / "3.10.svg").read_bytes() == (tmp_path / "L3H10.svg").read_bytes()
    run = heads.attention["runs"].tolist()[1]
    spelt = table_name(run, [run])
    assert spelt != run
    assert main(["plot", str(directory), "--figure", "change", "--run", spelt, "-o", str(tmp_path / "run.svg")]) == 0
    some = bertjax.ablate(model, "mrpc", data=data, mode="zero", heads=["L3H10", "L3H1"], progress=False)
    assert some.names == ["3.10", "3.1"]
    assert len(heads.compare(some).to_dict()["pairs"]) == 1
