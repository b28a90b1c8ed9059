"""Which algorithm: by cuDNN's heuristic, by its benchmarks, or by hand; remembered on disk."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, replace
from functools import cache
from typing import Any

from minidnn.cache import CacheStore, digest
from minidnn.cudnn import machine
from minidnn.cudnn.accuracy import is_coarse_winograd
from minidnn.cudnn.convolution.key import ConvolutionKey
from minidnn.cudnn.convolution.plan import Candidate, ConvolutionPlan, Problem, no_algorithm
from minidnn.cudnn.convolution.search import ask
from minidnn.cudnn.enums import DataType, MathType
from minidnn.cudnn.errors import ArgumentError
from minidnn.cudnn.memo import Memo

log = logging.getLogger(__name__)

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
    """Enumerations as numbers, named tuples as lists."""
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
    found = ask(problem, pointers)
    if found.complete:
        _store().put(name, json.dumps([asdict(one) for one in found.candidates]).encode())
    return found.candidates


def _decode(data: bytes) -> tuple[Candidate, ...] | None:
    try:
        rows = json.loads(data)
        return tuple(Candidate(**{**row, "math": MathType(row["math"])}) for row in rows)
    except (ValueError, TypeError, KeyError):
        return None


def constrained(
    key: ConvolutionKey, candidates: tuple[Candidate, ...]
) -> tuple[tuple[Candidate, ...], tuple[str, ...]]:
    """Return the candidates that keep the constraints, and why others ahead of them do not."""
    fitting, skipped = [], []
    for one in candidates:
        reason = None
        if one.workspace > key.workspace_limit:
            reason = f"wants {one.workspace} bytes of workspace, over {key.workspace_limit}"
        elif key.deterministic and not one.deterministic:
            reason = "is not deterministic"
        elif key.math == MathType.CUDNN_FMA_MATH and one.math in _TENSOR_MATH:
            reason = f"uses {one.math.name}, not CUDNN_FMA_MATH"
        elif _is_coarse(key, one):
            reason = "is less accurate than TF32 in float32 with windows over 3"
        if reason is None:
            exact = key.math == MathType.CUDNN_FMA_MATH
            fitting.append(replace(one, math=key.math) if exact else one)
        else:
            skipped.append(f"{one.name} {reason}")
    if skipped and fitting:
        log.info("convolution takes %s; %s", fitting[0].name, "; ".join(skipped))
    return tuple(fitting), tuple(skipped)


def _is_coarse(key: ConvolutionKey, one: Candidate) -> bool:
    """Return whether an algorithm breaks what FMA promises, the accuracy of float32.

    What is asked for by hand is done all the same.
    """
    exact = key.math == MathType.CUDNN_FMA_MATH and key.x.dtype == DataType.CUDNN_DATA_FLOAT
    by_hand = key.search not in SEARCHES
    return exact and not by_hand and is_coarse_winograd(one.name, key.w.shape[2:])


def _by_hand(problem: Problem) -> Candidate:
    key, kinds = problem.key, problem.functions.algorithm
    try:
        algorithm = kinds(int(key.search))
    except ValueError:
        names = ", ".join(f"{kind.value} ({kind.name})" for kind in kinds)
        raise ArgumentError(
            f"algorithm={key.search!r} must be one of {', '.join(SEARCHES)}, or a number: {names}"
        ) from None
    workspace, same = problem.workspace(algorithm), algorithm.name not in ADDS_IN_ANY_ORDER
    return Candidate(int(algorithm), algorithm.name, key.math, workspace, same, None)


def algorithms(key: ConvolutionKey, pointers: tuple[int, int] | None = None) -> list[Candidate]:
    """Return all that cuDNN offers for a key, best first, whatever the constraints say."""
    return list(candidates_for(Problem(key), pointers))


def workspace_size(key: ConvolutionKey, algorithm: int) -> int:
    """Return the bytes of workspace that an algorithm takes; CuDNNError if it cannot do this."""
    return Problem(key).workspace(algorithm)
