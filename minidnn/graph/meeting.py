"""Where ranks that compute the same graph meet: what adds up their values while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from minidnn.errors import GraphError


class Meeting(Protocol):
    """Processes that run the same graphs at the same time."""

    @property
    def size(self) -> int:
        """How many they are."""

    def add(self, arrays: Sequence[np.ndarray]) -> None:
        """Each of these contiguous arrays of the host becomes the sum of all ranks' arrays."""

    def agree(self, text: str) -> None:
        """An error, in some rank, unless all ranks say the same; a text is asked about once."""


_now: list[Meeting] = []


def meet_in(meeting: Meeting) -> None:
    """From now on graphs that sum over ranks do so there."""
    _now[:] = [meeting]


def meeting_of(ranks: int) -> Meeting:
    """Where so many ranks meet; GraphError if this process is not one of them."""
    if not _now or _now[0].size != ranks:
        found = f"one of {_now[0].size}" if _now else "alone"
        raise GraphError(
            f"the graph sums over {ranks} ranks, and this process is {found}; valid is to run it "
            "where md.Trainer(..., distributed=True) made it"
        )
    return _now[0]
