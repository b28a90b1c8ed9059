"""Gradients of filters of few input channels: their geometries, and a run in the emulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from minidnn.backends.cuda.contraction.kernel_registry import LoadedContraction
from minidnn.backends.cuda.contraction.problem import (
    FILTER_GRADIENT,
    Addresses,
    ContractionProblem,
)
from minidnn.backends.cuda.contraction.small_channels_gradient import SmallChannelsGradientKernel
from minidnn.backends.cuda.functions import Loaded
from minidnn.backends.cuda.machine import Machine
from minidnn.graph.ir import Graph
from minidnn.runtime.arrays import from_bits, to_bits

from .arrays import STORED
from .cards import H200
from .emulator.run import Emulated, guarded
from .gradients import Convolved, Gradient
from .single import EmulatedLaunch

KERNEL = SmallChannelsGradientKernel()


class Stem(Convolved):
    """A convolution of images of few channels."""

    @property
    def graph(self) -> Graph:
        """The gradient of its filter from images and gradient."""
        return Gradient(FILTER_GRADIENT, self).graph

    def problem(self, dtype: str) -> ContractionProblem:
        return Gradient(FILTER_GRADIENT, self, dtype).problem

    def drawn(self, seed: int, dtype: str) -> list[np.ndarray]:
        """Images and gradient."""
        return Gradient(FILTER_GRADIENT, self, dtype).drawn(seed)


def reference(stem: Stem, given: Sequence[np.ndarray]) -> np.ndarray:
    """In float64."""
    return Gradient(FILTER_GRADIENT, stem).reference(given)


def drawn_stem(random: np.random.Generator) -> Stem:
    """Any geometry that the kernel takes, small."""
    channels, filters = int(random.integers(1, 9)), int(random.integers(1, 100))
    if random.integers(2):
        filters = -(-filters // 8) * 8
    (down, across), (sy, sx) = (random.integers(1, most, 2).tolist() for most in (8, 4))
    window, padding = (
        (down, across),
        (int(random.integers(0, down)), int(random.integers(0, across))),
    )
    sizes = []
    for k, p, most in zip(window, padding, (12, 40), strict=True):
        sizes.append(max(1, k - 2 * p) + int(random.integers(0, most)))
    batch = int(random.integers(1, 4))
    return Stem((batch, channels, sizes[0], sizes[1]), filters, window, (sy, sx), padding)


def emulated(
    stem: Stem,
    given: Sequence[np.ndarray],
    dtype: str,
    folder: Path,
    parts: int = 3,
    wide: int = 0,
    backwards: bool = False,
    machine: Machine = H200,
) -> np.ndarray:
    """The gradient by the emulator.  Operands lie between NaN, and so do the incoming gradient's
    channels: ``wide`` on either side."""
    problem = stem.problem(dtype)
    y = problem.y
    pixel = y.channels + 2 * wide
    lies = replace(
        y, pixel=pixel, row=y.columns * pixel, image=y.rows * y.columns * pixel, offset=wide
    )
    problem = replace(problem, y=lies)
    assert KERNEL.refusal(problem, machine) is None
    choice = min(parts, KERNEL.choices(problem, machine)[-1])
    launches = KERNEL.launches(problem, choice, machine)
    kernels = Emulated([launch.source for launch in launches], folder)

    def laid(array: np.ndarray, sides: int) -> np.ndarray:
        padded = np.pad(
            array.transpose(0, 2, 3, 1),
            ((0, 0), (0, 0), (0, 0), (sides, sides)),
            constant_values=np.nan,
        )
        _, room = guarded(padded.size, STORED[dtype])
        room[:] = to_bits(padded.astype(np.float32), dtype).ravel()
        return room

    _, made = guarded(int(np.prod(problem.w.shape)), STORED[dtype])
    whole_room, room = guarded(KERNEL.workspace(problem, choice, H200) // 4, np.dtype("f"))
    x, gradient = given
    arrays = [laid(x, 0), laid(gradient, wide), made, room]
    loaded: list[Any] = [EmulatedLaunch(one, kernels, backwards, arrays) for one in launches]
    computed = LoadedContraction(problem, KERNEL, choice, machine, cast(Sequence[Loaded], loaded))
    pointers = [array.ctypes.data for array in arrays]
    at = Addresses(pointers[0], pointers[2], pointers[1], workspace=pointers[3])
    for row in computed.rows(at):
        row.bind(())()
    margins = whole_room.size - room.size
    assert np.isnan(whole_room).sum() - np.isnan(room).sum() == margins
    filters, channels, rows, columns = problem.w.shape
    ordered = from_bits(made, dtype).reshape(filters, rows, columns, channels)
    return np.asarray(ordered.transpose(0, 3, 1, 2), np.float32)
