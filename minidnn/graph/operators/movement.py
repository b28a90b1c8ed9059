"""Operators that move elements without computing: reshapes, concatenation, channels, layouts."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph.layout import Layout
from minidnn.graph.operator import Movement, Reshaping, is_ints
from minidnn.graph.types import TensorType

__all__ = ["Concat", "Flatten", "Reorder", "Reshape", "TakeChannels", "View"]


@dataclass(frozen=True)
class Flatten(Reshaping):
    """Merges the axes from ``start_dim`` to ``end_dim``, both included, into one."""

    start_dim: int = 1
    end_dim: int = -1

    def __post_init__(self) -> None:
        self.require_int("start_dim", self.start_dim)
        self.require_int("end_dim", self.end_dim)

    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        rank = len(shape)
        first, last = (d + rank if d < 0 else d for d in (self.start_dim, self.end_dim))
        self.require(
            0 <= first <= last < rank,
            f"input of shape {shape} has axes 0 to {rank - 1}; start_dim and end_dim "
            "must be among them, in order",
        )
        return (*shape[:first], prod(shape[first : last + 1]), *shape[last + 1 :])


@dataclass(frozen=True)
class Reshape(Reshaping):
    """Gives the axes after the batch another shape; one size may be -1."""

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        self.require(
            is_ints(self.shape, -1) and self.shape.count(-1) <= 1,
            f"shape={self.shape}; valid are non-negative sizes, and -1 at most once",
        )

    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        self.require(len(shape) >= 1, f"input has shape {shape}; valid is at least a batch axis")
        fixed = prod(size for size in self.shape if size != -1)
        elements = prod(shape[1:])
        fits = elements % fixed == 0 if -1 in self.shape and fixed else elements == fixed
        self.require(
            fits and (fixed or -1 not in self.shape),
            f"{elements} elements a sample (input {shape}) do not fit into {self.shape}",
        )
        return (shape[0], *(elements // fixed if size == -1 else size for size in self.shape))


@dataclass(frozen=True)
class View(Reshaping):
    """Gives the whole value, the batch included, another shape."""

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        self.require(
            is_ints(self.shape, 0),
            f"shape={self.shape}; valid are non-negative sizes",
        )

    def shape_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        self.require(
            prod(shape) == prod(self.shape),
            f"{prod(shape)} elements (input {shape}) do not fit into {self.shape}",
        )
        return self.shape


@dataclass(frozen=True)
class Concat(Movement):
    """Concatenates values along ``axis``."""

    axis: int = 1

    operand_names = ("inputs*",)

    def __post_init__(self) -> None:
        self.require_int("axis", self.axis)

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        self.require(len(inputs) > 0, "no inputs; valid is one or more")
        first = inputs[0]
        axis = self.axis + first.rank if self.axis < 0 else self.axis
        if not 0 <= axis < first.rank:
            raise self.fail(
                f"axis={self.axis} is not an axis of the input {first.shape}; "
                f"valid are {-first.rank} to {first.rank - 1}"
            )
        before, after = first.shape[:axis], first.shape[axis + 1 :]
        for i, other in enumerate(inputs):
            same = other.rank == first.rank and other.shape[:axis] == before
            if not (same and other.shape[axis + 1 :] == after and other.dtype == first.dtype):
                raise self.fail(
                    f"input {i} is {other}, which does not join input 0, {first}, along axis "
                    f"{axis}; all other sizes and the dtype must be equal"
                )
        total = sum(t.shape[axis] for t in inputs)
        return (first.with_shape((*first.shape[:axis], total, *first.shape[axis + 1 :])),)

    def move(self, *inputs: np.ndarray) -> np.ndarray:
        return np.concatenate(inputs, axis=self.axis)


@dataclass(frozen=True)
class TakeChannels(Movement):
    """Channel ``i`` of the output is channel ``picks[i][1]`` of input ``picks[i][0]``.

    Inputs are images, (N, C, H, W), that differ in the number of channels at most.
    """

    MOST: ClassVar[int] = 32
    """The most inputs: a kernel has registers for what it reads of each."""

    picks: tuple[tuple[int, int], ...]

    operand_names = ("inputs*",)

    def __post_init__(self) -> None:
        pairs = isinstance(self.picks, tuple) and all(
            isinstance(pick, tuple) and len(pick) == 2 and is_ints(pick, 0) for pick in self.picks
        )
        if not pairs or not self.picks:  # without the operator's own text, which counts picks
            raise GraphError(
                f"TakeChannels: picks={self.picks!r:.80}; valid is a tuple of at least one pair of "
                "an input and its channel, each an int of at least 0"
            )

    def __str__(self) -> str:
        return f"TakeChannels({len(self.picks)})"

    @property
    def first_of_run(self) -> int | None:
        """The first channel, if the picks are consecutive channels of the only input; else None."""
        (source, first), *_ = self.picks
        run = tuple((source, first + i) for i in range(len(self.picks)))
        return first if self.picks == run and source == 0 else None

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        count = len(inputs)
        self.require(1 <= count <= self.MOST, f"{count} inputs; valid are 1 to {self.MOST}")
        first = inputs[0]
        for i, other in enumerate(inputs):
            images = other.rank == 4 and first.rank == 4
            self.require(
                images
                and other.dtype == first.dtype
                and (other.shape[0], *other.shape[2:]) == (first.shape[0], *first.shape[2:]),
                f"input {i} is {other} beside input 0, {first}; valid are images, (N, C, H, W), of "
                "one dtype and one size but for the channels",
            )
        channels = [value.shape[1] for value in inputs]
        for source, channel in self.picks:
            if source >= count:
                raise self.fail(f"picks from input {source} of {count}")
            if channel >= channels[source]:
                raise self.fail(
                    f"picks channel {channel} of input {source}, which has {channels[source]}"
                )
        return (first.with_shape((first.shape[0], len(self.picks), *first.shape[2:])),)

    def move(self, *inputs: np.ndarray) -> np.ndarray:
        return np.stack([inputs[source][:, channel] for source, channel in self.picks], axis=1)


@dataclass(frozen=True)
class Reorder(Movement):
    """The same value in another physical layout in memory."""

    layout: Layout

    def infer(self, *inputs: TensorType) -> tuple[TensorType, ...]:
        return inputs

    def move(self, *inputs: np.ndarray) -> np.ndarray:
        return inputs[0]
