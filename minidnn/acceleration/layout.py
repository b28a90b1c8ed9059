"""Where PyTorch keeps what it says of a tensor: its count of writes, and where its memory lies.

A getter of PyTorch's takes a third of a microsecond for a tensor that is not in the caches, and a
network has hundreds.  Where the words lie that it reads is no part of PyTorch's interface, so it is
not assumed: tensors are made whose words are known, and looked for in memory.  A word that is not
found in one place and no other means that getters are asked, as for tensors of other kinds.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import torch

from minidnn.backends.cpu.native import TensorLayoutStruct, TensorStruct, unchanged

_OBJECT, _BODY, _STORAGE, _COUNTER = 8, 26, 8, 4  # words that are searched


class TensorWords:
    """The words of tensors as they are now; the tensors must be alive whenever they are compared.

    Attributes:
        arguments: what C takes to compare them.
        others: the tensors that nothing is said of.
    """

    def __init__(self, tensors: Sequence[Any]) -> None:
        at = layout()
        seen: list[TensorStruct | None] = [None] * len(tensors)
        if at is not None:
            with _Memory() as memory:
                seen = [_words(memory, tensor, at) for tensor in tensors]
        known = [words for words in seen if words is not None]
        self.arguments = ((TensorStruct * len(known))(*known), len(known), at)
        self.others = [t for t, words in zip(tensors, seen, strict=True) if words is None]

    def unchanged(self) -> bool:
        """Whether the tensors are as they were."""
        return bool(unchanged()(None, None, 0, *self.arguments))


def _words(memory: _Memory, tensor: Any, at: TensorLayoutStruct) -> TensorStruct | None:
    """A tensor's words, if they are what PyTorch says of it."""
    try:
        (body,) = memory.words(id(tensor) + at.body, 1)
        (counter,) = memory.words(body + at.counter, 1)
        (storage,) = memory.words(body + at.storage, 1)
        (offset,) = memory.words(body + at.offset, 1)
        version = memory.words(counter + at.version, 1)[0] & 0xFFFFFFFF
        (data,) = memory.words(storage + at.data, 1)
        said = tensor._cdata, tensor._version, tensor.data_ptr()
    except (OSError, RuntimeError):
        return None
    if (body, version, data + offset * tensor.element_size()) != said:
        return None
    return TensorStruct(id(tensor), body, counter, storage, version, data, offset)


@cache
def layout() -> TensorLayoutStruct | None:
    """Where the words of a plain tensor lie; None if that cannot be told."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None  # they may change while they are read
    try:
        # Whoever asks first may be in inference mode, where tensors have no count of writes.
        with _Memory() as memory, torch.inference_mode(False):
            found = [set(_candidates(memory, *sample)) for sample in _samples()]
    except (OSError, RuntimeError):
        return None
    only = set.intersection(*found)
    return TensorLayoutStruct(*only.pop()) if len(only) == 1 else None


def _samples() -> Iterator[tuple[Any, int]]:
    """Tensors with different words, and by how much each begins after its memory does."""
    numpys = np.zeros(64)  # its memory has another owner than storage of PyTorch's own
    for offset, writes in ((3, 7), (11, 4099), (29, 131)):
        for whole in (torch.zeros(64, device="cpu"), torch.from_numpy(numpys)):
            tensor = torch.nn.Parameter(whole[offset:], requires_grad=False)
            for _ in range(writes):
                tensor.zero_()
            yield tensor, offset


def _candidates(memory: _Memory, tensor: Any, offset: int) -> Iterator[tuple[int, ...]]:
    """Layouts, in the order of md_tensor_layout, that agree with what PyTorch says."""
    body, storage = tensor._cdata, tensor.untyped_storage()
    inner = memory.words(body, _BODY)
    versions = []
    for place, pointer in enumerate(inner):
        try:
            counts = memory.words(pointer, _COUNTER)
        except OSError:
            continue  # it is none
        versions += [(8 * place, at) for at in _places(counts, tensor._version, 0xFFFFFFFF)]
    yield from (
        (of_body, of_counter, of_storage, of_offset, of_version, of_data)
        for of_body, (of_counter, of_version), of_storage, of_offset, of_data in product(
            _places(memory.words(id(tensor), _OBJECT), body),
            versions,
            _places(inner, storage._cdata),
            _places(inner, offset),
            _places(memory.words(storage._cdata, _STORAGE), storage.data_ptr()),
        )
    )


def _places(words: Iterable[int], wanted: int, mask: int = -1) -> list[int]:
    return [8 * place for place, word in enumerate(words) if word & mask == wanted]


class _Memory:
    """The memory of this process, where a wrong address is an error and no more."""

    def __enter__(self) -> _Memory:
        """OSError on a system without /proc."""
        self._file = open("/proc/self/mem", "rb", buffering=0)
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def words(self, address: int, count: int) -> tuple[int, ...]:
        """So many words of 64 bits; OSError where there are none."""
        try:
            self._file.seek(address)
        except (OverflowError, ValueError) as error:
            raise OSError(f"no address: {address:#x}") from error
        found = self._file.read(8 * count)
        if len(found) < 8 * count:
            raise OSError(f"no memory at {address:#x}")
        return struct.unpack(f"{count}Q", found)
