"""Where results may be written: nothing that bertjax did not write, and no input, is ever replaced or removed."""

import hashlib
import os
import shutil

import pytest

import bertjax
from bertjax.cli import main
from bertjax.errors import OutputError
from bertjax.results import check_directory
from tests.factories import make_classifier, make_masked, write_glue, write_lines, write_pairs

COMMANDS = {
    "ablate": ["--ablate", "layers"],
    "importance": [],
    "interactions": ["--heads", "0.0", "1.1"],
    "shapley": ["--heads", "0.0", "1.1"],
    "prune": ["--orders", "magnitude", "--mode", "zero"],
    "roles": [],
}
NAMES = ("examples.jsonl", "outputs.npz", "results.parquet", "attention.npz", "heads.png", "layers.png", "summary.json")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A tiny classifier, and a file of pairs."""
    folder = tmp_path_factory.mktemp("inputs")
    return make_classifier(folder / "model"), write_pairs(folder / "pairs.tsv", 8)


def run(command, model, data, output, *more):
    arguments = ["--model", str(model), "--task", "mrpc", "--data", str(data), "--output", str(output)]
    return main([command, *arguments, *COMMANDS[command], *map(str, more)])


def contents(directory):
    """Every file below a directory with its hash."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("more", [[], ["--overwrite"]])
def test_no_command_replaces_a_file_of_the_user(command, more, inputs, tmp_path, monkeypatch, capsys):
    model, data = inputs
    monkeypatch.setattr("bertjax.jobs.job.load_for", lambda *args, **more: pytest.fail("the model was loaded"))
    monkeypatch.setattr("bertjax.analyses.roles.load", lambda *args, **more: pytest.fail("the model was loaded"))
    for number, name in enumerate(NAMES):
        output = tmp_path / str(number)
        output.mkdir()
        (output / name).write_text('{"mine": 1}\n')
        before = contents(output)
        assert run(command, model, data, output, *more) == 2
        message = capsys.readouterr().err
        assert f"{name}, which bertjax did not write" in message
        assert len(message.splitlines()) == 1
        assert contents(output) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_an_output_that_contains_an_input_is_refused(command, inputs, tmp_path, capsys):
    model, pairs = inputs
    data = shutil.copy(pairs, tmp_path / "mine.tsv")
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "data.tsv").symlink_to(pairs)
    shutil.copytree(model, tmp_path / "model")
    before = contents(tmp_path)
    for options, output in [
        ((model, data), tmp_path),
        ((model, data), tmp_path / "link"),
        ((model, tmp_path / "link" / "mine.tsv"), tmp_path),
        ((model, tmp_path / "data.tsv"), tmp_path),
        ((tmp_path / "model", pairs), tmp_path / "model"),
        ((tmp_path / "model", pairs), tmp_path),
    ]:
        assert run(command, *options, output, "--overwrite") == 2
        assert "which is an input: give another --output" in capsys.readouterr().err
    assert contents(tmp_path) == before


def test_sets_results_and_bases_are_inputs_too(inputs, tmp_path, capsys):
    model, data = inputs
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "sets.txt").write_text("0.0\n1.1\n")
    more = ["--ablate", tmp_path / "sets" / "sets.txt"]
    assert run("ablate", model, data, tmp_path / "sets", *more) == 2
    assert "sets.txt, which is an input" in capsys.readouterr().err
    assert run("ablate", model, data, tmp_path / "exact", "--ablate", "heads") == 0
    more = ["--against", tmp_path / "exact", "--overwrite"]
    assert run("importance", model, data, tmp_path / "exact", *more) == 2
    assert "exact, which is an input" in capsys.readouterr().err
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text(f'{{"base_model_name_or_path": "{model}"}}')
    assert run("ablate", tmp_path / "adapter", data, model) == 2
    assert f"{model}, which is an input" in capsys.readouterr().err


def test_patches_check_their_directory_too(tmp_path, capsys):
    model = make_masked(tmp_path / "model")
    (tmp_path / "out").mkdir()
    data = tmp_path / "out" / "examples.jsonl"
    data.write_text('{"clean": "a", "corrupted": "b"}\n')
    for more in ([], ["--paths-to", "queries=1.0"]):
        arguments = ["patch", "--model", str(model), "--data", str(data), "--output", str(tmp_path / "out"), *more]
        assert main(arguments) == 2
        assert "examples.jsonl, which is an input" in capsys.readouterr().err
    assert data.read_text() == '{"clean": "a", "corrupted": "b"}\n'


def test_the_python_calls_refuse_the_same(inputs, tmp_path):
    model, data = inputs
    (tmp_path / "layers.png").write_bytes(b"mine")
    shared = {"data": data, "output": tmp_path, "overwrite": True, "progress": False}
    for call in (bertjax.ablate, bertjax.importance, bertjax.shapley, bertjax.roles, bertjax.prune):
        with pytest.raises(OutputError, match=r"layers\.png, which bertjax did not write"):
            call(model, "mrpc", **shared)
    assert [path.name for path in tmp_path.iterdir()] == ["layers.png"]


def test_overwriting_removes_only_what_bertjax_wrote(inputs, tmp_path, capsys):
    model, data = inputs
    output = tmp_path / "out"
    assert run("ablate", model, data, output) == 0
    (output / "notes.txt").write_text("mine")
    assert run("ablate", model, data, output, "--ablate", "heads", "--overwrite") == 0
    assert (output / "notes.txt").read_text() == "mine"
    assert not (output / "layers.png").exists()
    capsys.readouterr()
    (output / "layers.png").write_bytes(b"mine")
    assert run("ablate", model, data, output, "--overwrite") == 2
    assert "layers.png, which bertjax did not write" in capsys.readouterr().err
    (output / "layers.png").unlink()
    (output / "heads.png").write_bytes(b"mine")
    before = contents(output)
    assert run("ablate", model, data, output, "--overwrite") == 2
    assert "heads.png, which bertjax did not write" in capsys.readouterr().err
    assert contents(output) == before


def test_links_with_names_of_results_are_foreign(tmp_path):
    (tmp_path / "out").mkdir()
    os.symlink("nothing", tmp_path / "out" / "outputs.npz")
    with pytest.raises(OutputError, match=r"outputs\.npz, which bertjax did not write"):
        check_directory(tmp_path / "out", overwrite=True)


def test_results_half_written_by_a_killed_run_are_ours(inputs, tmp_path, monkeypatch):
    model, data = inputs
    shared = {"data": data, "output": tmp_path / "out", "progress": False}
    with monkeypatch.context() as patch:
        patch.setattr("bertjax.jobs.finalize.write_results", lambda *args: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            bertjax.importance(model, "mrpc", **shared)
    assert (tmp_path / "out" / "outputs.npz").exists()
    assert not (tmp_path / "out" / "summary.json").exists()
    results = bertjax.importance(model, "mrpc", **shared)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {*results.summary["files"], "summary.json"}


def test_a_picture_or_page_replaces_only_files_of_bertjax(inputs, tmp_path, capsys):
    model, data = inputs
    results, out = bertjax.ablate(model, "mrpc", data=data, output=tmp_path / "out", progress=False), tmp_path / "out"
    for kind in ("png", "pdf", "svg"):
        path = tmp_path / f"figure.{kind}"
        assert main(["plot", str(out), "-o", str(path)]) == 0
        assert main(["plot", str(out), "-o", str(path), "--figure", "ranking"]) == 0
        path.write_bytes(b"mine")
        assert main(["plot", str(out), "-o", str(path)]) == 2
        assert f"figure.{kind} exists, and bertjax did not write it" in capsys.readouterr().err
        assert path.read_bytes() == b"mine"
    assert main(["plot", str(out), "-o", str(out / "heads.png")]) == 2
    assert "belongs to the results in its directory" in capsys.readouterr().err
    assert main(["report", str(out)]) == main(["report", str(out)]) == 0
    (out / "report.html").write_text("mine")
    assert main(["report", str(out)]) == 2
    with pytest.raises(OutputError, match="exists, and bertjax did not write it"):
        results.report(out / "report.html")
    assert (out / "report.html").read_text() == "mine"


def test_data_prepare_replaces_only_copies_it_built(tmp_path, capsys):
    glue, data = write_glue(tmp_path / "glue"), tmp_path / "data"
    command = ["data", "prepare", "--from", str(glue), "--data-dir", str(data), "--overwrite"]
    assert main(command) == main(command) == 0
    (copy,) = data.glob("glue/mrpc/*")
    (copy / "notes.txt").write_text("mine")
    assert main(command) == 2
    assert "bertjax did not write (notes.txt)" in capsys.readouterr().err
    (copy / "notes.txt").unlink()
    (copy / "metadata.json").unlink()  # as in the official copies
    assert main(command) == 2
    shutil.rmtree(copy)
    copy.mkdir()
    (copy / "notes.txt").write_text("mine")
    assert main([*command[:-1]]) == 2
    assert contents(copy) == {"notes.txt": hashlib.sha256(b"mine").hexdigest()}


def test_texts_for_roles_are_not_replaced(inputs, tmp_path, capsys):
    model, _ = inputs
    data = write_lines(tmp_path / "examples.jsonl")
    assert main(["roles", "--model", str(model), "--task", "mlm", "--data", str(data), "--output", str(tmp_path)]) == 2
    assert "which is an input" in capsys.readouterr().err


def test_other_directories_of_a_journals_name_stay(inputs, tmp_path, capsys):
    """Such as those of Spark, whose files are called `part-00000`."""
    output = tmp_path / "out"
    for name in ("orders-2024", "patches"):
        (output / name).mkdir(parents=True)
        (output / name / "part-00000").write_text("mine")
    assert run("ablate", *inputs, output) == 0
    for name in ("orders-2024", "patches"):
        assert (output / name / "part-00000").read_text() == "mine"


def test_results_with_pictures_of_bertjax_can_be_replaced(inputs, tmp_path, capsys):
    output = tmp_path / "out"
    assert run("ablate", *inputs, output) == 0
    (output / "layers.png").unlink()
    assert run("importance", *inputs, tmp_path / "heads") == 0
    assert main(["plot", str(tmp_path / "heads"), "--output", str(output / "sets.png")]) == 0
    assert run("ablate", *inputs, output, "--overwrite") == 0
    assert not (output / "sets.png").exists()
