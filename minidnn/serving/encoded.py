"""Encoded pictures (PNG, JPEG, …) as inputs: they are prepared as the model's file says.

The protocol has them as datatype BYTES, each behind its length in 4 bytes, little end first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

import numpy as np

from minidnn.dynamic.dim import Dim
from minidnn.errors import UnsupportedError
from minidnn.pictures import PictureError, cut_centre, decode, normalized
from minidnn.preparation import Preparation
from minidnn.serving.faults import Fault, Refusal, invalid
from minidnn.serving.tensors import RequestTensor, Spec

ENCODED = "BYTES"
MOST_PIXELS = 1 << 24
"""Of a picture: a few thousand bytes may be as many pixels as there is memory for."""


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
