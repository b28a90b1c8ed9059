"""The fastest configuration for a contraction: measured once, remembered on disk.

"heuristic" measures nothing and takes the first candidate that runs.  "quick" measures our kernels,
then cuDNN's first proposals for each algorithm that may be faster than they are, by its memory
traffic; engines that cuDNN compiles at run time are built only where they may save a share of the
plan's time.  "exhaustive" measures everything that cuDNN can build.
"""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial

from ....cache import CacheStore, digest
from ....cudnn.enums import ConvolutionFwdAlgo
from ....cudnn.errors import CuDNNError
from ....cudnn.gpu_lock import gpu_lock
from ....cudnn.graph import EngineConfig, Plan
from ....cudnn.graph.timing import Contestant, race
from ....cudnn.machine import device_name, library_name
from ....errors import MiniDNNWarning, OutOfMemoryError, UnsupportedError
from ....gpu import cupy
from ..functions import Load
from ..machine import Machine
from .algorithms import algorithms_for, last_resort, least_milliseconds, least_workspace
from .config import (
    FIXED,
    AlgorithmConfig,
    ContractionExecutable,
    Core,
    CudaAlgorithm,
    build,
    target,
    workspace_bytes,
)
from .fixed_function import FixedConvolution, algorithms_of, fixed_convolution
from .graphs import CONVOLUTION, constraints_of, graph_of
from .kernel_registry import load_contraction, refusals
from .memory import scratch_addresses
from .problem import Addresses, ContractionProblem

log = logging.getLogger(__name__)

_KEPT = 6
"""How many of the fastest configurations are remembered."""
_AGAIN = 2
"""How many of the fastest of one race take part in the next, against other candidates."""
_VERSION = 29
"""Part of the cache's keys: what another version has remembered is not found."""
_COMPILED = 1
"""How many of cuDNN's runtime-compiled engines are measured for an algorithm: building one takes a
second of a core, and on ResNet-50 and DenseNet-121 the first was within 1 % of the best of
eight."""
_PROPOSED = 4
_PROPOSED_COMPILED = 8
"""Precompiled engines are measured that are among the first four of cuDNN's proposals for a
convolution, and runtime-compiled ones among the first eight: on ResNet-50 and EfficientNet-B0 the
first four were within 0.2 % of the best of eight."""
_TRIED = 3
"""How many proposals for an algorithm are built when nothing is measured, should the first not run;
and how many are measured of algorithms whose engines differ less."""
_FOR_ALL_SIZES = (
    ConvolutionFwdAlgo.CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
    ConvolutionFwdAlgo.CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
)
"""cuDNN's algorithms that take any spatial size, the faster one first."""
_store = CacheStore("cuda_contraction", ".json", 64 << 20)

Ahead = dict[CudaAlgorithm, list[tuple[AlgorithmConfig, Core]]]
"""Candidates by their algorithms, with their cores, as far as these are built before a race."""


@dataclass(frozen=True)
class RankedConfigs:
    """What the cache remembers of a problem: configurations from fast to slow, and whether cuDNN's
    runtime-compiled engines were among those that raced."""

    configs: tuple[AlgorithmConfig, ...]
    compiled: bool


@dataclass(frozen=True)
class Tuning:
    """How configurations are chosen on the current device.

    Attributes:
        machine: the current device.
        tune: "heuristic", "quick" or "exhaustive".
        workspace_limit: bytes of workspace that a contraction may take, unless :meth:`limit` says
            more.
        load: compiles kernels of ours and loads them.
        spare: bytes of the plan's memory that are free while a contraction runs.
        taken: the configurations of another program of the same network.
    """

    machine: Machine
    tune: str
    workspace_limit: int
    load: Load
    spare: Mapping[ContractionProblem, int] = field(default_factory=dict)
    taken: Mapping[ContractionProblem, AlgorithmConfig] = field(default_factory=dict)

    def limit(self, problem: ContractionProblem) -> int:
        """Bytes of workspace that the problem may take: at least what all of its algorithms
        take."""
        needed = least_workspace(problem, self.machine)
        return max(self.workspace_limit, self.spare.get(problem, 0), needed)

    @property
    def device(self) -> str:
        """The name of the current device."""
        return device_name(cupy().cuda.runtime.getDevice())


def first(problem: ContractionProblem, tuning: Tuning) -> ContractionExecutable:
    """Builds the first candidate that runs; measures nothing."""
    for algorithm in (*algorithms_for(problem, tuning.machine), *last_resort(problem)):
        for config, core in _candidates(problem, algorithm, _TRIED, tuning):
            built = build(problem, config, core, tuning.machine, tuning.load)
            if _runs(built):
                return built
    raise _nothing(problem, tuning)


def again(problem: ContractionProblem, tuning: Tuning) -> ContractionExecutable | None:
    """Builds the configuration that another program takes, if it is a fixed function of cuDNN's
    that takes these sizes; it is not tried, as it has run there."""
    config = tuning.taken.get(problem)
    if config is None or config.algorithm.core != FIXED:
        return None
    algorithm = config.algorithm
    fixed = fixed_convolution(problem, config.engine, algorithm.stages, target(problem, algorithm))
    if isinstance(fixed, str) or workspace_bytes(
        problem, algorithm, fixed.workspace
    ) > tuning.limit(problem):
        return None
    return build(problem, config, fixed, tuning.machine, tuning.load)


def _runs(built: ContractionExecutable) -> bool:
    """Whether an executable runs without an error: cuDNN builds plans that then fail."""
    at, workspace, kept = scratch_addresses(built.problem, built.workspace, timed=False)
    try:
        built.bind(at, workspace)()
        cupy().cuda.get_current_stream().synchronize()
    except CuDNNError as error:
        log.info("%s cannot be executed: %s", built.config.algorithm_name(built.problem), error)
        return False
    del kept
    return True


def own(problem: ContractionProblem, tuning: Tuning) -> list[ContractionExecutable]:
    """Measures our kernels within the workspace limit; returns them from fast to slow."""
    algorithms = _algorithms(problem, tuning, own=True)
    candidates = {algorithm: _made(problem, algorithm, tuning) for algorithm in algorithms}
    return _raced(problem, _built(problem, candidates, tuning), tuning)


def certain(problem: ContractionProblem, tuning: Tuning) -> Ahead:
    """Builds cuDNN's candidates that :func:`everything` has, however fast our kernels are."""
    algorithms = _algorithms(problem, tuning, own=False)
    own_algorithms = _algorithms(problem, tuning, own=True)
    if own_algorithms and tuning.tune == "quick":
        least = partial(least_milliseconds, problem, machine=tuning.machine)
        own_least = min(map(least, own_algorithms))
        algorithms = [algorithm for algorithm in algorithms if least(algorithm) <= own_least]
    return _by_cudnn(problem, algorithms, {}, not own_algorithms, tuning)


def everything(
    problem: ContractionProblem, own: Sequence[ContractionExecutable], ahead: Ahead, tuning: Tuning
) -> list[ContractionExecutable]:
    """Builds what is to be measured in one race: the fastest of our kernels, and the candidates of
    cuDNN's, of which some were built ahead."""
    if own and tuning.tune == "quick":
        algorithms = _that_may_beat(problem, own[0], tuning)
    else:
        algorithms = _algorithms(problem, tuning, own=False)
    executables = [
        *own[:_AGAIN],
        *_built(problem, _by_cudnn(problem, algorithms, ahead, not own, tuning), tuning),
    ]
    if not executables:
        others = _by_cudnn(problem, last_resort(problem), {}, True, tuning)
        executables = _built(problem, others, tuning)
    if not executables:
        raise _nothing(problem, tuning)
    return executables


def compiles(built: ContractionExecutable) -> bool:
    """Whether its core is an engine that cuDNN compiles at run time."""
    proposal = built.core.proposal if isinstance(built.core, Plan) else None
    return proposal is not None and proposal.compiles


def gain(problem: ContractionProblem, fastest: ContractionExecutable, tuning: Tuning) -> float:
    """Milliseconds that cuDNN's runtime-compiled engines may save, by their algorithms' memory
    traffic.

    It is 0 where they have raced in any case, or never won: they are made for fused and grouped
    convolutions, and saved 0.02 % of plain convolutions' and products' time at most.
    """
    is_plain = problem.groups == 1 and not problem.stages
    if tuning.tune != "quick" or problem.is_exact or is_plain:
        return 0.0
    algorithms = _algorithms(problem, tuning, own=False)
    least = partial(least_milliseconds, problem, machine=tuning.machine)
    least_of_all = min(map(least, algorithms), default=math.inf)
    return max(0.0, (fastest.config.milliseconds or 0.0) - least_of_all)


def with_compiled(
    problem: ContractionProblem, ranked: Sequence[ContractionExecutable], tuning: Tuning
) -> list[ContractionExecutable]:
    """Builds what is to be measured in a second race: the fastest of the first, and cuDNN's
    runtime-compiled engines for algorithms that may be faster."""
    candidates = {
        algorithm: _made(problem, algorithm, tuning, compiles=True)
        for algorithm in _that_may_beat(problem, ranked[0], tuning)
    }
    return [*ranked[:_AGAIN], *_built(problem, candidates, tuning)]


def _by_cudnn(
    problem: ContractionProblem,
    algorithms: Sequence[CudaAlgorithm],
    ahead: Ahead,
    needed: bool,
    tuning: Tuning,
) -> Ahead:
    """The candidates of these algorithms, built where they were not built ahead.  If none is found
    but one is needed, as there is nothing else, runtime-compiled engines are built."""
    candidates = {
        algorithm: ahead[algorithm] if algorithm in ahead else _made(problem, algorithm, tuning)
        for algorithm in algorithms
    }
    if needed and not any(candidates.values()) and tuning.tune == "quick":
        return {
            algorithm: _made(problem, algorithm, tuning, compiles=True) for algorithm in algorithms
        }
    return candidates


def _algorithms(problem: ContractionProblem, tuning: Tuning, own: bool) -> list[CudaAlgorithm]:
    """The algorithms whose cores are our kernels (``own``), or those whose cores are cuDNN's."""
    algorithms = algorithms_for(problem, tuning.machine)
    return [algorithm for algorithm in algorithms if (algorithm.kernel is not None) is own]


def _that_may_beat(
    problem: ContractionProblem, fastest: ContractionExecutable, tuning: Tuning
) -> list[CudaAlgorithm]:
    """The algorithms whose cores are cuDNN's, and whose least time is below that of ``fastest``."""
    algorithms = _algorithms(problem, tuning, own=False)
    least = partial(least_milliseconds, problem, machine=tuning.machine)
    time = fastest.config.milliseconds or 0.0
    return [algorithm for algorithm in algorithms if least(algorithm) < time]


def _built(problem: ContractionProblem, made: Ahead, tuning: Tuning) -> list[ContractionExecutable]:
    """Builds the executables of candidates."""
    return [
        build(problem, config, core, tuning.machine, tuning.load)
        for pairs in made.values()
        for config, core in pairs
    ]


def _made(
    problem: ContractionProblem, algorithm: CudaAlgorithm, tuning: Tuning, compiles: bool = False
) -> list[tuple[AlgorithmConfig, Core]]:
    """Builds the candidates of an algorithm that are measured: of cuDNN's, unless all are, either
    those with runtime-compiled engines or those with precompiled ones."""
    most = _PROPOSED_COMPILED if compiles else _most(problem, algorithm, tuning.tune)
    return list(_candidates(problem, algorithm, most, tuning, compiles))


def measured(
    problem: ContractionProblem, found: Sequence[ContractionExecutable], tuning: Tuning
) -> list[ContractionExecutable]:
    """Measures executables; returns the fastest that run, from fast to slow, and among them the one
    that needs the least workspace."""
    if all(executable.config.milliseconds is not None for executable in found):
        return list(found)  # no executable of cuDNN's races
    ranked = _raced(problem, found, tuning)
    if not ranked:
        raise _nothing(problem, tuning)
    least = min(ranked, key=lambda executable: executable.config.workspace)
    kept = ranked[:_KEPT]
    return kept if any(executable is least for executable in kept) else [*kept[:-1], least]


def _raced(
    problem: ContractionProblem, found: Sequence[ContractionExecutable], tuning: Tuning
) -> list[ContractionExecutable]:
    """Races executables within the workspace limit; returns those that ran, from fast to slow."""
    with gpu_lock(cupy().cuda.runtime.getDevice()):  # filling memory would disturb others too
        built, (at, workspace, kept) = _fitting(problem, found, tuning.limit(problem))
        times = race([Contestant(executable.bind(at, workspace)) for executable in built])
        del kept
    order = sorted((ms, i) for i, ms in enumerate(times) if ms is not None)
    return [replace(built[i], config=replace(built[i].config, milliseconds=ms)) for ms, i in order]


def _fitting(
    problem: ContractionProblem, built: Sequence[ContractionExecutable], limit: int
) -> tuple[list[ContractionExecutable], tuple[Addresses, int, object]]:
    """The executables within the limit for whose workspace there is memory, and scratch memory.

    When memory is short, those that take the largest workspace are left out, with a warning.
    """
    fitting = sorted((b for b in built if b.workspace <= limit), key=lambda b: b.workspace)
    while fitting:
        most = fitting[-1].workspace
        try:
            at, workspace, kept = scratch_addresses(problem, most)
        except OutOfMemoryError as error:
            smaller = [b for b in fitting if b.workspace < most]
            if not smaller:
                raise
            text = f"{problem.describe()}: {error}; algorithms with less workspace are tried"
            log.warning(text)
            warnings.warn(text, MiniDNNWarning, stacklevel=2)
            fitting = smaller
            continue
        order = [b for b in built if any(b is other for other in fitting)]
        return order, (at, workspace, kept)
    return [], (Addresses(0, 0, 0), 0, None)


def _most(problem: ContractionProblem, algorithm: CudaAlgorithm, tune: str) -> int | None:
    """How many of cuDNN's proposals for an algorithm are measured; None for all: of our kernels,
    and of the fixed functions of gradients, of which the first may be the slowest."""
    gradient = algorithm.core == FIXED and problem.direction != "forward"
    if tune == "exhaustive" or algorithm.kernel is not None or gradient:
        return None
    return _PROPOSED if algorithm.core == CONVOLUTION and not algorithm.packed else _TRIED


def _candidates(
    problem: ContractionProblem,
    algorithm: CudaAlgorithm,
    most: int | None,
    tuning: Tuning,
    compiles: bool | None = None,
) -> Iterator[tuple[AlgorithmConfig, Core]]:
    """Builds candidates of an algorithm within the workspace limit: of the first ``most`` choices,
    algorithms or proposals.

    ``compiles`` says whether cuDNN's engines are runtime-compiled; None for both kinds.
    """
    workspace_limit = tuning.limit(problem)
    if algorithm.core == FIXED:
        yield from _fixed(problem, algorithm, most, workspace_limit)
        return
    if algorithm.kernel is not None:
        core_problem = algorithm.of_core(problem)
        for choice in algorithm.kernel.choices(core_problem, tuning.machine)[:most]:
            core = load_contraction(
                core_problem, algorithm.kernel, choice, tuning.machine, tuning.load
            )
            size = workspace_bytes(problem, algorithm, core.workspace)
            if size <= workspace_limit:
                yield AlgorithmConfig(algorithm, choice, (), size), core
        return
    core_limit = workspace_limit - workspace_bytes(problem, algorithm, 0)
    if core_limit < 0:
        return
    graph = graph_of(problem, algorithm.core, algorithm.stages, target(problem, algorithm))
    # The fastest engines for exact float32 are among those that no heuristic proposes, and few.
    all_engines = most is None or (problem.is_exact and tuning.tune == "quick")
    try:
        plans = graph.plans(
            defaults=all_engines,
            most=None if all_engines else most,
            most_compiled=_COMPILED if compiles is not None and not all_engines else None,
            compiles=None if all_engines else compiles,
            constraints=constraints_of(problem, core_limit),
        )
    except UnsupportedError as error:
        log.info("%s", error)
        return
    for plan in plans:
        config: EngineConfig = plan.config
        size = workspace_bytes(problem, algorithm, plan.workspace)
        yield AlgorithmConfig(algorithm, config.engine, config.knobs, size), plan


def _fixed(
    problem: ContractionProblem, algorithm: CudaAlgorithm, most: int | None, workspace_limit: int
) -> Iterator[tuple[AlgorithmConfig, FixedConvolution]]:
    """The candidates among cuDNN's fixed functions."""
    output = target(problem, algorithm)
    fixed_algorithms = list(algorithms_of(problem))
    if problem.any_size:
        fixed_algorithms = list(_FOR_ALL_SIZES)
    for fixed in fixed_algorithms[:most]:
        convolution = fixed_convolution(problem, int(fixed), algorithm.stages, output)
        if isinstance(convolution, str):
            log.debug("%s: %s: %s", problem.describe(), fixed.name, convolution)
            continue
        size = workspace_bytes(problem, algorithm, convolution.workspace)
        if size <= workspace_limit:
            yield AlgorithmConfig(algorithm, int(fixed), (), size), convolution


def _nothing(problem: ContractionProblem, tuning: Tuning) -> UnsupportedError:
    """The error for a problem that nothing computes within its workspace limit."""
    limit = tuning.limit(problem)
    reasons = refusals(problem, tuning.machine).items()
    return UnsupportedError(
        f"cuDNN has no way to compute {problem.describe()} within {limit} bytes of workspace; "
        f"of our kernels {'; '.join(f'not {name}: {reason}' for name, reason in reasons)}"
    )


def _key(problem: ContractionProblem, tuning: Tuning) -> str:
    """The key of a problem in the cache: all that the choice of a configuration depends on."""
    limit = tuning.limit(problem)
    return digest(
        "contraction", _VERSION, problem, tuning.tune, limit, tuning.device, library_name()
    )


def recall(problem: ContractionProblem, tuning: Tuning) -> RankedConfigs | None:
    """Returns what the cache remembers of a problem, if anything."""
    return _decode(_store.read(_key(problem, tuning)))


def remember(
    problem: ContractionProblem,
    tuning: Tuning,
    ranked: Sequence[ContractionExecutable],
    compiled: bool,
) -> None:
    """Stores what was measured on disk, and what cuDNN has compiled for the fastest.

    compiled: whether cuDNN's runtime-compiled engines were among those that raced.
    """
    if isinstance(ranked[0].core, Plan):
        ranked[0].core.keep()
    configs = [asdict(executable.config) for executable in ranked]
    entry = {"problem": problem.describe(), "ranked": configs, "compiled": compiled}
    text = json.dumps(entry, indent=1).encode()
    _store.put(_key(problem, tuning), text, label="contraction")


def _decode(data: bytes | None) -> RankedConfigs | None:
    """Decodes an entry; None if it is missing or malformed, and the caller then measures."""
    if data is None:
        return None
    try:
        entry = json.loads(data)
        configs = tuple(
            AlgorithmConfig(
                CudaAlgorithm(**row["algorithm"]),
                int(row["engine"]),
                tuple((int(k), int(v)) for k, v in row["knobs"]),
                int(row["workspace"]),
                float(row["milliseconds"]),
            )
            for row in entry["ranked"]
        )
        return RankedConfigs(configs, bool(entry["compiled"])) if configs else None
    except (ValueError, KeyError, TypeError):
        return None
