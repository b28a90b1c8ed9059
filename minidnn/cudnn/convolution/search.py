"""Ask cuDNN for algorithms: its heuristic, or its benchmarks.

A benchmark is run twice and the better time counts: the first run loads kernels, which can take
longer than running them.
"""

from __future__ import annotations

import ctypes
import logging
from dataclasses import replace
from typing import Any, NamedTuple

from minidnn.cudnn import library
from minidnn.cudnn.convolution.plan import Candidate, Problem
from minidnn.cudnn.enums import Determinism, MathType
from minidnn.cudnn.errors import ArgumentError, check
from minidnn.cudnn.handle import current_handle
from minidnn.errors import OutOfMemoryError
from minidnn.gpu.cupy import cupy

log = logging.getLogger(__name__)


class AlgoPerf(ctypes.Structure):
    """``cudnnConvolution{Fwd,BwdData,BwdFilter}AlgoPerf_t``: the three are alike."""

    _fields_ = (
        ("algo", ctypes.c_int),
        ("status", ctypes.c_int),
        ("time", ctypes.c_float),
        ("memory", ctypes.c_size_t),
        ("determinism", ctypes.c_int),
        ("mathType", ctypes.c_int),
        ("reserved", ctypes.c_int * 3),
    )


class Answer(NamedTuple):
    """Candidates, best first; not ``complete`` when short memory kept some from being measured."""

    candidates: tuple[Candidate, ...]
    complete: bool


def ask(problem: Problem, pointers: tuple[int, int] | None) -> Answer:
    """Search as the problem's key says; ``pointers`` are the two inputs, for "find_ex"."""
    search, functions = problem.key.search, problem.functions
    lib = library.load()
    first, second, out = problem.operands()
    described = (first, second, problem.conv.value, out)
    if search == "heuristic":
        return Answer(_rows(problem, functions.get, described, ()), True)
    _refuse_capture(search)
    if search == "find":
        runs = [_rows(problem, functions.find, described, ()) for _ in range(2)]
        return Answer(_better(*runs), True)
    if pointers is None:
        raise ArgumentError("algorithm='find_ex' measures on arrays, so they must be given")
    # A scratch output, so that nothing of the caller's is lost.  All of this memory goes back to
    # CuPy's pool: the workspace of later calls need not be as large as the largest that was tried.
    scratch = _scratch(problem.output_bytes())
    memory, size, complete = _room(problem, lib)
    given = (first, pointers[0], second, pointers[1], problem.conv.value, out, scratch.ptr)
    room = (memory.ptr if memory is not None else None, size)
    runs = [_rows(problem, functions.find_ex, given, room) for _ in range(2)]
    return Answer(_better(*runs), complete)


def _scratch(size: int) -> Any:
    memory = cupy().cuda.memory
    try:
        return memory.alloc(size)
    except memory.OutOfMemoryError as error:
        raise OutOfMemoryError(
            f"algorithm='find_ex' needs {size} bytes to write the output to while it measures; "
            f"'heuristic' needs none ({error})"
        ) from error


def _rows(
    problem: Problem, function: str, before: tuple[Any, ...], after: tuple[Any, ...]
) -> tuple[Candidate, ...]:
    """Call one of cuDNN's searches and return the algorithms that it says can run."""
    lib, handle = library.load(), current_handle()
    functions, count, found = problem.functions, ctypes.c_int(), ctypes.c_int()
    check(getattr(lib, functions.max_count)(handle, ctypes.byref(count)), functions.max_count)
    rows = (AlgoPerf * max(1, count.value))()
    results = (len(rows), ctypes.byref(found), rows)
    status = getattr(lib, function)(handle, *before, *results, *after)
    if status:
        check(status, function, problem.key.describe)
    done = [row for row in rows[: found.value] if not row.status]
    return tuple(_candidate(functions.algorithm, row) for row in done)


def _better(one: tuple[Candidate, ...], two: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
    """Merge two runs of a benchmark: the smaller time of each algorithm, sorted by it."""
    best: dict[tuple[int, MathType], Candidate] = {}
    for candidate in (*one, *two):
        key = (candidate.algorithm, candidate.math)
        before = best.setdefault(key, candidate)
        if (candidate.time_ms or 0) < (before.time_ms or 0):
            best[key] = replace(before, time_ms=candidate.time_ms)
    return tuple(sorted(best.values(), key=lambda c: c.time_ms or 0))


def _room(problem: Problem, lib: Any) -> tuple[Any, int, bool]:
    """Return memory to benchmark with, its bytes, and whether it is all that the limit allows."""
    wanted = [0]
    first, second, out = problem.operands()
    for algorithm in problem.functions.algorithm:
        size = ctypes.c_size_t()
        arguments = (first, second, problem.conv.value, out, algorithm, ctypes.byref(size))
        # A status other than success only says that this algorithm cannot do it.
        if not getattr(lib, problem.functions.workspace)(current_handle(), *arguments):
            wanted.append(size.value)
    room = max(size for size in wanted if size <= problem.key.workspace_limit)
    complete, memory = True, cupy().cuda.memory
    while room:
        try:
            return memory.alloc(room), room, complete
        except memory.OutOfMemoryError:
            log.warning("no room to benchmark with %d bytes of workspace; trying half", room)
            room, complete = room // 2, False
    return None, 0, complete


def _refuse_capture(search: str) -> None:
    stream = cupy().cuda.get_current_stream()
    if stream.ptr and cupy().cuda.runtime.streamIsCapturing(stream.ptr):
        raise ArgumentError(
            f"algorithm={search!r} measures, which cannot be done while a CUDA graph is captured; "
            "call the function once before the capture"
        )


def _candidate(kinds: Any, row: AlgoPerf) -> Candidate:
    try:
        name = kinds(row.algo).name
    except ValueError:
        name = f"algorithm {row.algo}"  # newer than this file
    return Candidate(
        algorithm=row.algo,
        name=name,
        math=MathType(row.mathType),
        workspace=row.memory,
        deterministic=row.determinism == Determinism.CUDNN_DETERMINISTIC,
        time_ms=row.time if row.time > 0 else None,
    )
