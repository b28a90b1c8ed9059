"""Our own kernels of contractions, side by side: what each one is asked for.

A *core* names a kernel, a *choice* one of its shapes: an index of tiles, streams, strips or shapes,
how many filters or pixels a block makes, or into how many parts sums are divided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ....cudnn._cupy import cupy
from ..functions import Loaded, Run
from ..kernels import Launch
from ..machine import machine_of
from . import depthwise, halo, rows, stream, tile, window, winograd
from .problem import Addresses, ContractionProblem

TILE = "tile"
HALO = "halo"
STREAM = "stream"
WINDOW = "window"
ROWS = "rows"
DEPTHWISE = "depthwise"
WINOGRAD = "winograd"

Load = Callable[[Sequence[Launch]], list[Loaded]]


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


@dataclass(frozen=True)
class _Own:
    """What is asked of one of our kernels.

    ``choices``: worth measuring on an architecture, the most promising first; ``launches`` and
    ``sizes``: the kernels of one, and the numbers that they take; ``shown``: its name.
    """

    choices: Callable[[ContractionProblem, str], list[int]]
    launches: Callable[[ContractionProblem, int], Sequence[Launch]]
    sizes: Callable[[ContractionProblem, int], list[int]]
    shown: Callable[[int], str]


_KERNELS: Mapping[str, _Own] = {
    TILE: _Own(
        lambda problem, arch: tile.candidates(problem),
        lambda problem, i: [tile.launch_of(problem, tile.TILES[i], multiprocessors())],
        lambda problem, i: tile.sizes_of(problem, tile.TILES[i]),
        lambda i: str(tile.TILES[i]),
    ),
    HALO: _Own(
        halo.widths,
        lambda problem, width: [halo.launch_of(problem, width, multiprocessors())],
        lambda problem, width: halo.sizes_of(problem, width, multiprocessors()),
        lambda width: f"of {width} filters",
    ),
    STREAM: _Own(
        stream.candidates,
        lambda problem, i: [stream.launch_of(problem, stream.STREAMS[i], multiprocessors())],
        lambda problem, i: stream.sizes_of(problem, stream.STREAMS[i]),
        lambda i: str(stream.STREAMS[i]),
    ),
    WINDOW: _Own(
        window.candidates,
        lambda problem, tiles: [window.launch_of(problem, tiles, multiprocessors())],
        window.sizes_of,
        lambda tiles: f"of {2 * tiles * 64} pixels",
    ),
    ROWS: _Own(
        lambda problem, arch: rows.parts_for(problem),
        rows.launches_of,
        lambda problem, parts: [],
        lambda parts: f"in {parts} parts",
    ),
    DEPTHWISE: _Own(
        depthwise.candidates,
        lambda problem, i: [depthwise.launch_of(problem, depthwise.STRIPS[i])],
        lambda problem, i: depthwise.sizes_of(problem, depthwise.STRIPS[i]),
        lambda i: str(depthwise.STRIPS[i]),
    ),
    WINOGRAD: _Own(
        lambda problem, arch: winograd.candidates(problem),
        lambda problem, i: winograd.launches_of(problem, winograd.SHAPES[i]),
        lambda problem, i: [],
        lambda i: str(winograd.SHAPES[i]),
    ),
}
OWN = tuple(_KERNELS)


def own_choices(problem: ContractionProblem, core: str, arch: str) -> list[int]:
    """Choices that are worth measuring, the most promising first."""
    return _KERNELS[core].choices(problem, arch)


def own_launches(problem: ContractionProblem, core: str, choice: int) -> Sequence[Launch]:
    """The kernels of a choice."""
    return _KERNELS[core].launches(problem, choice)


def own_convolution(
    problem: ContractionProblem, core: str, choice: int, load: Load
) -> OwnConvolution | rows.SplitRows | winograd.Winograd:
    """The kernels of a choice, loaded."""
    loaded = load(own_launches(problem, core, choice))
    if core == ROWS:
        return rows.SplitRows(loaded[0], loaded[1], choice, rows.part_bytes(problem))
    if core == WINOGRAD:
        shape = winograd.SHAPES[choice]
        numbers, room = winograd.sizes_of(problem, shape), winograd.filter_bytes(problem, shape)
        return winograd.Winograd(loaded[0], loaded[1], numbers, room)
    return OwnConvolution(loaded[0], _KERNELS[core].sizes(problem, choice))


def own_name(core: str, choice: int) -> str:
    """A choice as text."""
    return f"{core} {_KERNELS[core].shown(choice)}"


def multiprocessors() -> int:
    """Of the current device."""
    return machine_of(cupy().cuda.runtime.getDevice()).multiprocessors
