"""Shards of a run, each computed by itself, and the merge that joins them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import bertjax
from bertjax.cli import main
from bertjax.engine import run as engine
from bertjax.engine import sizes
from bertjax.engine.journal import count_parts
from bertjax.engine.schedule import Part, share_parts
from bertjax.errors import BertjaxError, InputError, OutputError, SweepInterrupted
from bertjax.machine import SCHEDULERS, find_shard
from tests.interruptions import TINY_PARTS, StopAfter
from tests.task_factories import LABEL_TASK_FACTORIES, TASK_FACTORIES

TIMES = ("command", "seconds", "settings", "files", "sha256")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """Steps so small that a sweep has many parts."""
    monkeypatch.setattr(sizes, "STEPS_OF_PART", TINY_PARTS)
    monkeypatch.setattr(sizes, "CACHED_FLOATS", 700)
    for names in SCHEDULERS.values():
        for name in filter(None, names):
            monkeypatch.delenv(name, raising=False)


def options_of(case, folder):
    make, write, name = (TASK_FACTORIES | LABEL_TASK_FACTORIES)[case]
    task, file = (case, name) if case in TASK_FACTORIES else (name, "pairs.tsv")
    return {"model": str(make(folder / "model")), "task": task, "data": str(write(folder / file)), "progress": False}


def run_shards(folder, count, options, run=bertjax.ablate):
    directories = [folder / f"shard-{number}" for number in range(1, count + 1)]
    for number, directory in enumerate(directories, 1):
        run(**options, output=directory, shard=f"{number}/{count}")
    return directories


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Three shards of all heads of a tiny classifier."""
    folder = tmp_path_factory.mktemp("pairs")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sizes, "STEPS_OF_PART", TINY_PARTS)
        patched.setattr(sizes, "CACHED_FLOATS", 700)
        options = options_of("classifier", folder)
        return options, run_shards(folder, 3, options)


def same_results(merged, single):
    """The bytes of outputs and examples, all numbers of the summary, and the table."""
    for name in ("outputs.npz", "examples.jsonl", "results.parquet", "attention.npz"):
        assert (merged / name).read_bytes() == (single / name).read_bytes(), name
    summaries = [json.loads((directory / "summary.json").read_text()) for directory in (merged, single)]
    lasting = [{key: value for key, value in summary.items() if key not in TIMES} for summary in summaries]
    assert lasting[0] == lasting[1]
    settings = [{**summary["settings"], "output": None} for summary in summaries]
    assert settings[0] == settings[1]


@pytest.mark.parametrize("case", ["classifier", "mlm", "question-answering", "ranking", "minimal-pairs"])
def test_merged_shards_are_the_bytes_of_a_single_run(case, tmp_path):
    options = options_of(case, tmp_path) | {"mode": "mean"}
    directories = run_shards(tmp_path, 3, options)
    assert all(count_parts(directory / "journal") > 0 for directory in directories)
    single = bertjax.ablate(**options, output=tmp_path / "single")
    merged = bertjax.merge(directories[::-1], output=tmp_path / "merged", progress=False)
    assert merged.rows == single.rows
    same_results(tmp_path / "merged", tmp_path / "single")


def test_merged_interactions_are_those_of_a_single_run(tmp_path):
    options = options_of("classifier", tmp_path) | {"heads": ["0.0", "0.1", "1.0"]}
    directories = run_shards(tmp_path, 2, options, bertjax.interactions)
    bertjax.interactions(**options, output=tmp_path / "single")
    bertjax.merge(directories, output=tmp_path / "merged", progress=False)
    same_results(tmp_path / "merged", tmp_path / "single")


def test_a_killed_shard_resumes_and_computes_only_the_rest(pairs, tmp_path, monkeypatch):
    settings, (first, second, third) = pairs
    again = {**settings, "output": tmp_path / "again", "shard": "2/3"}
    with pytest.raises(SweepInterrupted):
        bertjax.ablate(**{**again, "progress": StopAfter(0.6)})
    found = count_parts(tmp_path / "again" / "journal")
    assert 0 < found < count_parts(second / "journal")
    with pytest.raises(InputError, match="unfinished or damaged shard"):
        bertjax.merge([first, tmp_path / "again", third], output=tmp_path / "out")
    wrote, write = [], engine.Journal.write
    monkeypatch.setattr(engine.Journal, "write", lambda self, *part: wrote.append(part[0]) or write(self, *part))
    shard = bertjax.ablate(**again)
    assert "shard 2 of 3: bertjax merge" in repr(shard)
    assert "shard 2 of 3: bertjax merge" in shard._repr_html_()
    assert found + len(wrote) == count_parts(second / "journal")
    for part in (second / "journal").glob("part-*"):
        assert (tmp_path / "again" / "journal" / part.name).read_bytes() == part.read_bytes()


@pytest.mark.parametrize(("begun", "other"), [("2/3", "1/3"), ("2/3", None), (None, "2/3")])
def test_no_other_run_takes_over_an_unfinished_shard(begun, other, pairs, tmp_path, capsys):
    again = {**pairs[0], "output": tmp_path / "begun"}
    with pytest.raises(SweepInterrupted):
        bertjax.ablate(**{**again, "progress": StopAfter(0.6)}, shard=begun)
    found = count_parts(tmp_path / "begun" / "journal")
    differing = rf"shard \({begun or 'none'} there, {other or 'none'} here\)\. Give those to resume"
    with pytest.raises(OutputError, match=differing):
        bertjax.ablate(**again, shard=other)
    assert count_parts(tmp_path / "begun" / "journal") == found > 0
    what = f"an unfinished run of shard {begun}, not results" if begun else "an unfinished run, not results"
    for command in ("show", "report"):
        assert main([command, str(tmp_path / "begun")]) == 2
        error = f"bertjax: error: {tmp_path / 'begun'} has {what}: run the same command again to resume it\n"
        assert capsys.readouterr().err == error
    bertjax.ablate(**again, shard=begun)


def test_no_forward_pass_joins_shards(pairs, tmp_path, monkeypatch):
    """Only the attention of the sampled examples is computed."""
    monkeypatch.setattr(engine.Schedule, "run", None)
    monkeypatch.setattr(engine, "run_base", None)
    bertjax.merge(pairs[1], output=tmp_path / "merged", progress=False)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 40])
def test_shards_are_consecutive_parts_of_equal_work(count, rng):
    parts = [Part(number, range(1), {}, [], int(work)) for number, work in enumerate(rng.integers(5, 9, 30))]
    shares = share_parts(parts, count)
    assert [part for share in shares for part in share] == parts
    assert len(shares) == count
    work = [sum(part.work + 1 for part in share) for share in shares]
    assert max(work) - sum(work) / count <= 9


def test_a_shard_is_not_shown_as_results(pairs, capsys):
    directory = str(pairs[1][1])
    for command in (["show", directory], ["report", directory], ["compare", directory, directory]):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert f"{directory} has shard 2/3, not results: join all shards with bertjax merge" in error


@pytest.mark.parametrize("use", ["names", "rows", "frame", "examples", "attention", "outputs", "plot", "report"])
def test_results_of_a_shard_refuse_methods_of_merged_results(use, pairs):
    settings, (first, *_) = pairs
    shard = bertjax.ablate(**settings, output=first, shard="1/3")
    assert shard.directory == first
    assert shard.summary["shard"] == "1/3"
    with pytest.raises(InputError, match=f"{first} has shard 1/3, not results: join all shards with bertjax merge"):
        getattr(shard, use)()


def test_other_results_replace_a_shard(pairs, tmp_path):
    settings, (first, *_) = pairs
    shutil.copytree(first, tmp_path / "first")
    bertjax.importance(**settings, output=tmp_path / "first", overwrite=True)
    assert not (tmp_path / "first" / "shard.json").exists()
    assert bertjax.read_results(tmp_path / "first").analysis == "importance"


def test_a_shard_without_parts_says_so(pairs, tmp_path, capsys):
    settings, directories = pairs
    parts = sum(count_parts(directory / "journal") for directory in directories)
    options = ["--model", settings["model"], "--task", settings["task"], "--data", settings["data"]]
    assert main(["ablate", *options, "--output", str(tmp_path / "out"), "--shard", f"1/{4 * parts}"]) == 0
    assert f"shard 1 of {4 * parts}: nothing to do, of {parts} parts" in capsys.readouterr().out


def changed(directory, to, **content):
    """A copy of a shard with other content in `shard.json`."""
    to.mkdir()
    (to / "journal").symlink_to(directory / "journal")
    metadata = json.loads((directory / "shard.json").read_text())
    (to / "shard.json").write_text(json.dumps({**metadata, **content}))
    return to


def test_shards_that_are_not_of_one_run_are_named(pairs, tmp_path, capsys):
    _, (first, second, third) = pairs
    metadata = json.loads((third / "shard.json").read_text())
    other = {
        "shard": "3/4",
        "settings": {**metadata["settings"], "limit": 20},
        "model": {**metadata["model"], "weights_sha256": "0" * 64},
        "versions": {**metadata["versions"], "bertjax": "0.0.9"},
        "steps": {**metadata["steps"], "rows": 77},
    }
    messages = {
        "shard": "number of shards (3 there, 4 here)",
        "settings": "limit (None there, 20 here)",
        "model": "weights (",
        "versions": "bertjax (0.1.0 there, 0.0.9 here)",
        "steps": "77 here): run all shards on machines of the same kind, with the same --memory",
    }
    cases = [
        ([first, second, changed(third, tmp_path / name, **{name: value})], messages[name])
        for name, value in other.items()
    ]
    cases += [
        ([first, third], "missing: shard 2/3"),
        ([second], "missing: shard 1/3, 3/3"),
        ([first, second, third, second], f"shard 2/3 is in {second} and {second}"),
        ([first, second, tmp_path], f"{tmp_path} has no shard: there is no shard.json"),
    ]
    for directories, message in cases:
        assert main(["merge", *map(str, directories), "--output", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert message in error
        assert not (tmp_path / "out").exists()


def test_a_damaged_part_of_a_shard_is_not_merged(pairs, tmp_path):
    _, (first, second, third) = pairs
    damaged = tmp_path / "damaged"
    (damaged / "journal").mkdir(parents=True)
    for path in [second / "shard.json", *(second / "journal").iterdir()]:
        (damaged / path.relative_to(second)).write_bytes(path.read_bytes())
    part = min((damaged / "journal").glob("part-*"))
    content = bytearray(part.read_bytes())
    content[-1] ^= 1
    part.write_bytes(content)
    with pytest.raises(OutputError, match=rf"{damaged} lacks part {int(part.name[-5:])} of the sweep"):
        bertjax.merge([first, damaged, third], output=tmp_path / "out", progress=False)


def test_data_that_changed_since_are_not_merged(tmp_path):
    settings = options_of("classifier", tmp_path)
    directories = run_shards(tmp_path, 2, settings)
    data = Path(settings["data"])
    rows = data.read_text().splitlines(keepends=True)
    data.write_text("".join([rows[0], rows[2], rows[1], *rows[3:]]))
    with pytest.raises(BertjaxError, match="have changed since the shards were computed"):
        bertjax.merge(directories, output=tmp_path / "out", progress=False)


def test_a_directory_holds_one_shard(pairs, tmp_path):
    settings, (first, *_) = pairs
    for shard in ("2/3", None):
        with pytest.raises(OutputError, match="has shard 1/3: give another --output"):
            bertjax.ablate(**settings, output=first, shard=shard)
    with pytest.raises(InputError, match="give output="):
        bertjax.ablate(**settings, shard="1/3")


def test_code_that_a_shard_names_does_not_run(pairs, tmp_path):
    """The merge takes a custom metric."""
    _, (first, second, third) = pairs
    settings = json.loads((first / "shard.json").read_text())["settings"] | {"metric": "os:getcwd"}
    named = [changed(one, tmp_path / one.name, settings=settings) for one in (first, second, third)]
    with pytest.raises(InputError, match=r"a custom metric \(os:getcwd\): give it as --metric"):
        bertjax.merge(named, output=tmp_path / "out", progress=False)

    def mean_output(labels, outputs):
        return float(outputs[:, 0].mean())

    found = bertjax.merge(named, output=tmp_path / "out", metric=mean_output, progress=False)
    assert found.summary["base"]["score"] == pytest.approx(np.mean(found.outputs["base"][:, 0]))


@pytest.mark.parametrize(
    ("variables", "shard"),
    [
        ({"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "1"}, (3, 4)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "16"}, (1, 16)),
        ({"JOB_COMPLETION_INDEX": "4", "JOB_COMPLETIONS": "5"}, (5, 5)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "8", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (3, 8)),
    ],
    ids=["slurm-array", "slurm", "kubernetes", "open-mpi"],
)
def test_auto_is_the_shard_that_a_scheduler_names(variables, shard, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert find_shard() == shard


def test_auto_is_the_host_of_a_pod(monkeypatch):
    import jax

    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(jax, "process_index", lambda: 3)
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    assert find_shard() == (4, 4)


def test_auto_reports_the_variables_it_needs(pairs, monkeypatch, capsys, tmp_path):
    command = ["ablate", "--model", pairs[0]["model"], "--output", str(tmp_path / "out"), "--shard", "auto"]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert all(name in error for name, *_ in SCHEDULERS.values())
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "4")
    assert main(command) == 2
    assert "a Kubernetes Job must set JOB_COMPLETION_INDEX, JOB_COMPLETIONS to numbers" in capsys.readouterr().err


def test_shards_of_a_scheduler_have_separate_directories(pairs, monkeypatch, capsys, tmp_path):
    settings, _ = pairs
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_NTASKS", "3")
    options = ["--model", settings["model"], "--task", settings["task"], "--data", settings["data"]]
    assert main(["ablate", *options, "--output", str(tmp_path / "heads"), "--shard", "auto"]) == 0
    directory = tmp_path / "heads-shard-2-of-3"
    assert f"bertjax merge joins all of them; this one is in {directory}" in " ".join(capsys.readouterr().out.split())
    assert (directory / "shard.json").is_file()


@pytest.mark.parametrize("shard", ["0/3", "4/3", "3", "1/3/4", "-1/3", "a/b", ""])
def test_invalid_shards_are_refused(shard, pairs, tmp_path):
    with pytest.raises(InputError, match="is not a shard: write 3/16"):
        bertjax.ablate(**pairs[0], output=tmp_path / "out", shard=shard)


REFUSED = "--shard splits the sweeps of ablate, interactions and restore only"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["prune"], REFUSED),
        (["importance"], REFUSED),
        (["ablate", "--screen", "2"], "--screen cannot be sharded"),
        (["ablate", "--engine", "reference"], "--engine reference has no shards"),
        (["plan"], "leave --shard out"),
        (["roles"], REFUSED),
        (["patch", "--template", "a {}", "--words", "red/near"], REFUSED),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_analyses_without_shards_refuse_them(command, message, pairs, capsys, tmp_path):
    settings, _ = pairs
    data = [] if command[0] == "patch" else ["--task", settings["task"], "--data", settings["data"]]
    output = [] if command[0] == "plan" else ["--output", str(tmp_path / "out")]
    if message == REFUSED:
        with pytest.raises(SystemExit, match="2"):
            main([*command, "--model", settings["model"], *data, *output, "--shard", "1/3"])
    else:
        assert main([*command, "--model", settings["model"], *data, *output, "--shard", "1/3"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_merge_into_a_shard_is_refused(pairs, tmp_path):
    _, directories = pairs
    with pytest.raises(OutputError, match="is one of the shards: give another --output"):
        bertjax.merge(directories, output=directories[1], overwrite=True)
    assert bertjax.merge(directories, output=tmp_path / "merged", progress=False).rows


def test_a_shard_is_not_written_over_results(pairs, tmp_path):
    settings, directories = pairs
    bertjax.merge(directories, output=tmp_path / "merged", progress=False)
    with pytest.raises(OutputError, match="already has results: give the shard another --output"):
        bertjax.ablate(**settings, output=tmp_path / "merged", shard="1/1", overwrite=True)


def test_a_custom_metric_is_not_replaced_by_a_built_in_one(tmp_path):
    def f1(labels, outputs):
        return 0.123

    directories = run_shards(tmp_path, 2, options_of("classifier", tmp_path) | {"metric": f1})
    with pytest.raises(InputError, match=r"the shards used a custom metric .f1.: give it as --metric"):
        bertjax.merge(directories, output=tmp_path / "merged", progress=False)
    assert bertjax.merge(directories, output=tmp_path / "merged", metric=f1, progress=False).base == 0.123


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"ID": "3", "COUNT": "3", "MIN": "1", "MAX": "5"}, "a Slurm array of consecutive ids from 0 or 1"),
        ({"ID": "3", "COUNT": "1", "MIN": "3", "MAX": "3"}, "a Slurm array of consecutive ids from 0 or 1"),
    ],
)
def test_auto_refuses_arrays_with_gaps(variables, message, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", value)
    with pytest.raises(InputError, match=message):
        find_shard()
