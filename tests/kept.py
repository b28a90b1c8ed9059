"""What tests compile is kept across runs: texts are deterministic, and compilers slow.

``MINIDNN_TEST_CACHE`` names the folder, ``minidnn-tests`` in the user's cache folder by default;
with an empty value nothing is kept, as in a first run.  Kernels lie there as in minidnn's own cache
and by the same keys, what the emulator compiles in the folder ``emulator``.  Tests that count
compilers, or test the cache, have folders of their own.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

#: The kinds of entries of minidnn's cache that follow from texts and compilers alone.  What was
#: measured, or chosen because of it, is another run's.
COMPILED = ("compilers", "cubin", "cubin_index", "ispc", "ispc_index", "runner")

EMULATOR_BYTES = 256 << 20


def folder() -> Path | None:
    """Where compiled kernels are kept; None where they are not."""
    chosen = os.environ.get("MINIDNN_TEST_CACHE")
    if chosen is not None:
        return Path(chosen).expanduser().absolute() if chosen else None
    caches = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(caches) if os.path.isabs(caches) else Path.home() / ".cache") / "minidnn-tests"
    except RuntimeError:  # no home folder
        return None


def forget_others(root: Path) -> None:
    """Removes from a folder what an earlier run left there beside compiled kernels, and of what the
    emulator compiled the least recently used files, so that the rest is bounded."""
    for path in root.iterdir() if root.is_dir() else ():
        if path.is_dir() and path.name not in (*COMPILED, "emulator"):
            shutil.rmtree(path, ignore_errors=True)
    total = 0
    entries = [(path.stat(), path) for path in (root / "emulator").glob("*")]
    for status, path in sorted(entries, key=lambda each: each[0].st_mtime_ns, reverse=True):
        total += status.st_size
        if total > EMULATOR_BYTES:
            path.unlink(missing_ok=True)


def kept(root: Path, name: str, make: Callable[[Path], None]) -> Path:
    """The file of that name, which ``make`` writes if it is not there.

    It appears complete or not at all, whichever process writes it.
    """
    path = root / "emulator" / name
    try:
        os.utime(path)
    except FileNotFoundError:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        work = path.with_name(f"work-{secrets.token_hex(8)}{path.suffix}")
        make(work)
        work.replace(path)
    return path
