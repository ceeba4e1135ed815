"""Several devices: eight that JAX simulates on a CPU, in a separate process."""

import subprocess
import sys
from pathlib import Path

import jax
import pytest

from bertjax.engine.sharding import make_mesh
from tests.tiny_models import comparable_environment

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_sweeps_over_eight_devices(which):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", which, "tests/eight_devices.py"]
    environment = {name: value for name, value in comparable_environment(8).items() if not name.startswith("PYTEST_")}
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize(("devices", "rows", "size"), [(8, 16, 8), (8, 12, 6), (3, 8, 2), (4, 1, None), (1, 8, None)])
def test_as_many_devices_share_rows_as_can_do_so_evenly(devices, rows, size):
    mesh = make_mesh(jax.devices() * devices, rows)
    assert (None if mesh is None else mesh.size) == size
