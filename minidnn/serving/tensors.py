"""Tensors of the protocol: their datatypes, and arrays of what a request holds.

Encoded pictures (PNG, JPEG, …) are prepared as the model's file says.  The protocol has them as
datatype BYTES, each behind its length in 4 bytes, little end first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from minidnn.dynamic.dim import Dim
from minidnn.errors import UnsupportedError
from minidnn.pictures import PictureError, cut_centre, decode, normalized
from minidnn.preparation import Preparation
from minidnn.serving.json_numbers import NumberText, array_of, wrong_count
from minidnn.serving.settings import Fault, Refusal, invalid

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
ENCODED = "BYTES"
MOST_PIXELS = 1 << 24
"""Of a picture: a few thousand bytes may be as many pixels as there is memory for."""


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


def are_encoded(given: Sequence[RequestTensor]) -> bool:
    """Whether there are pictures among the inputs of a request, which take long to decode."""
    return any(each.datatype == ENCODED for each in given)


def with_pictures(
    preparation: Preparation | None,
    specs: Sequence[Spec],
    given: Sequence[RequestTensor],
    batch: Dim,
) -> list[RequestTensor]:
    """The inputs of a request with numbers in the place of as many encoded pictures as a
    batch has.

    Fault if the model takes none, or if one cannot be read.
    """
    if len(given) != len(specs):
        return list(given)  # which is told of all inputs alike
    takes = preparation is not None and len(specs) == 1 and specs[0].batched
    if preparation is None or not takes or specs[0].datatype != "FP32":
        raise invalid(
            f"an input has datatype {ENCODED}; valid for this model is {specs[0].datatype}, as "
            "its file does not say how pictures are prepared"
        )
    return [
        _numbers(each, preparation, batch) if each.datatype == ENCODED else each for each in given
    ]


def _numbers(given: RequestTensor, preparation: Preparation, batch: Dim) -> RequestTensor:
    where = f"input {given.name!r:.100}"
    if not isinstance(given.data, (bytes, memoryview)):
        raise invalid(f"{where} has {ENCODED} that are not binary; valid are binary tensors")
    count = given.shape[0] if len(given.shape) == 1 else 0
    if not batch.takes(count):
        raise invalid(
            f"{where} has shape {list(given.shape)!r:.200}; valid is [N] with N from {batch.valid}"
        )
    pictures = list(_elements(where, memoryview(given.data), count))
    size = preparation.crop
    found = np.empty((count, preparation.channels, size, size), np.float32)
    for row, picture in enumerate(pictures):
        found[row] = _prepared(f"{row} of {where}", picture, preparation)
    return RequestTensor(given.name, "FP32", found.shape, found.astype("<f4", copy=False).tobytes())


def _elements(where: str, data: memoryview, count: int) -> Iterator[bytes]:
    """As many elements as a tensor has, which fill it."""
    begin = 0
    for _ in range(count):
        head = data[begin : begin + 4]
        length = struct.unpack("<I", head)[0] if len(head) == 4 else len(data)
        begin += 4
        if length > len(data) - begin:
            raise invalid(
                f"{where} has {len(data)} bytes, which end within an element; valid is the length "
                f"of each of {count} in 4 bytes before it"
            )
        yield bytes(data[begin : begin + length])
        begin += length
    if begin != len(data):
        raise invalid(f"{where} has {len(data) - begin} bytes behind its {count} elements")


def _prepared(name: str, content: bytes, preparation: Preparation) -> np.ndarray:
    try:
        pixels = decode(
            name,
            preparation.channels,
            lambda picture: cut_centre(picture, preparation),
            preparation.resize,
            content,
            most=MOST_PIXELS,
        )
    except PictureError as error:
        raise invalid(f"{error}") from error
    except UnsupportedError as error:  # without Pillow
        raise Fault(Refusal.FAILED, f"{error}") from error
    return normalized(pixels, preparation)[0]
