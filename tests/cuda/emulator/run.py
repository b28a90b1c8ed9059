"""Runs printed CUDA kernels on the CPU: the same text, compiled by the system's C++ compiler."""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from minidnn.backends.codegen.kernel import KernelSource
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.prelude import prelude
from tests import kept

COMPILERS = ("g++", "c++", "clang++")
HEADER = Path(__file__).with_name("emulator.h")
HOPPER = Path(__file__).with_name("hopper.h")
FLAGS: tuple[str, ...] = (
    "-std=c++17",
    "-w",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
)
#: The processor's own conversions of halves and multiply-adds, which are exact like the library's.
FLAGS += ("-march=native", "-fno-exceptions")
#: Neither C++'s library nor what runs before main: looking for them takes a tenth of a compile.
LIBRARIES = ("-nostdlib", "-lm", "-lgcc")
_WRONG = {1: "a thread or block ended, or left its warp, while others wait at a barrier"}
_WRONG |= {3: "its threads wait for each other for ever"}
_WRONG |= {2: "something was written beside shared memory"}
_WRONG |= {4: "it has more threads or shared memory than the emulator", 5: "there is no memory"}
_WRONG |= {6: "the columns of its grid make no whole clusters"}
MARGIN = 64
"""Elements of NaN on both sides of every buffer."""


class Emulated:
    """Kernels compiled together.

    Compiling most takes longer than running them, and -Og twice as long as -O0; ``busy`` ones
    compute so much that it pays: products in tiles, functions of many numbers.
    """

    def __init__(
        self, sources: Sequence[KernelSource], folder: Path, *, busy: bool = False
    ) -> None:
        unique = {source.name: source for source in sources}
        head = "\n".join((HEADER.read_text(), prelude(), HOPPER.read_text()))
        parts = [source.text for source in unique.values()]
        text = "\n".join([*parts, *map(_entry, unique.values())])
        flags = (*FLAGS, "-Og" if busy else "-O0")
        root = kept.folder() or folder.parent

        def build(library: Path) -> None:
            header = _precompiled(head, flags, root)
            source_file = folder / f"{library.stem}.cpp"
            source_file.write_text(f'#include "{header}"\n{text}')
            _compile("-shared", *flags, "-o", str(library), str(source_file), *LIBRARIES)

        library = kept.kept(root, f"{_digest(head, text, *flags)}.so", build)
        self._dll = ctypes.CDLL(str(library))

    def launch(
        self,
        launch: Launch,
        arguments: Sequence[np.ndarray],
        backwards: bool = False,
    ) -> None:
        """Runs a kernel on arrays, whose memory it reads and writes as it lies, and on the numbers
        of its launch; another number that it takes is an array of one.  ``backwards``: its threads
        in the other order."""
        kernel = getattr(self._dll, f"enter_{launch.source.name}")
        arguments = [*arguments, *(np.array([number]) for number in launch.numbers)]
        pointers = (ctypes.c_void_p * len(arguments))(*(a.ctypes.data for a in arguments))
        grid = (ctypes.c_uint * 3)(*launch.grid)
        block = (ctypes.c_uint * 3)(*launch.block)
        status = self._dll.emulate(
            kernel,
            pointers,
            grid,
            block,
            launch.shared_bytes,
            blocks_of_cluster(launch.source),
            int(backwards),
        )
        assert status == 0, f"{launch.source.name}: {_WRONG[status]}"

    def fill(self, symbol: str, values: np.ndarray) -> None:
        """Writes to an array of constant memory, by its symbol."""
        room = (ctypes.c_byte * values.nbytes).in_dll(self._dll, symbol)
        ctypes.memmove(room, values.ctypes.data, values.nbytes)


def _digest(*texts: str) -> str:
    """A name for what the compiler makes of texts and options on this processor."""
    return hashlib.sha256("\n".join((*texts, _target())).encode()).hexdigest()[:24]


@cache
def _target() -> str:
    """The compiler's version, and what ``-march=native`` stands for."""
    asked = (_compiler(), "-march=native", "-dM", "-E", "-x", "c++", "/dev/null")
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout


@cache
def _compiler() -> str:
    found = next(filter(None, map(shutil.which, COMPILERS)), None)
    assert found is not None, f"the emulator needs one of {', '.join(COMPILERS)}"
    return found


def _compile(*arguments: str) -> None:
    command = [_compiler(), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{' '.join(arguments)}:\n{ended.stderr[:4000]}"


def _precompiled(head: str, flags: Sequence[str], root: Path) -> Path:
    """What stands before every text, as a file; g++ reads what it made of it in a quarter of the
    time that a small kernel takes, other compilers the text."""
    name = f"emulator-{_digest(head, *flags)}.h"
    header = kept.kept(root, name, lambda path: _write(path, head))
    kept.kept(
        root,
        f"{name}.gch",
        lambda path: _compile(*flags, "-x", "c++-header", str(header), "-o", str(path)),
    )
    return header


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def blocks_of_cluster(source: KernelSource) -> int:
    """How many blocks make a cluster, as a kernel's text says."""
    if "__cluster_dims__" not in source.text:
        return 1
    match = re.search(r"\b__cluster_dims__\(([248]), 1, 1\)", source.text)
    assert match is not None, f"{source.name}: clusters of 2, 4 or 8 blocks in x alone"
    return int(match[1])


def parameters_of(source: KernelSource) -> list[str]:
    """A kernel's parameters as they stand in its text; those with a star are pointers."""
    match = re.search(rf"\b{source.name}\((.*?)\)\s*{{", source.text, re.DOTALL)
    assert match is not None
    return match[1].split(",")


def _entry(source: KernelSource) -> str:
    """A function of one type that calls a kernel with its pointers."""
    given = []
    for i, part in enumerate(parameters_of(source)):
        type, star, _ = part.rpartition("*")
        given.append(f"({type}*)p[{i}]" if star else f"*({part.rsplit(' ', 1)[0]} *)p[{i}]")
    space = re.match(r"(?:.*\n)*namespace (\w+) {\n", source.text)
    call = f"{f'{space[1]}::' if space else ''}{source.name}({', '.join(given)})"
    return f'extern "C" void enter_{source.name}(void **p) {{ {call}; }}'


def guarded(size: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """A buffer of NaN, and the part of it between its margins, aligned to 16 bytes."""
    per = 16 // dtype.itemsize
    whole = np.full(size + 2 * MARGIN + per, 0, dtype)
    whole.view(np.uint8)[:] = 0xFF
    shift = -(whole.ctypes.data // dtype.itemsize + MARGIN) % per
    return whole, whole[MARGIN + shift : MARGIN + shift + size]
