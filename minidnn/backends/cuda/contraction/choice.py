"""The executables of all contractions of a plan, by configurations that are remembered or measured.

Work on the processor is concurrent (cuDNN builds engines while our kernels are compiled and
constants made); a measurement has the GPU to itself.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from ....cudnn.gpu_lock import gpu_lock
from ....gpu import cupy
from ....runtime.cores import usable_cores
from ..kernels import Launch
from .algorithms import launches_of
from .config import ContractionExecutable, Core, build, core_of
from .problem import ContractionProblem
from .tune import (
    Ahead,
    RankedConfigs,
    Tuning,
    again,
    certain,
    compiles,
    everything,
    first,
    gain,
    measured,
    own,
    recall,
    remember,
    with_compiled,
)

log = logging.getLogger(__name__)

_AT_ONCE = 16
"""For how many problems candidates exist at once, while they are built and measured."""
_MOST_THREADS = 16
"""Of the pool: each may have a handle of cuDNN's and scratch memory on the device."""
_WORTH = 0.004
"""Building one of cuDNN's runtime-compiled engines takes a second of a core.  It is built where it
may save this share of the time of all contractions: on EfficientNet-B0 a third of all may, and the
others, which multiply a few numbers each, would save 0.7 % together."""
_REMEMBERED = 2.0
"""How many times as much it has to save where the configuration was remembered without it: the
total time of the plan has become less since."""
T = TypeVar("T")


@contextmanager
def threads(most: int = _MOST_THREADS) -> Iterator[Executor]:
    """A pool of as many threads as there are cores, but at most ``most``; tasks that have not begun
    when an error ends this never begin."""
    pool = ThreadPoolExecutor(min(most, usable_cores()))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


class Choice:
    """Chooses how contractions are computed on the current device.

    The pool's threads build the cuDNN plans that are needed in any case while the caller has
    :meth:`launches` compiled; :meth:`made` then measures the problems without a remembered
    configuration.
    """

    def __init__(
        self, problems: Sequence[ContractionProblem], tuning: Tuning, pool: Executor
    ) -> None:
        self._counts = Counter(problems)
        self._problems = list(self._counts)
        self._tuning = tuning
        self._pool = pool
        self._known: dict[ContractionProblem, RankedConfigs] = {}
        self._cores: dict[ContractionProblem, Future[Core]] = {}
        self._ahead: dict[ContractionProblem, Future[Ahead]] = {}
        if tuning.tune == "heuristic":
            return
        for problem in self._problems:
            ranking = recall(problem, tuning)
            if ranking is not None:
                self._known[problem] = ranking
                if ranking.configs[0].algorithm.kernel is None:
                    self._cores[problem] = self._begin(self._core, problem)
        for problem in self._missing()[:_AT_ONCE]:
            self._ahead[problem] = self._begin(self._certain, problem)

    def launches(self) -> list[Launch]:
        """The launches of our kernels that may be needed, to be compiled together."""
        launches: list[Launch] = []
        tuning = self._tuning
        for problem in self._problems:
            known = self._known.get(problem)
            config = tuning.taken.get(problem) if known is None else known.configs[0]
            launches += launches_of(problem, tuning.machine, config)
        return launches

    def made(self) -> dict[ContractionProblem, ContractionExecutable]:
        """Returns the fastest executable of each contraction within the workspace limit.

        UnsupportedError if cuDNN has no way, OutOfMemoryError if all take too much workspace.
        """
        tuning = self._tuning
        if tuning.tune == "heuristic":
            # One by one: asking takes so little that threads would only wait for each other.
            recalled = ((problem, again(problem, tuning)) for problem in self._problems)
            executables = {problem: built for problem, built in recalled if built is not None}
            others = [problem for problem in self._problems if problem not in executables]
            return executables | self._side_by_side(lambda problem: first(problem, tuning), others)
        ranked: dict[ContractionProblem, list[ContractionExecutable]]
        ranked = {problem: [self._remembered(problem)] for problem in self._known}
        ranked |= self._measured(self._missing())
        ranked |= self._compiled(ranked)
        return {problem: ranking[0] for problem, ranking in ranked.items()}

    def _missing(self) -> list[ContractionProblem]:
        """The problems without a remembered configuration."""
        return [problem for problem in self._problems if problem not in self._known]

    def _core(self, problem: ContractionProblem) -> Core:
        """Builds the core of a remembered configuration."""
        tuning = self._tuning
        config, limit = self._known[problem].configs[0], tuning.limit(problem)
        return core_of(problem, config, limit, tuning.machine, tuning.load)

    def _certain(self, problem: ContractionProblem) -> Ahead:
        return certain(problem, self._tuning)

    def _remembered(self, problem: ContractionProblem) -> ContractionExecutable:
        """Builds the executable of a remembered configuration, whose core may be in progress."""
        future = self._cores.get(problem)
        core = self._core(problem) if future is None else future.result()
        config = self._known[problem].configs[0]
        return build(problem, config, core, self._tuning.machine, self._tuning.load)

    def _measured(
        self, problems: Sequence[ContractionProblem]
    ) -> dict[ContractionProblem, list[ContractionExecutable]]:
        """Races our kernels among themselves, then the fastest of them against cuDNN's engines."""
        tuning = self._tuning
        ahead = {problem: future.result() for problem, future in self._ahead.items()}
        self._ahead.clear()
        ours = {problem: own(problem, tuning) for problem in problems}
        return self._raced(
            problems, lambda p: everything(p, ours[p], ahead.pop(p, {}), tuning), False
        )

    def _compiled(
        self, ranked: Mapping[ContractionProblem, Sequence[ContractionExecutable]]
    ) -> dict[ContractionProblem, list[ContractionExecutable]]:
        """Races the fastest again, against cuDNN's runtime-compiled engines, for those contractions
        where these may save enough of the total time to be worth building."""
        tuning = self._tuning
        times = [n * (ranked[p][0].config.milliseconds or 0.0) for p, n in self._counts.items()]
        worthwhile, promising = _WORTH * sum(times), []
        for problem, count in self._counts.items():
            known, fastest = self._known.get(problem), ranked[problem][0]
            if compiles(fastest) or (known is not None and known.compiled):
                continue
            needed = worthwhile if known is None else _REMEMBERED * worthwhile
            if count * gain(problem, fastest, tuning) > needed:
                promising.append(problem)
        return self._raced(promising, lambda p: with_compiled(p, ranked[p], tuning), True)

    def _raced(
        self,
        problems: Sequence[ContractionProblem],
        make: Callable[[ContractionProblem], list[ContractionExecutable]],
        compiled: bool,
    ) -> dict[ContractionProblem, list[ContractionExecutable]]:
        """Builds the candidates of each problem by ``make``, some problems at a time, and measures
        them."""
        ranked: dict[ContractionProblem, list[ContractionExecutable]] = {}
        for begin in range(0, len(problems), _AT_ONCE):
            batch = problems[begin : begin + _AT_ONCE]
            # Building takes processor time; measuring has the GPU to itself.
            start = time.perf_counter()
            candidates = self._side_by_side(make, batch)
            count = sum(map(len, candidates.values()))
            log.info("built %d candidates in %.2f s", count, time.perf_counter() - start)
            with gpu_lock(cupy().cuda.runtime.getDevice()):
                for problem, executables in candidates.items():
                    ranked[problem] = measured(problem, executables, self._tuning)
                    tried = compiled or any(map(compiles, executables))
                    remember(problem, self._tuning, ranked[problem], tried)
            log.info("built and measured in %.2f s", time.perf_counter() - start)
        return ranked

    def _side_by_side(
        self, make: Callable[[ContractionProblem], T], problems: Sequence[ContractionProblem]
    ) -> dict[ContractionProblem, T]:
        """Calls ``make`` for each problem on the pool's threads, and waits for all results."""
        futures = [(problem, self._begin(make, problem)) for problem in problems]
        return {problem: future.result() for problem, future in futures}

    def _begin(
        self, make: Callable[[ContractionProblem], T], problem: ContractionProblem
    ) -> Future[T]:
        """Calls ``make`` on a thread of the pool, on the device that is current here."""
        runtime = cupy().cuda.runtime
        device = runtime.getDevice()

        def on_device() -> T:
            runtime.setDevice(device)
            return make(problem)

        return self._pool.submit(on_device)
