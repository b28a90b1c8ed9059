"""Reads the tensors of a model as arrays, external data included.

External data are read from the model's folder alone: a location that is absolute, climbs out with
``..`` or leads out by a symbolic link is refused, for it could be any file of this machine.  If the
model itself is a link, the folder of the file that it points to is allowed, too: for files that the
link's folder lacks, and for links from there to files directly in it.  So works the cache of
Hugging Face, which keeps files in another folder under their hashes.
"""

from __future__ import annotations

import os
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from minidnn.errors import GraphError, UnsupportedError
from minidnn.frontends.onnx.library import check_shape

#: ``TensorProto.DataType`` -> minidnn's dtype.
DTYPES = {1: "float32", 6: "int32", 7: "int64", 9: "bool", 10: "float16", 11: "float64"}
DTYPES |= {2: "uint8", 3: "int8"}
#: Element types of constants alone (uint16, int16, uint4, int4) -> NumPy's dtype that holds them.
#: Two numbers of 4 bits are packed in a byte, the first in its lower half.
STORED = {4: "uint16", 5: "int16", 21: "uint8", 22: "int8"}
_FOUR_BITS = (21, 22)
_FIELDS = {"float32": "float_data", "int64": "int64_data", "float64": "double_data"}
_EXTERNAL = 1


def dtype_of(number: int, what: str) -> str:
    """Returns minidnn's dtype for an element type; UnsupportedError names ONNX's type."""
    if number not in DTYPES:
        raise UnsupportedError(
            f"{what} has element type {_type_name(number)}; valid are {', '.join(DTYPES.values())}"
        )
    return DTYPES[number]


def _type_name(number: int) -> str:
    from minidnn.frontends.onnx.library import import_onnx

    types = import_onnx().TensorProto.DataType
    return str(types.Name(number)) if number in types.values() else str(number)


def read_tensor(tensor: Any, model: Path | None, what: str) -> np.ndarray:
    """Returns the array of a ``TensorProto``; ``model`` is the model's path, None without one.

    GraphError if it is malformed, UnsupportedError for element types that minidnn lacks.
    """
    number = tensor.data_type
    dtype = np.dtype(STORED[number] if number in STORED else dtype_of(number, what))
    shape = check_shape(what, tensor.dims)
    if tensor.HasField("segment"):
        raise UnsupportedError(f"{what} is a segment of a tensor")
    if number in _FOUR_BITS:
        packed = _flat(tensor, model, np.dtype(np.uint8), (prod(shape) + 1) // 2, what)
        return _unpacked(packed, dtype)[: prod(shape)].reshape(shape)
    flat = _flat(tensor, model, dtype, prod(shape), what)
    if dtype == np.bool_:  # bytes other than 0 and 1 would be neither true nor false
        flat = flat.view(np.uint8) != 0
    return flat.reshape(shape)


def _flat(tensor: Any, model: Path | None, dtype: np.dtype, count: int, what: str) -> np.ndarray:
    """Reads ``count`` elements of ``dtype`` from external data, raw bytes or a typed field."""
    if tensor.data_location == _EXTERNAL:
        return _external(tensor, model, dtype, count, what)
    if tensor.HasField("raw_data"):
        if len(tensor.raw_data) != count * dtype.itemsize:
            raise GraphError(
                f"{what} has {len(tensor.raw_data)} bytes of data; its shape "
                f"{tuple(tensor.dims)} takes {count * dtype.itemsize}"
            )
        return np.frombuffer(tensor.raw_data, dtype.newbyteorder("<")).astype(dtype, copy=False)
    flat = _typed(tensor, dtype, what)
    if flat.size != count:
        raise GraphError(
            f"{what} has {flat.size} elements of data; its shape {tuple(tensor.dims)} takes {count}"
        )
    return flat


def _unpacked(pairs: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Unpacks numbers of 4 bits, two in each byte, signed for a signed dtype."""
    nibbles = np.stack([pairs & 15, pairs >> 4], axis=1).reshape(-1).astype(np.int8)
    if dtype.kind == "i":
        nibbles = np.where(nibbles > 7, nibbles - 16, nibbles)
    return nibbles.astype(dtype)


def _typed(tensor: Any, dtype: np.dtype, what: str) -> np.ndarray:
    """Reads the elements of a field such as ``float_data``; ``int32_data`` holds narrow types."""
    field = getattr(tensor, _FIELDS.get(dtype.name, "int32_data"))
    wide = np.array(field, np.int64 if dtype.kind in "iub" or dtype.name == "float16" else dtype)
    if dtype.kind in "iu" and wide.size:
        bounds = np.iinfo(dtype)
        if int(wide.min()) < bounds.min or int(wide.max()) > bounds.max:
            raise GraphError(f"{what} has data that are no numbers of {dtype}")
    if dtype.name == "float16":  # stored as its bits in integers
        if wide.size and not 0 <= int(wide.min()) <= int(wide.max()) < 1 << 16:
            raise GraphError(f"{what} has data that are no bits of float16")
        return wide.astype(np.uint16).view(dtype)
    return wide.astype(dtype)


def _external(
    tensor: Any, model: Path | None, dtype: np.dtype, count: int, what: str
) -> np.ndarray:
    """Maps ``count`` elements of ``dtype`` from the file that ``external_data`` names."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if not all(isinstance(text, str) for pair in entries.items() for text in pair):
        raise GraphError(f"{what} says where its external data are in bytes that are no text")
    path = external_path(entries.get("location", ""), model, what)
    offset, length = (_whole(entries, key, what) for key in ("offset", "length"))
    needed = count * dtype.itemsize
    if length not in (0, needed):
        raise GraphError(f"{what} has {length} bytes of external data; it takes {needed}")
    try:
        size = path.stat().st_size
        if offset + needed > size:
            raise GraphError(
                f"{what} takes bytes {offset} to {offset + needed} of {path.name!r}, which has "
                f"{size}"
            )
        if not needed:
            return np.empty(0, dtype)
        raw = np.memmap(path, np.uint8, "r", offset, (needed,))
    except OSError as error:
        raise GraphError(f"{what}: its external data cannot be read: {error}") from error
    return np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype, copy=False)


def _whole(entries: dict[str, str], key: str, what: str) -> int:
    """Parses an entry of ``external_data`` that is a number of bytes, 0 if it is absent."""
    text = entries.get(key, "0")
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise GraphError(f"{what} has external data of {key} {text!r:.50}; valid is a number")
    return int(text)


def external_path(location: str, model: Path | None, what: str) -> Path:
    """Returns the path of a file with external data.

    GraphError unless the file is in the folder of ``model``, the model's path, or beside the file
    that this path points to.
    """
    if model is None:
        raise GraphError(
            f"{what} has external data ({location!r:.100}), which are looked for in the model's "
            "folder; give the model's path, not its content"
        )
    if not location or "\0" in location or os.path.isabs(location) or "\\" in location:
        raise GraphError(f"{what} has external data in {location!r:.100}; {_VALID}")
    prefix = f"{what} has external data in {location!r:.100}"
    try:
        base, real = Path(os.path.realpath(model.parent)), Path(os.path.realpath(model)).parent
        if not os.path.lexists(base / location):
            base = real
        path = Path(os.path.realpath(base / location))
        is_sibling = path.parent == real
        is_allowed = (is_sibling or base in path.parents) and ".." not in Path(location).parts
        is_file = is_allowed and path.is_file()
    except (OSError, ValueError) as error:  # too long, or beyond the file system's encoding
        reason = getattr(error, "strerror", None) or error
        raise GraphError(f"{prefix}, which cannot be looked for: {reason}") from error
    if not is_allowed:
        raise GraphError(f"{prefix}; {_VALID}")
    if not is_file:
        raise GraphError(f"{prefix}, which is no file")
    return path


_VALID = (
    "valid is a path to a file in the model's folder, which no '..' or link leaves; if the model "
    "itself is a link, links may lead to files beside the one that it leads to"
)
