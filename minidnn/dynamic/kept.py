"""The cache of programs of an executable with named sizes, and its background thread.

:class:`ProgramCache` keeps the programs that are used most, within limits of number and memory;
:func:`write_programs` saves those for parts of batches to a file; :class:`Background` makes
programs in a thread that ends when no job is left.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from minidnn._cached_property import cached_property
from minidnn._forks import ForkLock
from minidnn.dynamic.dim import Dim
from minidnn.dynamic.split import RowWise
from minidnn.executable import Executable
from minidnn.report.explain import predicted
from minidnn.runtime.program import PackedProgram, SharingProgram


@dataclass(frozen=True)
class SizeCounts:
    """What an executable of named sizes has done, and what it keeps.

    Attributes:
        kept: programs.
        compiled: programs that were made, those that are gone included.
        dropped: programs that made room for others.
        in_parts: calls that were computed in parts.
        by_any_size: calls that were computed by kernels of any size.
        run_bytes: memory of runs of all programs that are kept.
        weight_bytes: their packed weights, those that several share once.

    >>> exe = md.compile(net, (md.Dim("batch", 1, 64), 3, 32, 32), device="reference")
    >>> print(exe.counts.kept)
    """

    kept: int
    compiled: int
    dropped: int
    in_parts: int
    by_any_size: int
    run_bytes: int
    weight_bytes: int


#: The sizes of all named sizes, in their order: the key of a program.
Key = tuple[int, ...]

_CALL_SECONDS = 3e-5
"""Overhead of a call, in addition to the predicted time of its program."""
_COUNTED = 1024
"""Sizes without a program whose calls are counted at most; with more, all counts are halved, and
sizes that were requested once are forgotten."""


@dataclass
class CachedProgram:
    """A program in the cache, and how much it is used.

    Attributes:
        how: why it was made, for ``explain``.
        any_size: whether its kernels are shape-generic; it is replaced once a faster program for
            its size alone has been made.
        calls: calls of its own size.
        in_parts: runs as a part of larger batches.
        score: its use until a program was last added; older uses count less.
    """

    executable: Executable
    how: str
    any_size: bool = False
    calls: int = 0
    in_parts: int = 0
    score: float = 0.0
    _scored: float = 0.0

    @cached_property
    def seconds(self) -> float:
        """The predicted time of a call."""
        return predicted(self.executable.plan) + _CALL_SECONDS

    @property
    def use(self) -> float:
        """Its use, in calls; recent calls count more, and runs as a part, for which there are other
        programs as well, count less."""
        return self.score + self._used - self._scored

    @property
    def _used(self) -> float:
        return self.calls + self.in_parts / 4

    def age(self) -> None:
        """Halves the weight of all uses until now."""
        self.score, self._scored = self.use / 2, self._used

    @property
    def run_bytes(self) -> int:
        """Bytes that a run needs in addition to weights, inputs and outputs."""
        program = self.executable.program
        if isinstance(program, PackedProgram):
            return program.run_bytes
        return self.executable.plan.arena.bytes


class ProgramCache:
    """A cache of at most ``most`` programs in at most ``most_bytes``, packed weights included (None
    for any number).

    It evicts the program that is used least, but never ``base``, if there is one.
    """

    def __init__(self, most: int, most_bytes: int | None) -> None:
        self.most = most
        self.most_bytes = most_bytes
        self.base: Key | None = None
        self.dropped = 0
        self._programs: dict[Key, CachedProgram] = {}
        self._requests: dict[Key, float] = {}
        self._is_full = most == 1

    def __iter__(self) -> Iterator[tuple[Key, CachedProgram]]:
        return iter(list(self._programs.items()))

    def __len__(self) -> int:
        return len(self._programs)

    def find(self, key: Key) -> CachedProgram | None:
        """The program for these sizes; None if there is none."""
        return self._programs.get(key)

    def add(self, key: Key, program: CachedProgram) -> None:
        """Adds a program, and evicts others until the limits hold; the new one always stays."""
        for each in self._programs.values():
            each.age()
        self._requests = {each: count / 2 for each, count in self._requests.items()}
        if (old := self._programs.pop(key, None)) is not None:
            program.calls, program.in_parts = old.calls, old.in_parts
            program.age()
        program.score = max(program.use, self._requests.pop(key, 0.0))
        self._programs[key] = program
        while self._is_too_much() and (victim := self._least(key)) is not None:
            self._programs.pop(victim)
            self.dropped += 1
        self._is_full = self._is_full or len(self._programs) >= self.most or self.dropped > 0

    def _is_too_much(self) -> bool:
        if len(self._programs) > self.most:
            return True
        return self.most_bytes is not None and self.run_bytes + self.weight_bytes > self.most_bytes

    def _least(self, new: Key | None = None) -> Key | None:
        """The program to evict: the one that is used least, of several the oldest."""
        others = [each for each in self._programs if each not in (new, self.base)]
        return min(others, key=lambda each: self._programs[each].use, default=None)

    @property
    def run_bytes(self) -> int:
        """Bytes that runs of all programs need."""
        return sum(program.run_bytes for program in self._programs.values())

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weights of all programs; shared weights count once."""
        shared: dict[object, int] = {}
        own = 0
        for each in self._programs.values():
            program = each.executable.program
            if isinstance(program, SharingProgram):
                shared.update(program.shared_constants)
            elif isinstance(program, PackedProgram):
                own += program.constant_bytes
        return own + sum(shared.values())

    def ask(self, key: Key) -> None:
        """Counts a call of sizes for which there is no program."""
        self._requests[key] = self._requests.get(key, 0) + 1
        if len(self._requests) > _COUNTED:
            self._requests = {
                each: count / 2 for each, count in self._requests.items() if count > 1
            }

    def deserves(self, key: Key) -> bool:
        """Whether a program for these sizes is worth making: they were requested at least twice,
        and, if the cache is full, more than twice as often as the program to evict is used."""
        if (program := self._programs.get(key)) is not None:
            return program.any_size and program.calls > 0
        asked = self._requests.get(key, 0)
        if asked < 2:
            return False
        if not self._is_full:
            return True
        victim = self._least()
        return victim is not None and asked > 2 * self._programs[victim].use


def table_of(entries: Iterable[tuple[Key, CachedProgram]], names: Sequence[str]) -> list[str]:
    """A table for ``explain``: the sizes of each program, and how much it was used."""
    lines = [f"{'sizes':<28} {'calls':>9} {'as part':>9} {'run MB':>8} {'ms':>9}  made"]
    for key, entry in entries:
        sizes = ", ".join(f"{name}={size}" for name, size in zip(names, key, strict=True))
        lines.append(
            f"{sizes:<28} {entry.calls:>9} {entry.in_parts:>9} {entry.run_bytes / 1e6:>8.2f} "
            f"{entry.seconds * 1e3:>9.3f}  {entry.how}"
        )
    return lines


def doubles(batch: Dim) -> Iterator[int]:
    """The rows of the programs that together compute all batches of a range: the least size, and
    its doubles up to the largest."""
    rows = batch.least
    while rows <= batch.most:
        yield rows
        rows *= 2


def why_not_stored(dims: Sequence[Dim], why_not_parts: str | None) -> str | None:
    """Why no file of programs can compute all sizes; None if one can."""
    reason = why_not_parts
    others = [dim.name for dim in dims if dim.least < dim.most]
    if reason is None and len(others) > 1:
        reason = f"sizes other than a batch vary: {', '.join(map(repr, others))}"
    if reason is None:
        return None
    sizes = ", ".join(f"{dim.name}={dim.most}" for dim in dims)
    return (
        f"cannot be saved compiled, as a file has programs that compute batches in parts, and "
        f"{reason}; valid is one size, as exe.at({sizes}).save(path), or "
        "minidnn.save_graph(exe, path)"
    )


def write_programs(
    path: str | os.PathLike[str],
    batch: Dim,
    wise: RowWise,
    programs: Sequence[CachedProgram],
    metadata: Mapping[str, str],
) -> None:
    """Writes programs of several batches to a file.

    Args:
        batch: the named size, with its range.
        wise: which inputs and outputs have rows.
        programs: in the order of :func:`doubles`.
        metadata: how pictures are prepared, as :func:`minidnn.preparation.metadata_of` says it.
    """
    from minidnn.compiled_file import write_batches

    entries = []
    for rows, program in zip(doubles(batch), programs, strict=True):
        stored, network = program.executable.stored()
        entries.append(({"rows": rows, "seconds": program.seconds, "network": network}, stored))
    described = {
        "batch": [batch.name, batch.least, batch.most, batch.multiple],
        "inputs": wise.inputs,
        "outputs": wise.outputs,
        "preparation": metadata,
    }
    write_batches(path, programs[0].executable.device, entries, described)


class Background:
    """A queue of named jobs with one thread, which runs while there are jobs.

    A name is queued at most once.  The child of a fork has none of its parent's jobs.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = ForkLock()
        self._jobs: dict[Hashable, Callable[[], None]] = {}
        self._thread: threading.Thread | None = None

    def do(self, name: Hashable, job: Callable[[], None]) -> None:
        """Queues a job, unless one of that name is queued or running."""
        with self._lock:
            alive = self._thread is not None and self._thread.is_alive()
            if not alive:
                self._jobs.clear()  # those of the parent of a fork
            self._jobs.setdefault(name, job)
            if not alive:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()

    def wait(self) -> None:
        """Returns when no job is left."""
        while True:
            with self._lock:
                thread = self._thread if self._jobs else None
            if thread is None or not thread.is_alive():
                return
            thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._thread = None
                    return
                name, job = next(iter(self._jobs.items()))
            try:
                job()
            finally:
                with self._lock:
                    self._jobs.pop(name, None)
