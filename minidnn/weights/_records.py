"""Plain records for the objects that a pickle describes; :mod:`._pickle` makes them."""

from __future__ import annotations

import dataclasses

#: PyTorch's typed storages whose elements arrays can have, and their dtype codes.
STORAGES = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}
#: Storages of dtypes that arrays here do not have, and the size of an element in bytes.
FOREIGN_STORAGES = {
    "ComplexFloatStorage": 8,
    "ComplexDoubleStorage": 16,
    "QInt8Storage": 1,
    "QUInt8Storage": 1,
    "QInt32Storage": 4,
    "QUInt4x2Storage": 1,
    "QUInt2x4Storage": 1,
    "UntypedStorage": 1,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Global:
    """A global that the pickle names: a function, a class or a dtype.  It is never imported."""

    name: str


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Opaque:
    """An object that is not read; ``name`` is that of the global that would have created it."""

    name: str

    @property
    def is_tensor(self) -> bool:
        """Whether it is a PyTorch tensor of a kind that is not read."""
        return self.name.startswith(("torch._utils._rebuild_", "torch._tensor._rebuild_"))


@dataclasses.dataclass(frozen=True, eq=False)
class StorageRecord:
    """A view of a storage.

    Attributes:
        code: dtype code of the elements, or a key of :data:`FOREIGN_STORAGES`.
        key: name of the storage in the file.
        numel: number of elements of the whole storage.
        base: first element of the view.
        length: number of elements of the view.
    """

    code: str
    key: str
    numel: int
    base: int
    length: int


@dataclasses.dataclass(frozen=True, eq=False)
class TensorRecord:
    """A strided view of a storage.  Offset and strides are in elements, and are not checked yet.

    ``foreign`` describes a tensor that cannot be read, such as "float8_e4m3fn"; None for others.
    """

    storage: StorageRecord
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    foreign: str | None = None


def _storage_names() -> dict[str, str]:
    homes = ("torch", "torch.cuda", "torch.storage")
    codes = {**STORAGES, **dict(zip(FOREIGN_STORAGES, FOREIGN_STORAGES, strict=True))}
    return {f"{home}.{name}": code for home in homes for name, code in codes.items()}


STORAGE_CODES = _storage_names()
