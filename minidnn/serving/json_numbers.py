"""JSON whose numbers are not made Python objects all at once.

A request in JSON is small but for the lists that its keys ``data`` hold.  These are cut out of the
text, what remains is parsed as it is, and the lists become arrays piece by piece once their shapes
are known: memory stays near that of the text and of the array, and no step holds the interpreter's
lock for longer than a few milliseconds.
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
"""Of JSON without the lists of numbers: a list within a list takes twenty times its text."""

PIECE_BYTES = 1 << 15

#: Where the list after a key "data" begins.  A quote that begins a key never follows a backslash.
_LIST = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*(?=\[)')
_SPACE = b" \t\r\n"
_BRACKETS = b"[],"
_NO_BRACKETS = bytes(set(range(256)) - set(_BRACKETS))
_AS_SPACES = bytes.maketrans(b"[]", b"  ")


class NumberText:
    """A list of numbers, flat or nested, which is still text."""

    def __init__(self, text: memoryview) -> None:
        self._text = text

    def __repr__(self) -> str:
        return "[...]"

    def array(self, where: str, datatype: str, dtype: np.dtype, shape: Sequence[int]) -> np.ndarray:
        """The array; Fault if there are more or fewer numbers than the shape has, if they are
        nested in another way, or if ``dtype`` cannot hold them.

        Args:
            where: the tensor, for messages; ``datatype`` is the protocol's name of ``dtype``.
        """
        self._check_brackets(where, shape)
        count = prod(shape)
        found, begin = np.empty(count, dtype), 0
        for piece in _pieces(where, self._text):
            numbers = _parsed_piece(where, piece)
            array = array_of(where, datatype, dtype, numbers, piece)
            end = begin + array.size
            if end > count:
                break
            found[begin:end] = array
            begin = end
        if end != count:  # brackets are the same around one element and none
            raise wrong_count(where, shape, f"has {end} elements")
        return found.reshape(tuple(shape))

    def _check_brackets(self, where: str, shape: Sequence[int]) -> None:
        text, size = self._text, PIECE_BYTES
        pieces = (bytes(text[begin : begin + size]) for begin in range(0, len(text), size))
        brackets = b"".join([piece.translate(None, _NO_BRACKETS) for piece in pieces])
        if brackets != _flat(prod(shape)) and brackets != _nested(shape):
            raise wrong_count(where, shape, _difference(text, brackets))


def parsed(body: bytes | bytearray | memoryview, most: int = MOST_HEAD_BYTES) -> dict[str, Any]:
    """The JSON object that a body is, whose lists of numbers after keys ``data`` are
    :class:`NumberText`; Fault if it is none, or if what is left has more than ``most`` bytes."""
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
    """Where lists of numbers after keys "data" begin and end: such a list has neither quotes nor
    braces, and a brace or the next key follows it."""
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
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text:.40} is too large for any datatype")
    return number


def _loaded(text: bytes, lists: Sequence[NumberText]) -> dict[str, Any]:
    """What text is, in which each NaN stands for the next of the lists."""
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
    """Numbers as an array; Fault if one is of another type, or more than ``dtype`` can hold.

    Args:
        text: what the numbers were read from, where one that is too large became infinite.
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
            found = np.array(numbers, dtype)
    except OverflowError as error:
        raise _out_of_range(where, datatype, dtype, f" ({error})") from error
    if dtype.kind == "f" and (beyond := np.isinf(found)).any():
        too_large = [each for each in np.array(numbers)[beyond].tolist() if math.isfinite(each)]
        if too_large:
            raise _out_of_range(where, datatype, dtype, f" ({too_large[0]:g})")
        if text is not None and np.count_nonzero(beyond) != text.count(b"Infinity"):
            raise _out_of_range(where, datatype, dtype, "")
    return found


def _out_of_range(where: str, datatype: str, dtype: np.dtype, which: str) -> Fault:
    bounds = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    return invalid(
        f"{where} has a number that {datatype} cannot hold{which}; valid are numbers from "
        f"{bounds.min} to {bounds.max}"
    )


def wrong_count(where: str, shape: Sequence[int], what: str) -> Fault:
    """The fault of a list that has not the shape that it should have."""
    return invalid(
        f"data of {where} {what}; valid are {prod(shape)} elements for shape {list(shape)}, flat "
        "or nested so"
    )


def _flat(count: int) -> bytes:
    return b"[" + b"," * (count - 1) + b"]"


def _nested(shape: Sequence[int]) -> bytes:
    """The brackets and commas of nested lists of a shape."""
    found = b""
    for size in reversed(shape):
        found = b"[" + b",".join([found] * size) + b"]"
    return found


def _difference(text: memoryview, brackets: bytes) -> str:
    inner = brackets[1:-1]
    if b"[" in inner or b"]" in inner:
        return "is nested in another way"
    is_empty = not inner and not bytes(text).strip(b"[]" + _SPACE)
    return f"has {0 if is_empty else inner.count(b',') + 1} elements"


def _pieces(where: str, text: memoryview) -> Iterator[bytes]:
    """Parts of a list's text that begin and end between elements."""
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
    """Writes a flat JSON list of an array's elements, piece by piece."""
    flat, size = array.reshape(-1), PIECE_BYTES // 32
    write(b"[")
    for begin in range(0, flat.size, size):
        piece = json.dumps(flat[begin : begin + size].tolist())[1:-1].encode()
        write(b", " + piece if begin else piece)
    write(b"]")
