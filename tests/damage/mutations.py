"""Damage: what disks, transfers, careless editors and people who look for faults do to bytes and to
JSON documents.  Everything is drawn from a ``random.Random``, so that a seed gives it again."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Iterator, Sequence
from typing import Any

EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63)
"""Lengths and offsets at which arithmetic goes wrong."""
_FILLS = (0x00, 0x7F, 0xFF)
_SPANS = (1, 1, 2, 4, 4, 8, 30, 200, 4096)

Region = tuple[int, int]


def mutated(draw: random.Random, data: bytes, regions: Sequence[Region] = ()) -> bytes:
    """Bytes after one to three changes.

    Args:
        regions: where changes are as likely in one as in the other, whatever their sizes; by
            default everywhere.
    """
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        begin, end = draw.choice(regions or [(0, len(data))])
        begin, end = min(begin, len(changed)), min(end, len(changed))
        at = draw.randint(begin, max(begin, end - 1))
        span = min(draw.choice(_SPANS), len(changed) - at)
        draw.choice(_KINDS)(draw, changed, at, span)
    return bytes(changed)


def _flip(draw: random.Random, data: bytearray, at: int, span: int) -> None:
    if span:
        data[at] ^= 1 << draw.randrange(8)


def _fill(draw: random.Random, data: bytearray, at: int, span: int) -> None:
    data[at : at + span] = bytes([draw.choice(_FILLS)]) * span


def _random(draw: random.Random, data: bytearray, at: int, span: int) -> None:
    data[at : at + span] = draw.randbytes(span)


def _number(draw: random.Random, data: bytearray, at: int, span: int) -> None:
    """An integer, as lengths and offsets are, becomes an extreme one."""
    width, layout = draw.choice(((1, "B"), (2, "H"), (4, "I"), (8, "Q")))
    value = struct.pack(draw.choice("<>") + layout, draw.choice(EXTREMES) % 256**width)
    data[at : at + width] = value[: len(data) - at]


def _letter(draw: random.Random, data: bytearray, at: int, span: int) -> None:
    """A digit of a number or a letter of a name becomes another sign."""
    near = [i for i in range(at, min(at + 200, len(data))) if chr(data[i]).isalnum()]
    if near:
        data[draw.choice(near)] = draw.choice(b'0123456789-.eE[]{}",:\\ \xff')


def _insert(draw: random.Random, data: bytearray, at: int, span: int) -> None:
    data[at:at] = draw.randbytes(max(span, 1))


def _duplicate(draw: random.Random, data: bytearray, at: int, span: int) -> None:
    data[at:at] = data[at : at + span]


def _delete(draw: random.Random, data: bytearray, at: int, span: int) -> None:
    del data[at : at + span]


def _truncate(draw: random.Random, data: bytearray, at: int, span: int) -> None:
    del data[at:]


def _copy(draw: random.Random, data: bytearray, at: int, span: int) -> None:
    source = draw.randint(0, len(data) - span)
    data[at : at + span] = data[source : source + span]


def _swap(draw: random.Random, data: bytearray, at: int, span: int) -> None:
    """Two blocks change places."""
    other = draw.randint(0, len(data) - span)
    if abs(other - at) >= span:
        one = bytes(data[at : at + span])
        data[at : at + span] = data[other : other + span]
        data[other : other + span] = one


_KINDS = (
    *(_flip, _fill, _random, _number, _letter, _insert, _duplicate, _delete, _truncate),
    *(_copy, _swap),
)

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 2**31, 2**62, 2**63, -(2**63), 10**30),
    *(0.0, -0.5, 1e308, float("nan"), "", "x", "conv.weight", "nan", "\ud800", "a" * 1000),
    *([], [0], [1, 1], [[0, 0], [0, 0]], {}, {"float": "nan"}, {"float": "x"}, {"graph": None}),
    *({"expression": []}, {"ReLU": {}}, {"Concat": {"axis": -9}}),
    {"Formula": {"body": {"expression": [["argument", 3]]}}},
)


def mutated_document(draw: random.Random, document: Any) -> Any:
    """A JSON document after one to four changes; the one that is given stays as it is."""
    document = copy.deepcopy(document)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        found = list(_places(document))
        if not found:
            break
        holder, key = draw.choice(found)
        match draw.randrange(5):
            case 0:
                holder[key] = copy.deepcopy(draw.choice(ODD))
            case 1:
                other, place = draw.choice(found)
                holder[key] = copy.deepcopy(other[place])
            case 2:
                del holder[key]
            case 3 if isinstance(holder, dict):
                holder[draw.choice((f"{key}x", "", "body", "name"))] = holder.pop(key)
            case 3:
                holder.insert(key, copy.deepcopy(holder[key]))
            case 4 if type(holder[key]) is int:
                holder[key] += draw.choice((-2, -1, 1, 2, 1000))
            case _:
                holder[key] = [holder[key]]
    return document


def as_text(document: Any) -> str:
    """JSON that may have NaN and lone surrogates, as others write it."""
    return json.dumps(document)


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a document with every key or index in it."""
    if isinstance(data, (dict, list)):
        for key in list(data) if isinstance(data, dict) else range(len(data)):
            yield data, key
            yield from _places(data[key])
