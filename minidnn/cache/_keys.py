"""Content hashes that are the same in every process."""

from __future__ import annotations

import dataclasses
import hashlib
import struct


def digest(*parts: object) -> str:
    """The SHA-256 (64 hex digits) of ``parts``, the same in every process and on every machine.

    Parts are None, bool, int, float, str, bytes, lists and tuples (which are equal), dicts (order
    does not matter) and dataclass instances, nested at will.  Values of different types differ:
    ``1``, ``1.0``, ``True`` and ``"1"`` give four digests.

    Raises:
        TypeError: a part of another type, for example a set, whose order is not stable.
    """
    return hashlib.sha256(_canonical(parts)).hexdigest()


def _canonical(part: object) -> bytes:
    """An encoding in which no two different parts are equal: tag, length, content."""
    if part is None:
        return _field(b"n", b"")
    if isinstance(part, bool):
        return _field(b"t", b"\1" if part else b"\0")
    if isinstance(part, int):
        return _field(b"i", b"%d" % part)
    if isinstance(part, float):
        return _field(b"f", struct.pack("<d", part))
    if isinstance(part, str):
        return _field(b"s", part.encode("utf-8", "surrogatepass"))
    if isinstance(part, (bytes, bytearray, memoryview)):
        return _field(b"b", bytes(part))
    if isinstance(part, (list, tuple)):
        return _field(b"l", b"".join(_canonical(item) for item in part))
    if isinstance(part, dict):
        items = sorted((_canonical(key), _canonical(value)) for key, value in part.items())
        return _field(b"d", b"".join(key + value for key, value in items))
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        fields = {f.name: getattr(part, f.name) for f in dataclasses.fields(part)}
        name = f"{type(part).__module__}.{type(part).__qualname__}"
        return _field(b"c", _canonical(name) + _canonical(fields))
    raise TypeError(
        f"digest: a part of type {type(part).__name__} has no stable encoding; valid are None, "
        "bool, int, float, str, bytes, list, tuple, dict and dataclass instances"
    )


def _field(tag: bytes, content: bytes) -> bytes:
    return b"%b%d:%b" % (tag, len(content), content)
