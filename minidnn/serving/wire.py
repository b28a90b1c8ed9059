"""Parts of gRPC's messages, found without making objects of what they hold.

A message of 32 MB may mean two gigabytes of objects: an empty message within a message takes two
bytes.  Raw tensors are therefore cut out as they are, and only as much of the rest is parsed as a
request may have without them.
"""

from __future__ import annotations

from collections.abc import Iterator

from minidnn.serving.faults import Fault, Refusal, invalid
from minidnn.serving.json_numbers import MOST_HEAD_BYTES

_INPUTS, _RAW = 5, 7  # fields of ModelInferRequest
_CONTENTS = 5  # a field of InferInputTensor
MOST_FIELDS = 1 << 13  # of messages and the inputs within: looking at them takes time
_LENGTHS = {1: 8, 5: 4}  # of values of fixed length, by wire type


def raw_tensors(data: bytes, most: int) -> tuple[bytes, list[memoryview]]:
    """A ModelInferRequest without its raw_input_contents, and these.

    Fault if the message is damaged, or if what is not raw is longer than ``most``, or than a
    request's head without its inputs' contents.
    """
    view, parts, raw = memoryview(data), [], []
    head = rest = count = 0
    for field, begin, value, end in _fields(view, 0, len(view)):
        count = _counted(count)
        if field == _RAW and value >= 0:
            raw.append(view[value:end])
            continue
        contents = 0
        if field == _INPUTS and value >= 0:
            for each, _, at, last in _fields(view, value, end):
                contents += last - at if each == _CONTENTS and at > 0 else 0
                count = _counted(count)
        parts.append(view[begin:end])
        head += end - begin - contents
        rest += end - begin
        if head > MOST_HEAD_BYTES or rest > most:
            raise Fault(
                Refusal.TOO_LARGE,
                f"the message is too long; valid are at most {most} bytes besides "
                f"raw_input_contents, and {MOST_HEAD_BYTES} besides contents, too",
            )
    return b"".join(parts), raw


def _counted(fields: int) -> int:
    if fields >= MOST_FIELDS:
        raise Fault(
            Refusal.TOO_LARGE,
            f"the message and its inputs have more than {MOST_FIELDS} fields; valid are fewer",
        )
    return fields + 1


def _fields(view: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, beginning, beginning of the value, and end of each field; the value's beginning is
    -1 for one that is no text, bytes or message."""
    while at < end:
        begin = at
        key, at = _varint(view, at, end)
        value, kind = -1, key & 7
        if kind == 0:
            _, at = _varint(view, at, end)
        elif kind == 2:
            length, at = _varint(view, at, end)
            value, at = at, at + length
        elif kind in _LENGTHS:
            at += _LENGTHS[kind]
        else:
            raise invalid(f"the message is no ModelInferRequest: a field has wire type {kind}")
        if at > end:
            raise invalid("the message is no ModelInferRequest: it is cut off")
        yield key >> 3, begin, value, at


def _varint(view: memoryview, at: int, end: int) -> tuple[int, int]:
    number = shift = 0
    while at < end and shift < 70:
        byte = view[at]
        at, number, shift = at + 1, number | (byte & 127) << shift, shift + 7
        if byte < 128:
            return number, at
    raise invalid("the message is no ModelInferRequest: a number has no end")
