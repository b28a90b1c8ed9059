"""A plugin: workers of pytest-xdist take turns with the GPUs that there are.

    python -m pytest -p tests.cuda.turns -n 32 --dist worksteal -m gpu tests

What is seen is set before anything of CUDA's is loaded, so each worker has one GPU and calls it its
first; tests that need two run in a process without this plugin.
"""

from __future__ import annotations

import os
from pathlib import Path

_SEEN = "CUDA_VISIBLE_DEVICES"


def gpu_of(worker: str, seen: str | None, count: int) -> str | None:
    """What the worker ("gw3") sees of the GPUs that are seen already, or of so many; None without
    any."""
    names = seen.split(",") if seen else [str(i) for i in range(count)]
    return names[int(worker.removeprefix("gw")) % len(names)] if names else None


if _worker := os.environ.get("PYTEST_XDIST_WORKER"):
    _count = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if _gpu := gpu_of(_worker, os.environ.get(_SEEN), _count):
        os.environ[_SEEN] = _gpu
