"""CPU programs in files: the table, the packed constants, the code of kernels and of the runner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import CompileError, DeviceError, GraphError
from ....runtime.cores import usable_cores
from ....runtime.operand import Operand
from ....runtime.program import StoredProgram, offsets_of
from ..compilers.library import SharedObject, load_bytes, loaded_from, sources_digest
from ..isa import any_isa_named, is_usable, processor_flags
from .buffers import Array
from .native import runner_library, use_runner
from .program import BoundKernel, Group, Table, TableProgram

#: Returns a part of the file with code, by name: its bytes and their digest.
Code = Callable[[str], tuple[memoryview, str]]

_RUNNER = "the native runner"
_KERNELS = "kernels {}"


def store(
    table: Table, packed: Sequence[tuple[int, Array]], isa: str, threads: int
) -> StoredProgram:
    """The form of a table in a file.

    Args:
        packed: the constants with their addresses.
    """
    # Arrays of integers come first, since they may hold sizes and offsets: see StoredProgram.
    packed = sorted(packed, key=lambda each: each[1].dtype.kind == "f")
    tables = [array for _, array in packed if array.dtype.kind != "f"]
    output_constants = [
        source.reshape(-1) for source in table.sources if isinstance(source, np.ndarray)
    ]
    arrays = [*(array for _, array in packed), *output_constants]
    index_bytes = offsets_of([*tables, np.empty(0)])[-1]
    libraries: dict[Path, int] = {}
    for each in table.regions:
        for kernel in each.regions if isinstance(each, Group) else [each]:
            libraries.setdefault(kernel.kernel.library, len(libraries))

    def relocate(offsets: Sequence[int]) -> dict[str, Any]:
        return _document(table, packed, offsets, libraries, threads)

    code = {_RUNNER: runner_library().content()}
    code |= {_KERNELS.format(i): loaded_from(path).content() for path, i in libraries.items()}
    return StoredProgram(isa, relocate(offsets_of(arrays)), code, arrays, index_bytes, relocate)


def _document(
    table: Table,
    packed: Sequence[tuple[int, Array]],
    offsets: Sequence[int],
    libraries: Mapping[Path, int],
    threads: int,
) -> dict[str, Any]:
    """The description of a table in a file.  ``offsets`` are the offsets in the file of the packed
    constants, then of the outputs that are constants."""
    packed_offsets = {
        address: offset for (address, _), offset in zip(packed, offsets, strict=False)
    }
    output_offsets = iter(offsets[len(packed) :])

    def operand(each: Operand) -> tuple[int, int, int, int]:
        offset = packed_offsets[each.offset] if each.slot == table.constants else each.offset
        return (each.slot, offset, each.item_stride, each.thread_stride)

    def region(each: BoundKernel | Group) -> list[Any]:
        if isinstance(each, Group):
            return [each.name, each.items, [region(member) for member in each.regions]]
        number = libraries[each.kernel.library]
        operands = [operand(one) for one in each.operands]
        return [each.name, each.tasks, each.grain, number, each.kernel.name, operands]

    return {
        "runner": sources_digest(),
        "threads": threads,
        "regions": [region(each) for each in table.regions],
        "memory": table.memory,
        "inputs": table.inputs,
        "sources": [
            [next(output_offsets), str(source.dtype), source.shape]
            if isinstance(source, np.ndarray)
            else source
            for source in table.sources
        ],
        "scratch_bytes": table.scratch_bytes,
    }


class LoadedProgram(TableProgram):
    """A program that was loaded from a file, whose constants are memory-mapped."""

    def __init__(self, table: Table, threads: int, constants: Array) -> None:
        super().__init__(table, threads, constants.ctypes.data)
        self._constants = constants  # mapped as long as this is there

    @property
    def constant_bytes(self) -> int:
        """Its packed constants, in memory that processes share."""
        return self._constants.nbytes


def why_not_loadable(architecture: str, document: dict[str, Any]) -> str | None:
    """Why a stored program cannot run on this machine with this runner ("is for ..."); None if it
    can."""
    isa = any_isa_named(architecture)
    if missing := sorted(set(isa.flags) - processor_flags()):
        return f"is for {architecture}, and this processor lacks {', '.join(missing)}"
    if not is_usable(isa):
        return f"is for {architecture}, whose registers the system denies to this process"
    if document["runner"] != sources_digest():
        return "is for the native runner of another state of this version of minidnn"
    return None


def restore(
    document: dict[str, Any], code: Code, constants: Array, path: Path, threads: int | None
) -> LoadedProgram:
    """The program that a document describes.

    Args:
        constants: the bytes of the file's constants.
        path: of the file, for messages.
        threads: where None, those that it was compiled for, or all usable cores if they are fewer.

    Raises:
        GraphError: there cannot be so many threads.
        DeviceError: its code cannot be loaded here.
    """
    if threads is None:
        threads = min(document["threads"], usable_cores())
    elif type(threads) is not int or not 1 <= threads <= 1024:
        raise GraphError(f"threads={threads!r}; valid is an int from 1 to 1024")
    libraries: dict[str, SharedObject] = {}

    def library(name: str) -> SharedObject:
        if name not in libraries:
            libraries[name] = load_bytes(*code(name), path)
        return libraries[name]

    def region(stored: list[Any]) -> Any:
        if len(stored) == 3:
            name, items, members = stored
            return Group(tuple(map(region, members)), items, name)
        name, tasks, grain, number, symbol, operands = stored
        kernel = library(_KERNELS.format(number)).kernel(symbol)
        return BoundKernel(kernel, tuple(Operand(*each) for each in operands), tasks, grain, name)

    def source(stored: int | list[Any] | None) -> int | Array | None:
        if not isinstance(stored, list):
            return stored
        offset, dtype, shape = stored
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        return constants[offset : offset + size].view(dtype).reshape(shape)

    try:
        use_runner(library(_RUNNER))
        table = Table(
            tuple(map(region, document["regions"])),
            tuple((whole, own) for whole, own in document["memory"]),
            document["inputs"],
            len(document["sources"]),
            0,
            tuple(map(source, document["sources"])),
            document["scratch_bytes"],
        )
    except CompileError as error:
        raise DeviceError(
            f"{error}; code runs where the C library is at least that of the machine on which it "
            "was compiled"
        ) from error
    return LoadedProgram(table, threads, constants)
