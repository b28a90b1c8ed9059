"""Stands in for NVIDIA's libraries, so that a CUDA build of PyTorch runs on a CPU without them.

The builds of PyTorch on PyPI do not load without a dozen libraries of NVIDIA's, several GB that
nothing here calls.  For each of them a small library of the same name is compiled that has the
symbols PyTorch asks for; each function returns 100, which is the CUDA runtime's "no device".
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import defaultdict
from pathlib import Path

__all__ = ["make_stubs"]

_LIBRARY = re.compile(r"\(NEEDED\).*\[(lib(?:cu|nv|nccl)\S+)\]")
#: Loaded when a GPU is used; what it needs, minidnn looks for, too, and should not find.
_LATER = {"libcaffe2_nvrtc.so"}
_SYMBOL = re.compile(r"\s[Uw] ((?:cu|nv|nccl|__cuda)\w+)(?:@(\S+))?$")


def make_stubs(folder: Path) -> list[str]:
    """Writes the libraries that PyTorch's own in a folder need beside them.

    Args:
        folder: ``site-packages/torch/lib`` of an environment.

    Returns:
        The names of the libraries that were made.

    >>> make_stubs(Path(".venv/lib/python3.11/site-packages/torch/lib"))  # doctest: +SKIP
    ['libcublas.so.13', 'libcudart.so.13', ...]
    """
    own = sorted(path for path in folder.glob("lib*.so*") if path.name not in _LATER)
    needed: set[str] = set()
    #: Version of symbols, as a library has it -> symbols.
    symbols: dict[str, set[str]] = defaultdict(set)
    for path in own:
        needed.update(_LIBRARY.findall(_output("readelf", "-dW", str(path))))
        listed = _output("nm", "-D", "--undefined-only", "--with-symbol-versions", str(path))
        for line in listed.splitlines():
            if found := _SYMBOL.search(line):
                symbols[found[2] or ""].add(found[1])
    missing = sorted(name for name in needed if not (folder / name).exists())
    versions = _versions_of([str(path) for path in own], missing)
    for name in missing:
        wanted = {version: symbols.pop(version, set()) for version in versions[name]}
        if name == missing[-1]:  # a symbol without a version may be in any library
            wanted.update(symbols)
        _compile(folder / name, wanted)
    return missing


def _versions_of(own: list[str], names: list[str]) -> dict[str, set[str]]:
    """Library -> the versions of symbols that are asked of it."""
    versions: dict[str, set[str]] = {name: set() for name in names}
    for path in own:
        file = ""
        for line in _output("readelf", "-VW", path).splitlines():
            if found := re.search(r"File: (\S+)", line):
                file = found[1]
            elif (found := re.search(r"Name: (\S+)", line)) and file in versions:
                versions[file].add(found[1])
    return versions


def _compile(path: Path, wanted: dict[str, set[str]]) -> None:
    """One library with symbols, by their versions ("" for none)."""
    names = sorted(set().union(*wanted.values()))
    code = "".join(f"int {name}(void) {{ return 100; }}\n" for name in names)
    script = "".join(
        f"{version} {{ global: {' '.join(f'{name};' for name in sorted(found))} }};\n"
        for version, found in sorted(wanted.items())
        if version
    )
    with tempfile.TemporaryDirectory() as folder:
        source, mapped = Path(folder) / "stub.c", Path(folder) / "stub.map"
        source.write_text(code, encoding="ascii")
        mapped.write_text(script, encoding="ascii")
        flags = [f"-Wl,--version-script={mapped}"] if script else []
        _output(
            "cc", "-shared", "-fPIC", "-O1", "-w", f"-Wl,-soname,{path.name}", *flags,
            str(source), "-o", str(path),
        )  # fmt: skip


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:2])} fails: {done.stderr.strip()}")
    return done.stdout
