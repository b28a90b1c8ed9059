"""Parses JSON without making all of its numbers Python objects at once.

A request in JSON is small apart from the lists of numbers under its keys ``data``.  These lists are
cut out of the text, the rest is parsed as usual, and each list becomes an array piece by piece once
its shape is known.  Memory stays near that of the text and of the arrays, and no step holds the
global interpreter lock for longer than a few milliseconds.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from minidnn.serving.settings import Fault, Refusal, invalid

MOST_HEAD_BYTES = 1 << 18
"""The most bytes of JSON without its lists of numbers: nested lists take 20 times their text."""

PIECE_BYTES = 1 << 15
"""The bytes of a list's text that are parsed or written at once."""

#: A key "data" before a list.  A quote that begins a key never follows a backslash.
_LIST = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*(?=\[)')
_SPACE = b" \t\r\n"
_BRACKETS = b"[],"
_NO_BRACKETS = bytes(set(range(256)) - set(_BRACKETS))
_AS_SPACES = bytes.maketrans(b"[]", b"  ")


class NumberText:
    """A list of numbers, flat or nested, that is not parsed yet: a view of its JSON text."""

    def __init__(self, text: memoryview) -> None:
        self._text = text

    def __repr__(self) -> str:
        return "[...]"

    def array(self, where: str, datatype: str, dtype: np.dtype, shape: Sequence[int]) -> np.ndarray:
        """Parses the list to an array; Fault if the number of elements or the nesting does not fit
        the shape, or if ``dtype`` cannot hold a number.

        Args:
            where: the name of the tensor, for messages.
            datatype: the protocol's name of ``dtype``.
            dtype: of the array.
            shape: of the array.
        """
        self._check_brackets(where, shape)
        count = prod(shape)
        result, begin = np.empty(count, dtype), 0
        for piece in _pieces(where, self._text):
            numbers = _parsed_piece(where, piece)
            array = array_of(where, datatype, dtype, numbers, piece)
            end = begin + array.size
            if end > count:
                break
            result[begin:end] = array
            begin = end
        if end != count:  # brackets of an empty list and of one element are equal
            raise wrong_count(where, shape, f"has {end} elements")
        return result.reshape(tuple(shape))

    def _check_brackets(self, where: str, shape: Sequence[int]) -> None:
        """Fault unless the list's brackets and commas are those of a flat or nested list of the
        shape.
        """
        text, size = self._text, PIECE_BYTES
        pieces = (bytes(text[begin : begin + size]) for begin in range(0, len(text), size))
        brackets = b"".join([piece.translate(None, _NO_BRACKETS) for piece in pieces])
        if brackets != _flat(prod(shape)) and brackets != _nested(shape):
            raise wrong_count(where, shape, _difference(text, brackets))


def parsed(body: bytes | bytearray | memoryview, most: int = MOST_HEAD_BYTES) -> dict[str, Any]:
    """Parses a body that is a JSON object; lists of numbers under keys ``data`` are
    :class:`NumberText`.

    Fault if the body is no JSON object, or has more than ``most`` bytes besides these lists.
    """
    view, lists, parts, end = memoryview(body), [], [], 0
    for begin, stop in _lists(bytes(body) if isinstance(body, memoryview) else body):
        parts.append(view[end:begin])
        lists.append(NumberText(view[begin:stop]))
        end = stop
    parts.append(view[end:])
    if sum(map(len, parts)) > most:
        raise Fault(
            Refusal.TOO_LARGE,
            f"the JSON has more than {most} bytes without lists of numbers after the key 'data'; "
            "valid are at most so many",
        )
    return _loaded(b"NaN".join(parts), lists)


def _lists(text: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Yields the beginning and the end of each list of numbers under a key "data".

    Such a list has neither quotes nor braces, and a brace or the next key follows it.
    """
    at = 0
    while match := _LIST.search(text, at):
        begin = at = match.end()
        quote = text.find(b'"', begin)
        brace = text.find(b"}", begin, quote if quote >= 0 else len(text))
        end = max(quote, brace) if brace < 0 else brace
        last = text.rfind(b"]", begin, end)
        if min(end, last) < 0 or text.find(b"{", begin, end) >= 0:
            continue
        is_key = text[match.start() - 1 : match.start()] != b"\\"
        if is_key and text[last + 1 : end].strip(_SPACE) == (b"" if end == brace else b","):
            yield begin, last + 1
            at = end


def _finite(text: str) -> float:
    """Parses a number outside of the lists; ValueError if it overflows."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text:.40} is too large for any datatype")
    return number


def _loaded(text: bytes, lists: Sequence[NumberText]) -> dict[str, Any]:
    """Parses JSON in which each NaN is a placeholder for the next of the lists."""
    constants: list[str] = []

    def constant(name: str) -> Any:
        constants.append(name)
        return lists[len(constants) - 1] if len(constants) <= len(lists) else None

    try:
        document = json.loads(text, parse_constant=constant, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise invalid(f"the body is no JSON: {str(error) or type(error).__name__:.200}") from error
    if len(constants) != len(lists):
        raise invalid(
            "the body is no JSON: NaN, Infinity and -Infinity stand outside of lists of numbers "
            "after the key 'data'; valid is that there alone"
        )
    if not isinstance(document, dict):
        raise invalid(f"the body is a {type(document).__name__}; valid is a JSON object")
    return document


def array_of(
    where: str, datatype: str, dtype: np.dtype, numbers: Sequence[Any], text: bytes | None = None
) -> np.ndarray:
    """Numbers as an array; Fault if one is of another type, or if ``dtype`` cannot hold it.

    Args:
        where: the name of the tensor, for messages.
        datatype: the protocol's name of ``dtype``.
        dtype: of the array.
        numbers: Python numbers.
        text: the JSON of the numbers, if any: in parsing, a number that is too large became
            infinite, which is valid only where the text has Infinity.
    """
    valid: tuple[type, ...] = {"b": (bool,), "f": (int, float)}.get(dtype.kind, (int,))
    if others := set(map(type, numbers)) - set(valid):
        names = ", ".join(sorted(each.__name__ for each in others))
        raise invalid(
            f"{where} has data of type {names}; valid for {datatype} is "
            f"{' or '.join(each.__name__ for each in valid)}"
        )
    try:
        with np.errstate(over="ignore", under="ignore"):
            array = np.array(numbers, dtype)
    except OverflowError as error:
        raise _out_of_range(where, datatype, dtype, f" ({error})") from error
    if dtype.kind == "f" and (infinite := np.isinf(array)).any():
        too_large = [each for each in np.array(numbers)[infinite].tolist() if math.isfinite(each)]
        if too_large:
            raise _out_of_range(where, datatype, dtype, f" ({too_large[0]:g})")
        if text is not None and np.count_nonzero(infinite) != text.count(b"Infinity"):
            raise _out_of_range(where, datatype, dtype, "")
    return array


def _out_of_range(where: str, datatype: str, dtype: np.dtype, which: str) -> Fault:
    """The fault of a number that ``dtype`` cannot hold."""
    bounds = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    return invalid(
        f"{where} has a number that {datatype} cannot hold{which}; valid are numbers from "
        f"{bounds.min} to {bounds.max}"
    )


def wrong_count(where: str, shape: Sequence[int], what: str) -> Fault:
    """The fault of a list that does not fit the shape of its tensor."""
    return invalid(
        f"data of {where} {what}; valid are {prod(shape)} elements for shape {list(shape)}, flat "
        "or nested so"
    )


def _flat(count: int) -> bytes:
    """The brackets and commas of a flat list."""
    return b"[" + b"," * (count - 1) + b"]"


def _nested(shape: Sequence[int]) -> bytes:
    """The brackets and commas of nested lists of a shape."""
    text = b""
    for size in reversed(shape):
        text = b"[" + b",".join([text] * size) + b"]"
    return text


def _difference(text: memoryview, brackets: bytes) -> str:
    """Says how a list differs from the shape of its tensor."""
    inner = brackets[1:-1]
    if b"[" in inner or b"]" in inner:
        return "is nested in another way"
    is_empty = not inner and not bytes(text).strip(b"[]" + _SPACE)
    return f"has {0 if is_empty else inner.count(b',') + 1} elements"


def _pieces(where: str, text: memoryview) -> Iterator[bytes]:
    """Yields pieces of a list's text, cut at commas."""
    begin = 0
    while begin < len(text):
        piece = bytes(text[begin : begin + PIECE_BYTES])
        if begin + len(piece) < len(text):
            end = piece.rfind(b",")
            if end < 0:
                raise invalid(
                    f"data of {where} has {PIECE_BYTES} bytes without a comma; valid are fewer "
                    "for each number"
                )
            piece = piece[:end]
        yield piece
        begin += len(piece) + 1


def _parsed_piece(where: str, piece: bytes) -> list[Any]:
    """Parses a piece of a list, without its brackets."""
    flat = piece.translate(_AS_SPACES) if b"[" in piece or b"]" in piece else piece
    try:
        found: list[Any] = json.loads(f"[{flat.decode()}]")
    except ValueError as error:
        raise invalid(
            f"the body is no JSON: data of {where}: {getattr(error, 'msg', str(error)):.200} near "
            f"{piece[max(getattr(error, 'pos', 1) - 9, 0) :][:16].decode('utf-8', 'replace')!r}"
        ) from error
    return found


def text_of(array: np.ndarray, write: Callable[[bytes], object]) -> None:
    """Writes an array's elements as a flat JSON list, piece by piece."""
    flat, size = array.reshape(-1), PIECE_BYTES // 32
    write(b"[")
    for begin in range(0, flat.size, size):
        piece = json.dumps(flat[begin : begin + size].tolist())[1:-1].encode()
        write(b", " + piece if begin else piece)
    write(b"]")
