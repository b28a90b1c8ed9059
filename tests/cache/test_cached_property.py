"""A property computed once, and no lock meanwhile."""

from __future__ import annotations

import threading

from minidnn._cached_property import cached_property


class Thing:
    """Says when it computes, and waits."""

    def __init__(self) -> None:
        self.times = 0
        self.begun, self.go = threading.Event(), threading.Event()

    @cached_property
    def value(self) -> int:
        """Its documentation."""
        self.times += 1
        self.begun.set()
        assert self.go.wait(10)
        return self.times


def test_it_is_computed_once() -> None:
    thing = Thing()
    thing.go.set()
    assert (thing.value, thing.value, thing.times) == (1, 1, 1)
    assert Thing.__dict__["value"].__doc__ == "Its documentation."


def test_another_object_does_not_wait() -> None:
    slow, fast = Thing(), Thing()
    thread = threading.Thread(target=lambda: slow.value, daemon=True)
    thread.start()
    assert slow.begun.wait(10)
    fast.go.set()
    other = threading.Thread(target=lambda: fast.value, daemon=True)
    other.start()
    other.join(5)
    assert fast.times == 1 and not other.is_alive()
    slow.go.set()
    thread.join(10)
