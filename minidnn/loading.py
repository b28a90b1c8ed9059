"""Loading what an executable has saved."""

from __future__ import annotations

import os
from typing import Any

from minidnn.backends.cpu.stored import restore, why_not_here
from minidnn.compiled_file import CONSTANTS, CompiledFile
from minidnn.errors import GraphError, UnsupportedError
from minidnn.executable import Executable
from minidnn.graph.types import TensorType
from minidnn.runtime.interface import Endpoint, Interface

__all__ = ["load"]


def load(
    path: str | os.PathLike[str], *, threads: int | None = None, check: bool = False
) -> Executable:
    """The compiled network in a file that :meth:`Executable.save` wrote, ready to be called.

    Nothing is compiled, and weights are mapped, not read: processes that load one file share them.
    The file is trusted, as its code runs ([trust](trust.md)).

    Args:
        path: of the file.  It may be replaced by another one, but must not be overwritten, while
            the network is in use.
        threads: that run it; by default those that it was compiled for, or all usable cores if
            that is less.  Results have the same bits on any number.
        check: whether the weights are read and compared with their checksum, too, as the code
            always is.

    Returns:
        An executable for the CPU, without graph and profile.

    Raises:
        WeightsError: there is no such file, it is none of a compiled network, or it is damaged.
        UnsupportedError: it is for another device, processor, system or version of minidnn.
        DeviceError: its code cannot be loaded here.
        GraphError: an argument is not valid.

    >>> md.compile(net, (2, 3, 32, 32), device="cpu").save("net.mdx")
    >>> exe = md.load("net.mdx")
    """
    if not isinstance(path, (str, os.PathLike)):
        raise GraphError(f"load: path={path!r:.80} is a {type(path).__name__}; valid is a path")
    file = CompiledFile(path)
    try:
        return _executable(file, threads, check)
    except (KeyError, TypeError, IndexError) as error:
        raise file.damaged(
            f"its header makes no sense ({type(error).__name__}: {error})"
        ) from error


def _executable(file: CompiledFile, threads: int | None, check: bool) -> Executable:
    header = file.header
    device, document, network = header["device"], header["program"], header["network"]
    if device != "cpu":
        raise UnsupportedError(
            f"{file} is for device {device!r}; what this version of minidnn loads is for 'cpu'"
        )
    if (reason := why_not_here(header["architecture"], document)) is not None:
        raise file.unsupported(reason)
    if check:
        file.check_constants()
    program = restore(
        document,
        lambda name: (file.part(name).data, file.digest(name)),
        file.part(CONSTANTS),
        file.path,
        threads,
    )
    names = network["output_names"]
    interface = Interface(
        network["name"],
        tuple(map(_endpoint, network["inputs"])),
        tuple(map(_endpoint, network["outputs"])),
        None if names is None else tuple(names),
    )
    return Executable(
        interface,
        program,
        device,
        network["precision"],
        network["results"],
        explained=network["explained"],
    )


def _endpoint(stored: list[Any]) -> Endpoint:
    name, dtype, shape = stored
    return Endpoint(name, TensorType(tuple(shape), dtype))
