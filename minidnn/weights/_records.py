"""What becomes of the objects in a pickle: plain records."""

from __future__ import annotations

import dataclasses

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
#: Storages whose elements no array here has, and the bytes of an element.
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
    """A name that the pickle uses: a function, a class, a dtype.  Only its text is known."""

    name: str


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Opaque:
    """An object that is not read: ``name`` is the text of the global that would have made it."""

    name: str

    @property
    def is_tensor(self) -> bool:
        """Whether it is one of PyTorch's tensors, of a kind that is not read."""
        return self.name.startswith(("torch._utils._rebuild_", "torch._tensor._rebuild_"))


@dataclasses.dataclass(frozen=True, eq=False)
class StorageRecord:
    """``numel`` elements in the file under ``key``; a view of them begins at ``base``.

    ``code`` is one of a dtype, or the name of one of :data:`FOREIGN_STORAGES`.
    """

    code: str
    key: str
    numel: int
    base: int
    length: int


@dataclasses.dataclass(frozen=True, eq=False)
class TensorRecord:
    """A strided view of a storage; offset and strides are in elements, and not yet checked.

    ``foreign`` says what it is if it is none of those that can be read: "float8_e4m3fn".
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
