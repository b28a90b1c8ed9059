"""3x3 convolutions in exact float32 by a kernel of ours: Winograd's F(2x2, 3x3), all on the chip.

cuDNN's kernels carry what they transform through memory, which is much where maps are large and
channels few.  Here a block transforms tiles as it reads them, multiplies from shared memory and
transforms the sums back before it writes results; filters are transformed by a kernel before it.

Source: Lavin and Gray, Fast Algorithms for Convolutional Neural Networks (arXiv 1509.09308).
"""

from __future__ import annotations

from dataclasses import dataclass

from ...cpu.code import Code
from ..kernels import Launch
from .problem import Addresses, ContractionProblem
from .text import compute_stages, parameters_of, source_of

_CHANNELS = 8
"""Of a slab."""
_THREADS = 256
_LEAST_CHANNELS = 16
"""With fewer, transforming tiles is most of the work."""
_MOST = 1 << 31


@dataclass(frozen=True)
class Shape:
    """What a block makes: so many tiles, of 2 x 2 results each, of so many filters."""

    filters: int
    tiles: int

    def __str__(self) -> str:
        return f"of {self.tiles} tiles by {self.filters} filters"


SHAPES = (Shape(64, 32), Shape(32, 64))


def why_not_winograd(problem: ContractionProblem) -> str | None:
    """Why this kernel does not compute a problem; None if it does."""
    if not problem.is_exact:
        return "its products need not be exact float32"
    if problem.accuracy == "high":
        return "it is less accurate than a direct convolution"
    geometry = (problem.w.shape[2:], problem.stride, problem.dilation, problem.groups)
    if geometry != ((3, 3), (1, 1), (1, 1), 1) or problem.before or problem.gather is not None:
        return "it is no 3x3 convolution of stride 1"
    if any(t.pixel != 1 for t in (problem.x, problem.y, *problem.others)):
        return "its images are not planar"
    if min(problem.w.shape[:2]) < _LEAST_CHANNELS:
        return "it has few channels"
    return "it has too many tiles" if _tiles(problem) >= _MOST else None


def candidates(problem: ContractionProblem) -> list[int]:
    """Which of :data:`SHAPES` are worth measuring: those that waste no filters."""
    filters = problem.w.shape[0]
    padded = [-(-filters // shape.filters) * shape.filters for shape in SHAPES]
    return [i for i, count in enumerate(padded) if count == min(padded)]


def launches_of(problem: ContractionProblem, shape: Shape) -> tuple[Launch, Launch]:
    """Of the filters, and of the convolution.

    Arguments of the first: filter, transformed filter; of the second: image, transformed filter,
    the others, the vectors, the result; each then takes the numbers of :func:`sizes_of`.
    """
    return _filter_launch(problem, shape), _launch(problem, shape)


def filter_bytes(problem: ContractionProblem, shape: Shape) -> int:
    """Of the transformed filter."""
    slabs = -(-problem.w.shape[1] // _CHANNELS)
    return slabs * _CHANNELS * 16 * _padded(problem, shape) * 4


def sizes_of(problem: ContractionProblem, shape: Shape) -> tuple[list[int], list[int]]:
    """The numbers that both kernels take."""
    filters, channels = problem.w.shape[:2]
    x, y = problem.x, problem.y
    down, across = _down_across(problem)
    places = [[t.offset, t.image, t.channel, t.row] for t in (y, *problem.others)]
    numbers = [
        *(channels, filters, _padded(problem, shape) // shape.filters),
        *(_tiles(problem), down * across, across),
        *(before for before, _ in problem.padding),
        *(x.rows, x.columns, x.image, x.channel, x.row, y.rows, y.columns),
        *(number for some in places for number in some),
    ]
    return [channels, filters, _padded(problem, shape)], numbers


def _names(problem: ContractionProblem) -> tuple[str, ...]:
    tensors = ["y", *(f"x{1 + i}" for i in range(len(problem.others)))]
    places = (f"{what}_{t}" for t in tensors for what in ("offset", "image", "channel", "row"))
    return (
        *("channels", "filters", "groups", "tiles", "plane", "across", "top", "left"),
        *("height", "width", "image", "channel", "row", "rows", "columns", *places),
    )


def _down_across(problem: ContractionProblem) -> tuple[int, int]:
    """Tiles of an image."""
    return -(-problem.y.rows // 2), -(-problem.y.columns // 2)


def _tiles(problem: ContractionProblem) -> int:
    down, across = _down_across(problem)
    return problem.batch * down * across


def _padded(problem: ContractionProblem, shape: Shape) -> int:
    return -(-problem.w.shape[0] // shape.filters) * shape.filters


def _filter_launch(problem: ContractionProblem, shape: Shape) -> Launch:
    source = source_of("winograd_filter.cu", {})
    slabs = -(-problem.w.shape[1] // _CHANNELS)
    grid = (-(-_padded(problem, shape) // _THREADS), slabs * _CHANNELS, 1)
    return Launch(source, grid, (_THREADS, 1, 1))


def _launch(problem: ContractionProblem, shape: Shape) -> Launch:
    parts = {
        "FILTERS": shape.filters,
        "TILES": shape.tiles,
        "PARAMETERS": parameters_of(problem, _names(problem), distances=False),
        "EPILOGUE": _epilogue(problem),
    }
    source = source_of("winograd.cu", parts)
    groups = _padded(problem, shape) // shape.filters
    blocks = -(-_tiles(problem) // shape.tiles) * groups
    shared = 2 * _CHANNELS * 16 * (shape.filters + shape.tiles) * 4
    return Launch(source, (blocks, 1, 1), (_THREADS, 1, 1), shared)


def _epilogue(problem: ContractionProblem) -> str:
    """What comes after, on the four results of a tile."""
    code = Code()
    for i in range(len(problem.vectors)):
        code.line(f"const float b{i}[4] = {{v{i}[k], v{i}[k], v{i}[k], v{i}[k]}};")
    for i in range(len(problem.others)):
        place = _place(f"x{1 + i}")
        code.line(f"const float *const from{1 + i} = x{1 + i} + {place};")
        code.line(f"float a{1 + i}[4];")
        code.line("#pragma unroll")
        at = f"from{1 + i}[j / 2 * P_row_x{1 + i} + j % 2]"
        code.line(f"for (int j = 0; j < 4; j++) a{1 + i}[j] = there[j] ? {at} : 0.0f;")
    compute_stages(code, problem, "4")
    return str(code).rstrip("\n")


def _place(t: str) -> str:
    """Where a tile begins in a tensor, by the numbers of that name."""
    return f"P_offset_{t} + n * P_image_{t} + k * P_channel_{t} + row * P_row_{t} + column"


def arguments_of(
    problem: ContractionProblem, shape: Shape, at: Addresses, x: int, workspace: int
) -> list[list[int]]:
    """Of both kernels."""
    first, second = sizes_of(problem, shape)
    return [
        [at.w, workspace, *first],
        [x, workspace, *at.others, *at.vectors, at.y, *second],
    ]
