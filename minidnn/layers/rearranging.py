"""Layers that move, concatenate, reshape, normalize and look up values, with PyTorch's options."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any, cast

import numpy as np

from minidnn.errors import GraphError
from minidnn.graph import operators as ops
from minidnn.graph import rearranged
from minidnn.graph.ir import Value
from minidnn.graph.operator import check_pair
from minidnn.graph.rearranged import SlidingBlocks, fold, rows_of, unfold
from minidnn.graph.trace import apply, current_trace
from minidnn.graph.types import INTEGERS, TensorType, plain
from minidnn.layers.activations import OperatorLayer
from minidnn.layers.arguments import Declared, check_count, check_numbers, check_rank, misfit
from minidnn.layers.layer import Layer
from minidnn.layers.parameter import LazyArray, Parameter

__all__ = [
    "Add",
    "ChannelShuffle",
    "Concat",
    "Embedding",
    "Flatten",
    "Fold",
    "LogSoftmax",
    "Mul",
    "PixelShuffle",
    "PixelUnshuffle",
    "Reshape",
    "Softmax",
    "Unflatten",
    "Unfold",
]


class Add(OperatorLayer):
    """``a + b``, broadcasting as NumPy does.

    >>> class Residual(Layer):
    ...     def __init__(self, body):
    ...         self.body, self.add = body, Add()
    ...     def forward(self, x):
    ...         return self.add(x, self.body(x))
    """

    def __init__(self) -> None:
        super().__init__(ops.Add())


class Mul(OperatorLayer):
    """``a * b``, broadcasting as NumPy does.

    >>> class Gated(Layer):
    ...     def __init__(self, body, gate):
    ...         self.body, self.gate, self.mul = body, gate, Mul()
    ...     def forward(self, x):
    ...         return self.mul(self.body(x), self.gate(x))
    """

    def __init__(self) -> None:
        super().__init__(ops.Mul())


class Concat(OperatorLayer):
    """Concatenates its inputs along ``dim``: ``Concat()(a, b, c)``.

    >>> x = Input((3, 32, 32))
    >>> net = Model(x, Concat()(Conv2d(3, 8, 1)(x), Conv2d(3, 8, 3, padding=1)(x)))
    """

    def __init__(self, dim: int = 1) -> None:
        super().__init__(ops.Concat(plain(dim)))


class Flatten(OperatorLayer):
    """Merges the axes from ``start_dim`` to ``end_dim``, both included, into one.

    >>> net = Sequential(Conv2d(3, 8, 3), Flatten(), Linear(8 * 30 * 30, 10))
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__(ops.Flatten(plain(start_dim), plain(end_dim)))


class Reshape(OperatorLayer):
    """Gives each sample another shape. The batch stays as it is.

    Args:
        shape: the sizes, one by one or as a sequence; one of them may be -1, which is what is left.

    Raises:
        GraphError: a size is no integer, or more than one is -1.

    >>> net = Sequential(Conv2d(3, 64, 3), Reshape(64, -1))
    """

    def __init__(self, *shape: int | Sequence[int]) -> None:
        given = plain(shape)
        sizes = given[0] if len(given) == 1 and isinstance(given[0], Sequence) else given
        if not all(type(size) is int for size in sizes):
            raise GraphError(f"Reshape: shape={sizes!r}; valid are ints, one of them may be -1")
        super().__init__(ops.Reshape(tuple(cast("Sequence[int]", sizes))))


class Softmax(OperatorLayer):
    """``exp(x - max) / sum(exp(x - max))`` along ``dim``.

    >>> net = Sequential(Linear(8, 10), Softmax(1))
    """

    def __init__(self, dim: int = -1) -> None:
        super().__init__(ops.Softmax(plain(dim)))


class LogSoftmax(OperatorLayer):
    """The logarithm of :class:`Softmax`; the arguments are those of :class:`Softmax`."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__(ops.LogSoftmax(plain(dim)))


Size = int | tuple[int, int]


class PixelShuffle(Layer):
    """(N, C * f * f, H, W) as (N, C, H * f, W * f): each pixel's channels become a square of f rows
    and columns.

    Args:
        upscale_factor: rows and columns of that square, f.

    Raises:
        GraphError: the argument is no count.

    Source: Shi et al., arXiv:1609.05158.

    >>> net = Sequential(Conv2d(3, 12, 3, padding=1), PixelShuffle(2))
    """

    _shown = ("upscale_factor",)

    def __init__(self, upscale_factor: int) -> None:
        self.upscale_factor = check_count("PixelShuffle", "upscale_factor", upscale_factor)

    def forward(self, x: Any) -> Any:
        check_rank("PixelShuffle", x, 3, 4, 5)
        block = self.upscale_factor**2
        if x.shape[-3] % block:
            raise misfit(
                "PixelShuffle",
                f"input has shape {x.shape} with {x.shape[-3]} channels; valid is a multiple of "
                f"upscale_factor**2 = {block}",
            )
        return rearranged.pixel_shuffle(x, self.upscale_factor)


class PixelUnshuffle(Layer):
    """(N, C, H * f, W * f) as (N, C * f * f, H, W), the inverse of :class:`PixelShuffle`.

    Args:
        downscale_factor: rows and columns of the squares that become channels, f.

    Raises:
        GraphError: the argument is no count.

    >>> net = Sequential(PixelUnshuffle(2), Conv2d(12, 8, 3))
    """

    _shown = ("downscale_factor",)

    def __init__(self, downscale_factor: int) -> None:
        self.downscale_factor = check_count("PixelUnshuffle", "downscale_factor", downscale_factor)

    def forward(self, x: Any) -> Any:
        check_rank("PixelUnshuffle", x, 3, 4, 5)
        if any(size % self.downscale_factor for size in x.shape[-2:]):
            raise misfit(
                "PixelUnshuffle",
                f"input has shape {x.shape}; valid are rows and columns that are multiples of "
                f"downscale_factor = {self.downscale_factor}",
            )
        return rearranged.pixel_unshuffle(x, self.downscale_factor)


class ChannelShuffle(Layer):
    """The channels of (N, C, ...) in another order: those of all groups are interleaved.

    Args:
        groups: the number of groups of channels.

    Raises:
        GraphError: the argument is no count.

    Source: Zhang et al., arXiv:1707.01083.

    >>> net = Sequential(Conv2d(3, 8, 1), ChannelShuffle(2))
    """

    _shown = ("groups",)

    def __init__(self, groups: int) -> None:
        self.groups = check_count("ChannelShuffle", "groups", groups)

    def forward(self, x: Any) -> Any:
        check_rank("ChannelShuffle", x, 3, 4, 5)
        if x.shape[1] % self.groups:
            raise misfit(
                "ChannelShuffle",
                f"input has shape {x.shape} with {x.shape[1]} channels; valid is a multiple of "
                f"groups = {self.groups}",
            )
        return rearranged.channel_shuffle(x, self.groups)


class Unflatten(Layer):
    """Splits an axis into several.

    Args:
        dim: the axis.
        unflattened_size: the sizes that it is split into; one of them may be -1, which is what is
            left.

    Raises:
        GraphError: an argument is not valid.

    >>> net = Sequential(Linear(8, 12), Unflatten(1, (3, 4)))
    """

    _shown = ("dim", "unflattened_size")

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        sizes: Any = plain(unflattened_size)
        valid = isinstance(sizes, (tuple, list)) and sizes
        if not valid or not all(type(n) is int and (n >= 1 or n == -1) for n in sizes):
            raise GraphError(
                f"Unflatten: unflattened_size={unflattened_size!r:.80}; valid are ints of at least "
                "1, one of which may be -1"
            )
        if list(sizes).count(-1) > 1 or type(plain(dim)) is not int:
            raise GraphError(
                f"Unflatten: dim={dim!r:.80}, unflattened_size={unflattened_size!r:.80}; valid "
                "are an int, and sizes of which at most one is -1"
            )
        self.dim, self.unflattened_size = plain(dim), tuple(sizes)

    def forward(self, x: Any) -> Any:
        if not isinstance(x, Value) or not -x.type.rank <= self.dim < x.type.rank:
            shown = f"shape {x.shape}" if isinstance(x, Value) else f"{x!r:.80}"
            raise misfit("Unflatten", f"input has {shown}; valid is one with an axis {self.dim}")
        axis = self.dim % x.type.rank
        known = prod(n for n in self.unflattened_size if n != -1)
        open_size, rest = divmod(x.shape[axis], known)
        if rest or (-1 not in self.unflattened_size and open_size != 1):
            raise misfit(
                "Unflatten",
                f"input has shape {x.shape} with {x.shape[axis]} elements along axis {axis}, which "
                f"unflattened_size={self.unflattened_size} does not split",
            )
        sizes = (open_size if n == -1 else n for n in self.unflattened_size)
        return apply(ops.View((*x.shape[:axis], *sizes, *x.shape[axis + 1 :])), x)


class _OfBlocks(Layer):
    """The base of layers of sliding blocks."""

    blocks: SlidingBlocks

    def _keep(self, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> None:
        """Checks and keeps the arguments of the blocks."""
        name = type(self).__name__
        self.blocks = SlidingBlocks(
            check_pair(name, "kernel_size", kernel_size, 1),
            check_pair(name, "dilation", dilation, 1),
            check_pair(name, "padding", padding, 0),
            check_pair(name, "stride", stride, 1),
        )

    def extra_repr(self) -> str:
        blocks = self.blocks
        return (
            f"kernel_size={blocks.kernel}, dilation={blocks.dilation}, padding={blocks.padding}, "
            f"stride={blocks.stride}"
        )


class Unfold(_OfBlocks):
    """The sliding blocks of (N, C, H, W) as columns: (N, C * KH * KW, blocks).

    Args:
        kernel_size: rows and columns of a block, (KH, KW), or one number for both.
        dilation: the step from one element of a block to the next.
        padding: rows and columns of zeros added on either side.
        stride: the step from one block to the next.

    Raises:
        GraphError: an argument is not valid.

    >>> net = Sequential(Unfold(4, stride=4))
    """

    def __init__(
        self, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1
    ) -> None:
        self._keep(kernel_size, dilation, padding, stride)

    def forward(self, x: Any) -> Any:
        check_rank("Unfold", x, 4)
        if min(self.blocks.counts(x.shape[2:])) < 1:
            raise misfit("Unfold", f"input has shape {x.shape}, which is less than a block")
        return unfold(x, self.blocks)


class Fold(_OfBlocks):
    """An image of which (N, C * KH * KW, blocks) are the sliding blocks, which are added up where
    they overlap.

    Args:
        output_size: rows and columns of the image, or one number for both.
        kernel_size: rows and columns of a block, (KH, KW), or one number for both.
        dilation: the step from one element of a block to the next.
        padding: rows and columns on either side that the image lacks.
        stride: the step from one block to the next.

    Raises:
        GraphError: an argument is not valid.

    >>> net = Sequential(Unfold(4, stride=4), Fold((32, 32), 4, stride=4))
    """

    def __init__(
        self,
        output_size: Size,
        kernel_size: Size,
        dilation: Size = 1,
        padding: Size = 0,
        stride: Size = 1,
    ) -> None:
        rows, columns = check_numbers("Fold", "output_size", output_size, 2, 1)
        self.output_size = (rows, columns)
        self._keep(kernel_size, dilation, padding, stride)
        if min(self.blocks.counts(self.output_size)) < 1:
            raise GraphError(
                f"Fold: output_size={self.output_size} is less than a block, {self.extra_repr()}"
            )
        self._places = LazyArray(partial(self.blocks.places, self.output_size))

    def forward(self, x: Any) -> Any:
        check_rank("Fold", x, 3)
        counts, block = self.blocks.counts(self.output_size), prod(self.blocks.kernel)
        if x.shape[2] != prod(counts) or x.shape[1] % block:
            raise misfit(
                "Fold",
                f"input has shape {x.shape}; valid are (N, C * {block}, {prod(counts)}), as "
                f"{counts[0]} * {counts[1]} blocks of {block} elements make the image",
            )
        return fold(x, self.output_size, self.blocks, self._constant)

    def _constant(self, type: TensorType, data: Any) -> Value:
        trace = current_trace()
        return trace.constant(self, f"{trace.path}.places", type, self._places)


class Embedding(Layer):
    """The rows of ``weight`` by their indices: integers (...) become (..., features).

    The parameter is ``weight`` (num_embeddings, embedding_dim), normal numbers at first. A number
    beyond the table gives NaN, since values are not looked at before they are used. As the first
    layer of a :class:`Sequential` it makes the network's input int64; elsewhere ``Input(shape,
    "int64")`` does.

    Args:
        num_embeddings: rows of the table.
        embedding_dim: features, numbers of a row.
        padding_idx: a row that is 0 at first and that gradients do not change.
        max_norm: only None is valid.
        norm_type: only 2 is valid.
        scale_grad_by_freq, sparse: only False is valid.

    Raises:
        GraphError: an argument is not valid.

    >>> net = Sequential(Embedding(100, 8), Linear(8, 2))
    >>> exe = md.compile(net, (4, 16))
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> None:
        self.num_embeddings = rows = check_count("Embedding", "num_embeddings", num_embeddings)
        self.embedding_dim = check_count("Embedding", "embedding_dim", embedding_dim)
        valid = {
            "max_norm": (max_norm, None),
            "norm_type": (norm_type, 2.0),
            "scale_grad_by_freq": (scale_grad_by_freq, False),
            "sparse": (sparse, False),
        }
        for name, (given, only) in valid.items():
            if given != only:
                raise GraphError(f"Embedding: {name}={given!r:.80}; valid is {only!r}")
        index = plain(padding_idx)
        if index is not None and (type(index) is not int or not -rows <= index < rows):
            raise GraphError(
                f"Embedding: padding_idx={padding_idx!r:.80}; valid is an int from {-rows} to "
                f"{rows - 1}, or None"
            )
        self.padding_idx = None if index is None else index % rows
        self.weight = Parameter((rows, embedding_dim), self._drawn)

    def _drawn(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        table = random.standard_normal(shape, np.float32)
        if self.padding_idx is not None:
            table[self.padding_idx] = 0
        return table

    def _declared_inputs(self) -> Declared:
        return ((None, (), "int64"),)

    def forward(self, x: Any) -> Any:
        if not isinstance(x, Value) or x.dtype not in INTEGERS:
            shown = str(x.type) if isinstance(x, Value) else f"{x!r:.80}"
            raise misfit(
                "Embedding",
                f"input is {shown}; valid are integers, as md.Input(shape, 'int64') declares them",
            )
        (weight,) = self.constants("weight")
        return rows_of(weight, x, self.padding_idx if current_trace().training else None)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"
