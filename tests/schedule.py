"""What pytest-xdist's workers are given at once, and in which order.

A file's tests run in one worker, so that what its fixtures make is made once.  Two things keep a
worker from ending long after the others: tests marked ``early`` come first, and of a test in parts
(parameters named ``part-0``, ``part-1``, ...) each part goes to whichever worker is free.  Tests
marked ``alone`` come while the other workers have short ones, for whose ends they wait.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

MANY_TESTS = 400
"""Files of about so many have short tests: ones with tests that run alone come between them."""


def unit_of(nodeid: str) -> str:
    """What goes to a worker as a whole: the file of a test, or a part by itself."""
    return nodeid if re.search(r"\[(.*-)?part-\d+\]$", nodeid) else nodeid.split("::", 1)[0]


def put_in_order(items: list[pytest.Item]) -> None:
    """What takes long by itself first; then files of many tests before those of few, and among them
    those with tests that run alone."""
    sizes = Counter(unit_of(item.nodeid) for item in items)
    for unit in {unit_of(item.nodeid) for item in items if item.get_closest_marker("alone")}:
        sizes[unit] = max(sizes[unit], MANY_TESTS)

    def late(item: pytest.Item) -> tuple[bool, int]:
        return item.get_closest_marker("early") is None, -sizes[unit_of(item.nodeid)]

    items.sort(key=late)


def spread(items: list[pytest.Item], workers: int) -> None:
    """For ``--dist worksteal``, which cuts the tests into a part for each worker: those marked
    ``early`` begin the parts, and those marked ``alone`` end the last one."""

    def with_mark(name: str) -> list[pytest.Item]:
        return [item for item in items if item.get_closest_marker(name) is not None]

    alone = with_mark("alone")
    early = [item for item in with_mark("early") if item not in alone]
    apart = {*alone, *early}
    others = [*(item for item in items if item not in apart), *alone]
    left, order = len(items), []
    for i in range(workers):
        size, first = left // (workers - i), early[i::workers]
        left -= size
        order += first
        order += others[: max(0, size - len(first))]
        del others[: max(0, size - len(first))]
    items[:] = [*order, *others]


def make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The scheduler of ``--dist loadfile``: units in the order in which they were collected."""
    from xdist.scheduler import LoadFileScheduling

    class Units(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    config.option.loadscopereorder = False
    return Units(config, log)
