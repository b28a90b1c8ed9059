"""What clients hold in memory that have not sent, or not read, all that they should."""

from __future__ import annotations

from collections.abc import Callable


class Unfinished:
    """Counts bytes; when there are too many, what has been unfinished for longest is given up.

    Honest requests are unfinished for a short time, so that those of clients that send half a body
    and wait are the first to go.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.size = 0
        self._held: dict[UnfinishedPart, None] = {}  # the oldest first

    def add(self, give_up: Callable[[], None]) -> UnfinishedPart:
        """Something that is unfinished from now on; ``give_up`` is called if its bytes are needed,
        and at most once."""
        held = UnfinishedPart(self, give_up)
        self._held[held] = None
        return held

    def changed(self, held: UnfinishedPart, size: int) -> None:
        if held not in self._held:  # it was given up
            return
        self.size += size - held.size
        held.size = size
        while self.size > self.most:
            oldest = next(each for each in self._held if each.size)
            self.drop(oldest)
            oldest.give_up()

    def drop(self, held: UnfinishedPart) -> None:
        if held in self._held:
            del self._held[held]
            self.size -= held.size


class UnfinishedPart:
    """Something that is unfinished until ``end``, or until the end of a ``with`` block."""

    def __init__(self, owner: Unfinished, give_up: Callable[[], None]) -> None:
        self.give_up = give_up
        self.size = 0
        self._owner = owner

    def holds(self, size: int) -> None:
        """Tells how many bytes it has in memory now."""
        self._owner.changed(self, size)

    def end(self) -> None:
        self._owner.drop(self)

    def __enter__(self) -> UnfinishedPart:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()
