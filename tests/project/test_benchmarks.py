"""Benchmarks run, and say what they should; their times are nobody's business here."""

import importlib.util
import json
import sys

import numpy as np
import pytest

from benchmarks import attention, gpu, kernel_times, products, tasks
from benchmarks.tasks_engine import Swept
from tests.factories import make_masked, write_lines

pytestmark = pytest.mark.integration

ERROR = {"float32": 1e-5, "bfloat16": 2e-2}


@pytest.mark.needs_torch
def test_attention_benchmarks_compare_with_pytorch_and_float64(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(attention, "AT_LEAST", 0.0)
    monkeypatch.setattr(attention, "measure_peaks", lambda dtype, rounds: {"flops": 3e9, "bytes": 2e9})
    sizes = ["--lengths", "12", "33", "--tokens", "66", "--heads", "3", "--head-dim", "16", "--rounds", "2"]
    monkeypatch.setattr(sys, "argv", ["attention", *sizes, "--output", str(tmp_path)])
    attention.main()
    rows = json.loads((tmp_path / "attention.json").read_text())["rows"]
    ours = {"explicit", "fused", "blocks"}
    for dtype in ERROR:
        for length in (12, 33):
            cases = [row for row in rows if (row["dtype"], row["length"]) == (dtype, length)]
            assert {row["form"] for row in cases if row["overridden"]} == ours
            assert {row["form"] for row in cases if not row["overridden"]} == ours | {"PyTorch eager", "PyTorch SDPA"}
    assert all(0 < row["error"] < ERROR[row["dtype"]] for row in rows)
    one = rows[0]
    assert one["flops_per_second"] == pytest.approx(4 * 5 * 3 * 12**2 * 16 / one["median"])
    assert one["bytes_per_second"] == pytest.approx(4 * 5 * 3 * 12 * 16 * 4 / one["median"])
    assert len(one["seconds"]) == 2
    assert (tmp_path / "attention.png").read_bytes().startswith(b"\x89PNG")
    assert "fused + overrides" in capsys.readouterr().out


def test_every_length_is_timed_with_every_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(attention, "AT_LEAST", 0.0)
    monkeypatch.setattr(attention, "measure_peaks", lambda dtype, rounds: {"flops": 3e9, "bytes": 2e9})
    monkeypatch.setattr(attention, "make_torch", lambda *args: [])
    sizes = ["--lengths", "5", "12", "--batches", "1", "3", "--heads", "2", "--head-dim", "8", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["attention", *sizes, "--dtypes", "float32", "--output", str(tmp_path)])
    attention.main()
    rows = json.loads((tmp_path / "attention.json").read_text())["rows"]
    assert {(row["length"], row["batch"]) for row in rows} == {(5, 1), (5, 3), (12, 1), (12, 3)}


@pytest.mark.needs_torch
@pytest.mark.parametrize("task", ["minimal-pairs", "mlm"])
def test_tasks_are_timed_with_pytorch_and_give_the_same(task, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("benchmarks.tasks.matmul_rate", lambda repeats: 3e9)
    model = make_masked(tmp_path)
    sizes = ["--pairs", "3", "--texts", "5", "--rounds", "2", "--timed", "3", "--batches", "2", "7"]
    arguments = ["--model", str(model), "--tasks", task, "--json", str(tmp_path / "tasks.json"), *sizes]
    monkeypatch.setattr(sys, "argv", ["tasks", *arguments, "--lines", str(write_lines(tmp_path / "lines.txt"))])
    tasks.main()
    (found,) = json.loads((tmp_path / "tasks.json").read_text())["tasks"]
    assert found["difference"] < 2e-6
    assert {name.split()[1].rstrip(",") for name in found["batches"]} == {"eager", "sdpa"}
    assert found["loop"] == min(found["batches"], key=found["batches"].get)
    assert [len(found[name]) for name in ("engine", "torch", "rates", "processor")] == [2] * 4
    assert found["ratio"] == pytest.approx(sum(found["torch"]) / sum(found["engine"]))
    assert found["share"] == pytest.approx(found["necessary"] / (sum(found["engine"]) / 2) / 3e9)
    assert found["examples"] == {"minimal-pairs": 3, "mlm": 5}[task]
    assert found["held"] > 0
    assert found["planned"] > 0
    assert f"{found['examples']} {task}" in capsys.readouterr().out


def test_what_comes_out_otherwise_is_seen():
    base, outputs = np.array([[-3.0, -50.0]]), np.array([[[-3.0, -51.0]], [[-2.0, -40.0]]])
    swept = Swept(1.0, 1.0, base, outputs)
    runs = {None: base, (0, 0): outputs[0], (0, 1): outputs[1] + [0, 4]}
    assert tasks.compare(swept, runs.get, [(0, 0)], 2) == 0
    assert tasks.compare(swept, runs.get, [(0, 0), (0, 1)], 2) == pytest.approx(4 / 36)


def event(kind, pid, tid, name, **more):
    return {"ph": kind, "pid": pid, "tid": tid, "name": name, **more}


def named(kind, pid, tid, name):
    return event("M", pid, tid, kind, args={"name": name})


def test_kernel_times_are_those_of_the_devices_streams():
    gpu = [
        named("process_name", 1, 0, "/device:GPU:0"),
        named("thread_name", 1, 7, "Stream #7(compute)"),
        named("thread_name", 1, 8, "Stream #8(copies)"),
        named("thread_name", 1, 9, "XLA Modules"),
        named("thread_name", 2, 5, "tf_XLAEigen/1"),
        event("X", 1, 7, "gemm", dur=3e6),
        event("X", 1, 7, "softmax", dur=1e6),
        event("X", 1, 8, "copy", dur=2e6),
        event("X", 1, 7, "gemm", dur=1e6),
        event("X", 1, 9, "jit_advance", dur=9e6),
        event("X", 2, 5, "host", dur=9e6),
    ]
    times = kernel_times.read_trace(gpu)
    assert times.seconds == {"gemm": 4.0, "copy": 2.0, "softmax": 1.0}
    assert times.runs == {"gemm": 2, "copy": 1, "softmax": 1}
    assert times.busy == 5.0


@pytest.mark.needs_torch
def test_kernel_times_of_a_real_sweep(tmp_path, capsys, monkeypatch):
    tiny = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    monkeypatch.setitem(kernel_times.SIZES, "minilm", tiny)
    kernel_times.main(["--size", "minilm", "--examples", "2", "--output", str(tmp_path)])
    found = json.loads((tmp_path / "kernel_times.json").read_text())
    assert 0 < found["busy"] <= found["sweep_seconds"]
    assert list(found["seconds"].values()) == sorted(found["seconds"].values(), reverse=True)
    assert "idle" in capsys.readouterr().out


def test_one_command_runs_all_that_is_for_a_gpu(tmp_path, capsys, monkeypatch):
    with pytest.raises(SystemExit):
        gpu.main(["--output", str(tmp_path)])
    assert "JAX sees no GPU here, only cpu" in capsys.readouterr().err
    for small in (False, True):
        for run in gpu.list_runs(tmp_path, small):
            assert importlib.util.find_spec(run.module)
    runs = [gpu.Run("good", "this", ()), gpu.Run("bad", "bertjax.cli", ("no-such",)), gpu.Run("late", "this", ())]
    monkeypatch.setattr(gpu, "list_runs", lambda directory, small: runs)
    assert gpu.main(["--small", "--output", str(tmp_path)]) == 1
    assert "failed: bad" in capsys.readouterr().out
    summary = (tmp_path / "summary.md").read_text()
    assert "bad (failed with exit code 2" in summary
    assert summary.count("The Zen of Python") == 2
    assert "invalid choice" in (tmp_path / "bad.txt").read_text()


def test_a_product_outside_of_library_fusions_misses_fast_path():
    program = """%inside (a: bf16[4,3], b: bf16[3,5]) -> f32[4,5] {
  %a = bf16[4,3]{1,0} parameter(0)
  %b = bf16[3,5]{1,0} parameter(1)
  ROOT %c = f32[4,5]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
%other (a.1: f32[2,4,3], b.1: f32[2,3,5]) -> f32[2,4,5] {
  %a.1 = f32[2,4,3]{2,1,0} parameter(0)
  %b.1 = f32[2,3,5]{2,1,0} parameter(1)
  ROOT %d = f32[2,4,5]{2,1,0} dot(%a.1, %b.1), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}
}
ENTRY %main (x: bf16[4,3], y: bf16[3,5]) -> f32[4,5] {
  %e = f32[4,5]{1,0} fusion(%x, %y), kind=kCustom, calls=%inside, backend_config={"kind":"__ynn_fusion"}
  %f = f32[2,4,5]{2,1,0} fusion(%x, %y), kind=kLoop, calls=%other
}"""
    found = list(products.products_of(program))
    assert [(product.fast, product.dtype, product.flops) for product in found] == [
        (True, "bf16", 120),
        (False, "f32", 240),
    ]
