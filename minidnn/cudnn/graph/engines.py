"""Engines and their knobs: what cuDNN proposes for a graph, and which proposals may be used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from minidnn.cudnn.enums import is_coarse_winograd
from minidnn.cudnn.errors import CuDNNError
from minidnn.cudnn.graph.attributes import Attribute as A
from minidnn.cudnn.graph.descriptor import BackendDescriptor
from minidnn.cudnn.graph.device import Target
from minidnn.cudnn.graph.enums import AttributeType as T
from minidnn.cudnn.graph.enums import BehaviorNote, HeuristicMode, NumericalNote
from minidnn.cudnn.graph.enums import DescriptorType as D
from minidnn.cudnn.graph.spec import Constraints, Convolution, GraphSpec

MODES = {
    "A": HeuristicMode.CUDNN_HEUR_MODE_A,
    "B": HeuristicMode.CUDNN_HEUR_MODE_B,
    "fallback": HeuristicMode.CUDNN_HEUR_MODE_FALLBACK,
}
_MOST_PROPOSALS = 256
_MOST_KNOBS = 64
_MOST_NOTES = 32


@dataclass(frozen=True)
class EngineConfig:
    """An engine by its global index, with the value of each of its knobs."""

    engine: int
    knobs: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        return f"eng{self.engine}" + "".join(f"_k{kind}={value}" for kind, value in self.knobs)


@dataclass(frozen=True)
class Proposal:
    """A configuration, cuDNN's notes on its engine, and the heuristic (or "default") it is from."""

    config: EngineConfig
    numerical: tuple[NumericalNote, ...]
    behavior: tuple[BehaviorNote, ...]
    source: str

    @property
    def deterministic(self) -> bool:
        return NumericalNote.CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC not in self.numerical

    @property
    def tensor_core(self) -> bool:
        return NumericalNote.CUDNN_NUMERICAL_NOTE_TENSOR_CORE in self.numerical

    @property
    def compiles(self) -> bool:
        """Whether the engine compiles its kernel when the plan is built."""
        return BehaviorNote.CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION in self.behavior


_TRANSFORMS = (
    NumericalNote.CUDNN_NUMERICAL_NOTE_FFT,
    NumericalNote.CUDNN_NUMERICAL_NOTE_WINOGRAD,
    NumericalNote.CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4,
    NumericalNote.CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6,
    NumericalNote.CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13,
)
_UNMARKED = {("backward_filter", 17): NumericalNote.CUDNN_NUMERICAL_NOTE_WINOGRAD}
"""Numerical notes that cuDNN 9.19 omits, by kind of convolution and engine.

Heuristic A proposes this engine.  Its errors are those of CUDNN_CONVOLUTION_BWD_FILTER_ALGO_
WINOGRAD_NONFUSED to all digits: 4e-6 of the result's norm in float32 with 3 x 3 windows, 1.2e-3
with 5 x 5.
"""

_WIDE_POOLING = 3
"""The pooling engine that gives wrong results and writes out of bounds for bfloat16."""

_OTHER_SUMS = (0, 28)
"""Engines whose int32 sums of int8 and uint8 convolutions are wrong."""

_INT8_REORDER = (
    BehaviorNote.CUDNN_BEHAVIOR_NOTE_REQUIRES_FILTER_INT8x32_REORDER,
    BehaviorNote.CUDNN_BEHAVIOR_NOTE_REQUIRES_BIAS_INT8x32_REORDER,
)


def rejection(proposal: Proposal, spec: GraphSpec, constraints: Constraints) -> str | None:
    """Why an engine may not be used under these constraints, or None.

    Engines that convert inputs to a narrower type, or accumulate in one, are always rejected;
    those that round float32 products to TF32 are rejected unless TF32 is allowed.
    """
    notes = _notes(proposal, spec)
    if NumericalNote.CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS in notes:
        return "it converts its inputs to a narrower type"
    if NumericalNote.CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION in notes:
        return "it keeps sums in a narrower type"
    if spec.contracts_float32 and not constraints.tf32:
        if proposal.tensor_core:
            return "it rounds float32 products to TF32"
        if BehaviorNote.CUDNN_BEHAVIOR_NOTE_CUBLASLT_DEPENDENCY in proposal.behavior:
            # cuDNN 9.19 lets cuBLASLt use TF32 without the note above: errors of 3e-4.
            return "it leaves float32 products to cuBLASLt, which may round them to TF32"
        if any(is_coarse_winograd(note.name, size) for note in notes for size in spec.windows):
            return "it is less accurate than TF32 in float32 with windows over 3"
    if proposal.config.engine == _WIDE_POOLING and spec.pools_bfloat16:
        return "it writes float32 over bfloat16 outputs (seen with cuDNN 9.19)"
    if proposal.config.engine in _OTHER_SUMS and spec.sums_bytes:
        return "it writes wrong int32 sums of bytes (seen with cuDNN 9.19)"
    if constraints.deterministic and not proposal.deterministic:
        return "it is not deterministic"
    if constraints.accuracy == "high" and any(note in _TRANSFORMS for note in notes):
        return "it computes through Winograd or FFT"
    if any(note in _INT8_REORDER for note in proposal.behavior):
        return "it needs reordered int8 filters"
    return None


def _notes(proposal: Proposal, spec: GraphSpec) -> tuple[NumericalNote, ...]:
    """cuDNN's numerical notes on a proposal, and those that cuDNN omits."""
    kinds = [node.kind for node in spec.nodes if isinstance(node, Convolution)]
    omitted = [_UNMARKED.get((kind, proposal.config.engine)) for kind in kinds]
    return (*proposal.numerical, *(note for note in omitted if note is not None))


def is_last_resort(proposal: Proposal, spec: GraphSpec) -> bool:
    """Whether an engine is only worth building when there is no other.

    It holds for default configurations that no heuristic proposes and whose engines compile and
    use no tensor cores.  They take up to 25 s to compile (cuDNN 9.19, engine 80, 3x3 with 128
    channels in half precision), and they cannot win where others use tensor cores.
    """
    return (
        proposal.source == "default"
        and proposal.compiles
        and not proposal.tensor_core
        and spec.contracts
    )


def proposals(
    graph: BackendDescriptor,
    target: Target,
    modes: Sequence[str] = ("A", "B", "fallback"),
    *,
    defaults: bool = False,
) -> Iterator[Proposal]:
    """Yields what cuDNN's heuristics propose, heuristic by heuristic, best first, no duplicates.

    With ``defaults`` every engine that accepts the graph follows with its default knobs, which
    makes the list exhaustive in engines.
    """
    seen: set[EngineConfig] = set()
    for mode in modes:
        for config in _configs(graph, target, mode):
            with config:
                proposal = _read(config, mode)
            if proposal.config not in seen:
                seen.add(proposal.config)
                yield proposal
    if defaults:
        for proposal in _default_proposals(graph, target):
            if proposal.config not in seen:
                yield proposal


def _configs(graph: BackendDescriptor, target: Target, mode: str) -> list[BackendDescriptor]:
    """The configurations that one heuristic proposes, as new descriptors, best first."""
    heuristic = BackendDescriptor(D.CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)
    with heuristic:
        descriptor = T.CUDNN_TYPE_BACKEND_DESCRIPTOR
        heuristic.set(A.CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, descriptor, graph)
        heuristic.set(A.CUDNN_ATTR_ENGINEHEUR_MODE, T.CUDNN_TYPE_HEUR_MODE, MODES[mode])
        if target.properties is not None:
            heuristic.set(A.CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, descriptor, target.properties)
        try:
            heuristic.finalize()
        except CuDNNError as error:
            if error.unsupported:
                return []  # this heuristic knows no engine for such graphs
            raise
        return heuristic.get_descriptors(
            A.CUDNN_ATTR_ENGINEHEUR_RESULTS, D.CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, _MOST_PROPOSALS
        )


def _read(config: BackendDescriptor, source: str) -> Proposal:
    """The proposal that the descriptor of a configuration holds."""
    engines = config.get_descriptors(
        A.CUDNN_ATTR_ENGINECFG_ENGINE, D.CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1
    )
    choices = config.get_descriptors(
        A.CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, D.CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, _MOST_KNOBS
    )
    knobs = []
    for choice in choices:
        with choice:
            kind = choice.get(A.CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, T.CUDNN_TYPE_KNOB_TYPE)[0]
            value = choice.get(A.CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, T.CUDNN_TYPE_INT64)[0]
            knobs.append((int(kind), int(value)))
    with engines[0] as engine:
        return _proposal(engine, tuple(sorted(knobs)), source)


def _proposal(
    engine: BackendDescriptor, knobs: tuple[tuple[int, int], ...], source: str
) -> Proposal:
    index = engine.get(A.CUDNN_ATTR_ENGINE_GLOBAL_INDEX, T.CUDNN_TYPE_INT64)[0]
    numerical = engine.get(
        A.CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, T.CUDNN_TYPE_NUMERICAL_NOTE, _MOST_NOTES
    )
    behavior = engine.get(
        A.CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, T.CUDNN_TYPE_BEHAVIOR_NOTE, _MOST_NOTES
    )
    known = [NumericalNote(n) for n in sorted(numerical) if n in set(NumericalNote)]
    behaviors = [BehaviorNote(n) for n in sorted(behavior) if n in set(BehaviorNote)]
    return Proposal(EngineConfig(int(index), knobs), tuple(known), tuple(behaviors), source)


def _default_proposals(graph: BackendDescriptor, target: Target) -> list[Proposal]:
    """Every engine that accepts the graph, with its default knobs."""
    count = graph.get(A.CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, T.CUDNN_TYPE_INT64)[0]
    accepted = []
    for index in range(count):
        try:
            with engine(graph, target, index) as made:
                accepted.append(_proposal(made, (), "default"))
        except CuDNNError as error:
            if not error.unsupported:
                raise
    return accepted


def engine(graph: BackendDescriptor, target: Target, index: int) -> BackendDescriptor:
    """The engine of that global index for a graph.

    Raises:
        CuDNNError: the engine does not support the graph.
    """
    made = BackendDescriptor(D.CUDNN_BACKEND_ENGINE_DESCRIPTOR)
    descriptor = T.CUDNN_TYPE_BACKEND_DESCRIPTOR
    made.set(A.CUDNN_ATTR_ENGINE_OPERATION_GRAPH, descriptor, graph)
    made.set(A.CUDNN_ATTR_ENGINE_GLOBAL_INDEX, T.CUDNN_TYPE_INT64, index)
    if target.properties is not None:
        made.set(A.CUDNN_ATTR_ENGINE_DEVICEPROP, descriptor, target.properties)
    return made.finalize()


def compiles(graph: BackendDescriptor, target: Target, config: EngineConfig) -> bool:
    """Whether the engine of a configuration compiles its kernel when a plan is built."""
    with engine(graph, target, config.engine) as made:
        return _proposal(made, config.knobs, "").compiles


def execution_plan(
    graph: BackendDescriptor, target: Target, config: EngineConfig
) -> BackendDescriptor:
    """The finalized plan of a configuration; may compile a kernel.

    Raises:
        CuDNNError: the configuration does not support the graph.
    """
    choices = []
    for kind, value in config.knobs:
        choice = BackendDescriptor(D.CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR)
        choice.set(A.CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, T.CUDNN_TYPE_KNOB_TYPE, kind)
        choice.set(A.CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, T.CUDNN_TYPE_INT64, value)
        choices.append(choice.finalize())
    descriptor = T.CUDNN_TYPE_BACKEND_DESCRIPTOR
    made = BackendDescriptor(D.CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)
    made.set(A.CUDNN_ATTR_ENGINECFG_ENGINE, descriptor, engine(graph, target, config.engine))
    if choices:
        made.set(A.CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, descriptor, *choices)
    made.finalize()
    plan = BackendDescriptor(D.CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)
    if target.handle is not None:
        plan.set(A.CUDNN_ATTR_EXECUTION_PLAN_HANDLE, T.CUDNN_TYPE_HANDLE, target.handle)
    if target.properties is not None:
        plan.set(A.CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, descriptor, target.properties)
    plan.set(A.CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, descriptor, made)
    return plan.finalize()
