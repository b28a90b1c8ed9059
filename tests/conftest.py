"""What all tests share: GPU tests skip with the reason, hypothesis has two profiles, workers take
turns."""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests import forks, kept, sampling, schedule, together
from tests.turns import Turns

ROOT = Path(__file__).resolve().parent.parent

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would the processes
# that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if importlib.util.find_spec("hypothesis"):
    from hypothesis import HealthCheck, settings

    # CI draws the same examples every time, so that a red run means a changed program; the full
    # run explores.  Deadlines measure the machine, not the code.
    slow = (HealthCheck.too_slow,)
    settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=slow)
    settings.register_profile("full", print_blob=True, deadline=None, suppress_health_check=slow)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@cache
def why_no_gpu() -> str | None:
    """Return why GPU tests cannot run here, or None when they can."""
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed (pip install 'minidnn[cuda]')"
    import cupy

    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"no usable CUDA device: {error}"
    return None if count else "no CUDA device"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests that stay to the end are no garbage: looking for some takes a sixth of the
    time in which they are collected, and later half a second each time that a test asks for it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        # Of what tests make little is garbage in cycles: by Python's own threshold looking for it
        # takes a tenth of a test that traces PyTorch.
        gc.set_threshold(10_000, 20, 20)
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """GPU tests skip where there is none; workers, which are given thousands, leave them out.  Of
    what a run samples it leaves out the rest."""
    is_worker = hasattr(config, "workerinput")
    has_workers = is_worker or getattr(config.option, "forks", 0) > 0
    left_out = []
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items and (reason := why_no_gpu()) is not None:
        if has_workers and len(gpu_items) < len(items):
            items[:] = [item for item in items if not item.get_closest_marker("gpu")]
            left_out.append(f"{len(gpu_items):,} tests that need a GPU were left out: {reason}")
        else:
            for item in gpu_items:
                item.add_marker(pytest.mark.skip(reason=reason))
    if (by := sampling.seed()) is not None:
        before = len(items)
        items[:] = sampling.drawn(items, by)
        left_out.append(f"{before - len(items):,} tests were left out by MINIDNN_TEST_SAMPLE={by}")
    if has_workers:
        schedule.put_in_order(items)
    config.stash[LEFT_OUT] = left_out
    if is_worker:
        config.workeroutput["left out"] = left_out  # type: ignore[attr-defined]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left out", [])


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Prints what tests have recorded for that, whichever process they ran in."""
    for left_out in config.stash.get(LEFT_OUT, []):
        terminalreporter.write_line(left_out)
    for report in terminalreporter.stats.get("passed", []):
        for name, text in getattr(report, "user_properties", ()):
            if name == "printed at the end" and report.when == "call":
                terminalreporter.write_line(text)


LEFT_OUT = pytest.StashKey[list[str]]()
TURNS = pytest.StashKey[Turns]()
FOLDER = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tells each of pytest-xdist's workers, in the process that starts them, what they share."""
    stash = node.config.stash
    if FOLDER not in stash:
        stash[FOLDER] = tempfile.TemporaryDirectory(prefix="minidnn-turns-")
        node.config.add_cleanup(stash[FOLDER].cleanup)
    node.workerinput["turns"] = stash[FOLDER].name


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return schedule.make_scheduler(config, log) if config.option.dist == "loadfile" else None


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("minidnn")
    group.addoption("--forks", type=int, default=0, metavar="N", help="run tests in N processes")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    count: int = session.config.option.forks
    if not count:
        return None
    # Python removes the folder of an object when a worker ends.
    folder = Path(tempfile.mkdtemp(prefix="minidnn-turns-"))

    def prepare(config: pytest.Config) -> None:
        config.stash[TURNS] = Turns(folder)

    try:
        return forks.run(session, count, prepare)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def pytest_configure(config: pytest.Config) -> None:
    # Whoever asks for long variants gets what a sweep leaves out in CI.
    if config.option.markexpr and "full" in config.option.markexpr.replace("not full", "", 1):
        sampling.IS_FULL = True
    if not hasattr(config, "workerinput") and (cache := kept.folder()) is not None:
        kept.forget_others(cache)
    if (folder := getattr(config, "workerinput", {}).get("turns")) is not None:
        config.stash[TURNS] = Turns(Path(folder))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Before a test's time begins to count."""
    if TURNS not in item.config.stash:
        together.prepare(item)
        return (yield)
    alone = (each is not None and _is_alone(each) for each in (item, nextitem))
    with item.config.stash[TURNS].taken(*alone):
        together.prepare(item)
        return (yield)


def _is_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None


@pytest.fixture(scope="session", autouse=True)
def compilers(pytestconfig: pytest.Config) -> Iterator[None]:
    """Workers share the cores: with fewer compilers at once, kernels go into fewer files, and
    starting ISPC or NVRTC takes as long as two small kernels do.  Nor do workers wait for each
    other's compilers: what two of them compile at the same time is rarely the same."""
    shared: dict[str, Any] | None = getattr(pytestconfig, "workerinput", None)
    if shared is None:
        yield
        return
    from minidnn.backends.cpu import machine
    from minidnn.backends.cpu.compilers import kernels
    from minidnn.backends.cuda import functions
    from minidnn.runtime.cores import usable_cores

    cores = max(1, usable_cores() // shared["workercount"])
    with pytest.MonkeyPatch.context() as patch:
        for module in (kernels, kernels, functions):
            patch.setattr(module, "usable_cores", lambda: cores)
        # A machine's rates need not be right, and streaming as much as no cache holds takes long.
        patch.setattr(machine, "MOST_MEMORY_BYTES", 32 << 20)
        patch.setattr(kernels, "BUILD_LOCK", f"{kernels.BUILD_LOCK}-{shared['workerid']}")
        yield


@pytest.fixture(scope="session")
def warm_cache(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder that workers share, and runs: kernels are compiled once (tests/kept.py)."""
    if (cache := kept.folder()) is not None:
        return cache
    own = tmp_path_factory.getbasetemp()
    return (own.parent if hasattr(pytestconfig, "workerinput") else own) / "warm_cache"


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root folder."""
    return ROOT
