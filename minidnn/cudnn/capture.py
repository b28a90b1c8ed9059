"""Capturing a stream's work into a CUDA graph, and calls that must not meet a capture.

While any stream of a device is captured, what waits for the whole device fails in every thread
(``cudaErrorStreamCaptureUnsupported``), and cuRAND does wait when a generator begins.  CuPy
captures in CUDA's relaxed mode, which allows other threads everything else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_alone = threading.RLock()


def capture(stream: Any, enqueue: Callable[[], object]) -> Any:
    """The CUDA graph of what ``enqueue`` starts on ``stream``, a CuPy stream."""
    with _alone:
        stream.begin_capture()
        try:
            enqueue()
        finally:
            graph = stream.end_capture()
    return graph


@contextmanager
def no_capture() -> Iterator[None]:
    """For calls that wait for the device: begins when no :func:`capture` is under way in any
    thread, and keeps others waiting."""
    with _alone:
        yield
