"""Every snippet and command of the README runs."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import bertjax
from bertjax.checkpoints.location import locate
from bertjax.checkpoints.weight_files import read_weights
from bertjax.cli import main
from bertjax.interventions import MODES, overrides
from bertjax.jobs import parity
from bertjax.tasks import TASKS
from tests.factories import SENTENCES, make_classifier, write_pairs
from tests.markdown_pages import commands, parse_command, run_snippets, snippets

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = commands(README)
FAMILIES_PAGE = (ROOT / "docs" / "guides" / "families.md").read_text()


@pytest.mark.parametrize("line", re.findall(r"^bertjax (?:ablate|parity) .*", FAMILIES_PAGE, re.MULTILINE))
def test_the_commands_for_each_family_are_commands(line):
    """Their models are on the hub; here each is parsed, its task is one, and the task's data are named or shipped."""
    options, unknown = parse_command(line.partition(" ")[2])
    assert unknown == []
    if options.command == "ablate":
        assert options.task in TASKS
        assert options.data or options.task in ("qnli-sample", "mlm")
        assert options.task != "qnli-sample" or not options.data


@pytest.fixture(scope="module")
def readme_directory(tmp_path_factory):
    """A directory in which the README's file names exist, with made-up contents."""
    directory = tmp_path_factory.mktemp("readme_directory")
    for folder in ("MRPC", "STS-B"):
        (directory / "GLUE_DIR" / folder).mkdir(parents=True)
    write_pairs(directory / "GLUE_DIR" / "MRPC" / "dev.tsv", 5)
    columns = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"
    rows = [f"{i}\tx\tx\tx\t{i}\tx\tx\t{SENTENCES[i]}\t{SENTENCES[-i]}\t{(i * 3) % 5}.5" for i in range(1, 6)]
    (directory / "GLUE_DIR" / "STS-B" / "dev.tsv").write_text("\n".join([columns, *rows]) + "\n")
    pairs = [f"{SENTENCES[i]}\t{SENTENCES[-i]}\t{('no', 'yes')[i % 2]}" for i in range(1, 6)]
    (directory / "pairs.tsv").write_text("\n".join(["first\tsecond\tlabel", *pairs]) + "\n")
    return directory


def test_the_snippets_run_one_after_another(readme_directory, tmp_path, monkeypatch, capsys):
    shutil.copytree(readme_directory / "GLUE_DIR", tmp_path / "GLUE_DIR")
    make_classifier(tmp_path / "classifier")
    rows = [f"{SENTENCES[i]}\t{SENTENCES[-i]}\t{i % 2}" for i in range(1, 6)]
    (tmp_path / "paws.tsv").write_text("\n".join(["sentence1\tsentence2\tlabel", *rows]) + "\n")
    monkeypatch.chdir(tmp_path)
    modes, tasks = dict(MODES), dict(TASKS)
    assert len(snippets(README)) == 10
    names = run_snippets(README, "README.md")
    assert set(MODES) - set(modes) == {"half"}
    assert set(TASKS) - set(tasks) == {"paws"}
    del MODES["half"], TASKS["paws"]
    printed = capsys.readouterr().out
    assert "(6, 2, 12," in printed
    assert "(72, 2, 384)" in printed
    before, after = re.findall(r"similarity ([\d.]+)", printed)
    assert before != after
    check_edited(tmp_path / "without-2.7", names)
    check_recipes(names)


def check_edited(directory, names):
    """What was saved is the model without head 2.7, with its tokenizer."""
    tokenizer = bertjax.Tokenizer.from_pretrained(directory)
    assert tokenizer.encode(names["sentences"]) == names["tokenizer"].encode(names["sentences"])
    saved, whole = read_weights(directory), read_weights(locate(names["name"]))
    output = "bert.encoder.layer.2.attention.output.dense.weight"
    assert [name for name in saved if not np.array_equal(saved[name], whole.get(name))] == [output]
    changed = (saved[output] != whole[output]).any(axis=0)  # inputs: heads of 32
    assert set(np.flatnonzero(changed) // 32) == {7}
    assert not saved[output][:, 7 * 32 : 8 * 32].any()


def check_recipes(names):
    """Each recipe does what its sentence says; the last one has taken head 2.7 out of the model."""
    batch, first = names["batch"], names["before"].last_hidden_state[:1]
    assert not np.allclose(names["patched"].last_hidden_state, first)
    original = bertjax.load(names["name"])
    without = original(batch, overrides=overrides.zero(original.config, ["2.7"])).sentence_embedding
    assert np.allclose(names["model"](batch).sentence_embedding, without, atol=1e-6)
    alone = overrides.combine(
        overrides.factor(original.config, ["2.7"], 0.5),
        overrides.zero(original.config, overrides.heads_of_layer(original.config, 5)),
    )
    expected = original(batch, overrides=alone).last_hidden_state
    assert np.allclose(names["gated"].last_hidden_state, expected, atol=1e-6)
    names["model"] = original
    step = np.zeros((6, 12), np.float32)
    step[3, 4] = 0.05
    slope = (names["similarity"](1 + step) - names["similarity"](1 - step)) / 0.1
    assert abs(names["gradient"][3, 4] - slope) < 1e-4 < abs(slope)


def test_the_two_commands_are_make_targets():
    targets = [command.split()[1] for command in COMMANDS if command.startswith("make ")]
    assert targets == ["demo", "test"]
    for target, expected in zip(targets, ("bertjax ablate --output demo-output --overwrite", "-m pytest"), strict=True):
        plan = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True)
        assert expected in plan.stdout


@pytest.mark.needs_torch
def test_the_parity_command_agrees_on_the_real_model_in_float32(capsys):
    command = next(command for command in COMMANDS if command.startswith("bertjax parity"))
    assert main([*shlex.split(command)[1:], "--examples", "2"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("pass") == 1 + 6 * 2 + 2  # embeddings, weights and output of 6 layers, two overrides
    assert set(parity.TOLERANCES["float32"].values()) == {2e-5, 5e-6}


def test_the_other_commands_run_in_the_order_given(readme_directory, monkeypatch):
    monkeypatch.chdir(readme_directory)
    given = [c for c in COMMANDS if c.startswith("bertjax ") and not c.startswith("bertjax parity")]
    assert len(given) == 18
    # Where the commands without --output write by default, and where they do here.
    places = {"bertjax-qnli-sample-uniform-heads": "out0"}
    places["bertjax-qnli-sample-zero-heads"] = f"out{given.index('bertjax ablate --mode zero')}"
    for number, command in enumerate(given):
        arguments = [places.get(word, word) for word in shlex.split(command)[1:]]
        # Few heads and examples: how the words are understood is what is tested, not the machine's patience.
        if arguments[0] in ("ablate", "plan"):
            fewer = [] if "layers" in arguments else ["--heads", "5.3", "5.5"]
            arguments += ["--limit", "5", *fewer, "--output", f"out{number}"]
        elif arguments[0] in ("interactions", "shapley"):  # a score must be one without any of the examples too
            arguments += ["--limit", "12", "--heads", "0.6", "1.3", "--output", f"out{number}"]
        elif arguments[0] in ("importance", "roles"):
            arguments += ["--limit", "12"]
        elif arguments[0] == "patch":
            arguments += ["--sites", "hidden_states"]
        assert main(arguments) == 0, command
        assert arguments[0] != "ablate" or (readme_directory / f"out{number}" / "summary.json").is_file()
    assert (readme_directory / "out0" / "report.html").is_file()
    assert (readme_directory / "ranking.pdf").is_file()
