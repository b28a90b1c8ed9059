"""When the device's memory runs out; on a card that only counts bytes."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda import backend, captured, memory, prepare
from minidnn.backends.cuda.arrays import CUPY, CallerArray
from minidnn.backends.cuda.constants import Constants
from minidnn.backends.cuda.contraction import tune
from minidnn.backends.cuda.contraction.problem import ContractionProblem
from minidnn.backends.cuda.contraction.tune import Tuning
from minidnn.backends.cuda.memory import LEFT_FREE, Shortage, allocated, told, with_room
from minidnn.backends.cuda.program import CudaProgram
from minidnn.backends.cuda.table import CudaTable
from minidnn.cudnn.enums import Status
from minidnn.cudnn.errors import CuDNNError
from minidnn.errors import CompileError, MiniDNNWarning, OutOfMemoryError
from tests.cuda.cards import H200

from .greedy import Greedy, be_greedy, least, taken_by
from .lowered import problems_of

SHAPE = (8, 64, 56, 56)
THREE = L.Sequential(
    *(L.Conv2d(64, 64, 3, padding=1), L.ReLU(), L.Conv2d(64, 64, 3, padding=1), L.ReLU()),
    L.Conv2d(64, 64, 3, padding=1),
)
WIDE = L.Linear(4096, 2048)


class Full(MemoryError):
    """What CuPy raises."""


class CudaError(RuntimeError):
    """What CuPy raises for the runtime and for the driver."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(f"error {status}")


class Piece:
    """Allocated memory."""

    ptr = 0


class Card:
    """A GPU of so many bytes, all of which are the pool's, which keeps what is freed, and as under
    a limit of CuPy's does not look there when there is no more."""

    def __init__(self, size: int) -> None:
        self.size, self.used, self.kept = size, 0, 0
        self.most_used = 0

    def alloc(self, size: int) -> Piece:
        if self.used + self.kept + size > self.size:
            raise Full(f"Out of memory allocating {size} bytes")
        piece = Piece()
        self.used += size
        self.most_used = max(self.most_used, self.used)
        weakref.finalize(piece, self._freed, size)
        return piece

    def _freed(self, size: int) -> None:
        self.used, self.kept = self.used - size, self.kept + size

    def release(self) -> None:
        self.kept = 0

    @property
    def cupy(self) -> Any:
        runtime = SimpleNamespace(
            memGetInfo=lambda: (self.size - self.used - self.kept, self.size),
            getDevice=lambda: 0,
            CUDARuntimeError=CudaError,
        )
        pool = SimpleNamespace(free_all_blocks=self.release, get_limit=lambda: 0)
        cuda = SimpleNamespace(
            alloc=self.alloc,
            memory=SimpleNamespace(OutOfMemoryError=Full),
            runtime=runtime,
            driver=SimpleNamespace(CUDADriverError=CudaError),
        )
        return SimpleNamespace(cuda=cuda, get_default_memory_pool=lambda: pool)


class Held:
    """The memory of an instance."""

    def __init__(self, table: CudaTable, *rest: Any) -> None:
        self.piece = allocated(table.block.own_bytes, "activations and workspace")


class Hungry(Greedy):
    """Takes all the workspace that it may, as some of cuDNN's engines do."""

    def _most(self, problem: ContractionProblem) -> Any:
        return taken_by(self.tuning.limit(problem), problem)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    """A card that hungry choices are prepared on; its size is each test's."""
    made = Card(0)
    be_greedy(monkeypatch)
    monkeypatch.setattr(prepare, "Choice", Hungry)

    def upload(self: Constants) -> None:
        self._memory = allocated(self.bytes, "weights")
        self._making.clear()

    monkeypatch.setattr(Constants, "upload", upload)
    monkeypatch.setattr(captured, "Instance", Held)
    for module in (memory, captured):
        monkeypatch.setattr(module, "cupy", lambda: made.cupy)
    return made


def compiled(network: md.Layer, shape: tuple[int, ...], limit: int | None = None) -> CudaProgram:
    plan, tasks, _ = least(network, shape, "float32")
    return CudaProgram(plan, tasks, 0, H200, "quick", limit)


def needed(network: md.Layer, shape: tuple[int, ...]) -> int:
    return least(network, shape, "float32")[2]


@pytest.mark.parametrize("extra", [0, 1 << 20, 4 << 20])
def test_what_fits_is_chosen_where_the_first_choice_does_not(card: Card, extra: int) -> None:
    card.size = 1 << 40
    wanted = compiled(THREE, SHAPE).bytes
    card.release()
    assert card.used == 0
    card.size = needed(THREE, SHAPE) + LEFT_FREE + extra
    assert wanted > card.size, "the card is to be too small for the first choice"
    text = (
        r"no room for \d+ bytes of activations and workspace: .*; cuda:0 has "
        rf"{card.size} bytes free, of which {card.size - LEFT_FREE} may be taken, and algorithms"
    )
    with pytest.warns(MiniDNNWarning, match=text) as warned:
        made = compiled(THREE, SHAPE)
    assert len(warned) == 1
    assert made.bytes == card.used <= card.size - LEFT_FREE
    del made
    assert card.used == 0


def test_a_card_that_is_too_small_is_told_and_nothing_is_kept(card: Card) -> None:
    least_bytes = needed(THREE, SHAPE)
    card.size = least_bytes + LEFT_FREE - 1
    text = (
        rf"cuda:0 has {card.size} bytes free, of which {least_bytes - 1} may be taken; weights "
        rf"take \d+ and values with workspaces \d+, so at least {least_bytes} are needed"
    )
    with pytest.warns(MiniDNNWarning), pytest.raises(OutOfMemoryError, match=text) as caught:
        compiled(THREE, SHAPE)
    assert caught.value.__cause__ is caught.value.__context__ is None
    assert card.used == card.kept == 0  # though the error is still there


def test_weights_that_do_not_fit_are_told(card: Card) -> None:
    card.size = 30 << 20
    text = rf"so at least {needed(WIDE, (1, 4096))} are needed"
    warned = pytest.warns(MiniDNNWarning, match=r"no room for \d+ bytes of weights")
    with warned, pytest.raises(OutOfMemoryError, match=text):
        compiled(WIDE, (1, 4096))
    assert card.used == card.kept == 0


def test_a_limit_of_the_callers_is_not_tried_twice(card: Card) -> None:
    card.size = 1 << 40
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(OutOfMemoryError, match=r"^memory_limit=1000 bytes; weights take"):
            compiled(THREE, SHAPE, 1000)
    assert card.most_used == 0


@pytest.mark.parametrize("free", [1 << 40, LEFT_FREE])
def test_a_limit_of_the_callers_is_kept_whatever_is_free(card: Card, free: int) -> None:
    """Where the limit suffices and the card does not, less than the limit is taken."""
    limit = needed(THREE, SHAPE) + (100 << 20)
    card.size = limit - (100 << 20) + free
    fits = card.size > limit
    with nullcontext() if fits else pytest.warns(MiniDNNWarning):
        made = compiled(THREE, SHAPE, limit)
    assert made.bytes == card.used <= min(limit, card.size - LEFT_FREE)


def test_a_warning_that_is_an_error_keeps_nothing(card: Card) -> None:
    card.size = needed(THREE, SHAPE) + LEFT_FREE
    with warnings.catch_warnings():
        warnings.simplefilter("error", MiniDNNWarning)
        with pytest.raises(MiniDNNWarning, match="no room for"):
            compiled(THREE, SHAPE)
    assert card.used == card.kept == 0


class _Measuring(Hungry):
    """Has weights of its own in memory while it measures."""

    def made(self) -> dict[ContractionProblem, Any]:
        for problem in self.problems:
            allocated(problem.w.span * 4, "the tensors of a timing")
        return super().made()


def test_weights_are_laid_down_after_measuring_where_both_have_no_room(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "Choice", _Measuring)
    card.size = needed(WIDE, (1, 4096)) + LEFT_FREE
    with pytest.warns(MiniDNNWarning, match="no room for 33554432 bytes of the tensors of a tim"):
        made = compiled(WIDE, (1, 4096))
    assert card.most_used == card.used == made.bytes and card.kept == 0


def test_choices_are_found_again_where_a_little_more_is_free(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []

    class Noting(Hungry):
        def __init__(self, problems: Any, tuning: Tuning, pool: Any) -> None:
            super().__init__(problems, tuning, pool)
            limits.append(tuning.workspace_limit)

    monkeypatch.setattr(prepare, "Choice", Noting)
    for extra in (5 << 20, 7 << 20):
        card.size = needed(THREE, SHAPE) + LEFT_FREE + extra
        with pytest.warns(MiniDNNWarning):
            compiled(THREE, SHAPE)
        card.release()
    first, *_ = limits
    assert first == prepare.MOST_WORKSPACE
    assert {one for one in limits if one not in (0, first)} == {4 << 20}


@pytest.mark.usefixtures("card")
def test_other_instances_keep_to_what_was_free(card: Card) -> None:
    card.size = needed(THREE, SHAPE) + LEFT_FREE
    with pytest.warns(MiniDNNWarning):
        made = compiled(THREE, SHAPE)
    card.size = 1 << 40
    next(iter(made._instances.values())).is_idle = lambda: False  # type: ignore[method-assign]
    assert made._another() is not None and card.used == needed(THREE, SHAPE)


@pytest.mark.usefixtures("card")
def test_where_cuda_finds_no_room_for_another_graph(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams take turns, and arrays are not bound."""
    card.size = 1 << 40
    made = compiled(THREE, SHAPE)
    (first,) = made._instances.values()
    first.is_idle = lambda: False  # type: ignore[method-assign]

    def without_room(*given: Any) -> None:
        raise CudaError(2)

    monkeypatch.setattr(captured, "Instance", without_room)
    assert made._another() is first
    monkeypatch.setattr(captured, "read", lambda slot, array, device: array)
    monkeypatch.setattr(made, "_results", lambda library, out: [])
    for name in ("as_it_is", "check_aligned", "check_no_overlap", "outputs_of"):
        monkeypatch.setattr(captured, name, lambda *given: True)
    given = CallerArray(0, CUPY, None)
    monkeypatch.setattr(made, "_outputs", [])
    with pytest.raises(OutOfMemoryError, match="no room for what CUDA needs itself: error 2"):
        made.bind([given], None)


OURS = [
    CudaError(2),
    CuDNNError(Status.CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, "cudnnCreate"),
    CuDNNError(Status.CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED, "cudnnCreate"),
]
OTHERS = [CudaError(1), CuDNNError(Status.CUDNN_STATUS_EXECUTION_FAILED), CompileError("no")]


@pytest.mark.parametrize("error", OURS, ids=repr)
@pytest.mark.usefixtures("card")
def test_memory_that_cuda_does_not_find_is_a_shortage(error: Exception) -> None:
    with pytest.raises(Shortage, match="no room for what CUDA needs itself: "), told():
        raise error


def test_no_room_for_a_context_is_told(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA makes one when it is first asked for anything of the device."""
    module = card.cupy

    def without_room() -> None:
        raise CudaError(2)

    module.cuda.runtime.memGetInfo = without_room
    monkeypatch.setattr(memory, "cupy", lambda: module)
    monkeypatch.setattr(captured, "cupy", lambda: module)
    monkeypatch.setattr(backend, "cupy", lambda: module)
    monkeypatch.setattr(backend, "machine_of", lambda index: H200)
    plan, _, _ = least(THREE, SHAPE, "float32")
    with pytest.raises(OutOfMemoryError, match="no room for what CUDA needs itself: error 2"):
        backend.CudaBackend(0).compile(plan, "float32", {})


@pytest.mark.parametrize("error", OTHERS, ids=repr)
@pytest.mark.usefixtures("card")
def test_other_errors_are_none(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, told():
        raise error
    assert caught.value is error


def test_what_a_pool_keeps_is_freed_before_it_is_full(card: Card) -> None:
    card.size = 100
    first = allocated(80, "numbers")
    del first
    assert card.kept == 80
    second = allocated(60, "numbers")
    assert card.used == 60 and card.kept == 0
    with pytest.raises(Shortage, match="no room for 50 bytes of numbers: Out of memory"):
        allocated(50, "numbers")
    calls: list[int] = []

    def fails() -> None:
        calls.append(1)
        raise CudaError(1)

    with pytest.raises(CudaError):
        with_room(fails, "nothing")
    assert len(calls) == 1 and second is not None


def test_a_pool_with_a_limit_has_what_is_left_of_it(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    card.size = 200 << 20
    module = card.cupy
    pool = SimpleNamespace(
        free_all_blocks=card.release, get_limit=lambda: 100 << 20, total_bytes=lambda: 30 << 20
    )
    module.get_default_memory_pool = lambda: pool
    monkeypatch.setattr(memory, "cupy", lambda: module)
    found = memory._what_is_free(None)
    assert found.bytes == (70 << 20) - LEFT_FREE and found.short


class _Sized:
    """A candidate of which only the workspace counts."""

    def __init__(self, workspace: int) -> None:
        self.workspace = workspace


@pytest.mark.parametrize("room, left, warned", [(50, [10, 50], 1), (20, [10], 2), (5, [], 2)])
def test_candidates_without_room_are_left_out(
    room: int, left: Sequence[int], warned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the last one there is nothing less to try, so nothing is said of it."""
    (problem,) = problems_of(L.Conv2d(8, 8, 3), (1, 8, 9, 9), "float32")

    def scratch(problem: ContractionProblem, workspace: int) -> tuple[Any, int, Any]:
        if workspace > room:
            raise Shortage(f"no room for {workspace} bytes")
        return "at", 0, None

    monkeypatch.setattr(tune, "scratch_addresses", scratch)
    candidates: Any = [_Sized(size) for size in (50, 10, 60, 1000)]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if left:
            found, _ = tune._fitting(problem, candidates, 100)
            assert sorted(one.workspace for one in found) == left
        else:
            with pytest.raises(Shortage, match="no room for 10 bytes"):
                tune._fitting(problem, candidates, 100)
    assert len(said) == warned
    assert all("with less workspace are tried" in str(one.message) for one in said)
