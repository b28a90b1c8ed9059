"""Measures which of several kernels with the same results is the fastest, once for each device.

A task of a fused sequence or of a product may have several launches (its own and ``others``).  The
choice is cached on disk.
"""

from __future__ import annotations

import json
import logging
import time
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from ...cache import CacheStore, digest
from ...cudnn import machine
from ...cudnn.graph import arrays
from ...cudnn.graph.spec import TensorSpec
from ...cudnn.graph.timing import Contestant, race
from ...errors import MiniDNNWarning, OutOfMemoryError
from ...gpu import cupy
from ...graph.ir import Value
from ...runtime.plan import Plan
from .constants import Constants, Data
from .functions import Load, Loaded
from .kernels import Launch
from .task import InWorkspace, Pointer, Task

log = logging.getLogger(__name__)

_VERSION = 1
_store = CacheStore("cuda_sequence", ".json", 32 << 20)


class Fastest:
    """The fastest launch of each task on the current device; tasks with the same launches share a
    measurement."""

    def __init__(self, plan: Plan, tasks: Iterable[Task]) -> None:
        self._plan = plan
        self._tasks = {_launches(task): task for task in tasks if task.others}
        self._known: dict[tuple[Launch, ...], Launch] = {}
        for launches in self._tasks:
            if (fastest := _recall(launches)) is not None:
                self._known[launches] = fastest

    def launches(self) -> list[Launch]:
        """The launches to compile: the fastest where it is known, otherwise all of a task."""
        missing = [one for some in self._missing() for one in some]
        return [*self._known.values(), *missing]

    def measure(self, load: Load, constants: Constants) -> None:
        """Measures the tasks whose fastest launch is not known.

        Where there is no memory for a task's operands, it keeps the cost model's launch, and a
        MiniDNNWarning says so.
        """
        start = time.perf_counter()
        missing = self._missing()
        for launches in missing:
            task = self._tasks[launches]
            try:
                self._known[launches] = self._fastest(task, load(launches), constants)
            except OutOfMemoryError as error:
                text = f"node {task.node.name!r}: its kernels are not measured: {error}"
                log.warning(text)
                warnings.warn(text, MiniDNNWarning, stacklevel=2)
                self._known[launches] = launches[0]
        if missing:
            log.info("measured %d sequences in %.2f s", len(missing), time.perf_counter() - start)

    def __call__(self, task: Task) -> Launch:
        """The launch that computes a task, after :meth:`measure`."""
        assert isinstance(task.work, Launch)
        return self._known[_launches(task)] if task.others else task.work

    def _missing(self) -> list[tuple[Launch, ...]]:
        return [launches for launches in self._tasks if launches not in self._known]

    def _fastest(self, task: Task, loaded: Sequence[Loaded], constants: Constants) -> Launch:
        # The cost model's launch keeps to its budget of registers, which tests check; others may
        # spill.
        runnable = [loaded[0], *(one for one in loaded[1:] if not one.resources.spill_bytes)]
        owners: list[Any] = []
        try:
            pointers = [self._scratch(task, p, constants, owners) for p in task.pointers]
        except cupy().cuda.memory.OutOfMemoryError as error:
            raise OutOfMemoryError(f"no memory for its operands: {error}") from error
        times = race([Contestant(one.bind(pointers)) for one in runnable])
        order = sorted((ms, i) for i, ms in enumerate(times) if ms is not None)
        best = runnable[order[0][1]].launch
        log.info(
            "%s: the fastest of %d kernels takes %.4f ms, the cost model's %.4f",
            task.node.name,
            len(runnable),
            order[0][0],
            times[0],
        )
        _remember([one.launch for one in loaded], best, order[0][0], times[0])
        return best

    def _scratch(
        self, task: Task, pointer: Pointer, constants: Constants, owners: list[Any]
    ) -> int:
        """The address of an operand for timing: constants as they are, others random, since timings
        on zeros mislead.  ``owners`` collects what keeps the memory allocated."""
        if isinstance(pointer, Data):
            return constants.address + constants.offset(pointer)
        if isinstance(pointer, InWorkspace):
            spec = TensorSpec((task.workspace_bytes // 4,), (1,), "float32")
        else:
            assert isinstance(pointer, Value)
            type = self._plan.annotations.place(pointer).buffer.type
            spec = TensorSpec((type.size,), (1,), type.dtype)
        owners.append(arrays.random_like(spec, len(owners)))
        return int(owners[-1].ptr)


def _launches(task: Task) -> tuple[Launch, ...]:
    assert isinstance(task.work, Launch)
    return (task.work, *task.others)


def _key(launches: Sequence[Launch]) -> str:
    device = machine.device_name(cupy().cuda.runtime.getDevice())
    identities = [(one.source.name, one.grid, one.block, one.shared_bytes) for one in launches]
    return digest("fastest kernel", _VERSION, identities, device)


def _recall(launches: Sequence[Launch]) -> Launch | None:
    """The launch that the cache has as the fastest; None if there is no valid entry."""
    data = _store.read(_key(launches))
    if data is None:
        return None
    try:
        index = json.loads(data)["fastest"]
    except (ValueError, KeyError, TypeError):
        return None
    return launches[index] if index in range(len(launches)) else None


def _remember(
    launches: Sequence[Launch], best: Launch, milliseconds: float, model_milliseconds: float | None
) -> None:
    entry = {
        "fastest": launches.index(best),
        "milliseconds": milliseconds,
        "milliseconds of the cost model's": model_milliseconds,
    }
    _store.put(_key(launches), json.dumps(entry, indent=1).encode(), label="fastest kernel")
