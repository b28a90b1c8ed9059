"""What all tests share: GPU tests skip with the reason, hypothesis has two profiles."""

from __future__ import annotations

import importlib.util
import os
import signal
from functools import cache
from pathlib import Path

import pytest

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_items and (reason := why_no_gpu()) is not None:
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root folder."""
    return ROOT
