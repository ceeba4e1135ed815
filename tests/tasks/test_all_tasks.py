"""Every task that asks for more than labels: interrupted and resumed, and on two devices."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import bertjax
from bertjax.engine import sizes
from bertjax.engine.journal import count_parts
from bertjax.errors import SweepInterrupted
from bertjax.tasks import TASKS, TextClassification, form_named
from tests.interruptions import TINY_PARTS, StopAfter
from tests.task_factories import TASK_FACTORIES

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Ready:
    """A tiny model and data of a task, and the results of all its heads."""

    task: str
    model: Path
    data: Path
    results: bertjax.Results

    @property
    def sized(self):
        """How many numbers of an output are real ones, not counts."""
        return form_named(self.results.summary["outputs"]).sized

    def real(self, outputs):
        return np.asarray(outputs)[..., : self.sized]


def test_no_task_is_missing():
    assert {task.name for task in TASKS.values() if not isinstance(task, TextClassification)} == {*TASK_FACTORIES}


QUICK = ("mlm", "minimal-pairs", "ranking")  # the others in the slow suite


@pytest.fixture(
    scope="module",
    params=[pytest.param(task, marks=() if task in QUICK else pytest.mark.slow) for task in TASK_FACTORIES],
)
def ready(request, tmp_path_factory):
    return make_ready(request.param, tmp_path_factory.mktemp(request.param))


def make_ready(task, folder):
    make_model, write, name = TASK_FACTORIES[task]
    model, data = make_model(folder), write(folder / name)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sizes, "STEPS_OF_PART", TINY_PARTS)
        results = bertjax.ablate(model, task, data=data, ablate="pairs", mode="mean", progress=False)
    assert np.ptp(results.outputs["outputs"][..., 0], axis=0).max() > 1e-2
    return Ready(task, model, data, results)


def test_an_interrupted_job_resumes_to_the_same_bytes(ready, tmp_path, monkeypatch):
    monkeypatch.setattr(sizes, "STEPS_OF_PART", TINY_PARTS)
    options = {"data": ready.data, "ablate": "pairs", "mode": "mean", "output": tmp_path / "job"}
    with pytest.raises(SweepInterrupted):
        bertjax.ablate(ready.model, ready.task, **options, progress=StopAfter(0.6))
    assert count_parts(tmp_path / "job" / "journal") > 0
    again = bertjax.ablate(ready.model, ready.task, **options, progress=False)
    assert again.outputs.keys() == ready.results.outputs.keys()
    for name, expected in ready.results.outputs.items():
        assert np.array_equal(again.outputs[name], expected), name


TWO_DEVICES = """
import sys
import jax, numpy as np, bertjax
assert len(jax.devices()) == 2
for job in sys.argv[1:]:
    model, task, data, out = job.split(",")
    found = bertjax.ablate(model, task, data=data, ablate="pairs", mode="mean", progress=False)
    np.save(out, found.outputs["outputs"])
"""


@pytest.mark.slow
def test_two_devices_give_the_same(tmp_path):
    several = [
        make_ready(task, (tmp_path / task).absolute()) for task in TASK_FACTORIES if not (tmp_path / task).mkdir()
    ]
    jobs = [f"{one.model},{one.task},{one.data},{tmp_path / one.task}.npy" for one in several]
    flags = "--xla_force_host_platform_device_count=2 --xla_backend_optimization_level=0"
    done = subprocess.run(
        [sys.executable, "-c", TWO_DEVICES, *jobs],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for one in several:
        found = np.load(f"{tmp_path / one.task}.npy")
        assert np.abs(one.real(found) - one.real(one.results.outputs["outputs"])).max() < 2e-5, one.task
