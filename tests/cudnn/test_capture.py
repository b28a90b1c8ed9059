"""A stream is captured, and no longer, whatever becomes of the work."""

from __future__ import annotations

import pytest

from minidnn.cudnn.graph.timing import capture


class Stream:
    """Records what happens to it."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def begin_capture(self) -> None:
        self.seen.append("begin")

    def end_capture(self) -> str:
        self.seen.append("end")
        return "graph"


def test_the_graph_is_that_of_what_was_started() -> None:
    stream = Stream()
    assert capture(stream, lambda: stream.seen.append("work")) == "graph"
    assert stream.seen == ["begin", "work", "end"]


def test_a_capture_ends_when_the_work_fails() -> None:
    stream = Stream()
    with pytest.raises(ZeroDivisionError):
        capture(stream, lambda: 1 // 0)
    assert stream.seen == ["begin", "end"]
