"""Benchmarks run, and say what they should; their times are nobody's business here."""

import json
import sys

import pytest

from benchmarks import attention

ERROR = {"float32": 1e-5, "bfloat16": 2e-2}


@pytest.mark.needs_torch
def test_forms_of_attention_are_timed_beside_pytorchs_and_held_to_float64(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(attention, "AT_LEAST", 0.0)
    monkeypatch.setattr(attention, "measure_peaks", lambda dtype, rounds: {"flops": 3e9, "bytes": 2e9})
    sizes = ["--lengths", "12", "33", "--tokens", "66", "--heads", "3", "--head-dim", "16", "--rounds", "2"]
    monkeypatch.setattr(sys, "argv", ["attention", *sizes, "--output", str(tmp_path)])
    attention.main()
    rows = json.loads((tmp_path / "attention.json").read_text())["rows"]
    ours = {"explicit", "fused", "blocks"}
    for dtype in ERROR:
        for length in (12, 33):
            alike = [row for row in rows if (row["dtype"], row["length"]) == (dtype, length)]
            assert {row["form"] for row in alike if row["overridden"]} == ours
            assert {row["form"] for row in alike if not row["overridden"]} == {*ours, "PyTorch eager", "PyTorch SDPA"}
    assert all(0 < row["error"] < ERROR[row["dtype"]] for row in rows)
    one = rows[0]
    assert one["flops_per_second"] == pytest.approx(4 * 5 * 3 * 12**2 * 16 / one["median"])
    assert one["bytes_per_second"] == pytest.approx(4 * 5 * 3 * 12 * 16 * 4 / one["median"])
    assert len(one["seconds"]) == 2
    assert (tmp_path / "attention.png").read_bytes().startswith(b"\x89PNG")
    assert "fused + overrides" in capsys.readouterr().out
