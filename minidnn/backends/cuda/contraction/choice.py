"""The recipes of all contractions of a plan: remembered, or measured.

What takes processor time goes on at once (cuDNN builds engines while our kernels are compiled and
constants made), what the GPU's time is measured by goes on alone.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from ....cudnn.gpu_turn import turn
from ....gpu import cupy
from ....runtime.cores import usable_cores
from ..kernels import Launch
from .problem import ContractionProblem
from .recipe import Built, Core, build, core_of
from .tune import (
    Ahead,
    RankedRecipes,
    Tuning,
    again,
    certain,
    compiles,
    everything,
    first,
    gain,
    launches_of,
    measured,
    own,
    recall,
    remember,
    with_compiled,
)

log = logging.getLogger(__name__)

_AT_ONCE = 16
"""So many problems' candidates exist at once while they are built and measured."""
_MOST_THREADS = 16
"""Each may have a handle of cuDNN's and scratch memory on the device."""
_WORTH = 0.004
"""Building one of cuDNN's engines that compile takes a second of a core.  It is built where it may
save such a part of the time of all contractions: on EfficientNet-B0 a third of all may, and the
others, which multiply a few numbers each, would save 0.7 % together."""
_REMEMBERED = 2.0
"""How many times as much it has to save where the choice was remembered without it: what the plan
takes in all has become less since."""
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
        self._counts = Counter(problems)
        self._problems = list(self._counts)
        self._tuning = tuning
        self._pool = pool
        self._known: dict[ContractionProblem, RankedRecipes] = {}
        self._cores: dict[ContractionProblem, Future[Core]] = {}
        self._ahead: dict[ContractionProblem, Future[Ahead]] = {}
        if tuning.tune == "heuristic":
            return
        for problem in self._problems:
            ranking = recall(problem, tuning)
            if ranking is not None:
                self._known[problem] = ranking
                if ranking.recipes[0].form.kernel is None:
                    self._cores[problem] = self._begin(self._core, problem)
        for problem in self._missing()[:_AT_ONCE]:
            self._ahead[problem] = self._begin(self._certain, problem)

    def launches(self) -> list[Launch]:
        """The kernels of ours that may be needed, to be compiled together."""
        found: list[Launch] = []
        tuning = self._tuning
        for problem in self._problems:
            known = self._known.get(problem)
            recipe = tuning.taken.get(problem) if known is None else known.recipes[0]
            found += launches_of(problem, tuning.machine, recipe)
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
        ranked: dict[ContractionProblem, list[Built]]
        ranked = {problem: [self._remembered(problem)] for problem in self._known}
        ranked |= self._measured(self._missing())
        ranked |= self._compiled(ranked)
        return {problem: few[0] for problem, few in ranked.items()}

    def _missing(self) -> list[ContractionProblem]:
        return [problem for problem in self._problems if problem not in self._known]

    def _core(self, problem: ContractionProblem) -> Core:
        tuning = self._tuning
        recipe, limit = self._known[problem].recipes[0], tuning.limit(problem)
        return core_of(problem, recipe, limit, tuning.machine, tuning.load)

    def _certain(self, problem: ContractionProblem) -> Ahead:
        return certain(problem, self._tuning)

    def _remembered(self, problem: ContractionProblem) -> Built:
        waiting = self._cores.get(problem)
        core = self._core(problem) if waiting is None else waiting.result()
        recipe = self._known[problem].recipes[0]
        return build(problem, recipe, core, self._tuning.machine, self._tuning.load)

    def _measured(
        self, problems: Sequence[ContractionProblem]
    ) -> dict[ContractionProblem, list[Built]]:
        """Our kernels among themselves, then the fastest beside cuDNN's: from fast to slow."""
        tuning = self._tuning
        ahead = {problem: waiting.result() for problem, waiting in self._ahead.items()}
        self._ahead.clear()
        ours = {problem: own(problem, tuning) for problem in problems}
        return self._raced(
            problems, lambda p: everything(p, ours[p], ahead.pop(p, {}), tuning), False
        )

    def _compiled(
        self, ranked: Mapping[ContractionProblem, Sequence[Built]]
    ) -> dict[ContractionProblem, list[Built]]:
        """The fastest again, beside cuDNN's engines that compile: for those contractions where
        these may save a part of the time of all that is worth their building."""
        tuning = self._tuning
        times = [n * (ranked[p][0].recipe.milliseconds or 0.0) for p, n in self._counts.items()]
        least, worth = _WORTH * sum(times), []
        for problem, count in self._counts.items():
            known, fastest = self._known.get(problem), ranked[problem][0]
            if compiles(fastest) or (known is not None and known.compiled):
                continue
            needed = least if known is None else _REMEMBERED * least
            if count * gain(problem, fastest, tuning) > needed:
                worth.append(problem)
        return self._raced(worth, lambda p: with_compiled(p, ranked[p], tuning), True)

    def _raced(
        self,
        problems: Sequence[ContractionProblem],
        make: Callable[[ContractionProblem], list[Built]],
        compiled: bool,
    ) -> dict[ContractionProblem, list[Built]]:
        """Builds what is made of each, some problems at a time, and measures it."""
        ranked: dict[ContractionProblem, list[Built]] = {}
        for begin in range(0, len(problems), _AT_ONCE):
            some = problems[begin : begin + _AT_ONCE]
            # Building takes processor time, measuring the GPU alone.
            start = time.perf_counter()
            found = self._side_by_side(make, some)
            count = sum(map(len, found.values()))
            log.info("built %d candidates in %.2f s", count, time.perf_counter() - start)
            with turn(cupy().cuda.runtime.getDevice()):
                for problem, built in found.items():
                    ranked[problem] = measured(problem, built, self._tuning)
                    tried = compiled or any(map(compiles, built))
                    remember(problem, self._tuning, ranked[problem], tried)
            log.info("built and measured in %.2f s", time.perf_counter() - start)
        return ranked

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
