r"""A plugin for tests under compute-sanitizer: each array is an allocation of its own.

    compute-sanitizer --target-processes all --tool memcheck \
        python -m pytest -p tests.cuda.no_pool tests/cuda/test_gpu_halo.py

One byte beyond an array is an error then; CuPy's pool would have the next array there.
"""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    import cupy

    cupy.cuda.set_allocator(None)
