"""The steps of the ladder of accesses to memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import UnsupportedError
from ..access import L2_CYCLES, Access, Work, lanes, sample
from ..cuda_step import CudaStep, Sizes
from ..step import Block, Ladder, Parameters

SIZES = {"L2": 1 << 22, "DRAM": 1 << 26}
"""Words that lie in L2 together with their copies, and words that do not."""


@dataclass(frozen=True)
class WordsShape:
    """Words of four bytes."""

    count: int = SIZES["DRAM"]

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UnsupportedError(f"count={self.count}; valid are 1 and more")

    @property
    def operands(self) -> dict[str, int]:
        return {"x": self.count, "y": self.count}

    @property
    def operations(self) -> int:
        """None."""
        return 0

    @property
    def terms(self) -> int:
        """Nothing is rounded."""
        return 0


def copied(shape: WordsShape, operands: Mapping[str, np.ndarray]) -> np.ndarray:
    """The words as they are."""
    return operands["x"].astype(np.float64)


_BLOCKS = 16
"""That are looked at along each axis of the grid."""

Places = Callable[[np.ndarray, np.ndarray, np.ndarray, int, Parameters, int], np.ndarray]
"""The first words that threads copy: of the thread's number, the block's along x and along y, the
threads of a block, the parameters and the count of all words; one more axis for instructions."""


def _strided(
    thread: np.ndarray, block: np.ndarray, layer: np.ndarray, threads: int, own: Parameters, n: int
) -> np.ndarray:
    return (block * threads + thread) * own["STRIDE"] + layer


def _structures(
    thread: np.ndarray, block: np.ndarray, layer: np.ndarray, threads: int, own: Parameters, n: int
) -> np.ndarray:
    field = np.arange(own["FIELDS"]).reshape(-1, 1, 1)
    return (block * threads + thread) * own["FIELDS"] + field


def _fields(
    thread: np.ndarray, block: np.ndarray, layer: np.ndarray, threads: int, own: Parameters, n: int
) -> np.ndarray:
    length = -(-n // own["FIELDS"])
    number = block * threads + thread
    field = np.arange(own["FIELDS"]).reshape(-1, 1, 1)
    return np.where(number < length, field * length + number, -1)


def _rows(
    thread: np.ndarray,
    block: np.ndarray,
    layer: np.ndarray,
    threads: int,
    own: Parameters,
    n: int,
    *,
    pitched: bool = False,
) -> np.ndarray:
    width = _row(own, pitched)
    column = thread + np.arange(0, width, threads).reshape(-1, 1, 1)
    return np.where(column < width, block * width + column, -1)


def _shifted(
    thread: np.ndarray, block: np.ndarray, layer: np.ndarray, threads: int, own: Parameters, n: int
) -> np.ndarray:
    return block * threads + thread - -own["SHIFT"] % 32


def _words(
    thread: np.ndarray,
    block: np.ndarray,
    layer: np.ndarray,
    threads: int,
    own: Parameters,
    n: int,
    *,
    width: int = 1,
) -> np.ndarray:
    return (block * threads + thread) * width


def _row(own: Parameters, pitched: bool) -> int:
    return -(-own["WIDTH"] // 32) * 32 if pitched else own["WIDTH"]


def _work(
    shape: WordsShape,
    block: Block,
    parameters: Parameters,
    *,
    places: Places,
    sizes: Callable[[WordsShape, Block, Parameters], Sizes],
    width: int = 1,
) -> Work:
    """Of a step that copies each word once."""
    (across, down, _), _, _ = sizes(shape, block, parameters)
    threads = block[0] * block[1]
    blocks, layers = sample(across, _BLOCKS), sample(down, _BLOCKS)
    number = lanes(threads)
    at = places(
        number,
        blocks.reshape(-1, 1, 1, 1, 1),
        layers.reshape(-1, 1, 1, 1),
        threads,
        parameters,
        shape.count,
    )
    at = np.where((number >= 0) & (at >= 0) & (at < shape.count), at, -1)
    at = at.reshape(len(blocks) * len(layers), -1, 32)
    share = across * down / len(at)
    x = Access("x", "global", at, share, width=width)
    y = Access("y", "global", at, share, store=True, width=width)
    return Work((x, y), 0.0, 12 * x.requests, L2_CYCLES, ("x", "y") if down > 1 else ())


def _sizes(
    shape: WordsShape, block: Block, parameters: Parameters, *, words: int = 1, more: int = 0
) -> Sizes:
    """So many words a thread; ``more`` words before the first."""
    return (-(-(shape.count + more) // (words * block[0] * block[1])), 1, 1), (*block, 1), 0


def _sizes_of_strides(shape: WordsShape, block: Block, parameters: Parameters) -> Sizes:
    across, down = -(-shape.count // parameters["STRIDE"]), parameters["STRIDE"]
    return (-(-across // (block[0] * block[1])), down, 1), (*block, 1), 0


def _sizes_of_structures(shape: WordsShape, block: Block, parameters: Parameters) -> Sizes:
    return _sizes(shape, block, parameters, words=parameters["FIELDS"])


def _sizes_of_rows(
    shape: WordsShape, block: Block, parameters: Parameters, *, pitched: bool = False
) -> Sizes:
    return (-(-shape.count // _row(parameters, pitched)), 1, 1), (*block, 1), 0


def _sizes_of_shifts(shape: WordsShape, block: Block, parameters: Parameters) -> Sizes:
    return _sizes(shape, block, parameters, more=-parameters["SHIFT"] % 32)


def _whole(shape: WordsShape, block: Block, parameters: Parameters, *, words: int) -> str | None:
    if shape.count % words == 0:
        return None
    return f"{shape.count} words; this step wants a multiple of {words}"


def _step(name: str, sizes: Any, places: Places, width: int = 1, **given: Any) -> CudaStep:
    work = partial(_work, places=places, sizes=sizes, width=width)
    source = Path(__file__).parent / f"{name}.cu"
    return CudaStep(name=name, source=source, sizes=sizes, work=work, **given)


def _vectors(name: str, words: int) -> CudaStep:
    return _step(
        name,
        partial(_sizes, words=words),
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
        _step("strided", _sizes_of_strides, _strided, parameters={"STRIDE": 32}),
        _step(
            "structures",
            _sizes_of_structures,
            _structures,
            parameters={"FIELDS": 5},
            helps=("L2", "uncoalesced accesses"),
        ),
        _step(
            "fields",
            _sizes_of_structures,
            _fields,
            parameters={"FIELDS": 5},
            helps=("uncoalesced accesses", "load units"),
        ),
        _step("rows", _sizes_of_rows, _rows, parameters={"WIDTH": 1001}),
        _step(
            "pitched",
            partial(_sizes_of_rows, pitched=True),
            partial(_rows, pitched=True),
            parameters={"WIDTH": 1001},
            helps=("uncoalesced accesses",),
        ),
        _step("shifted", _sizes_of_shifts, _shifted, parameters={"SHIFT": 1}),
        _step("words", _sizes, _words, helps=("uncoalesced accesses",)),
        _vectors("pairs", 2),
        _vectors("vectors", 4),
    ),
    copied,
    {name: WordsShape(count) for name, count in SIZES.items()},
)
