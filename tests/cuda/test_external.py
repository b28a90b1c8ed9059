"""Which instances on external buffers there are, without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from minidnn.backends.cuda import instance
from minidnn.backends.cuda.arrays import CUPY, HOST_TO_DEVICE, CallerArray
from minidnn.backends.cuda.block import Block
from minidnn.backends.cuda.external import ExternalInstances
from minidnn.backends.cuda.instance import SharedArena
from minidnn.backends.cuda.table import CudaTable, KernelRow, LibraryRow
from minidnn.cudnn import driver
from minidnn.errors import OutOfMemoryError
from minidnn.runtime.operand import Operand


class Made:
    """What is made in the place of instances, with its arguments."""

    def __init__(self) -> None:
        self.arguments: list[tuple[list[int | None], Sequence[int]]] = []
        self.places: list[int] = []
        self.is_full = False

    def __call__(
        self, external: Sequence[int | None], fixed: Sequence[int], arena: SharedArena
    ) -> Any:
        if self.is_full:
            raise OutOfMemoryError("full")
        self.arguments.append((list(external), fixed))
        self.places.append(arena.memory(100)[0])
        return SimpleNamespace()


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose memory begins at its size in bytes."""
    monkeypatch.setattr(driver, "driver", lambda: object())
    monkeypatch.setattr(instance, "allocated", lambda size, what: SimpleNamespace(ptr=size))
    cuda = SimpleNamespace(Event=lambda **given: object())
    monkeypatch.setattr(instance, "cupy", lambda: SimpleNamespace(cuda=cuda))


def instances(size: int = 100, arena: int = 100) -> ExternalInstances:
    """Of a kernel between an input and an intermediate value, and a library between this and the
    output, which has so many bytes; ``arena`` is what lies between."""
    kernel = KernelRow(SimpleNamespace(), (Operand(1), Operand(0)))  # type: ignore[arg-type]
    library = LibraryRow(SimpleNamespace(), (Operand(0), Operand(2)))  # type: ignore[arg-type]
    block = Block(arena, arena + 200, (0,), (0,), {})
    return ExternalInstances(CudaTable(((kernel, library),), block, (100,), (size,), ()))


def ends(first: int, second: int, kind: int = CUPY.written) -> list[CallerArray]:
    return [CallerArray(first, CUPY, None, kind), CallerArray(second, CUPY, None)]


def test_one_is_made_for_addresses_of_libraries_that_come_again() -> None:
    made = Made()
    found = instances()
    assert found.places == (1,)
    assert found.of(ends(0x100, 0x200), made) is None
    first = found.of(ends(0x300, 0x200), made)
    assert first is not None and found.of(ends(0x400, 0x200), made) is first
    assert made.arguments == [([0x300, 0x200], (1,))]
    assert made.places == [found.bytes] == [100]


@pytest.mark.parametrize("shares", [False, True])
def test_one_of_small_ends_is_made_only_where_there_is_no_other_memory(shares: bool) -> None:
    found = instances(size=50)
    if shares:
        found.share(0)
    for _ in range(3):
        assert (found.of(ends(0x100, 0x200), Made()) is not None) is shares


def test_programs_without_other_memory_share_that_of_the_largest() -> None:
    made = Made()
    small, large, own = (instances(arena=size) for size in (100, 700, 100))
    instances(arena=900).share(3, reserves=False)
    for each, device in ((small, 3), (large, 3), (own, 4)):
        each.share(device)
        assert not each.bytes
    for each in (small, large, small, own):
        assert each.of(ends(0x100, 0x200 * (1 + len(made.places))), made) is not None
    assert made.places == [700, 700, 700, 100]
    assert (small.bytes, large.bytes, own.bytes) == (700, 700, 100)


def test_ends_that_kernels_do_not_reach_have_memory_of_the_instances() -> None:
    made = Made()
    found = instances()
    found.share(0)
    assert found.of(ends(0x101, 0x200), made) is not None
    assert found.of(ends(0x100, 0x400, HOST_TO_DEVICE), made) is not None
    assert [external for external, _ in made.arguments] == [[None, 0x200], [None, 0x400]]
    assert found.of(ends(0x100, 0x301), made) is None  # a library takes it


def test_addresses_in_no_order_have_few_and_those_that_come_often_get_one() -> None:
    made = Made()
    found = instances()
    found.share(0)
    for at in range(0x1000, 0x9000, 0x100):
        found.of(ends(0x100, at), made)
    assert len(made.arguments) == len(found.kept) == 3
    often = [found.of(ends(0x100, 0x200), made) for _ in range(200)]
    assert often[0] is None and often[-1] is not None
    assert len(made.arguments) == 4 and len(found.kept) == 3


def test_memory_that_is_given_to_work_in_is_no_program_s_own() -> None:
    made = Made()
    found = instances()
    found.share(0)
    first = found.of(ends(0x100, 0x200), made, donated=0x8000)
    assert first is not None and found.bytes == 0
    assert found.of(ends(0x300, 0x200), made, donated=0x8000) is first
    own, other = (
        found.of(ends(0x100, 0x200), made),
        found.of(ends(0x100, 0x200), made, donated=0x9000),
    )
    assert len({id(each) for each in (first, own, other, None)}) == 4
    assert made.places == [0x8000, found.bytes, 0x9000]


def test_where_there_is_no_room_all_are_copied() -> None:
    made = Made()
    found = instances()
    found.share(0)
    made.is_full = True
    assert found.of(ends(0x100, 0x200), made) is None
    made.is_full = False
    assert found.of(ends(0x100, 0x200), made) is None  # nor later: what there is suffices


def test_an_old_driver_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "driver", lambda: None)
    found = instances()
    found.share(0)
    assert found.of(ends(0x100, 0x200), Made()) is None
