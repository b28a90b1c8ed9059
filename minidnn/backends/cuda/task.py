"""Tasks, which lowering makes of the nodes of a graph: a launch, a contraction or a library's call,
and what its pointers point to."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from ...graph.ir import Constant, Node, Value
from .constants import Data
from .contraction.problem import Address, ContractionProblem
from .kernels import Launch
from .library.call import FunctionCall
from .library.convolution import LayerConvolution
from .rank_sums import RankSum


@dataclass(frozen=True)
class InWorkspace:
    """An address in the workspace of a node, ``offset`` bytes from where it begins."""

    offset: int


#: What a pointer points to: the storage of a value, an offset in it, constant data, or what one
#: kernel of a node leaves to the next in the workspace.
Pointer = Value | Address | Data | InWorkspace


@dataclass(frozen=True, eq=False)
class Task:
    """What computes a node, or a part of one.

    A launch takes ``pointers`` in its kernel's order.  A contraction takes image, filter and
    result, then the other tensors, the vectors of the epilogue, the vectors of the prologue, the
    operands of a gradient's producer, and of an epilogue reduction the operands, the tensors that
    it stores, and its sums.  Sums over ranks and functions of cuDNN's take all operands, then all
    results.
    """

    node: Node
    work: Launch | ContractionProblem | RankSum | FunctionCall | LayerConvolution
    pointers: tuple[Pointer, ...]
    #: Alternatives to ``work``, to be measured: they give the same bits.
    others: tuple[Launch, ...] = ()
    #: Bytes of the node's workspace that launches take; a contraction's own workspace follows.
    workspace_bytes: int = 0


def data_of(constant: Constant) -> Data:
    """The data of a constant, unchanged."""
    return Data(lambda: constant.data, constant.dtype, (id(constant), "as it is"))


def channels_last(constant: Constant) -> Data:
    """The data of a constant of rank 4, in NHWC order."""
    return Data(
        lambda: np.ascontiguousarray(constant.data.transpose(0, 2, 3, 1)),
        constant.dtype,
        (id(constant), "channels last"),
    )


def numbers_of(numbers: np.ndarray) -> Data:
    """A table of integers that a kernel reads; kernels of one text may read different tables."""
    return Data(lambda: numbers, "int64", ("table", hashlib.sha256(numbers.tobytes()).digest()))


def pointer_to(value: Value) -> Pointer:
    """What a pointer to a value points to."""
    return data_of(value) if isinstance(value, Constant) else value


def at_offset(value: Value, elements: int) -> Pointer:
    """What a pointer points to that is so many elements past the beginning of a value."""
    if elements == 0:
        return pointer_to(value)
    assert not isinstance(value, Constant), value
    return Address(value, elements * (value.type.bytes // value.type.size))


def pointer_at(address: Address) -> Pointer:
    """What a pointer to an address points to: constant data, if the value there is a constant."""
    return data_of(address.value) if isinstance(address.value, Constant) else address
