"""The fastest way to compute a convolution, out of everything that cuDNN has.

Candidates are all plans of the graph API and all algorithms of the fixed functions: neither
contains the other, and each is far ahead for some shapes.  They are timed in turn on the caller's
inputs and a scratch output, and the ranking is remembered on disk.

::

    choice = choose("forward", x, w, y, padding=1, tf32=True)
    run = choice.bind(x, w, y)
    run()                       # on CuPy's current stream; can be captured
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from minidnn.cache import CacheStore, digest
from minidnn.cudnn import convolution
from minidnn.cudnn.accuracy import is_coarse_winograd
from minidnn.cudnn.convolution.choose import ADDS_IN_ANY_ORDER
from minidnn.cudnn.convolution.plan import FUNCTIONS
from minidnn.cudnn.enums import MathType, Status
from minidnn.cudnn.errors import CuDNNError, NoAlgorithmError
from minidnn.cudnn.graph import Constraints, EngineConfig, Graph, arrays, device, memory
from minidnn.cudnn.graph.spec import GraphSpec, TensorSpec, constraints_from
from minidnn.cudnn.graph.timing import Contestant, race
from minidnn.errors import GraphError, MiniDNNWarning, OutOfMemoryError, UnsupportedError

log = logging.getLogger(__name__)
Run = Callable[[], object]
_store = CacheStore("cudnn_choice", ".json", 64 << 20)
_KEPT = 8


@dataclass(frozen=True)
class Alternative:
    """One way to compute it: ``family`` is "graph" (an engine) or "fixed" (an algorithm)."""

    family: str
    engine: int
    knobs: tuple[tuple[int, int], ...]
    workspace: int
    deterministic: bool
    milliseconds: float | None = None

    def name(self, operation: str) -> str:
        """The engine with its knobs, or cuDNN's name of the algorithm."""
        if self.family == "graph":
            return str(EngineConfig(self.engine, self.knobs))
        return str(FUNCTIONS[operation].algorithm(self.engine).name)


class Candidate(NamedTuple):
    """An alternative and how to run it on the arrays at hand."""

    alternative: Alternative
    run: Run


@dataclass(frozen=True)
class Problem:
    """A convolution of given arrays: operation, padding and so on, and the constraints.

    ``x``, ``w``, ``y`` are image, filter and output of the forward convolution, or arrays of
    their shapes, in every operation.
    """

    operation: str
    x: Any
    w: Any
    y: Any
    padding: int | tuple[int, ...] = 0
    stride: int | tuple[int, ...] = 1
    dilation: int | tuple[int, ...] = 1
    constraints: Constraints = field(default_factory=Constraints)

    def __post_init__(self) -> None:
        if self.operation not in FUNCTIONS:
            valid = ", ".join(FUNCTIONS)
            raise GraphError(f"operation {self.operation!r} is not known; valid are {valid}")

    @property
    def operands(self) -> tuple[tuple[Any, Any], Any]:
        """The two inputs as the graph declares them, and the output."""
        return {
            "forward": ((self.x, self.w), self.y),
            "backward_data": ((self.y, self.w), self.x),
            "backward_filter": ((self.y, self.x), self.w),
        }[self.operation]

    def graph(self) -> Graph:
        """The convolution as a graph, with the layouts of these arrays."""
        g = Graph()
        (first, second), out = self.operands
        a, b = g.tensors(first, second)
        settings: dict[str, Any] = {
            "padding": self.padding,
            "stride": self.stride,
            "dilation": self.dilation,
        }
        if self.operation == "forward":
            result = g.convolution(a, b, **settings)
        elif self.operation == "backward_data":
            result = g.convolution_backward_data(a, b, self.x.shape, **settings)
        else:
            result = g.convolution_backward_filter(a, b, self.w.shape, **settings)
        g.output(result, like=out)
        return g

    @property
    def exact(self) -> bool:
        """Whether float32 products must be float32 products."""
        return self.x.dtype.name == "float32" and not self.constraints.tf32

    @property
    def math(self) -> MathType:
        """What the fixed functions may compute with."""
        return MathType.CUDNN_FMA_MATH if self.exact else MathType.CUDNN_TENSOR_OP_MATH


@dataclass(frozen=True)
class Choice:
    """The alternatives from fast to slow."""

    problem: Problem
    ranked: tuple[Alternative, ...]

    @property
    def best(self) -> Alternative:
        return self.ranked[0]

    def bind(self, x: Any, w: Any, y: Any) -> Run:
        """The fastest alternative on these arrays, or the next one when memory is short.

        Raises:
            GraphError, ArgumentError: arrays that differ from those that were chosen for.
            OutOfMemoryError: not even the smallest workspace fits.
        """
        old = self.problem
        new = Problem(
            old.operation, x, w, y, old.padding, old.stride, old.dilation, old.constraints
        )
        for alternative in self.ranked:
            try:
                return _runner(new, alternative)
            except OutOfMemoryError as error:
                text = f"{error}; the next alternative is taken"
                log.warning(text)
                warnings.warn(text, MiniDNNWarning, stacklevel=2)
        raise OutOfMemoryError(f"no alternative fits into the free memory: {self.ranked}")


def choose(
    operation: str,
    x: Any,
    w: Any,
    y: Any,
    *,
    padding: int | tuple[int, ...] = 0,
    stride: int | tuple[int, ...] = 1,
    dilation: int | tuple[int, ...] = 1,
    **constraints: Any,
) -> Choice:
    """The ranking for a convolution, measured once and remembered.

    Args:
        operation: "forward", "backward_data" or "backward_filter".
        x, w, y: CuPy arrays of images, filters and outputs; the one that the operation writes
            is not touched.
        padding, stride, dilation: one integer, or one per axis.
        constraints: the fields of :class:`.Constraints`.

    Raises:
        UnsupportedError: nothing computes it under these constraints.
        GraphError: arrays or arguments that do not fit.
    """
    limits = constraints_from(None, constraints)
    problem = Problem(operation, x, w, y, padding, stride, dilation, limits)
    spec = problem.graph().freeze()
    key = digest(memory.key(spec, problem.constraints, device.current().name), "choice 2")
    ranked = _decode(_store.read(key))
    if ranked is None:
        ranked = _measure(problem, spec)
        rows = [asdict(one) for one in ranked]
        entry = {"graph": spec.describe(), "constraints": str(problem.constraints), "ranked": rows}
        _store.put(key, json.dumps(entry, indent=1).encode(), label=operation)
    return Choice(problem, ranked)


def candidates(problem: Problem) -> list[Candidate]:
    """Everything that can be built for a problem; running writes the problem's output array."""
    return [*_graph_candidates(problem), *_fixed_candidates(problem)]


def _graph_candidates(problem: Problem) -> Iterator[Candidate]:
    graph = problem.graph()
    inputs, out = problem.operands
    try:
        plans = graph.plans(constraints=problem.constraints)
    except UnsupportedError as error:
        log.info("%s", error)
        return
    # One workspace serves all: they run one after another.
    most = max((plan.workspace for plan in plans), default=0)
    memory_for_all = arrays.allocate(most) if most else None
    for plan in plans:
        proposal = plan.proposal
        same = proposal is None or proposal.deterministic
        config = plan.config
        made = Alternative("graph", config.engine, config.knobs, plan.workspace, same)
        yield Candidate(made, plan.bind(*inputs, out=out, workspace=memory_for_all))


def _fixed_candidates(problem: Problem) -> Iterator[Candidate]:
    found = []
    limits = problem.constraints
    for algorithm in FUNCTIONS[problem.operation].algorithm:
        if problem.exact and is_coarse_winograd(algorithm.name, problem.w.shape[2:]):
            continue
        if limits.accuracy == "high" and ("FFT" in algorithm.name or "WINO" in algorithm.name):
            continue
        deterministic = algorithm.name not in ADDS_IN_ANY_ORDER
        if limits.deterministic and not deterministic:
            continue
        try:
            plan = _fixed_plan(problem, int(algorithm))
        except NoAlgorithmError:
            continue  # over the limit of the workspace
        except CuDNNError as error:
            # With BAD_PARAM cuDNN also refuses some algorithms for some layouts.
            if not error.unsupported and error.status != Status.CUDNN_STATUS_BAD_PARAM:
                raise
            continue
        made = Alternative("fixed", int(algorithm), (), plan.choice.workspace, deterministic)
        found.append(Candidate(made, _fixed_runner(problem, plan)))
    # The largest first, so that the shared workspace grows once.
    yield from sorted(found, key=lambda one: -one.alternative.workspace)


def _fixed_plan(problem: Problem, algorithm: int) -> Any:
    return convolution.plan(
        problem.operation,  # type: ignore[arg-type]
        problem.x,
        problem.w,
        problem.y,
        padding=problem.padding,
        stride=problem.stride,
        dilation=problem.dilation,
        groups=problem.x.shape[1] // problem.w.shape[1],
        math=problem.math,
        algorithm=algorithm,
        workspace_limit=problem.constraints.workspace_limit,
    )


def _fixed_runner(problem: Problem, plan: Any) -> Run:
    order = {
        "forward": (problem.x, problem.w, problem.y),
        "backward_data": (problem.w, problem.y, problem.x),
        "backward_filter": (problem.x, problem.y, problem.w),
    }[problem.operation]
    pointers = [array.data.ptr for array in order]

    # An argument's default keeps the arrays alive as long as something may run on their pointers.
    def run(kept: tuple[Any, ...] = order) -> None:
        plan.run(*pointers)

    return run


def _runner(problem: Problem, alternative: Alternative) -> Run:
    if alternative.family == "fixed":
        return _fixed_runner(problem, _fixed_plan(problem, alternative.engine))
    config = EngineConfig(alternative.engine, alternative.knobs)
    plan = problem.graph().build(choose=config, constraints=problem.constraints)
    inputs, out = problem.operands
    return plan.bind(*inputs, out=out)


def _measure(problem: Problem, spec: GraphSpec) -> tuple[Alternative, ...]:
    scratch = _with_scratch_output(problem, spec.tensors[spec.outputs[0]])
    found = candidates(scratch)
    times = race([Contestant(one.run) for one in found])
    ranked = rank([one.alternative for one in found], times)
    if not ranked:
        raise UnsupportedError(
            f"cuDNN has nothing for {spec.describe()} under {problem.constraints}"
        )
    return _with_smallest(ranked)


def _with_smallest(ranked: tuple[Alternative, ...]) -> tuple[Alternative, ...]:
    """The fastest, and the fastest of those that need least memory, for when it is short."""
    least = min(ranked, key=lambda one: one.workspace)
    kept = ranked[:_KEPT]
    return kept if least in kept else (*kept[:-1], least)


def rank(
    alternatives: Sequence[Alternative], times: Sequence[float | None]
) -> tuple[Alternative, ...]:
    """Those that have a time, from fast to slow, with it."""
    pairs = sorted((time, index) for index, time in enumerate(times) if time is not None)
    return tuple(
        Alternative(**{**vars(alternatives[index]), "milliseconds": time}) for time, index in pairs
    )


def _with_scratch_output(problem: Problem, spec: TensorSpec) -> Problem:
    name = {"forward": "y", "backward_data": "x", "backward_filter": "w"}[problem.operation]
    return Problem(**{**vars(problem), name: arrays.empty(spec)})


def _decode(data: bytes | None) -> tuple[Alternative, ...] | None:
    """None for what is missing or of another shape; the caller then measures."""
    if data is None:
        return None
    try:
        rows = json.loads(data)["ranked"]
        found = tuple(
            Alternative(**{**row, "knobs": tuple((k, v) for k, v in row["knobs"])}) for row in rows
        )
    except (ValueError, KeyError, TypeError):
        return None
    return found or None


__all__ = ["Alternative", "Candidate", "Choice", "Problem", "candidates", "choose", "rank"]
