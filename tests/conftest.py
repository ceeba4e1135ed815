"""Fixtures that several test files share: strict numerics, tiny models, their twins in PyTorch."""

import ctypes
import gc
import importlib.util
import os
import platform
import shutil
import tempfile
from hashlib import sha256
from pathlib import Path

# One thread pool for each test process is enough, and PyTorch's and XLA's would fight over two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
# Python's line numbers in compiled programs cost a twelfth of the tests' time, and no test reads them.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

import jax
import jaxtyping
import numpy as np
import pytest

import tests.type_checks  # noqa: F401  first, since modules of ours look its decorator up when they are imported

# isort: split
from bertjax import BertConfig
from bertjax.machine import resident_memory
from bertjax.plots import canvas
from bertjax.statistics import effects as evidence
from bertjax.statistics import significance
from tests.browser import start_browser
from tests.factories import make_classifier, make_embedder, make_encoder, write_glue
from tests.tiny_models import FAST_COMPILATION, SIZES

# XLA reads the flags once, with its first device. Commands in processes of their own are compiled as users compile
# them, and so is all of `XLA_FLAGS= make test`.
os.environ.setdefault("XLA_FLAGS", FAST_COMPILATION)
jax.devices()
FLAGS = os.environ["XLA_FLAGS"]
if FLAGS == FAST_COMPILATION:
    del os.environ["XLA_FLAGS"]


def processor() -> str:
    """The name and the instruction sets of this processor, as far as the system says."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().split("\n\n")[0].splitlines() if about.exists() else []
    kept = [line for line in lines if line.startswith(("model name", "flags", "Features"))]
    return "\n".join(kept) or platform.processor()


# Compiled programs stay for later runs of this worker on the same processor. Workers share no directory: JAX's lock for
# that takes 50 ms a program, and a process killed while it writes breaks the directory for all.
KEY = sha256("\n".join([jax.__version__, FLAGS, processor()]).encode()).hexdigest()[:16]
COMPILED = Path(__file__).parent.parent / "build" / "compiled" / KEY / os.environ.get("PYTEST_XDIST_WORKER", "main")
MOST_COMPILED = 2**30  # bytes, after which the directory begins anew
if sum(path.stat().st_size for path in COMPILED.glob("*")) > MOST_COMPILED:
    shutil.rmtree(COMPILED)
jax.config.update("jax_compilation_cache_dir", str(COMPILED))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.03)  # writing others takes longer than they save
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

# Separate processes share compiled programs until the tests end.
COMMANDS = tempfile.TemporaryDirectory(prefix="bertjax-compiled-")
os.environ["JAX_COMPILATION_CACHE_DIR"] = COMMANDS.name
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

# One file is about PyTorch's formats from its first import on; with `-m "not needs_torch"` it would be deselected
# anyway. `make test` installs PyTorch, and the other tests that need it fail where it is missing.
collect_ignore = [] if importlib.util.find_spec("torch") else ["checkpoints/test_weight_files.py"]

MOST_MAPPINGS, MOST_MEMORY = 25_000, 2e9  # memory in bytes: compiled programs of all tests take 8 GB

# Files that take long: they run first, so that no worker has one left when the others end.
LONGEST = (
    *("test_readme.py", "test_family_engine.py", "test_notebook.py", "test_sharding.py", "test_docs.py"),
    *("test_joint_effects.py", "test_contrasts.py", "test_gate_gradients.py", "test_engine.py", "test_pruning.py"),
)

# What takes long and is looked up when it is needed, and what it is in tests: a thousand draws, not ten thousand, where
# a test does not say how many, and PDF fonts that need no subsets of their files.
COSTLY = [
    (evidence, "RESAMPLES", 500),
    (significance, "LEAST_DRAWS", 1),
    (significance, "DRAWS_PER_ABLATION", 1),
    (canvas, "PDF_FONTS", 3),
]
USERS = [(module, name, getattr(module, name)) for module, name, _ in COSTLY]


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what runs a browser or the real model's examples, and put the tests of the longest files first.

    pytest-xdist hands out files in this order.
    """
    for item in items:
        is_analysis = isinstance(item, pytest.DoctestItem) and item.name.startswith("bertjax.study")
        if is_analysis or "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.integration)
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.name, len(order)))


@pytest.fixture(autouse=True, scope="session")
def quick():
    """Commands in separate processes, and tests with `as_users`, use the settings of users."""
    with pytest.MonkeyPatch.context() as patch:
        for one in COSTLY:
            patch.setattr(*one)
        yield


@pytest.fixture
def as_users(monkeypatch):
    """As many draws as users get, and their fonts."""
    for one in USERS:
        monkeypatch.setattr(*one)


@pytest.fixture(autouse=True)
def strict_numerics():
    """No silent promotion of dtypes or ranks anywhere in bertjax, in any thread (a context would hold for one).

    A command in float64 turns it on for good: a test that runs one turns it off again.
    """
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    yield
    jax.config.update("jax_numpy_dtype_promotion", "standard")
    jax.config.update("jax_numpy_rank_promotion", "allow")
    wide = jax.config.read("jax_enable_x64")
    jax.config.update("jax_enable_x64", False)
    assert not wide, "the test left float64 on for those behind it"


@pytest.fixture(autouse=True, scope="module")
def dropped_programs():
    """Compiled programs are dropped where they are too many.

    Each holds several of the 65,530 mappings that a process may have: one that has no more is aborted by the compiler.
    """
    yield
    maps = Path("/proc/self/maps")
    mappings = maps.read_bytes().count(b"\n") if maps.exists() else 0
    if mappings > MOST_MAPPINGS or resident_memory() > MOST_MEMORY:
        jax.clear_caches()
        gc.collect()
        if platform.libc_ver()[0] == "glibc":
            ctypes.CDLL("libc.so.6").malloc_trim(0)  # otherwise the allocator keeps the memory


@pytest.fixture
def x64():
    """Float64 for the length of a test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=["three heads", "five heads", pytest.param("one head", marks=pytest.mark.integration)])
def config(request) -> BertConfig:
    """Tiny models of several sizes with odd numbers of heads."""
    return BertConfig(**SIZES[request.param])


@pytest.fixture
def small() -> BertConfig:
    """One tiny model whose sizes are pairwise different."""
    return BertConfig(**SIZES["three heads"])


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers that differ from run to run; a failure prints the seed, `BERTJAX_SEED=...` brings it back."""
    seed = int(os.environ.get("BERTJAX_SEED") or np.random.SeedSequence().generate_state(1)[0])
    print(f"seed {seed}")
    return np.random.default_rng(seed)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A tiny pre-trained encoder without a task's head."""
    return make_encoder(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A tiny random classifier of two labels."""
    return make_classifier(tmp_path_factory.mktemp("classifier"))


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    """A tiny random sentence embedder."""
    return make_embedder(tmp_path_factory.mktemp("embedder"))


@pytest.fixture(scope="module")
def glue(tmp_path_factory):
    """A folder of MRPC with invented pairs."""
    return write_glue(tmp_path_factory.mktemp("glue"))


@pytest.fixture(scope="module")
def browser():
    """Chromium, for tests that need it (`browser_needed`)."""
    driver = start_browser()
    yield driver
    driver.quit()


@pytest.fixture
def unchecked():
    """As users run it: without the tests' checks of types."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
