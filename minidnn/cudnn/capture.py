"""Capturing a stream's work into a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def capture(stream: Any, enqueue: Callable[[], object]) -> Any:
    """The CUDA graph of what ``enqueue`` starts on ``stream``, a CuPy stream.

    CuPy captures in CUDA's relaxed mode: other threads may do everything meanwhile but wait for
    the whole device, which fails while any of its streams is captured.
    """
    stream.begin_capture()
    try:
        enqueue()
    finally:
        graph = stream.end_capture()
    return graph
