"""Reads and writes safetensors: a length, a JSON header, and the tensors' bytes, back to back.

Source: https://github.com/huggingface/safetensors, section "Format".  Reading is stricter than
the format in one respect: the header may have at most :data:`MAX_HEADER` bytes, so that its Python
objects stay below about 200 MB.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import WeightsError
from ..preparation import Preparation, metadata_of
from ._file import DTYPES, MAX_RANK, Array, MappedFile, Unread, are_sizes, brief, itemsize

MAX_HEADER = 8 << 20
_METADATA = "__metadata__"
#: Dtypes of the format that arrays here do not have, and the size of an element in bits.
_FOREIGN = {
    **{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U16": 16, "U32": 32, "U64": 64, "C64": 64},
    **dict.fromkeys(("F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ", "F8_E8M0"), 8),
}
_CODES = {np.dtype(kind): code for code, kind in DTYPES.items() if code not in ("BF16", "BOOL")} | {
    np.dtype(np.bool_): "BOOL"
}


_VALID = f"valid are {', '.join(DTYPES)}"


def looks_like_safetensors(file: MappedFile) -> bool:
    """Whether a file begins like one of this format."""
    return file.size >= 10 and file.data[8:9] == b"{"


def read_safetensors(file: MappedFile) -> dict[str, Array | Unread]:
    """Returns all tensors of a file in the order of its header, as read-only arrays over its bytes.

    A tensor whose dtype arrays do not have is an :class:`~minidnn.weights.Unread`.

    Raises:
        WeightsError: the file breaks a rule of the format; names the tensor, value and rule.
    """
    header, begin = _read_header(file)
    header.pop(_METADATA, None)
    tensors: dict[str, Array | Unread] = {}
    spans = []
    for name, entry in header.items():
        code, shape, start, end = _check_entry(file, name, entry, file.size - begin)
        spans.append((start, end, name))
        if code in _FOREIGN:
            problem = f"tensor {brief(name)} of shape {brief(shape)} has dtype {code}; {_VALID}"
            tensors[name] = Unread(code, shape, file.error(problem))
            continue
        flat = file.array(
            code, begin + start, math.prod(shape), big=False, what=f"tensor {brief(name)}"
        )
        tensors[name] = flat.reshape(shape)
    _check_spans(file, spans, file.size - begin)
    return tensors


def read_metadata(file: MappedFile) -> dict[str, str]:
    """Returns the texts in a header's ``__metadata__``."""
    header, _ = _read_header(file)
    return dict(header.get(_METADATA, {}))


def _read_header(file: MappedFile) -> tuple[dict[str, Any], int]:
    """Returns the header, a JSON object with valid names, and the offset of the data."""
    if file.size < 8:
        raise file.error(f"has {file.size} bytes; the length of a header alone has 8")
    length = int.from_bytes(file.data[:8], "little")
    if length > MAX_HEADER:
        raise file.error(f"says its header has {length} bytes; at most {MAX_HEADER} are valid")
    if length > file.size - 8:
        raise file.error(
            f"says its header has {length} bytes, but only {file.size - 8} follow: it is truncated"
        )
    try:
        text = file.data[8 : 8 + length].decode("utf-8")
        header = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError as error:
        raise file.error("has a header with JSON nested too deep; valid are 2 levels") from error
    except ValueError as error:
        raise file.error(f"has a header that is not valid JSON: {error}") from error
    if not isinstance(header, dict) or not text.startswith("{"):
        raise file.error(f"has the header {brief(header)}; valid is a JSON object")
    for name in header:
        if not _is_text(name):
            raise file.error(f"has the tensor name {brief(name)}, which is not valid Unicode")
    metadata = header.get(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise file.error(f"has {_METADATA} {brief(metadata)}; valid are pairs of texts")
    return header, 8 + length


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for key, value in pairs:
        if key in entries:
            raise ValueError(f"the key {brief(key)} appears twice")
        entries[key] = value
    return entries


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _is_text(name: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _check_entry(
    file: MappedFile, name: str, entry: Any, room: int
) -> tuple[str, tuple[int, ...], int, int]:
    """Returns the dtype code, shape, and offsets of the beginning and end of a tensor, after
    checking its entry in the header.  ``room`` is the size of the data in bytes."""
    what = f"tensor {brief(name)}"
    if not isinstance(entry, dict) or sorted(entry) != ["data_offsets", "dtype", "shape"]:
        raise file.error(
            f"{what} is described by {brief(entry)}; valid is an object with dtype, shape and "
            "data_offsets"
        )
    code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(code, str) or (code not in DTYPES and code not in _FOREIGN):
        raise file.error(f"{what} has dtype {brief(code)}; {_VALID}")
    if not are_sizes(shape) or len(shape) > MAX_RANK:
        raise file.error(
            f"{what} has shape {brief(shape)}; valid is a list of at most {MAX_RANK} integers >= 0"
        )
    if not are_sizes(offsets) or len(offsets) != 2:
        raise file.error(f"{what} has data_offsets {brief(offsets)}; valid are two integers >= 0")
    start, end = offsets
    if not start <= end <= room:
        raise file.error(
            f"{what} has data_offsets {brief(offsets)}, but the file has {room} bytes of data: "
            "it is truncated or damaged"
        )
    bits = _FOREIGN[code] if code in _FOREIGN else 8 * itemsize(code)
    if math.prod(shape) * bits != 8 * (end - start):
        raise file.error(
            f"{what} of dtype {code} and shape {brief(shape)} needs "
            f"{brief(math.prod(shape) * bits // 8)} bytes, but its data_offsets {brief(offsets)} "
            f"span {end - start}"
        )
    # NumPy refuses an empty array if the product of its other sizes exceeds the address space.
    if math.prod(dim for dim in shape if dim) * bits >= 2**66:
        raise file.error(f"{what} has shape {brief(shape)}, too large for this machine")
    return code, tuple(shape), start, end


def _check_spans(file: MappedFile, spans: list[tuple[int, int, str]], room: int) -> None:
    """Checks that tensors fill the data without overlaps or gaps, as the format demands."""
    position, previous = 0, ""
    for start, end, name in sorted(spans):
        if start < position:
            raise file.error(
                f"tensor {brief(name)} begins at {start}, inside tensor {brief(previous)}, which "
                f"ends at {position}"
            )
        if start > position:
            raise file.error(
                f"bytes {position} to {start} of the data, before tensor {brief(name)}, belong to "
                "no tensor"
            )
        position, previous = end, name
    if position != room:
        raise file.error(
            f"the tensors take {position} of {room} bytes of data; valid is no byte too many"
        )


def save_weights(
    tensors: Mapping[str, Array],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
    *,
    preparation: Preparation | None = None,
) -> None:
    """Writes arrays to a safetensors file, which appears complete or not at all.

    Args:
        tensors: arrays of any layout and byte order, dtypes float64, float32, float16, int64,
            int32, int16, int8, uint8, bool.  Their order is kept.
        path: is replaced when it exists.
        metadata: texts for the header's ``__metadata__``.
        preparation: how pictures are prepared for the network; ``load_preparation`` reads it.

    Raises:
        WeightsError: an argument of another type; a name, a dtype or the metadata that cannot be
            written.
        GraphError: the preparation is none.
        OSError: the file cannot be written.

    >>> md.save_weights(net.state_dict(), "weights.safetensors")
    """
    if not isinstance(tensors, Mapping) or not isinstance(path, (str, os.PathLike)):
        raise WeightsError(
            f"save_weights: tensors is a {type(tensors).__name__} and path a "
            f"{type(path).__name__}; valid are a dict of arrays, such as network.state_dict(), "
            "and then a path"
        )
    path = Path(path)
    header, order = _layout(path, tensors, {**(metadata or {}), **metadata_of(preparation)})
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # so that the data are aligned in memory
    if len(text) > MAX_HEADER:
        raise WeightsError(
            f"save_weights: {path}: the header would have {len(text)} bytes; at most {MAX_HEADER} "
            "are valid"
        )
    work = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with open(work, "xb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name in order:
                array = tensors[name]
                stored = array.dtype.newbyteorder("<")
                file.write(np.ascontiguousarray(array, stored).reshape(-1).view(np.uint8).data)
        os.replace(work, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # not the work file
    finally:
        work.unlink(missing_ok=True)


def _layout(
    path: Path, tensors: Mapping[str, Array], metadata: Mapping[str, str] | None
) -> tuple[dict[str, Any], list[str]]:
    """Returns the header, in the order of ``tensors``, and the order of the data, by decreasing
    element size: every tensor is then aligned to its element size when the file is mapped.
    """
    for name, array in tensors.items():
        if not isinstance(name, str) or name == _METADATA or not _is_text(name):
            raise WeightsError(f"save_weights: {path}: {brief(name)} is not a valid tensor name")
        if not isinstance(array, np.ndarray):
            raise WeightsError(
                f"save_weights: {path}: tensor {brief(name)} is a {type(array).__name__}; valid is "
                "a NumPy array"
            )
        if array.dtype.newbyteorder("=") not in _CODES:
            valid = ", ".join(str(dtype) for dtype in _CODES)
            raise WeightsError(
                f"save_weights: {path}: tensor {brief(name)} has dtype {array.dtype}; valid are "
                f"{valid}"
            )
    order = sorted(tensors, key=lambda name: -tensors[name].dtype.itemsize)
    spans, position = {}, 0
    for name in order:
        spans[name] = [position, position + tensors[name].nbytes]
        position += tensors[name].nbytes
    header: dict[str, Any] = {}
    if metadata:
        for key, value in metadata.items():
            if not (isinstance(key, str) and isinstance(value, str)):
                raise WeightsError(
                    f"save_weights: {path}: metadata {brief(key)}: {brief(value)} is not a pair "
                    "of texts"
                )
        header[_METADATA] = dict(metadata)
    for name, array in tensors.items():
        code = _CODES[array.dtype.newbyteorder("=")]
        header[name] = {"dtype": code, "shape": list(array.shape), "data_offsets": spans[name]}
    return header, order
