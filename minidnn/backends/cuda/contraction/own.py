"""Our own kernels of contractions, side by side: what each one is asked for.

A *core* names a kernel, a *choice* one of its shapes: an index of tiles, streams, strips or shapes,
how many filters or pixels a block makes, or into how many parts sums are divided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ....cudnn._cupy import cupy
from ..functions import Loaded, Run, in_turn
from ..kernels import Launch
from ..machine import machine_of
from . import depthwise, direct, halo, rows, stream, tile, tile_choice, window, winograd
from .problem import Addresses, ContractionProblem

TILE = "tile"
HALO = "halo"
STREAM = "stream"
WINDOW = "window"
ROWS = "rows"
DEPTHWISE = "depthwise"
WINOGRAD = "winograd"
DIRECT = "direct"

Load = Callable[[Sequence[Launch]], list[Loaded]]
Arguments = Callable[[ContractionProblem, int, Addresses, int, int], list[list[int]]]


@dataclass(frozen=True)
class _Own:
    """What is asked of one of our kernels.

    ``choices``: worth measuring on an architecture, the most promising first; ``launches`` and
    ``arguments``: the kernels of one, and what each takes (the image's address and the workspace's
    come last); ``room``: bytes of that workspace; ``shown``: its name.
    """

    choices: Callable[[ContractionProblem, str], list[int]]
    launches: Callable[[ContractionProblem, int], Sequence[Launch]]
    arguments: Arguments
    shown: Callable[[int], str]
    room: Callable[[ContractionProblem, int], int] = lambda problem, choice: 0


def _usual(sizes: Callable[[ContractionProblem, int], list[int]]) -> Arguments:
    """One kernel that takes all pointers and then these numbers."""

    def arguments(
        problem: ContractionProblem, choice: int, at: Addresses, x: int, workspace: int
    ) -> list[list[int]]:
        reads = (x, at.w, *at.others, *at.vectors, *at.before)
        return [[*reads, at.y, *sizes(problem, choice)]]

    return arguments


_KERNELS: Mapping[str, _Own] = {
    TILE: _Own(
        tile_choice.candidates,
        lambda problem, i: [tile.launch_of(problem, i, multiprocessors())],
        _usual(tile.sizes_of),
        tile_choice.DIVISIONS.shown,
    ),
    HALO: _Own(
        halo.widths,
        lambda problem, width: [halo.launch_of(problem, width, multiprocessors())],
        _usual(lambda problem, width: halo.sizes_of(problem, width, multiprocessors())),
        lambda width: f"of {width} filters",
    ),
    STREAM: _Own(
        stream.candidates,
        lambda problem, i: [stream.launch_of(problem, stream.STREAMS[i], multiprocessors())],
        _usual(lambda problem, i: stream.sizes_of(problem, stream.STREAMS[i])),
        lambda i: str(stream.STREAMS[i]),
    ),
    WINDOW: _Own(
        window.candidates,
        lambda problem, tiles: [window.launch_of(problem, tiles, multiprocessors())],
        _usual(window.sizes_of),
        lambda tiles: f"of {2 * tiles * 64} pixels",
    ),
    ROWS: _Own(
        lambda problem, arch: rows.parts_for(problem),
        rows.launches_of,
        rows.arguments_of,
        lambda parts: f"in {parts} parts",
        rows.room_of,
    ),
    DEPTHWISE: _Own(
        depthwise.candidates,
        lambda problem, i: [depthwise.launch_of(problem, depthwise.STRIPS[i])],
        _usual(lambda problem, i: depthwise.sizes_of(problem, depthwise.STRIPS[i])),
        lambda i: str(depthwise.STRIPS[i]),
    ),
    WINOGRAD: _Own(
        lambda problem, arch: winograd.candidates(problem),
        winograd.launches_of,
        winograd.arguments_of,
        winograd.DIVISIONS.shown,
        winograd.room_of,
    ),
    DIRECT: _Own(
        lambda problem, arch: direct.candidates(problem),
        direct.launches_of,
        direct.arguments_of,
        direct.DIVISIONS.shown,
        direct.room_of,
    ),
}
OWN = tuple(_KERNELS)


@dataclass(frozen=True)
class OwnConvolution:
    """Kernels of ours on the device, which run one after the other."""

    problem: ContractionProblem
    core: str
    choice: int
    loaded: Sequence[Loaded]

    @property
    def workspace(self) -> int:
        """Bytes for what one kernel leaves to the next."""
        return _KERNELS[self.core].room(self.problem, self.choice)

    def bind(self, at: Addresses, x: int, workspace: int) -> Run:
        """Runs on those addresses, on CuPy's current stream; ``x`` is where the image begins."""
        every = _KERNELS[self.core].arguments(self.problem, self.choice, at, x, workspace)
        return in_turn([one.bind(some) for one, some in zip(self.loaded, every, strict=True)])


def own_choices(problem: ContractionProblem, core: str, arch: str) -> list[int]:
    """Choices that are worth measuring, the most promising first."""
    return _KERNELS[core].choices(problem, arch)


def own_launches(problem: ContractionProblem, core: str, choice: int) -> Sequence[Launch]:
    """The kernels of a choice."""
    return _KERNELS[core].launches(problem, choice)


def own_convolution(
    problem: ContractionProblem, core: str, choice: int, load: Load
) -> OwnConvolution:
    """The kernels of a choice, loaded."""
    return OwnConvolution(problem, core, choice, load(own_launches(problem, core, choice)))


def own_name(core: str, choice: int) -> str:
    """A choice as text."""
    return f"{core} {_KERNELS[core].shown(choice)}"


def multiprocessors() -> int:
    """Of the current device."""
    return machine_of(cupy().cuda.runtime.getDevice()).multiprocessors
