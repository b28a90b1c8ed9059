"""``minidnn cache``: lists, measures and clears what minidnn keeps between runs."""

from __future__ import annotations

import argparse
import json
import shutil
import time
from typing import Any

from minidnn.errors import MiniDNNError

HELP = "list, measure and clear what is kept between runs"
DESCRIPTION = """\
The cache holds compiled kernels, measured choices and downloaded weights.  All of it can be made
again.  MINIDNN_CACHE moves it to another folder."""

#: The kind of the private copy of ISPC, which is in the cache folder but is no entry of the cache.
TOOLCHAIN = "ispc-toolchain"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        nargs="?",
        choices=("list", "size", "clear"),
        default="size",
        help="list: every entry; size: how many of each kind, and their bytes (the default); "
        "clear: remove them",
    )
    parser.add_argument("--kind", help="only entries of this kind, as size lists them")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    actions = {"list": _list, "size": _size, "clear": _clear}
    document, text = actions[options.action](options.kind)
    print(json.dumps(document, indent=1) if options.json else text)
    return 0


def _list(kind: str | None) -> tuple[Any, str]:
    from minidnn import cache

    _check(kind)
    entries = [entry for entry in cache.entries() if kind in (None, entry.kind)]
    rows = [
        {
            "kind": entry.kind,
            "key": entry.key,
            "label": entry.label,
            "bytes": entry.size,
            "written": _date(entry.written),
            "used": _date(entry.used),
            "file": str(entry.path),
        }
        for entry in entries
    ]
    lines = [f"{'kind':<16} {'size':>10}  {'last used':<16} {'key':<12}  label"]
    for row, entry in zip(rows, entries, strict=True):
        line = (
            f"{row['kind']:<16} {_bytes(entry.size):>10}  {row['used']:<16} {entry.key[:12]:<12}  "
            f"{row['label']}"
        )
        lines.append(line.rstrip())
    total = sum(entry.size for entry in entries)
    lines.append(f"{len(entries)} entries, {_bytes(total)} in {cache.root()}")
    return {"folder": str(cache.root()), "entries": rows}, "\n".join(lines)


def _size(kind: str | None) -> tuple[Any, str]:
    from minidnn import cache

    _check(kind)
    usage = {name: use for name, use in cache.usage().items() if kind in (None, name)}
    kinds = {
        name: {"entries": use.entries, "bytes": use.size, "unfinished": use.unfinished}
        for name, use in usage.items()
    }
    lines = [f"{'kind':<16} {'entries':>8} {'size':>10}"]
    for name, use in usage.items():
        unfinished = f"  and {_bytes(use.unfinished)} unfinished" if use.unfinished else ""
        lines.append(f"{name:<16} {use.entries:>8} {_bytes(use.size):>10}{unfinished}")
    if kind in (None, TOOLCHAIN) and (size := _toolchain_size()):
        kinds[TOOLCHAIN] = {"entries": 1, "bytes": size, "unfinished": 0}
        lines.append(f"{TOOLCHAIN:<16} {1:>8} {_bytes(size):>10}  (by doctor --install-ispc)")
    total = sum(use["bytes"] + use["unfinished"] for use in kinds.values())
    lines.append(f"{_bytes(total)} in {cache.root()}")
    return {"folder": str(cache.root()), "kinds": kinds}, "\n".join(lines)


def _clear(kind: str | None) -> tuple[Any, str]:
    from minidnn import cache

    _check(kind)
    if kind == TOOLCHAIN:
        freed = _remove_toolchain()
    elif kind is not None or cache.usage():
        freed = cache.clear(kind)
    else:
        freed = 0
    text = f"freed {_bytes(freed)} in {cache.root()}"
    if kind is None and (size := _toolchain_size()):
        text += (
            f"; the private copy of ISPC ({_bytes(size)}) stays: 'minidnn cache clear --kind "
            f"{TOOLCHAIN}' removes it"
        )
    return {"folder": str(cache.root()), "freed": freed}, text


def _check(kind: str | None) -> None:
    from minidnn import cache

    valid = [*cache.usage(), *([TOOLCHAIN] if _toolchain_size() else [])]
    if kind is not None and kind not in valid:
        known = ", ".join(valid) or "none, since the cache is empty"
        raise MiniDNNError(f"--kind {kind}: not in the cache {cache.root()}; valid are {known}")


def _toolchain_size() -> int:
    from minidnn.backends.cpu.compilers.toolchain import private_root

    files = (path for path in private_root().rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files)


def _remove_toolchain() -> int:
    from minidnn.backends.cpu.compilers.toolchain import private_root

    size = _toolchain_size()
    try:
        shutil.rmtree(private_root())
    except OSError as error:
        raise MiniDNNError(f"{private_root()} cannot be removed: {error}") from error
    return size


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"


def _date(nanoseconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(nanoseconds / 1e9))
