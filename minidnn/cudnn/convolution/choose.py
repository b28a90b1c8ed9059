"""Chooses the algorithm: by cuDNN's heuristic, by its benchmarks, or by number.

The answers of heuristic and benchmarks are cached on disk.  A benchmark is run twice and the
lesser time counts: the first run loads kernels, which can take longer than running them.
"""

from __future__ import annotations

import ctypes
import json
import logging
from dataclasses import asdict, replace
from functools import cache
from typing import Any, NamedTuple

from minidnn.cache import CacheStore, digest
from minidnn.cudnn import library, machine
from minidnn.cudnn.convolution.key import ConvolutionKey
from minidnn.cudnn.convolution.plan import Candidate, ConvolutionPlan, Problem, no_algorithm
from minidnn.cudnn.descriptor import Memo
from minidnn.cudnn.enums import DataType, Determinism, MathType, is_coarse_winograd
from minidnn.cudnn.errors import ArgumentError, check
from minidnn.cudnn.handle import current_handle
from minidnn.errors import OutOfMemoryError
from minidnn.gpu import cupy

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
    """Candidates, best first; not ``complete`` if lack of memory kept some from being measured."""

    candidates: tuple[Candidate, ...]
    complete: bool


def ask(problem: Problem, pointers: tuple[int, int] | None) -> Answer:
    """Run the search that the key names; ``pointers`` address the two inputs, for "find_ex"."""
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
    before = (first, pointers[0], second, pointers[1], problem.conv.value, out, scratch.ptr)
    workspace = (memory.ptr if memory is not None else None, size)
    runs = [_rows(problem, functions.find_ex, before, workspace) for _ in range(2)]
    return Answer(_better(*runs), complete)


def _scratch(size: int) -> Any:
    """Return the memory for the output of a benchmark."""
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


def _better(first: tuple[Candidate, ...], second: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
    """Merge two runs of a benchmark: the lesser time of each algorithm, sorted by it."""
    best: dict[tuple[int, MathType], Candidate] = {}
    for candidate in (*first, *second):
        key = (candidate.algorithm, candidate.math)
        before = best.setdefault(key, candidate)
        if (candidate.time_ms or 0) < (before.time_ms or 0):
            best[key] = replace(before, time_ms=candidate.time_ms)
    return tuple(sorted(best.values(), key=lambda c: c.time_ms or 0))


def _room(problem: Problem, lib: Any) -> tuple[Any, int, bool]:
    """Return a benchmark's workspace, its bytes, and whether that is all that the limit allows."""
    sizes = [0]
    first, second, out = problem.operands()
    for algorithm in problem.functions.algorithm:
        size = ctypes.c_size_t()
        arguments = (first, second, problem.conv.value, out, algorithm, ctypes.byref(size))
        # A status other than success only says that this algorithm cannot do it.
        if not getattr(lib, problem.functions.workspace)(current_handle(), *arguments):
            sizes.append(size.value)
    nbytes = max(size for size in sizes if size <= problem.key.workspace_limit)
    complete, memory = True, cupy().cuda.memory
    while nbytes:
        try:
            return memory.alloc(nbytes), nbytes, complete
        except memory.OutOfMemoryError:
            log.warning("no room to benchmark with %d bytes of workspace; trying half", nbytes)
            nbytes, complete = nbytes // 2, False
    return None, 0, complete


def _refuse_capture(search: str) -> None:
    """Raise if the current stream is captured, as benchmarks cannot be."""
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


SEARCHES = ("heuristic", "find", "find_ex")
#: The algorithms that cuDNN documents as not deterministic; all others are.
ADDS_IN_ANY_ORDER = (
    "CUDNN_CONVOLUTION_BWD_DATA_ALGO_0",
    "CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0",
    "CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3",
)
_TENSOR_MATH = (MathType.CUDNN_TENSOR_OP_MATH, MathType.CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION)
_plans: Memo[ConvolutionPlan] = Memo(4096)


@cache
def _store() -> CacheStore:
    return CacheStore("cudnn_algorithms", ".json")


def disk_key(key: ConvolutionKey) -> str:
    """Return the name of the entry on disk: all of the key, the library and the device."""
    portable = asdict(replace(key, device=0))
    plain = {name: _plain(value) for name, value in portable.items()}
    device = machine.device_name(key.device)
    return digest("algorithms 2", machine.library_name(), device, plain)


def _plain(value: Any) -> Any:
    """Return a value as JSON holds it: enumerations as numbers, named tuples as lists."""
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (bool, str)) else int(value)


def plan_for(key: ConvolutionKey, pointers: tuple[int, int] | None = None) -> ConvolutionPlan:
    """Return the plan of a key, made on first use.

    ``pointers`` are the two inputs' addresses, for "find_ex".
    """
    found = _plans.get(key)
    if found is None:
        problem = Problem(key)
        candidates = candidates_for(problem, pointers)
        fitting, skipped = constrained(key, candidates)
        if not fitting:
            raise no_algorithm(key, skipped)
        found = _plans.put(key, ConvolutionPlan(problem, fitting, skipped))
    return found


def forget() -> None:
    """Forget all plans of this process; what is on disk stays."""
    _plans.clear()


def candidates_for(
    problem: Problem, pointers: tuple[int, int] | None = None
) -> tuple[Candidate, ...]:
    """Return what cuDNN offers for a problem, best first, from disk if it is known there."""
    key = problem.key
    if key.search not in SEARCHES:
        return (_by_hand(problem),)
    name = disk_key(key)
    stored = _store().read(name)
    if stored is not None:
        known = _decode(stored)
        if known is not None:
            return known
        log.warning("the stored choice %s of algorithms is not readable; choosing anew", name)
    answer = ask(problem, pointers)
    if answer.complete:
        _store().put(name, json.dumps([asdict(row) for row in answer.candidates]).encode())
    return answer.candidates


def _decode(data: bytes) -> tuple[Candidate, ...] | None:
    try:
        rows = json.loads(data)
        return tuple(Candidate(**{**row, "math": MathType(row["math"])}) for row in rows)
    except (ValueError, TypeError, KeyError):
        return None


def constrained(
    key: ConvolutionKey, candidates: tuple[Candidate, ...]
) -> tuple[tuple[Candidate, ...], tuple[str, ...]]:
    """Return the candidates that meet the constraints, and why better ones do not.

    Better are those before the first that does: all, if none does.
    """
    fitting, skipped = [], []
    for candidate in candidates:
        reason = None
        if candidate.workspace > key.workspace_limit:
            reason = f"wants {candidate.workspace} bytes of workspace, over {key.workspace_limit}"
        elif key.deterministic and not candidate.deterministic:
            reason = "is not deterministic"
        elif key.math == MathType.CUDNN_FMA_MATH and candidate.math in _TENSOR_MATH:
            reason = f"uses {candidate.math.name}, not CUDNN_FMA_MATH"
        elif _is_coarse(key, candidate):
            reason = "is less accurate than TF32 in float32 with windows over 3"
        if reason is None:
            exact = key.math == MathType.CUDNN_FMA_MATH
            fitting.append(replace(candidate, math=key.math) if exact else candidate)
        elif not fitting:
            skipped.append(f"{candidate.name} {reason}")
    if skipped and fitting:
        log.info("convolution takes %s; %s", fitting[0].name, "; ".join(skipped))
    return tuple(fitting), tuple(skipped)


def _is_coarse(key: ConvolutionKey, candidate: Candidate) -> bool:
    """Return whether an algorithm breaks the promise of FMA math, the accuracy of float32.

    An algorithm that is given by number is used all the same.
    """
    exact = key.math == MathType.CUDNN_FMA_MATH and key.x.dtype == DataType.CUDNN_DATA_FLOAT
    by_hand = key.search not in SEARCHES
    return exact and not by_hand and is_coarse_winograd(candidate.name, key.w.shape[2:])


def _by_hand(problem: Problem) -> Candidate:
    """Return the algorithm whose number the key gives."""
    key, kinds = problem.key, problem.functions.algorithm
    try:
        algorithm = kinds(int(key.search))
    except ValueError:
        names = ", ".join(f"{kind.value} ({kind.name})" for kind in kinds)
        raise ArgumentError(
            f"algorithm={key.search!r} must be one of {', '.join(SEARCHES)}, or a number: {names}"
        ) from None
    workspace, ordered = problem.workspace(algorithm), algorithm.name not in ADDS_IN_ANY_ORDER
    return Candidate(int(algorithm), algorithm.name, key.math, workspace, ordered, None)


def algorithms(key: ConvolutionKey, pointers: tuple[int, int] | None = None) -> list[Candidate]:
    """Return all that cuDNN offers for a key, best first, whatever the constraints say."""
    return list(candidates_for(Problem(key), pointers))


def workspace_size(key: ConvolutionKey, algorithm: int) -> int:
    """Return the bytes of workspace that an algorithm takes; CuDNNError if it cannot do this."""
    return Problem(key).workspace(algorithm)
