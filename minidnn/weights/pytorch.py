"""Reads state dicts that ``torch.save`` wrote, in the zip format and in that before PyTorch 1.6.

Source of both formats: ``torch/serialization.py`` (``_load``, ``_legacy_load``) and
``torch/csrc/StorageMethods.cpp``.  Nothing in a file is executed: see :mod:`._pickle`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import WeightsError
from ._file import DTYPES, MAX_RANK, Array, MappedFile, Unread, brief, itemsize
from ._pickle import PickleMachine
from ._records import FOREIGN_STORAGES, Opaque, StorageRecord, TensorRecord
from ._zip import Archive

_MAGIC = 0x1950A86A20F9469CFC6C
_MAGIC_PICKLE = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_PROTOCOL = 1001
#: Bytes that a tensor may have even if its file is smaller, as one with strides of 0 does.
_EXPANSION_FLOOR = 1 << 20
#: The last part of the names under which PyTorch's modules save extra state, which is no tensor.
_EXTRA_STATE = "_extra_state"

#: The entry, or the path of entries, that holds the state dict in a checkpoint; None for the whole.
Key = str | Sequence[str] | None


def looks_like_legacy(file: MappedFile) -> bool:
    """Whether a file begins like one that a PyTorch before 1.6 wrote."""
    return file.data[:1] == b"\x80" and _MAGIC_PICKLE in file.data[2:32]


def read_zip(file: MappedFile, key: Key) -> dict[str, Array | Unread]:
    """Returns the state dict in a zip file as read-only arrays, which are views of the file where
    possible.

    Args:
        file: for which :func:`._zip.looks_like_zip` is true.
        key: of the state dict in a dict, several for dicts in dicts; None if it is the whole file.

    Raises:
        WeightsError: the file is damaged or hostile, or holds something else.
    """
    archive = Archive(file)
    pickles = [name for name in archive.records if re.fullmatch("[^/]+/data[.]pkl", name)]
    if len(pickles) != 1:
        raise file.error(
            f"is a zip archive with {len(pickles)} records named */data.pkl; valid is one, as "
            "torch.save writes"
        )
    folder = pickles[0].removesuffix("data.pkl")
    if folder + "constants.pkl" in archive.records:
        raise file.error(
            "is a TorchScript archive, which holds code; valid is a state dict: "
            "torch.save(model.state_dict(), path)"
        )
    order = b"little"
    if folder + "byteorder" in archive.records:
        order = archive.read(folder + "byteorder", 16)
    if order not in (b"little", b"big"):
        raise file.error(f"says its byte order is {brief(order)}; valid are 'little' and 'big'")
    program = archive.record(pickles[0])
    machine = PickleMachine(file, program.start, program.start + program.size)
    tensors = _state_dict(file, machine.run()[0], key)

    def locate(storage: StorageRecord) -> int:
        record = archive.record(f"{folder}data/{storage.key}")
        needed = storage.numel * itemsize(storage.code)
        if record.size != needed:
            raise file.error(
                f"storage {brief(storage.key)} has {record.size} bytes, but {storage.numel} "
                f"elements of {storage.code} need {needed}"
            )
        return record.start

    return _Reader(file, locate, big=order == b"big").arrays(tensors)


def read_legacy(file: MappedFile, key: Key) -> dict[str, Array | Unread]:
    """Returns the state dict in a file of a PyTorch before 1.6; see :func:`read_zip`.

    Such a file consists of five pickles (magic number, protocol, system, object, keys of the
    storages), followed by the number of elements and the little-endian elements for each key.
    """
    at = 0
    for what, valid in (("magic number", _MAGIC), ("protocol version", _PROTOCOL)):
        value, at = PickleMachine(file, at, file.size).run()
        if type(value) is not int or value != valid:
            raise file.error(f"has the {what} {brief(value)}; valid is {valid}")
    _, at = PickleMachine(file, at, file.size).run()
    machine = PickleMachine(file, at, file.size)
    content, at = machine.run()
    keys, at = PickleMachine(file, at, file.size).run()
    starts: dict[str, int] = {}
    for storage_key in keys if isinstance(keys, list) else [None]:
        storage = machine.storages.get(storage_key) if isinstance(storage_key, str) else None
        if storage is None or storage.key in starts:
            raise file.error(
                f"lists the storages {brief(keys)}; valid is each of its tensors' storages once"
            )
        count = int.from_bytes(file.data[at : at + 8], "little", signed=True)
        end = at + 8 + storage.numel * _width(storage.code)
        if end > file.size:
            raise file.error(
                f"storage {brief(storage.key)} ends at byte {end}, but the file has {file.size}: "
                "it is truncated"
            )
        if count != storage.numel:
            raise file.error(
                f"storage {brief(storage.key)} has {count} elements, but its tensors say "
                f"{storage.numel}"
            )
        starts[storage.key] = at + 8
        at = end

    def locate(storage: StorageRecord) -> int:
        if storage.key not in starts:
            raise file.error(f"has no data for storage {brief(storage.key)}")
        return starts[storage.key]

    return _Reader(file, locate, big=False).arrays(_state_dict(file, content, key))


def _width(code: str) -> int:
    """The size of a storage's element in bytes."""
    return FOREIGN_STORAGES[code] if code in FOREIGN_STORAGES else itemsize(code)


def _state_dict(file: MappedFile, content: Any, key: Key) -> dict[str, TensorRecord | Opaque]:
    """Returns the dict of tensors under a key of the object that a pickle describes, after checking
    that it is one."""
    where = "the file"
    path = [] if key is None else [key] if isinstance(key, str) else list(key)
    for depth, name in enumerate(path):
        if not isinstance(content, dict) or name not in content:
            raise file.error(f"{where} has no entry {name!r}; it holds {_keys(content)}")
        content, where = content[name], f"its entry {' in '.join(map(repr, path[depth::-1]))}"
    if not isinstance(content, dict):
        raise file.error(
            f"{where} holds {_kind(content).rstrip(',')}, not a state dict; valid is what "
            "torch.save(model.state_dict(), path) writes"
        )
    for name, value in content.items():
        if isinstance(name, str) and (isinstance(value, TensorRecord) or _is_unread(name, value)):
            continue
        shown = brief(name) if not isinstance(name, Opaque) else f"the key <{name.name}>"
        if isinstance(value, TensorRecord):
            raise file.error(
                f"{where} holds {_keys(content)}, where {shown} names a tensor; valid are texts"
            )
        raise file.error(
            f"{where} holds {_keys(content)}, where {shown} is {_kind(value)} "
            f"and not a tensor{_hint(content, path)}"
        )
    return content


def _is_unread(name: str, value: Any) -> bool:
    """Whether an entry of a state dict is valid, but cannot be read as an array."""
    tensor = isinstance(value, Opaque) and value.is_tensor
    return tensor or name.rpartition(".")[2] == _EXTRA_STATE


def _hint(content: dict[Any, Any], path: list[str]) -> str:
    """The keys of the state dicts within a dict, for an error message."""
    inner = [name for name, value in content.items() if isinstance(value, dict)]
    keys = [brief([*path, name] if path else name) for name in inner if isinstance(name, str)][:4]
    return f"; a state dict inside is read with key={' or key='.join(keys)}" if keys else ""


def _kind(value: Any) -> str:
    if isinstance(value, Opaque):
        return f"an object of {value.name!r}, of which nothing is read or executed,"
    return "a Tensor" if isinstance(value, TensorRecord) else f"a {type(value).__name__}"


def _keys(content: Any) -> str:
    if not isinstance(content, dict):
        return _kind(content)
    names = [f"<{key.name}>" if isinstance(key, Opaque) else key for key in content]
    return f"a dict with the keys {brief(names)}"


class _Reader:
    """Makes arrays from tensor records.  Each storage is read, and converted if necessary, once.

    ``locate`` returns the offset of a storage's data in the file; ``big`` says that the data is
    big-endian.
    """

    def __init__(
        self, file: MappedFile, locate: Callable[[StorageRecord], int], *, big: bool
    ) -> None:
        self._file = file
        self._locate = locate
        self._big = big
        self._flat: dict[str, Array] = {}

    def arrays(self, tensors: dict[str, TensorRecord | Opaque]) -> dict[str, Array | Unread]:
        return {
            name: self._array(name, tensor)
            if isinstance(tensor, TensorRecord) and tensor.foreign is None
            else self._unread(name, tensor)
            for name, tensor in tensors.items()
        }

    def _unread(self, name: str, value: Any) -> Unread:
        valid = f"valid are dense tensors of {', '.join(DTYPES)}"
        if isinstance(value, TensorRecord):
            kind, shape = str(value.foreign), value.shape
            problem = f"tensor {brief(name)} of shape {brief(shape)} holds {kind}; {valid}"
            return Unread(kind, shape, self._file.error(problem))
        kind = value.name if isinstance(value, Opaque) else type(value).__name__
        problem = f"{brief(name)} is {_kind(value).rstrip(',')}; {valid}"
        return Unread(kind, None, self._file.error(problem))

    def _array(self, name: str, tensor: TensorRecord) -> Array:
        flat = self._storage(tensor.storage)
        shape, strides = tensor.shape, tensor.strides
        if len(shape) > MAX_RANK:
            raise self._error(name, tensor, f"has {len(shape)} dimensions; valid are {MAX_RANK}")
        width = flat.dtype.itemsize
        if math.prod(dim for dim in shape if dim) * width >= 2**63:
            raise self._error(name, tensor, "is too large for this machine")
        if 0 in shape:
            empty = np.empty(shape, flat.dtype)
            empty.flags.writeable = False
            return empty
        last = tensor.offset + sum((dim - 1) * s for dim, s in zip(shape, strides, strict=True))
        if last >= flat.size:
            raise self._error(name, tensor, f"reaches element {last} of a storage with {flat.size}")
        # With a stride of 0, a few bytes can become terabytes when a caller copies the array.
        if math.prod(shape) * width > max(self._file.size, _EXPANSION_FLOOR):
            raise self._error(name, tensor, "is larger than the whole file")
        # The stride of an axis of size 1 does not matter; this is NumPy's choice.
        steps = [s * width if dim > 1 else width for dim, s in zip(shape, strides, strict=True)]
        view: Array = np.lib.stride_tricks.as_strided(
            flat[tensor.offset :], shape, steps, writeable=False
        )
        return view

    def _storage(self, storage: StorageRecord) -> Array:
        if storage.key not in self._flat:
            start = self._locate(storage)
            self._flat[storage.key] = self._file.array(
                storage.code,
                start,
                storage.numel,
                big=self._big,
                what=f"storage {brief(storage.key)}",
            )
        return self._flat[storage.key][storage.base : storage.base + storage.length]

    def _error(self, name: str, tensor: TensorRecord, problem: str) -> WeightsError:
        return self._file.error(
            f"tensor {brief(name)} with offset {tensor.offset}, shape {brief(tensor.shape)} and "
            f"strides {brief(tensor.strides)} {problem}"
        )
