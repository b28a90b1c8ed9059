"""Tensors of the Open Inference Protocol: their datatypes, and arrays from a request's data.

Encoded pictures (PNG, JPEG, …) are decoded and prepared as the model's file says.  They have the
datatype BYTES: each element follows its length in 4 bytes, in little-endian order.
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
#: The number of list elements that are converted at once.
_PIECE = 1 << 11
#: The datatype of encoded pictures.
ENCODED = "BYTES"
MOST_PIXELS = 1 << 24
"""The most pixels of a picture: a few thousand bytes may decode to more than memory holds."""


@dataclass(frozen=True)
class Spec:
    """An input or an output of a model.

    Attributes:
        shape: of one row, without the batch axis; the whole shape if the model takes no batches.
        batched: whether a batch axis of rows comes before ``shape``.
        rows: the number of rows of a model of one batch size, to which fewer rows are padded; None
            for other models.
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
        """The shape in metadata, with -1 for any valid number of rows."""
        rows = -1 if self.rows is None else self.rows
        return [rows, *self.shape] if self.batched else list(self.shape)


@dataclass(frozen=True)
class RequestTensor:
    """An input of a request; ``data`` is raw bytes, a list of numbers, or a list as JSON text."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes | memoryview | NumberText | Sequence[Any]


def arrays_of(
    specs: Sequence[Spec], given: Sequence[RequestTensor], batch: Dim
) -> tuple[list[np.ndarray], int]:
    """A request's inputs as arrays in the model's order, and their number of rows.

    Fault if an input is missing, unknown or given twice, or if its dtype, its shape or the number
    of rows is not valid.
    """
    by_name = {tensor.name: tensor for tensor in given}
    names = [spec.name for spec in specs]
    if sorted(tensor.name for tensor in given) != sorted(names):
        raise invalid(
            f"inputs {[tensor.name for tensor in given]!r:.300} are given; valid are {names}"
        )
    rows = _rows(specs, by_name, batch)
    return [_array(spec, by_name[spec.name], rows) for spec in specs], rows


def _rows(specs: Sequence[Spec], given: dict[str, RequestTensor], batch: Dim) -> int:
    """The number of rows of a request; Fault unless all inputs have it and valid shapes."""
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
    """The array of one input, from whatever form its data has."""
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
    """The array of raw little-endian bytes, which is a view of them where they are aligned."""
    needed = prod(shape) * spec.dtype.itemsize
    if len(data) != needed:
        raise invalid(
            f"input {spec.name!r} has {len(data)} bytes; valid are {needed} for {spec.datatype} "
            f"{list(shape)}"
        )
    if spec.dtype.kind == "b" and (np.frombuffer(data, np.uint8) > 1).any():
        raise invalid(f"input {spec.name!r} has bytes other than 0 and 1; valid are these")
    array = np.frombuffer(data, spec.dtype.newbyteorder("<")).reshape(shape)
    return array if array.flags.aligned else array.copy()  # after JSON its address may be unaligned


def _of_list(spec: Spec, shape: tuple[int, ...], data: Sequence[Any]) -> np.ndarray:
    """The array of a list of numbers."""
    numbers = _flat(spec, shape, data)
    array = np.empty(len(numbers), spec.dtype)
    for begin in range(0, array.size, _PIECE):  # bounds the number of Python objects
        piece = numbers[begin : begin + _PIECE]
        array[begin : begin + _PIECE] = array_of(_where(spec), spec.datatype, spec.dtype, piece)
    return array.reshape(shape)


def _flat(spec: Spec, shape: tuple[int, ...], data: Sequence[Any]) -> Sequence[Any]:
    """The elements of a list that is flat, or nested as the shape is."""
    if data and isinstance(data[0], list):
        level: Sequence[Any] = [data]
        for size in shape:
            if any(type(entry) is not list or len(entry) != size for entry in level):
                raise wrong_count(_where(spec), shape, "is nested in another way")
            level = list(chain.from_iterable(level))
        return level
    if len(data) != prod(shape):
        raise wrong_count(_where(spec), shape, f"has {len(data)} elements")
    return data


def _where(spec: Spec) -> str:
    """The input's name for messages."""
    return f"input {spec.name!r}"


def are_encoded(given: Sequence[RequestTensor]) -> bool:
    """Whether a request has encoded pictures, which take long to decode."""
    return any(tensor.datatype == ENCODED for tensor in given)


def with_pictures(
    preparation: Preparation | None,
    specs: Sequence[Spec],
    given: Sequence[RequestTensor],
    batch: Dim,
) -> list[RequestTensor]:
    """The inputs of a request with encoded pictures decoded and prepared as FP32.

    Fault if the model takes no pictures, if their number is not one of ``batch``, or if one cannot
    be read.
    """
    if len(given) != len(specs):
        return list(given)  # the count is refused later, as for any inputs
    takes_pictures = preparation is not None and len(specs) == 1 and specs[0].batched
    if preparation is None or not takes_pictures or specs[0].datatype != "FP32":
        raise invalid(
            f"an input has datatype {ENCODED}; valid for this model is {specs[0].datatype}, as "
            "its file does not say how pictures are prepared"
        )
    return [
        _numbers(tensor, preparation, batch) if tensor.datatype == ENCODED else tensor
        for tensor in given
    ]


def _numbers(given: RequestTensor, preparation: Preparation, batch: Dim) -> RequestTensor:
    """An input of encoded pictures as FP32 in (N, C, H, W)."""
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
    """Yields the ``count`` elements of a BYTES tensor; Fault unless they fill it exactly."""
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
    """A decoded, cut and normalized picture."""
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
