"""Algorithms of contractions, their configurations, and the executables that are built from them.

Tuning remembers an :class:`AlgorithmConfig` of a :class:`CudaAlgorithm`.  What is built from it is
a :class:`ContractionExecutable`: its core, and the kernels of ours before and after the core.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ....cudnn.graph import EngineConfig
from ....cudnn.graph.plan import Plan
from ....cudnn.graph.spec import TensorSpec
from ....graph.types import ITEMSIZE
from ....runtime.operand import KernelArgument
from ..functions import Load, Loaded, Run
from ..kernels import Launch
from ..machine import Machine
from ..memory import aligned
from ..pointwise import Argument, PointStep, print_chain_for_any_size, print_pointwise
from ..table import KernelRow, LibraryRow, Row
from ..tensor import Tensor
from .epilogue_reduction_text import sweep_of
from .fixed_function import FixedConvolution, PlanCall, algorithms_of, fixed_convolution
from .gather import print_gather, print_gather_for_any_size
from .graphs import CONVOLUTION, constraints_of, graph_of, operands_of
from .int8_filter import header_bytes, number_at
from .kernel import ContractionKernel
from .kernel_registry import KERNELS, LoadedContraction, load_contraction
from .problem import IMAGE_GRADIENT, Addresses, ContractionProblem, spec_of
from .producer import launch_of, order_of

FIXED = "fixed"


@dataclass(frozen=True)
class CudaAlgorithm:
    """An algorithm: what computes the contraction, and how much of the problem it fuses.

    Attributes:
        core: the name of a kernel of ours; or cuDNN's graph of a convolution or a product, or its
            fixed functions.
        stages: how many of the epilogue's stages the core fuses, from the first on; a kernel after
            it computes the others.
        packed: whether the core writes a dense result to the workspace, which a kernel then copies
            to the view that is the result.
        producer: whether the core fuses the producer of the gradient that it reads.
    """

    core: str
    stages: int
    packed: bool = False
    producer: bool = False

    @property
    def kernel(self) -> ContractionKernel | None:
        """The kernel of ours that is the core; None where cuDNN is."""
        return KERNELS.get(self.core)

    def of_core(self, problem: ContractionProblem) -> ContractionProblem:
        """The problem that the core computes: without the producer, unless the core fuses it."""
        return problem if self.producer else replace(problem, producer=None)

    def __str__(self) -> str:
        packed, producer = ", packed" * self.packed, ", with what it reads" * self.producer
        return f"{self.core} with {self.stages} stages{packed}{producer}"


@dataclass(frozen=True)
class AlgorithmConfig:
    """A configuration of an algorithm.

    Attributes:
        engine: cuDNN's engine or algorithm, or the choice of a kernel of ours.
        knobs: cuDNN's settings of the engine.
        workspace: bytes that its executable takes beside the tensors.
        milliseconds: the time as it was measured; None before that.
    """

    algorithm: CudaAlgorithm
    engine: int
    knobs: tuple[tuple[int, int], ...] = ()
    workspace: int = 0
    milliseconds: float | None = None

    def algorithm_name(self, problem: ContractionProblem) -> str:
        """Names the engine with its knobs, cuDNN's algorithm, or our kernel with its choice."""
        if self.algorithm.core == FIXED:
            name: str = algorithms_of(problem)(self.engine).name
            return name.removeprefix("CUDNN_CONVOLUTION_").removeprefix("FWD_ALGO_").lower()
        if self.algorithm.kernel is not None:
            return self.algorithm.kernel.describe(self.engine)
        name = "" if self.algorithm.core == CONVOLUTION else f"{self.algorithm.core} "
        return f"{name}{EngineConfig(self.engine, self.knobs)}"


Core = Plan | FixedConvolution | LoadedContraction


@dataclass(frozen=True)
class ContractionExecutable:
    """An executable: the core of a configuration, and the loaded kernels around it.

    Attributes:
        prepare: runs before the core, see :func:`prepare_of`.
        finish: runs after the core, see :func:`finish_of`.
        sums: the kernels of an epilogue reduction that the core does not compute.
    """

    problem: ContractionProblem
    config: AlgorithmConfig
    core: Core
    prepare: Loaded | None
    finish: Loaded | None
    sums: tuple[Loaded, ...] = ()

    @property
    def workspace(self) -> int:
        """Bytes beside the tensors: the core's workspace, and what the kernels around it write."""
        return workspace_bytes(self.problem, self.config.algorithm, self.core.workspace)

    def describe_kernels(self) -> list[str]:
        """The resources of each kernel of ours, in launch order; those of cuDNN's are unknown."""
        kernels = self.core.loaded if isinstance(self.core, LoadedContraction) else ()
        descriptions = [loaded.describe() for loaded in kernels]
        if self.prepare is not None:
            descriptions.insert(0, f"before it {self.prepare.describe()}")
        if self.finish is not None:
            descriptions.append(f"after it {self.finish.describe()}")
        descriptions += [f"sums by {loaded.describe()}" for loaded in self.sums]
        return descriptions

    def bind(self, at: Addresses, workspace: int) -> Run:
        """Returns what launches it on CuPy's current stream; the addresses are numbers."""
        launches = [row.bind(()) for row in self.rows(at, workspace)]

        def run() -> None:
            for launch in launches:
                launch()

        return run

    def rows(self, at: Addresses, workspace: KernelArgument) -> list[Row]:
        """The launches for those addresses, in order."""
        problem, algorithm = self.problem, self.config.algorithm
        packed = workspace + aligned(self.core.workspace)
        prepared = packed + aligned(_packed_bytes(problem, algorithm))
        passing = prepared + aligned(_prepared_bytes(problem, algorithm))
        y = packed if algorithm.packed else at.y + problem.y.offset * problem.y.itemsize
        if problem.passes and self.sums:
            at = replace(at, x=passing)
        x = at.x + problem.x.offset * problem.x.itemsize
        if _prepared_bytes(problem, algorithm):
            x = prepared
        rows: list[Row] = []
        if self.prepare is not None:
            pointers: tuple[KernelArgument, ...] = (at.x, *at.before, prepared)
            if problem.producer is not None:
                pointers = tuple((*at.producer, at.y)[i] for i in order_of(problem.producer))
            rows.append(KernelRow.of(self.prepare, pointers))
        rows += self._core(at, x, y, workspace)
        if self.finish is not None:
            tensors, vectors, _ = used(problem, algorithm.stages)
            others = (*(at.others[i] for i in tensors), *(at.vectors[i] for i in vectors))
            pointers = (packed if algorithm.packed else at.y, *others, at.y)
            rows.append(KernelRow.of(self.finish, pointers))
        if self.sums:
            rows += self._sums(at, passing + aligned(_passing_bytes(problem)))
        return rows

    def _sums(self, at: Addresses, parts: KernelArgument) -> list[Row]:
        """The launches of the epilogue reduction, whose partial sums lie at ``parts``."""
        reduction, (first, *last) = self.problem.reduction, self.sums
        assert reduction is not None
        count = len(reduction.read) - 1 + len(reduction.stored)
        source = at.x if self.problem.direction == IMAGE_GRADIENT else at.y
        sums = at.reduction[count:]
        swept = KernelRow(first, (source, *at.reduction[:count], *([parts] if last else sums)))
        return [swept, *(KernelRow(loaded, (parts, *sums)) for loaded in last)]

    def _core(
        self, at: Addresses, x: KernelArgument, y: KernelArgument, workspace: KernelArgument
    ) -> list[Row]:
        """The launches of the core, with the addresses of image and result that it works on."""
        problem, core = self.problem, self.core
        if isinstance(core, LoadedContraction):
            return core.rows(replace(at, x=x, workspace=workspace))
        if problem.direction != "forward":
            if isinstance(core, FixedConvolution):
                return [LibraryRow(core, (x, at.w, y, 0, 0, workspace))]
            by_image = problem.direction == IMAGE_GRADIENT
            tensors = (y, at.w, x) if by_image else (y, x, at.w)
            return [LibraryRow(PlanCall(core), (*tensors, workspace))]
        if problem.is_integer:
            assert not isinstance(core, FixedConvolution)
            reads = [x, at.w + header_bytes(problem)]
            for a in operands_of(problem):
                number = at.w + number_at(problem, a.index)
                reads.append(at.vectors[a.index] if a.kind == "vector" else number)
            call = PlanCall(core, tuple(range(1, len(reads))) if at.are_settled else ())
            return [LibraryRow(call, (*reads, y, workspace))]
        reads = [x, at.w]
        settled = [1]  # the filter: as constants, neither it nor vectors are ever written again
        residual: KernelArgument = 0
        for stage in problem.stages[: self.config.algorithm.stages]:
            if stage.mode == "bias":
                settled.append(len(reads))
                reads.append(at.vectors[stage.index])
            elif stage.mode == "add":
                other = problem.others[stage.index]
                residual = at.others[stage.index] + other.offset * other.itemsize
                reads.append(residual)
        if isinstance(core, FixedConvolution):
            bias = at.vectors[0] if at.vectors else 0
            return [LibraryRow(core, (x, at.w, y, bias, residual, workspace))]
        call = PlanCall(core, tuple(settled) if at.are_settled else ())
        return [LibraryRow(call, (*reads, y, workspace))]


def build(
    problem: ContractionProblem, config: AlgorithmConfig, core: Core, machine: Machine, load: Load
) -> ContractionExecutable:
    """Builds the executable of a configuration whose core exists: loads the kernels around it."""
    around = [prepare_of(problem, config.algorithm, machine), finish_of(problem, config.algorithm)]
    sums = sums_of(problem, config.algorithm)
    loaded = iter(load([*(launch for launch in around if launch is not None), *sums]))
    prepare, finish = (None if launch is None else next(loaded) for launch in around)
    return ContractionExecutable(problem, config, core, prepare, finish, tuple(loaded))


def core_of(
    problem: ContractionProblem,
    config: AlgorithmConfig,
    workspace_limit: int,
    machine: Machine,
    load: Load,
) -> Core:
    """Builds the core of a configuration: cuDNN's plan, its fixed function, or a kernel of ours.

    CuDNNError or UnsupportedError if cuDNN refuses it, which it only does if it has changed.
    """
    if config.algorithm.kernel is not None:
        core_problem = config.algorithm.of_core(problem)
        return load_contraction(core_problem, config.algorithm.kernel, config.engine, machine, load)
    if config.algorithm.core == FIXED:
        algorithm = config.algorithm
        convolution = fixed_convolution(
            problem, config.engine, algorithm.stages, target(problem, algorithm)
        )
        if isinstance(convolution, str):
            raise AssertionError(f"a remembered algorithm is refused: {convolution}")
        return convolution
    graph = graph_of(
        problem, config.algorithm.core, config.algorithm.stages, target(problem, config.algorithm)
    )
    return graph.build(
        choose=EngineConfig(config.engine, config.knobs),
        constraints=constraints_of(problem, workspace_limit),
    )


def prepare_of(
    problem: ContractionProblem, algorithm: CudaAlgorithm, machine: Machine
) -> Launch | None:
    """The kernel that runs before the core, if any: the producer of a gradient, the gather of an
    image with few channels, or the prologue."""
    if problem.producer is not None:
        return None if algorithm.producer else launch_of(problem.producer, problem.y, machine)
    if problem.gather is not None:
        gathers = print_gather_for_any_size if problem.any_size else print_gather
        return gathers(problem.batch, problem.x, problem.gathered, problem.gather)
    if not problem.before or algorithm.kernel is not None:
        return None
    prints = print_chain_for_any_size if problem.any_size else print_pointwise
    return prints(
        problem.batch,
        [problem.x],
        problem.prepared,
        problem.before_vectors,
        problem.before,
        round_steps=True,
    )


def target(problem: ContractionProblem, algorithm: CudaAlgorithm) -> TensorSpec:
    """The tensor that the core writes: the result, or its dense copy in the workspace."""
    return spec_of(problem.packed if algorithm.packed else problem.y, problem.batch)


def used(problem: ContractionProblem, stages: int) -> tuple[list[int], list[int], list[PointStep]]:
    """The indices of other tensors and of vectors that stages from number ``stages`` on read, and
    the steps of those stages, with arguments that are renumbered accordingly."""
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


def finish_of(problem: ContractionProblem, algorithm: CudaAlgorithm) -> Launch | None:
    """The kernel that runs after the core, if any: it computes the stages that the core leaves, and
    writes the view that is the result."""
    if algorithm.stages == len(problem.stages) and not algorithm.packed:
        return None
    tensors, vectors, steps = used(problem, algorithm.stages)
    first: Tensor = problem.packed if algorithm.packed else problem.y
    prints = print_chain_for_any_size if problem.any_size else print_pointwise
    return prints(
        problem.batch,
        [first, *(problem.others[i] for i in tensors)],
        problem.y,
        [problem.vectors[i] for i in vectors],
        steps,
    )


def sums_of(problem: ContractionProblem, algorithm: CudaAlgorithm) -> list[Launch]:
    """The kernels of the epilogue reduction, which read the result again; none if the core fuses
    it."""
    if problem.reduction is None or (
        algorithm.kernel is not None and algorithm.kernel.fuses_reduction
    ):
        return []
    sweep = sweep_of(problem)
    return [launch for launch in (sweep.first, sweep.parts) if launch is not None]


def workspace_bytes(problem: ContractionProblem, algorithm: CudaAlgorithm, workspace: int) -> int:
    """Bytes that an algorithm takes beside the tensors, when its core takes ``workspace``."""
    packed, prepared = _packed_bytes(problem, algorithm), _prepared_bytes(problem, algorithm)
    swept = bool(sums_of(problem, algorithm))
    reduction = (_passing_bytes(problem), sweep_of(problem).bytes) if swept else ()
    return sum(map(aligned, (workspace, packed, prepared, *reduction)))


def _passing_bytes(problem: ContractionProblem) -> int:
    """Bytes of a gradient that the epilogue reduction alone reads."""
    x = problem.x
    return problem.batch * x.image * x.itemsize if problem.passes else 0


def _prepared_bytes(problem: ContractionProblem, algorithm: CudaAlgorithm) -> int:
    """Bytes of the image that the gather or the prologue writes for the core."""
    if problem.gather is not None or (problem.before and algorithm.kernel is None):
        return problem.batch * problem.input.strides[0] * problem.x.itemsize
    return 0


def _packed_bytes(problem: ContractionProblem, algorithm: CudaAlgorithm) -> int:
    """Bytes of the dense result that the core writes if the algorithm is ``packed``."""
    y = problem.packed
    size = problem.batch * y.channels * y.rows * y.columns * ITEMSIZE[y.dtype]
    return size if algorithm.packed else 0
