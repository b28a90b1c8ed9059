"""Tensors of the protocol: their datatypes, and arrays of what a request holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from minidnn.dynamic.dim import Dim
from minidnn.serving.faults import invalid
from minidnn.serving.json_numbers import NumberText, array_of, wrong_count

#: NumPy's dtype -> the protocol's name.
DATATYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "int8": "INT8",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}


_PIECE = 1 << 11


@dataclass(frozen=True)
class Spec:
    """An input or an output of a model.

    Attributes:
        shape: of one row, without the batch; of all, for a model that takes no batches.
        batched: whether an axis of rows comes before ``shape``.
        rows: the number of rows that the model has of its own; fewer are padded.  None where any in
            range is computed as it is.
    """

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    batched: bool
    rows: int | None = None

    @property
    def datatype(self) -> str:
        return DATATYPES[str(self.dtype)]

    @property
    def declared(self) -> list[int]:
        """The shape as metadata tell it: -1 for any number of rows in range."""
        rows = -1 if self.rows is None else self.rows
        return [rows, *self.shape] if self.batched else list(self.shape)


@dataclass(frozen=True)
class RequestTensor:
    """An input as a request has it: ``data`` are raw bytes, a list of numbers, or its text."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | memoryview | NumberText | Sequence[Any]


def arrays_of(
    specs: Sequence[Spec], given: Sequence[RequestTensor], batch: Dim
) -> tuple[list[np.ndarray], int]:
    """A request's inputs in the model's order, and how many rows they have, which must be in range.

    Fault if one is missing, unknown or given twice, or has another dtype or shape than is valid.
    """
    by_name = {each.name: each for each in given}
    names = [spec.name for spec in specs]
    if sorted(each.name for each in given) != sorted(names):
        raise invalid(f"inputs {[each.name for each in given]!r:.300} are given; valid are {names}")
    rows = _rows(specs, by_name, batch)
    return [_array(spec, by_name[spec.name], rows) for spec in specs], rows


def _rows(specs: Sequence[Spec], given: dict[str, RequestTensor], batch: Dim) -> int:
    """How many rows a request has: the same in all inputs, whose shapes are valid."""
    first = given[specs[0].name].shape[:1]
    rows = first[0] if specs[0].batched and first else 1
    for spec in specs:
        shape = given[spec.name].shape
        expected = (rows, *spec.shape) if spec.batched else spec.shape
        if shape == expected and batch.takes(rows):
            continue
        valid = f"{list(spec.shape)}"
        if spec.batched:
            sizes = ", ".join(map(str, ("N", *spec.shape)))
            valid = f"[{sizes}] with N from {batch.valid}, the same for all inputs"
        raise invalid(f"input {spec.name!r} has shape {list(shape)!r:.200}; valid is {valid}")
    return rows


def _array(spec: Spec, given: RequestTensor, rows: int) -> np.ndarray:
    if given.datatype != spec.datatype:
        raise invalid(
            f"input {spec.name!r} has datatype {given.datatype!r:.40}; valid is {spec.datatype}"
        )
    shape, data = given.shape, given.data
    if isinstance(data, (bytes, memoryview)):
        return _of_bytes(spec, shape, data)
    if isinstance(data, NumberText):
        return data.array(_where(spec), spec.datatype, spec.dtype, shape)
    return _of_list(spec, shape, data)


def _of_bytes(spec: Spec, shape: tuple[int, ...], data: bytes | memoryview) -> np.ndarray:
    needed = prod(shape) * spec.dtype.itemsize
    if len(data) != needed:
        raise invalid(
            f"input {spec.name!r} has {len(data)} bytes; valid are {needed} for {spec.datatype} "
            f"{list(shape)}"
        )
    if spec.dtype.kind == "b" and (np.frombuffer(data, np.uint8) > 1).any():
        raise invalid(f"input {spec.name!r} has bytes other than 0 and 1; valid are these")
    array = np.frombuffer(data, spec.dtype.newbyteorder("<")).reshape(shape)
    return array if array.flags.aligned else array.copy()  # behind JSON it may begin anywhere


def _of_list(spec: Spec, shape: tuple[int, ...], data: Sequence[Any]) -> np.ndarray:
    numbers = _flat(spec, shape, data)
    found = np.empty(len(numbers), spec.dtype)
    for begin in range(0, found.size, _PIECE):  # not all become objects at once
        piece = numbers[begin : begin + _PIECE]
        found[begin : begin + _PIECE] = array_of(_where(spec), spec.datatype, spec.dtype, piece)
    return found.reshape(shape)


def _flat(spec: Spec, shape: tuple[int, ...], data: Sequence[Any]) -> Sequence[Any]:
    """The elements of data that are flat already, or nested as the shape is."""
    if data and isinstance(data[0], list):
        level: Sequence[Any] = [data]
        for size in shape:
            if any(type(each) is not list or len(each) != size for each in level):
                raise wrong_count(_where(spec), shape, "is nested in another way")
            level = list(chain.from_iterable(level))
        return level
    if len(data) != prod(shape):
        raise wrong_count(_where(spec), shape, f"has {len(data)} elements")
    return data


def _where(spec: Spec) -> str:
    return f"input {spec.name!r}"
