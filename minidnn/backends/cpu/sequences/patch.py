"""Where the buffers of a patch lie in a thread's scratch memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from ....fusion.plan import KernelPlan
from ....graph.window import JoinName
from ...codegen.taps import is_looped
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
