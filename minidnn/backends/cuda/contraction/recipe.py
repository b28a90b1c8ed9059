"""Recipes: one way to compute a contraction, and how it is built from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ....cudnn._cupy import cupy
from ....cudnn.enums import ConvolutionFwdAlgo
from ....cudnn.graph import EngineConfig
from ....cudnn.graph.plan import Plan
from ....cudnn.graph.spec import TensorSpec
from ....graph.types import ITEMSIZE
from ..functions import Loaded, Run
from ..kernels import Launch
from ..machine import machine_of
from ..pointwise import Argument, PointStep, print_pointwise
from ..tensor import Tensor
from . import depthwise, halo, rows, stream, window
from .fixed import FixedConvolution, fixed_convolution
from .gather import print_gather
from .graphs import CONVOLUTION, PRODUCT, constraints_of, graph_of
from .problem import ContractionProblem, dense, spec_of
from .tile import TILES, launch_of, sizes_of
from .tile import candidates as tiles_for

FIXED = "fixed"
TILE = "tile"
HALO = "halo"
STREAM = "stream"
WINDOW = "window"
ROWS = "rows"
DEPTHWISE = "depthwise"
OWN = (TILE, HALO, STREAM, WINDOW, ROWS, DEPTHWISE)
_ALIGNMENT = 256

Load = Callable[[Sequence[Launch]], list[Loaded]]


@dataclass(frozen=True)
class Form:
    """What cuDNN is asked for: by which functions, with how many of the stages, and whether it
    writes a packed result that a kernel then carries to where it belongs."""

    core: str
    stages: int
    packed: bool = False

    def __str__(self) -> str:
        return f"{self.core} with {self.stages} stages{', packed' if self.packed else ''}"


@dataclass(frozen=True)
class Recipe:
    """A form with its engine, or algorithm; ``workspace`` and time as they were measured."""

    form: Form
    engine: int
    knobs: tuple[tuple[int, int], ...] = ()
    workspace: int = 0
    milliseconds: float | None = None

    @property
    def algorithm(self) -> str:
        """The engine with its knobs, or cuDNN's name of the algorithm."""
        if self.form.core == FIXED:
            name = ConvolutionFwdAlgo(self.engine).name
            return name.removeprefix("CUDNN_CONVOLUTION_FWD_ALGO_").lower()
        if self.form.core == TILE:
            return f"tile {TILES[self.engine]}"
        if self.form.core == HALO:
            return f"halo of {self.engine} filters"
        if self.form.core == STREAM:
            return f"stream {stream.STREAMS[self.engine]}"
        if self.form.core == WINDOW:
            return f"window of {2 * self.engine * 64} pixels"
        if self.form.core == ROWS:
            return f"rows in {self.engine} parts"
        if self.form.core == DEPTHWISE:
            return f"depthwise {depthwise.STRIPS[self.engine]}"
        name = "" if self.form.core == CONVOLUTION else f"{self.form.core} "
        return f"{name}{EngineConfig(self.engine, self.knobs)}"


@dataclass(frozen=True)
class Addresses:
    """Where a contraction's tensors begin, before the offsets that stand in the problem."""

    x: int
    w: int
    y: int
    others: tuple[int, ...] = ()
    vectors: tuple[int, ...] = ()
    before: tuple[int, ...] = ()


@dataclass(frozen=True)
class OwnConvolution:
    """A kernel of ours, and the numbers that it takes after its pointers."""

    loaded: Loaded
    sizes: list[int]
    workspace: int = 0

    def bind(self, at: Addresses, x: int) -> Run:
        """Runs on those addresses, on CuPy's current stream."""
        reads = (x, at.w, *at.others, *at.vectors, *at.before)
        return self.loaded.bind([*reads, at.y, *self.sizes])


Core = Plan | FixedConvolution | OwnConvolution | rows.SplitRows


@dataclass(frozen=True)
class Built:
    """A recipe that can run."""

    problem: ContractionProblem
    recipe: Recipe
    core: Core
    prepare: Loaded | None
    finish: Loaded | None

    @property
    def workspace(self) -> int:
        """Bytes beside the tensors: cuDNN's, and the packed result."""
        return room(self.problem, self.recipe.form, self.core.workspace)

    def bind(self, at: Addresses, workspace: int) -> Run:
        """Runs on those addresses, on CuPy's current stream."""
        problem, form = self.problem, self.recipe.form
        packed = workspace + _up(self.core.workspace)
        prepared = packed + _up(_packed_bytes(problem, form))
        y = packed if form.packed else at.y + problem.y.offset * problem.y.itemsize
        x = at.x + problem.x.offset * problem.x.itemsize if self.prepare is None else prepared
        runs = [self._core(at, x, y, workspace)]
        if self.prepare is not None:
            runs.insert(0, self.prepare.bind([at.x, *at.before, prepared]))
        if self.finish is not None:
            tensors, vectors, _ = used(problem, form.stages)
            pointers = [packed if form.packed else at.y]
            pointers += [at.others[i] for i in tensors] + [at.vectors[i] for i in vectors]
            runs.append(self.finish.bind([*pointers, at.y]))
        if len(runs) == 1:
            return runs[0]

        def run() -> None:
            for one in runs:
                one()

        return run

    def _core(self, at: Addresses, x: int, y: int, workspace: int) -> Run:
        problem = self.problem
        if isinstance(self.core, OwnConvolution):
            return self.core.bind(at, x)
        if isinstance(self.core, rows.SplitRows):
            return self.core.bind(x, at.w, at.others, at.vectors, at.y, workspace)
        reads = [x, at.w]
        settled = [1]  # weights, which nothing writes any more
        residual = 0
        for stage in problem.stages[: self.recipe.form.stages]:
            if stage.mode == "bias":
                settled.append(len(reads))
                reads.append(at.vectors[stage.index])
            elif stage.mode == "add":
                other = problem.others[stage.index]
                residual = at.others[stage.index] + other.offset * other.itemsize
                reads.append(residual)
        if isinstance(self.core, FixedConvolution):
            bias = at.vectors[0] if at.vectors else 0
            return self.core.bind(x, at.w, y, bias, residual, workspace)
        return self.core.bind_pointers([*reads, y], _Room(workspace), self.core, settled)


@dataclass(frozen=True)
class _Room:
    """What a plan takes for CuPy memory."""

    ptr: int


def build(problem: ContractionProblem, recipe: Recipe, core: Core, load: Load) -> Built:
    """A recipe whose core is there already."""
    around = [prepare_of(problem, recipe.form), finish_of(problem, recipe.form)]
    loaded = iter(load([launch for launch in around if launch is not None]))
    prepare, finish = (None if launch is None else next(loaded) for launch in around)
    return Built(problem, recipe, core, prepare, finish)


def core_of(problem: ContractionProblem, recipe: Recipe, workspace_limit: int, load: Load) -> Core:
    """The plan, algorithm or kernel of a recipe.

    CuDNNError or UnsupportedError if cuDNN does not take it, which can only be if it changed.
    """
    if recipe.form.core in OWN:
        return own_convolution(problem, recipe.form.core, recipe.engine, load)
    if recipe.form.core == FIXED:
        form = recipe.form
        found = fixed_convolution(problem, recipe.engine, form.stages, target(problem, form))
        if isinstance(found, str):
            raise AssertionError(f"a remembered algorithm is refused: {found}")
        return found
    graph = graph_of(problem, recipe.form.core, recipe.form.stages, target(problem, recipe.form))
    return graph.build(
        choose=EngineConfig(recipe.engine, recipe.knobs),
        constraints=constraints_of(problem, workspace_limit),
    )


def own_convolution(
    problem: ContractionProblem, core: str, choice: int, load: Load
) -> OwnConvolution | rows.SplitRows:
    """A kernel of ours, of those that :func:`own_choices` gives."""
    loaded = load(own_launches(problem, core, choice))
    if core == ROWS:
        return rows.SplitRows(loaded[0], loaded[1], choice, rows.part_bytes(problem))
    if core == TILE:
        sizes = sizes_of(problem, TILES[choice])
    elif core == STREAM:
        sizes = stream.sizes_of(problem, stream.STREAMS[choice])
    elif core == WINDOW:
        sizes = window.sizes_of(problem, choice)
    elif core == DEPTHWISE:
        sizes = depthwise.sizes_of(problem, depthwise.STRIPS[choice])
    else:
        sizes = halo.sizes_of(problem, choice, multiprocessors())
    return OwnConvolution(loaded[0], sizes)


def own_launches(problem: ContractionProblem, core: str, choice: int) -> Sequence[Launch]:
    """The kernels of one of :func:`own_choices`."""
    if core == ROWS:
        return rows.launches_of(problem, choice)
    if core == TILE:
        return [launch_of(problem, TILES[choice], multiprocessors())]
    if core == STREAM:
        return [stream.launch_of(problem, stream.STREAMS[choice], multiprocessors())]
    if core == WINDOW:
        return [window.launch_of(problem, choice, multiprocessors())]
    if core == DEPTHWISE:
        return [depthwise.launch_of(problem, depthwise.STRIPS[choice])]
    return [halo.launch_of(problem, choice, multiprocessors())]


def own_choices(problem: ContractionProblem, core: str, arch: str) -> list[int]:
    """Kernels of ours that are worth measuring, the most promising first: indices of tiles, streams
    or strips, how many filters or pixels a block makes, or into how many parts sums are divided."""
    if core == TILE:
        return tiles_for(problem)
    if core == ROWS:
        return rows.parts_for(problem)
    if core == DEPTHWISE:
        return depthwise.candidates(problem, arch)
    if core == WINDOW:
        return window.candidates(problem, arch)
    return stream.candidates(problem, arch) if core == STREAM else halo.widths(problem, arch)


def multiprocessors() -> int:
    """Of the current device."""
    return machine_of(cupy().cuda.runtime.getDevice()).multiprocessors


def prepare_of(problem: ContractionProblem, form: Form) -> Launch | None:
    """The kernel that goes before the core, if any."""
    if problem.gather is not None:
        return print_gather(problem.batch, problem.x, problem.gathered, problem.gather)
    if not problem.before or form.core in OWN:
        return None
    return print_pointwise(
        problem.batch,
        [problem.x],
        dense(problem.x),
        problem.before_vectors,
        problem.before,
        round_steps=True,
    )


def target(problem: ContractionProblem, form: Form) -> TensorSpec:
    """What the core writes."""
    return spec_of(problem.packed if form.packed else problem.y, problem.batch)


def used(problem: ContractionProblem, stages: int) -> tuple[list[int], list[int], list[PointStep]]:
    """The tensors and vectors that the stages after the first so many read, and those stages'
    steps with these numbers."""
    steps = [stage.step for stage in problem.stages[stages:]]
    arguments = [a for step in steps for a in step.arguments]
    tensors = sorted({a.index - 1 for a in arguments if a.kind == "tensor"})
    vectors = sorted({a.index for a in arguments if a.kind == "vector"})

    def renumbered(a: Argument) -> Argument:
        if a.kind == "tensor":
            return replace(a, index=1 + tensors.index(a.index - 1))
        return replace(a, index=vectors.index(a.index)) if a.kind == "vector" else a

    return (
        tensors,
        vectors,
        [replace(step, arguments=tuple(map(renumbered, step.arguments))) for step in steps],
    )


def finish_of(problem: ContractionProblem, form: Form) -> Launch | None:
    """The kernel that follows the core: the other stages, and the way to the result's place."""
    if form.stages == len(problem.stages) and not form.packed:
        return None
    tensors, vectors, steps = used(problem, form.stages)
    first: Tensor = problem.packed if form.packed else problem.y
    return print_pointwise(
        problem.batch,
        [first, *(problem.others[i] for i in tensors)],
        problem.y,
        [problem.vectors[i] for i in vectors],
        steps,
    )


def room(problem: ContractionProblem, form: Form, workspace: int) -> int:
    """Bytes that a recipe takes beside the tensors, when its core takes ``workspace``."""
    prepared = 0
    if problem.gather is not None or (problem.before and form.core not in OWN):
        prepared = problem.batch * problem.input.strides[0] * problem.x.itemsize
    return sum(map(_up, (workspace, _packed_bytes(problem, form), prepared)))


def _packed_bytes(problem: ContractionProblem, form: Form) -> int:
    y = problem.packed
    size = problem.batch * y.channels * y.rows * y.columns * ITEMSIZE[y.dtype]
    return size if form.packed else 0


def _up(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


__all__ = [
    "CONVOLUTION",
    "DEPTHWISE",
    "FIXED",
    "HALO",
    "OWN",
    "PRODUCT",
    "ROWS",
    "STREAM",
    "TILE",
    "WINDOW",
    "Addresses",
    "Built",
    "Form",
    "Load",
    "Recipe",
    "build",
    "core_of",
    "finish_of",
    "multiprocessors",
    "own_choices",
    "own_convolution",
    "own_launches",
    "prepare_of",
    "room",
    "target",
]
