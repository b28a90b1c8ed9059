"""Tasks: a kernel or a contraction of a node, and what its pointers point to."""

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
    """So many bytes from where the workspace of a node begins."""

    offset: int


#: What a pointer points to: the storage of a value, a part of it, numbers that never change, or
#: what one kernel of a node leaves to the next.
Pointer = Value | Address | Data | InWorkspace


@dataclass(frozen=True, eq=False)
class Task:
    """What computes a node, or a part of one.

    A launch takes ``pointers`` in its kernel's order; a contraction image, filter, result, then
    the other tensors, the vectors of what follows, those of what comes before, then what is read in
    front of a gradient, what is read behind it, what is stored there, and sums; sums over ranks all
    operands, then all results, and so does a function of cuDNN's.
    """

    node: Node
    work: Launch | ContractionProblem | RankSum | FunctionCall | LayerConvolution
    pointers: tuple[Pointer, ...]
    #: Launches that may take the place of ``work``: they give the same bits.
    others: tuple[Launch, ...] = ()
    #: What launches take of the node's workspace; a contraction's own lies behind it.
    workspace_bytes: int = 0


def data_of(constant: Constant) -> Data:
    """A constant as it is."""
    return Data(lambda: constant.data, constant.dtype, (id(constant), "as it is"))


def numbers_of(numbers: np.ndarray) -> Data:
    """Whole numbers that a kernel reads; kernels of one text may read different ones."""
    return Data(lambda: numbers, "int64", ("table", hashlib.sha256(numbers.tobytes()).digest()))


def pointer_to(value: Value) -> Pointer:
    return data_of(value) if isinstance(value, Constant) else value


def at_offset(value: Value, elements: int) -> Pointer:
    """So many elements behind where a value begins."""
    if elements == 0:
        return pointer_to(value)
    assert not isinstance(value, Constant), value
    return Address(value, elements * (value.type.bytes // value.type.size))


def placed_at(place: Address) -> Pointer:
    return data_of(place.value) if isinstance(place.value, Constant) else place
