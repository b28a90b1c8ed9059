"""How many rows of a patch's buffers are in use at once, found by following every task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minidnn.fusion.plan import KernelPlan
from minidnn.graph.window import Window


def rows_held(
    plan: KernelPlan, storages: Sequence[Sequence[int]], shifts: Mapping[int, int]
) -> list[int]:
    """For each storage the rows from the first to the last that are needed at once.

    ``storages`` are the planes that share each one, ``shifts`` tells by how much the rows of a
    plane lie higher than they are numbered.
    """
    follower = _Follower(plan, storages, shifts)
    for task in plan.tasks():
        follower.follow(task)
    return follower.held


class _Follower:
    def __init__(
        self, plan: KernelPlan, storages: Sequence[Sequence[int]], shifts: Mapping[int, int]
    ) -> None:
        self.plan = plan
        self.storages = storages
        self.shifts = shifts
        self.held = [1] * len(storages)
        home = {number: i for i, members in enumerate(storages) for number in members}
        #: For each plane the steps that read it, once for each operation there with its window.
        self.readers: dict[int, list[tuple[int, Window | None]]] = {number: [] for number in home}
        #: For each step the planes that it writes, and the storages that it touches.
        self.results: list[list[int]] = []
        self.touched: list[list[int]] = []
        for i, step in enumerate(plan.steps):
            operations = step.operations
            own = {o.result for o in operations}
            results = [number for number in home if number in own]
            reads = [r for o in operations for r in o.reads if r[0] in home and r[0] not in own]
            for number, window in reads:
                self.readers[number].append((i, window))
            self.results.append(results)
            touched = (*results, *(number for number, _ in reads))
            self.touched.append(list(dict.fromkeys(home[number] for number in touched)))

    def follow(self, task: list[tuple[int, int, bool]]) -> None:
        """Follows a task; its own patches are given."""
        steps = self.plan.steps
        done = [step.rows.interval(*task[0])[0] for step in steps]
        stop = [step.rows.interval(*task[-1])[1] for step in steps]
        ends: dict[int, int] = {}
        for patch in self.plan.led(task):
            for i, step in enumerate(steps):
                begin, end = step.rows.interval(*patch)
                begin = max(begin, done[i])
                if begin >= end:
                    continue
                ends.update(dict.fromkeys(self.results[i], end))
                for storage in self.touched[i]:
                    self._hold(storage, i, begin, ends, done, stop)
                done[i] = end

    def _hold(
        self,
        storage: int,
        step: int,
        begin: int,
        ends: Mapping[int, int],
        done: Sequence[int],
        stop: Sequence[int],
    ) -> None:
        """Takes account of what a storage holds while a step computes rows from ``begin`` on."""
        first: int | None = None
        last = 0
        for number in self.storages[storage]:
            end = ends.get(number, 0)
            needs = [
                self._first_read(number, window, done[reader])
                for reader, window in self.readers[number]
                if done[reader] < stop[reader]
            ]
            if number in self.results[step]:
                needs.append(begin)
            low = min(needs, default=end)
            if low < end:
                low, end = low + self.shifts[number], end + self.shifts[number]
                first, last = (low, end) if first is None else (min(first, low), max(last, end))
        if first is not None:
            self.held[storage] = max(self.held[storage], last - first)

    def _first_read(self, number: int, window: Window | None, row: int) -> int:
        """The first row of a plane that a reader's row needs."""
        if window is None:
            return row
        return min(max(0, window.rows.first(row)), self.plan.planes[number].extent[0])
