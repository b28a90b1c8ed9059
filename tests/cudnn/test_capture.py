"""Nothing that waits for the whole device runs beside a capture."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minidnn.cudnn.capture import capture, no_capture
from minidnn.cudnn.graph import arrays
from minidnn.cudnn.graph.spec import TensorSpec


class Stream:
    """Records what happens to it."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def begin_capture(self) -> None:
        self.seen.append("begin")

    def end_capture(self) -> str:
        self.seen.append("end")
        return "graph"


def captures_meanwhile() -> bool:
    """Whether another thread could capture now; it does so in the end."""
    begun = threading.Event()
    stream = Stream()
    thread = threading.Thread(target=lambda: capture(stream, begun.set), daemon=True)
    thread.start()
    return begun.wait(0.2)


def test_the_graph_is_that_of_what_was_started() -> None:
    stream = Stream()
    assert capture(stream, lambda: stream.seen.append("work")) == "graph"
    assert stream.seen == ["begin", "work", "end"]


def test_a_capture_ends_when_the_work_fails() -> None:
    stream = Stream()
    with pytest.raises(ZeroDivisionError):
        capture(stream, lambda: 1 // 0)
    assert stream.seen == ["begin", "end"]
    assert captures_meanwhile()


def test_captures_wait_for_what_must_not_meet_them() -> None:
    with no_capture():
        assert not captures_meanwhile()
    assert captures_meanwhile()


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_random_numbers_do_not_meet_a_capture(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    met = []

    class RandomState:
        def __init__(self, seed: int) -> None:
            self._random = np.random.default_rng(seed)

        def standard_normal(self, count: int, dtype: Any) -> np.ndarray:
            met.append(captures_meanwhile())
            return self._random.standard_normal(count, dtype)

        def randint(self, low: int, high: int, count: int) -> np.ndarray:
            met.append(captures_meanwhile())
            return self._random.integers(low, high, count)

    fake = SimpleNamespace(
        random=SimpleNamespace(RandomState=RandomState),
        float32=np.float32,
        dtype=np.dtype,
    )
    monkeypatch.setattr(arrays, "cupy", lambda: fake)
    arrays.random_like(TensorSpec((2, 3), (3, 1), dtype), 0)
    assert met == [False]
