"""load: from the file of a compiled network to an executable, without a compiler."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from minidnn.compiled_file import CONSTANTS, CompiledFile, check_path
from minidnn.dynamic.dim import Dim
from minidnn.dynamic.loaded import BatchExecutable
from minidnn.dynamic.split import RowWise
from minidnn.errors import GraphError, UnsupportedError
from minidnn.executable import Executable
from minidnn.graph.types import TensorType
from minidnn.runtime.interface import Endpoint, Interface
from minidnn.runtime.program import Program

__all__ = ["load"]


def load(
    path: str | os.PathLike[str],
    *,
    device: str | None = None,
    threads: int | None = None,
    check: bool = True,
) -> Executable | BatchExecutable:
    """The compiled network in a file that ``executable.save`` wrote, ready to be called.

    Nothing is compiled.  On the CPU weights are mapped: processes that load one file share them.
    A damaged file is refused.  One that was made to do harm is not, as its code runs
    ([trust](trust.md)).

    Args:
        path: of the file.  It may be replaced by another one, but must not be overwritten, while
            the network is in use.
        device: "cuda:1" is the second GPU, for a network that was compiled for one; by default
            the first, or the CPU for what was compiled for it.
        threads: that run it on the CPU; by default those that it was compiled for, or all usable
            cores if that is less.  Results have the same bits on any number.
        check: whether weights, too, are read and compared with their checksums.  Code, and
            constants that are used as indices, always are.

    Returns:
        An executable without graph and profile; of a network that was compiled with a
        :class:`minidnn.Dim` as its batch one for all batches in the range.

    Raises:
        WeightsError: there is no such file, it is none of a compiled network, or it is damaged.
        UnsupportedError: it is for another device, processor, GPU, version of cuDNN, system or
            version of minidnn.
        DeviceError: its code cannot be loaded here.
        GraphError: an argument is not valid.

    >>> md.compile(net, (2, 3, 32, 32), device="cpu").save("net.mdx")
    >>> exe = md.load("net.mdx")
    """
    check_path(path, "load")
    file = CompiledFile(path)
    try:
        return _executable(file, device, threads, check)
    except (KeyError, TypeError, IndexError) as error:
        raise file.damaged(
            f"its header makes no sense ({type(error).__name__}: {error})"
        ) from error


#: The file's description of a program, the file's part for each of its code names, and the
#: program's constants.
_Entry = tuple[dict[str, Any], Mapping[str, str], np.ndarray]


def _executable(
    file: CompiledFile, device: str | None, threads: int | None, check: bool
) -> Executable | BatchExecutable:
    """Makes the executable of a file, for one batch or for a range of batches."""
    header = file.header
    kind = header["device"].partition(":")[0]
    if kind not in _RESTORE:
        raise UnsupportedError(
            f"{file} is for device {kind!r}; what this version of minidnn loads is for "
            f"{' or '.join(map(repr, _RESTORE))}"
        )
    device = kind if device is None else device
    if not isinstance(device, str) or device.partition(":")[0] != kind:
        raise GraphError(f"load: device={device!r}; {file} is for {kind!r}")
    file.check_constants(all=check)
    constants = file.part(CONSTANTS)
    if not file.splits_batches:
        code_parts = {name: name for name in header["parts"]}
        return _restored(file, (header, code_parts, constants), kind, device, threads)
    network, programs, seconds = header["network"], {}, {}
    for said in header["programs"]:
        begin, size = said["constants"] or (0, constants.size)
        entry = said, said["code"], constants[begin : begin + size]
        programs[said["rows"]] = _restored(file, entry, kind, device, threads)
        seconds[said["rows"]] = said["seconds"]
    row_wise = RowWise(tuple(network["inputs"]), tuple(network["outputs"]))
    return BatchExecutable(Dim(*network["batch"]), row_wise, programs, seconds)


def _restored(
    file: CompiledFile, entry: _Entry, kind: str, device: str, threads: int | None
) -> Executable:
    """Makes the executable of one program."""
    network = entry[0]["network"]
    names = network["output_names"]
    interface = Interface(
        network["name"],
        tuple(map(_endpoint, network["inputs"])),
        tuple(map(_endpoint, network["outputs"])),
        None if names is None else tuple(names),
    )
    program = _RESTORE[kind](file, entry, interface, device, threads)
    return Executable(
        interface,
        program,
        device,
        network["precision"],
        network["results"],
        explained=network["explained"],
    )


def _on_cpu(
    file: CompiledFile, entry: _Entry, interface: Interface, device: str, threads: int | None
) -> Program:
    """Restores a program of the CPU."""
    from minidnn.backends.cpu.execution.stored import restore, why_not_loadable

    description, code, constants = entry
    document = description["program"]
    if device != "cpu":
        raise GraphError(f"load: device={device!r}; valid is 'cpu'")
    if (reason := why_not_loadable(file.header["architecture"], document)) is not None:
        raise file.unsupported(reason)
    return restore(
        document,
        lambda name: (file.part(code[name]).data, file.digest(code[name])),
        constants,
        file.path,
        threads,
    )


def _on_gpu(
    file: CompiledFile, entry: _Entry, interface: Interface, device: str, threads: int | None
) -> Program:
    """Restores a program of a GPU."""
    from minidnn.backends.backend import get_backend
    from minidnn.backends.cuda.stored import restore, why_not_loadable

    if threads is not None:
        raise GraphError(f"load: threads={threads!r}; {file} is for a GPU, which takes none")
    get_backend(device)  # DeviceError where it cannot be used
    index = int(device.partition(":")[2] or 0)
    description, code, constants = entry
    document = description["program"]
    if (reason := why_not_loadable(document, index)) is not None:
        raise file.unsupported(reason)
    return restore(document, lambda name: file.part(code[name]).data, constants, interface, index)


_RESTORE: dict[str, Callable[[CompiledFile, _Entry, Interface, str, int | None], Program]] = {
    "cpu": _on_cpu,
    "cuda": _on_gpu,
}


def _endpoint(stored: list[Any]) -> Endpoint:
    name, dtype, shape = stored
    return Endpoint(name, TensorType(tuple(shape), dtype))
