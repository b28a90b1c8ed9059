"""The ladders of memory kernels: arrays that are copied, reversed and transposed.

Each step has its launch (``sizes``) and its memory accesses (``work``), from which the model
predicts coalescing, bank conflicts and time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..access import L2_CYCLES, SHARED_CYCLES, Access, Work, lanes, sample
from ..operands import MovementShape
from ..step import Block, Ladder, Parameters
from .step import CudaStep, Sizes

SIZES = {"L2": 1 << 22, "DRAM": 1 << 26}
"""Array lengths in 4-byte words: one that fits L2 together with its copy, and one that does not."""
_BLOCKS, _TILES = 16, 8
"""How many blocks, or tiles of a matrix, the work functions sample along each axis of the grid."""


@dataclass(frozen=True)
class WordsShape(MovementShape):
    """The length of an array of 4-byte words that a kernel copies or reverses."""

    count: int = SIZES["DRAM"]

    @property
    def operands(self) -> dict[str, int]:
        return {"x": self.count, "y": self.count}


def copied(shape: MovementShape, operands: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the reference result of a copy, in float64."""
    return operands["x"].astype(np.float64)


@dataclass(frozen=True)
class _Copies:
    """Where the threads of the sampled blocks are, in arrays that broadcast.

    Attributes:
        thread: each thread's index in its block; -1 for lanes that have none.
        block, layer: the block's index along x and along y.
        threads: the threads of a block.
        parameters: the step's parameters.
        count: the length of the array.
    """

    thread: np.ndarray
    block: np.ndarray
    layer: np.ndarray
    threads: int
    parameters: Parameters
    count: int

    @property
    def number(self) -> np.ndarray:
        """Each thread's index among those of all blocks along x."""
        return self.block * self.threads + self.thread


Places = Callable[[_Copies], np.ndarray]
"""Returns the index of the first word that each thread copies.  A step whose threads execute
several copies adds an axis for them."""


def _strided(of: _Copies) -> np.ndarray:
    return of.number * of.parameters["STRIDE"] + of.layer


def _structures(of: _Copies) -> np.ndarray:
    field = np.arange(of.parameters["FIELDS"]).reshape(-1, 1, 1)
    return of.number * of.parameters["FIELDS"] + field


def _fields(of: _Copies) -> np.ndarray:
    length = -(-of.count // of.parameters["FIELDS"])
    field = np.arange(of.parameters["FIELDS"]).reshape(-1, 1, 1)
    return np.where(of.number < length, field * length + of.number, -1)


def _rows(of: _Copies, *, pitched: bool = False) -> np.ndarray:
    width = _row(of.parameters, pitched)
    column = of.thread + np.arange(0, width, of.threads).reshape(-1, 1, 1)
    return np.where(column < width, of.block * width + column, -1)


def _shifted(of: _Copies) -> np.ndarray:
    return of.number - -of.parameters["SHIFT"] % 32


def _words(of: _Copies, *, width: int = 1) -> np.ndarray:
    return of.number * width


def _row(parameters: Parameters, pitched: bool) -> int:
    return -(-parameters["WIDTH"] // 32) * 32 if pitched else parameters["WIDTH"]


def _copy_work(
    shape: WordsShape,
    block: Block,
    parameters: Parameters,
    *,
    places: Places,
    sizes: Callable[[WordsShape, Block, Parameters], Sizes],
    width: int = 1,
) -> Work:
    """Returns the work of a step that copies each word once, ``width`` words an instruction."""
    (across, down, _), _, _ = sizes(shape, block, parameters)
    threads = block[0] * block[1]
    blocks, layers = sample(across, _BLOCKS), sample(down, _BLOCKS)
    thread = lanes(threads)
    block_axis, layer_axis = blocks.reshape(-1, 1, 1, 1, 1), layers.reshape(-1, 1, 1, 1)
    word = places(_Copies(thread, block_axis, layer_axis, threads, parameters, shape.count))
    word = np.where((thread >= 0) & (word >= 0) & (word < shape.count), word, -1)
    word = word.reshape(len(blocks) * len(layers), -1, 32)
    share = across * down / len(word)
    x = Access("x", "global", word, share, width=width)
    y = Access("y", "global", word, share, store=True, width=width)
    return Work((x, y), 0.0, 12 * x.requests, L2_CYCLES, ("x", "y") if down > 1 else ())


def _copy_sizes(
    shape: WordsShape, block: Block, parameters: Parameters, *, words: int = 1, more: int = 0
) -> Sizes:
    """A thread copies ``words`` words; the grid also covers ``more`` words before the array."""
    return (-(-(shape.count + more) // (words * block[0] * block[1])), 1, 1), (*block, 1), 0


def _sizes_of_strides(shape: WordsShape, block: Block, parameters: Parameters) -> Sizes:
    across, down = -(-shape.count // parameters["STRIDE"]), parameters["STRIDE"]
    return (-(-across // (block[0] * block[1])), down, 1), (*block, 1), 0


def _sizes_of_structures(shape: WordsShape, block: Block, parameters: Parameters) -> Sizes:
    return _copy_sizes(shape, block, parameters, words=parameters["FIELDS"])


def _sizes_of_rows(
    shape: WordsShape, block: Block, parameters: Parameters, *, pitched: bool = False
) -> Sizes:
    return (-(-shape.count // _row(parameters, pitched)), 1, 1), (*block, 1), 0


def _sizes_of_shifts(shape: WordsShape, block: Block, parameters: Parameters) -> Sizes:
    return _copy_sizes(shape, block, parameters, more=-parameters["SHIFT"] % 32)


def _whole(shape: WordsShape, block: Block, parameters: Parameters, *, words: int) -> str | None:
    if shape.count % words == 0:
        return None
    return f"{shape.count} words; this step wants a multiple of {words}"


def _copy_step(name: str, sizes: Any, places: Places, width: int = 1, **fields: Any) -> CudaStep:
    work = partial(_copy_work, places=places, sizes=sizes, width=width)
    return CudaStep.of("memory", name, sizes=sizes, work=work, **fields)


def _vectors(name: str, words: int) -> CudaStep:
    return _copy_step(
        name,
        partial(_copy_sizes, words=words),
        partial(_words, width=words),
        words,
        refusal=partial(_whole, words=words),
        helps=("memory", "latency", "issue"),
    )


MEMORY = Ladder(
    "memory",
    "words copied on a GPU, float32",
    WordsShape(),
    (
        _copy_step("strided", _sizes_of_strides, _strided, parameters={"STRIDE": 32}),
        _copy_step(
            "structures",
            _sizes_of_structures,
            _structures,
            parameters={"FIELDS": 5},
            helps=("L2", "uncoalesced accesses"),
        ),
        _copy_step(
            "fields",
            _sizes_of_structures,
            _fields,
            parameters={"FIELDS": 5},
            helps=("uncoalesced accesses", "load units"),
        ),
        _copy_step("rows", _sizes_of_rows, _rows, parameters={"WIDTH": 1001}),
        _copy_step(
            "pitched",
            partial(_sizes_of_rows, pitched=True),
            partial(_rows, pitched=True),
            parameters={"WIDTH": 1001},
            helps=("uncoalesced accesses",),
        ),
        _copy_step("shifted", _sizes_of_shifts, _shifted, parameters={"SHIFT": 1}),
        _copy_step("words", _copy_sizes, _words, helps=("uncoalesced accesses",)),
        _vectors("pairs", 2),
        _vectors("vectors", 4),
    ),
    copied,
    {name: WordsShape(count) for name, count in SIZES.items()},
)


def reversed_words(shape: WordsShape, operands: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the reference result in float64: the last word comes first."""
    return operands["x"][::-1].astype(np.float64)


def _reverse_sizes(
    shape: WordsShape, block: Block, parameters: Parameters, *, sized: bool = False
) -> Sizes:
    threads = block[0] * block[1]
    return (-(-shape.count // threads), 1, 1), (*block, 1), 4 * threads * sized


def _reverse_work(shape: WordsShape, block: Block, parameters: Parameters, *, kept: bool) -> Work:
    """Returns the work of a step that reverses an array.  ``kept``: a block reverses its words in
    shared memory, so that its lanes store in their own order."""
    threads = block[0] * block[1]
    blocks = -(-shape.count // threads)
    sampled, thread = sample(blocks, _BLOCKS).reshape(-1, 1, 1), lanes(threads)
    first, share = sampled * threads, blocks / sampled.size
    read = first + thread
    active = (thread >= 0) & (read < shape.count)
    x = Access("x", "global", np.where(active, read, -1), share)
    last = np.minimum(threads, shape.count - first) - 1
    written = shape.count - 1 - (first + (last - thread if kept else thread))
    y = Access("y", "global", np.where(active, written, -1), share, store=True)
    if not kept:
        return Work((x, y), 0.0, 12 * x.requests, L2_CYCLES)
    inside = np.where(active, thread, -1)
    to_shared = Access("x", "shared", inside, share, store=True)
    of_shared = Access("x", "shared", np.where(active, last - thread, -1), share)
    accesses = (x, to_shared, of_shared, y)
    return Work(accesses, 0.0, 20 * x.requests, L2_CYCLES + 2 * SHARED_CYCLES)


def _reverse_step(name: str, kept: bool, **fields: Any) -> CudaStep:
    return CudaStep.of("reverse", name, work=partial(_reverse_work, kept=kept), **fields)


REVERSE = Ladder(
    "reverse",
    "an array reversed, float32",
    WordsShape(),
    (
        _reverse_step("direct", False, sizes=_reverse_sizes),
        _reverse_step("fixed", True, sizes=_reverse_sizes, helps=("uncoalesced accesses",)),
        _reverse_step("sized", True, sizes=partial(_reverse_sizes, sized=True)),
    ),
    reversed_words,
    {name: WordsShape(count) for name, count in SIZES.items()},
)


@dataclass(frozen=True)
class TransposeShape(MovementShape):
    """Rows and columns of the matrix that is transposed."""

    height: int = 8192
    width: int = 8192

    @property
    def operands(self) -> dict[str, int]:
        return {"x": self.height * self.width, "y": self.height * self.width}


def transposed(shape: TransposeShape, operands: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the transposed matrix in float64."""
    return operands["x"].reshape(shape.height, shape.width).T.astype(np.float64)


def _by_block(shape: TransposeShape, block: Block, parameters: Parameters) -> Sizes:
    return (-(-shape.width // block[0]), -(-shape.height // block[1]), 1), (*block, 1), 0


def _by_tile(shape: TransposeShape, block: Block, parameters: Parameters) -> Sizes:
    side = block[0]
    return (-(-shape.width // side), -(-shape.height // side), 1), (*block, 1), 0


def _transpose_work(
    shape: TransposeShape, block: Block, parameters: Parameters, *, row: int | None = None
) -> Work:
    """Returns the work of a step that transposes a matrix.  ``row``: floats that pad each row of
    its tile in shared memory; None without a tile."""
    side = block[0] if row is not None else block[1]
    down, across = -(-shape.height // side), -(-shape.width // block[0])
    tops, lefts = sample(down, _TILES), sample(across, _TILES)
    share = down * across / (len(tops) * len(lefts))
    top, left = (part.reshape(-1, 1, 1, 1) for part in np.meshgrid(tops * side, lefts * block[0]))
    thread = lanes(block[0] * block[1])
    iteration = np.arange(-(-side // block[1])).reshape(1, -1, 1, 1)
    i, j = iteration * block[1] + thread // block[0], thread % block[0]
    active = (thread >= 0) & (i < side)

    def places(at: np.ndarray, inside: np.ndarray) -> np.ndarray:
        return np.where(inside, at, -1).reshape(len(top), -1, 32)

    r, c = top + i, left + j
    inside = active & (r < shape.height) & (c < shape.width)
    x = Access("x", "global", places(r * shape.width + c, inside), share)
    if row is None:
        y = Access("y", "global", places(c * shape.height + r, inside), share, store=True)
        return Work((x, y), 0.0, 14 * x.requests, L2_CYCLES)
    r, c = left + i, top + j
    inside = active & (r < shape.width) & (c < shape.height)
    y = Access("y", "global", places(r * shape.height + c, inside), share, store=True)
    length, blocks = side + row, down * across
    stored = np.where(active, i * length + j, -1).reshape(1, -1, 32)
    read = np.where(active, j * length + i, -1).reshape(1, -1, 32)
    to_tile = Access("x", "shared", stored, blocks, store=True)
    of_tile = Access("x", "shared", read, blocks)
    wait = L2_CYCLES + 2 * SHARED_CYCLES
    return Work((x, to_tile, of_tile, y), 0.0, 20 * x.requests, wait)


_transpose_step = partial(CudaStep.of, "transpose")

TRANSPOSE = Ladder(
    "transpose",
    "a matrix transposed, float32",
    TransposeShape(),
    (
        _transpose_step("rows", sizes=_by_block, work=_transpose_work),
        _transpose_step(
            "shared",
            sizes=_by_tile,
            work=partial(_transpose_work, row=0),
            helps=("uncoalesced accesses",),
        ),
        _transpose_step(
            "padded",
            sizes=_by_tile,
            work=partial(_transpose_work, row=1),
            helps=("bank conflicts",),
        ),
    ),
    transposed,
    {str(size): TransposeShape(size, size) for size in (1024, 8192)},
)
