"""The recipes of all contractions of a plan: remembered, or measured.

What takes processor time goes on at once (cuDNN builds engines while our kernels are compiled and
constants made), what the GPU's time is measured by goes on alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from ....cudnn.gpu_turn import turn
from ....gpu.cupy import cupy
from ....runtime.cores import usable_cores
from ..kernels import Launch
from .problem import ContractionProblem
from .recipe import Built, Core, Recipe, build, core_of
from .tune import (
    Ahead,
    Tuning,
    again,
    certain,
    everything,
    first,
    launches_of,
    measured,
    own,
    recall,
    remember,
)

log = logging.getLogger(__name__)

_AT_ONCE = 16
"""So many problems' candidates exist at once while they are built and measured."""
_MOST_THREADS = 16
"""Each may have a handle of cuDNN's and scratch memory on the device."""
T = TypeVar("T")


@contextmanager
def threads(most: int = _MOST_THREADS) -> Iterator[Executor]:
    """As many as there are cores, or a few; what has not begun when an error ends this never
    begins."""
    pool = ThreadPoolExecutor(min(most, usable_cores()))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


class Choice:
    """How contractions are computed on the current device.

    The pool's threads build what surely is needed of cuDNN's while the caller has
    :meth:`launches` compiled; :meth:`made` then measures what no choice is remembered for.
    """

    def __init__(
        self, problems: Sequence[ContractionProblem], tuning: Tuning, pool: Executor
    ) -> None:
        self._problems = problems
        self._tuning = tuning
        self._pool = pool
        self._known: dict[ContractionProblem, tuple[Recipe, ...]] = {}
        self._cores: dict[ContractionProblem, Future[Core]] = {}
        self._ahead: dict[ContractionProblem, Future[Ahead]] = {}
        if tuning.tune == "heuristic":
            return
        for problem in problems:
            ranked = recall(problem, tuning)
            if ranked is not None:
                self._known[problem] = ranked
                if ranked[0].form.kernel is None:
                    self._cores[problem] = self._begin(self._core, problem)
        for problem in self._missing()[:_AT_ONCE]:
            self._ahead[problem] = self._begin(self._certain, problem)

    def launches(self) -> list[Launch]:
        """The kernels of ours that may be needed, to be compiled together."""
        found: list[Launch] = []
        tuning = self._tuning
        for problem in self._problems:
            ranked = self._known.get(problem, (tuning.taken.get(problem),))
            found += launches_of(problem, tuning.machine, ranked[0])
        return found

    def made(self) -> dict[ContractionProblem, Built]:
        """The fastest way to compute each contraction within the limit of the workspace.

        UnsupportedError if cuDNN has no way, OutOfMemoryError if all take too much workspace.
        """
        tuning = self._tuning
        if tuning.tune == "heuristic":
            # One by one: asking takes so little that threads would only wait for each other.
            asked = ((problem, again(problem, tuning)) for problem in self._problems)
            found = {problem: built for problem, built in asked if built is not None}
            others = [problem for problem in self._problems if problem not in found]
            return found | self._side_by_side(lambda problem: first(problem, tuning), others)
        built = {problem: self._remembered(problem) for problem in self._known}
        return built | self._measured(self._missing())

    def _missing(self) -> list[ContractionProblem]:
        return [problem for problem in self._problems if problem not in self._known]

    def _core(self, problem: ContractionProblem) -> Core:
        tuning = self._tuning
        recipe, limit = self._known[problem][0], tuning.limit(problem)
        return core_of(problem, recipe, limit, tuning.machine, tuning.load)

    def _certain(self, problem: ContractionProblem) -> Ahead:
        return certain(problem, self._tuning)

    def _remembered(self, problem: ContractionProblem) -> Built:
        waiting = self._cores.get(problem)
        core = self._core(problem) if waiting is None else waiting.result()
        return build(
            problem, self._known[problem][0], core, self._tuning.machine, self._tuning.load
        )

    def _measured(self, problems: Sequence[ContractionProblem]) -> dict[ContractionProblem, Built]:
        tuning = self._tuning
        ahead = {problem: waiting.result() for problem, waiting in self._ahead.items()}
        self._ahead.clear()
        ours = {problem: own(problem, tuning) for problem in problems}
        chosen: dict[ContractionProblem, Built] = {}

        def candidates(problem: ContractionProblem) -> list[Built]:
            return everything(problem, ours[problem], ahead.pop(problem, {}), tuning)

        for begin in range(0, len(problems), _AT_ONCE):
            some = problems[begin : begin + _AT_ONCE]
            # Building takes processor time, measuring the GPU alone.
            start = time.perf_counter()
            found = self._side_by_side(candidates, some)
            count = sum(map(len, found.values()))
            log.info("built %d candidates in %.2f s", count, time.perf_counter() - start)
            with turn(cupy().cuda.runtime.getDevice()):
                for problem, built in found.items():
                    ranked = measured(problem, built, tuning)
                    chosen[problem] = ranked[0]
                    remember(problem, tuning, ranked)
            log.info("built and measured in %.2f s", time.perf_counter() - start)
        return chosen

    def _side_by_side(
        self, make: Callable[[ContractionProblem], T], problems: Sequence[ContractionProblem]
    ) -> dict[ContractionProblem, T]:
        waiting = [(problem, self._begin(make, problem)) for problem in problems]
        return {problem: one.result() for problem, one in waiting}

    def _begin(
        self, make: Callable[[ContractionProblem], T], problem: ContractionProblem
    ) -> Future[T]:
        """On a thread of the pool, on the device that is current here."""
        runtime = cupy().cuda.runtime
        device = runtime.getDevice()

        def on_device() -> T:
            runtime.setDevice(device)
            return make(problem)

        return self._pool.submit(on_device)
