"""What the steps of a sequence see of a patch: where its planes lie, in a thread's scratch memory
or in the caller's tensors, and the functions that steps are printed as, which kernels share."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ....fusion.plan import KernelPlan
from ....graph.window import JoinName
from ...codegen.kernel import shared_function
from ...codegen.taps import is_looped
from ..tensor import ELEMENTS, Access, Element
from .window import overhang


@dataclass
class Storage:
    """Memory that planes share, with columns beside each row for what windows read there."""

    lanes: int
    rows: int
    columns: int
    members: list[int] = field(default_factory=list)
    #: Columns before and after each row; they hold the identity of a join.
    before: int = 0
    after: int = 0
    join: JoinName | None = None

    @property
    def pitch(self) -> int:
        """Floats from one row to the next."""
        return (self.before + self.columns + self.after) * self.lanes

    def span(self, plan: KernelPlan) -> tuple[int, int]:
        """The columns that the first patch of columns keeps."""
        (patch, *_) = plan.patches(1)
        spans = [plan.planes[number].columns.interval(*patch) for number in self.members]
        return min(begin for begin, _ in spans), max(end for _, end in spans)


def storages_of(plan: KernelPlan, lanes: int) -> list[Storage]:
    """The storages of a plan's buffers, in their order."""
    found: dict[int, Storage] = {}
    for number, plane in enumerate(plan.planes):
        if plane.buffer is not None:
            place = plane.buffer
            storage = found.setdefault(place.storage, Storage(lanes, place.rows, place.columns))
            storage.members.append(number)
    for step in plan.steps:
        for operation in step.operations:
            if operation.window is None or is_looped(operation.window):
                continue
            source = plan.planes[operation.operands[0]]
            assert source.buffer is not None
            storage = found[source.buffer.storage]
            before, after = overhang(operation.window.whole[1], source.extent[1])
            storage.before = max(storage.before, before)
            storage.after = max(storage.after, after)
            storage.join = storage.join or operation.window.join
    return [found[i] for i in sorted(found)]


def identity_columns(plan: KernelPlan) -> int:
    """How many columns a window may read of a row that lies outside of the plane."""
    most = 0
    for step in plan.steps:
        outputs = max(
            end - begin for begin, end in map(lambda p: step.columns.interval(*p), plan.patches(1))
        )
        for operation in step.operations:
            if operation.window is not None and not is_looped(operation.window):
                _, axis = operation.window.whole
                most = max(most, (outputs - 1) * axis.stride + axis.reach)
    return most


@dataclass(frozen=True)
class Ring:
    """How a buffered plane is addressed: its storage and row shift are arguments."""

    rows: int
    #: Floats from one row to the next.
    pitch: int
    pointer: str
    shift: int
    #: Where the plane's column 0 lies, in columns.
    origin: str


@dataclass(frozen=True)
class CallerTensor:
    """An input or output: how its lanes lie, and its pointer and offsets in the caller."""

    access: Access
    pointer: str
    #: Elements from one pixel to the next, pixels of a row, and elements between channels.
    pixel: int
    columns: int
    plane: int
    lanes: str = ""
    #: Lanes that an output has to fill, with zeros past its channels.
    fill: str = ""
    #: The part of an output that is written, if it is not all that is computed.
    rows: tuple[str, str] | None = None
    own_columns: tuple[str, str] | None = None
    #: Whether it is so large that caches would not keep it until it is read.
    is_large: bool = False
    element: Element = ELEMENTS["float32"]


@dataclass(frozen=True)
class PlaneView:
    """A plane as a step sees it."""

    extent: tuple[int, int]
    ring: Ring | None = None
    input: CallerTensor | None = None
    output: CallerTensor | None = None
    #: Whether the ring's edge columns hold the identity of the window that reads it.
    padded: bool = True


@dataclass
class StepFunction:
    """The text of a function, with <name> for its name, and the arguments of one call."""

    text: str
    arguments: list[str]
    scratch_floats: int


class StepFunctions:
    """The functions of a kernel's steps, and calls of them."""

    def __init__(self) -> None:
        #: By text, what stands for the name until all calls are known.
        self._marks: dict[str, str] = {}
        #: By mark, the arguments of each call that are numbers.
        self._constants: dict[str, set[tuple[str, ...]]] = {}

    def call(self, function: StepFunction) -> str:
        mark = self._marks.setdefault(function.text, f"$_s{len(self._marks)}")
        constants = ("" if re.search("[a-z]", each) else each for each in function.arguments)
        self._constants.setdefault(mark, set()).add(tuple(constants))
        return f"{mark}({', '.join(['yb', 'ye', *function.arguments])});"

    def named(self, text: str) -> tuple[str, list[str]]:
        """A text with calls of them, by their names, and their texts."""
        found = {
            mark: shared_function("seq_step", function, *sorted(self._constants[mark]))
            for function, mark in self._marks.items()
        }
        text = re.sub(r"\$_s\d+", lambda mark: found[mark[0]][0], text)
        return text, [function for _, function in found.values()]
