"""``minidnn doctor --install-ispc``: a private copy of ISPC in the cache folder.

The copy is a folder of unpacked Debian packages with their own C library, started through their
own loader, so it runs on any Linux of the same architecture.  It is unpacked beside its place,
tried, and renamed; the link ``current`` is then replaced in one step.  One process installs at a
time, the others wait and find it done; a process that was killed leaves a ``.work-`` folder that
the next installation removes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import secrets
import shutil
import stat
import sys
from pathlib import Path

from ....cache import one_at_a_time, open_folder, root
from ....errors import DeviceError
from . import apt
from .process import Command, Watch, run, terminal_progress
from .toolchain import Ispc, find_ispc, private_root

UNPACK_SECONDS = 300.0
INSTALL_SECONDS = 1800.0
"""After which another process that installs is no longer waited for."""
WRAPPER = """\
#!/bin/sh
# Starts the unpacked ISPC through its own loader and libraries.
here=$(readlink -f "$0")
here=${{here%/*}}
exec "$here/{loader}" --library-path "{libraries}" "$here/usr/bin/ispc" "$@"
"""

ELSEWHERE = """\
ISPC cannot be installed from here ({reason}). Install it yourself, then run 'minidnn doctor':
  Debian 13 or newer, Ubuntu: sudo apt-get install ispc
  Arch Linux:                 sudo pacman -S ispc
  Alpine (edge):              sudo apk add ispc
  macOS, Linux (Homebrew):    brew install ispc
  conda:                      conda install -c conda-forge ispc
  any other: unpack a release of github.com/ispc/ispc and set MINIDNN_ISPC to its bin/ispc
  without a network: minidnn doctor --install-ispc --packages DIR, where DIR holds the .deb files
                     of Debian 13's ispc and of all that it depends on"""


def install_ispc(progress: Watch | None = None, packages: str | Path | None = None) -> Ispc:
    """Makes sure that there is an ISPC: one that is there already, or a new private copy.

    Args:
        progress: called with a text and how much of how much is done; by default a bar on the
            terminal when standard error is one.
        packages: folder of ``.deb`` files to use instead of a download.  They come without the
            archive's signature: the caller answers for them.

    Raises:
        DeviceError: it cannot be installed here (the message says what to do instead), or the
            download, a signature check or the installed program failed.
    """
    if packages is None:
        with contextlib.suppress(DeviceError):
            return find_ispc()
    watch = progress or terminal_progress()
    folder = private_root()
    try:
        with open_folder(root(), folder.name, create=True):
            pass  # made for this user alone, or refused
        with one_at_a_time(
            "ispc-install", "installs ISPC", INSTALL_SECONDS, wait=lambda text: watch(text, 0, 0)
        ):
            if packages is None:
                with contextlib.suppress(DeviceError):
                    return find_ispc()  # another process has just installed it
            _install(folder, watch, None if packages is None else Path(packages))
    except OSError as error:
        raise DeviceError(
            f"ISPC cannot be installed into {folder}: {error}; set MINIDNN_CACHE to a folder "
            "with 500 MB of space"
        ) from error
    return find_ispc()


def why_cannot_install() -> str | None:
    """Why :func:`install_ispc` cannot download here (None: it can try)."""
    if sys.platform != "linux":
        return f"this is {sys.platform}, not Linux"
    if platform.machine() not in ("x86_64", "AMD64"):
        return f"the processor is {platform.machine()}, not x86-64"
    return apt.why_not()


def _install(folder: Path, watch: Watch, packages: Path | None) -> None:
    for stale in folder.glob(".work-*"):
        shutil.rmtree(stale, ignore_errors=True)
    work = folder / f".work-{os.getpid()}-{secrets.token_hex(4)}"
    work.mkdir(mode=0o700)
    try:
        debs = _packages(packages) if packages is not None else _download(work, watch)
        tree = work / "tree"
        _unpack(debs, tree, watch)
        _write_wrapper(tree)
        _try_out(tree)
        name = _name_of(debs)
        place = folder / name
        if place.exists():  # left without its link: what is there may be broken
            place.rename(work / "replaced")
        tree.rename(place)
        link = work / "current"
        link.symlink_to(name)
        link.replace(folder / "current")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _download(work: Path, watch: Watch) -> list[Path]:
    if reason := why_cannot_install():
        raise DeviceError(ELSEWHERE.format(reason=reason))
    apt_folder = work / "apt"
    try:
        return apt.fetch(apt_folder, watch)
    except DeviceError as error:
        raise DeviceError(ELSEWHERE.format(reason=str(error))) from error


def _packages(folder: Path) -> list[Path]:
    debs = sorted(folder.glob("*.deb"))
    if not any(deb.name.startswith("ispc_") for deb in debs):
        raise DeviceError(
            f"--packages {folder}: there is no ispc_*.deb among its {len(debs)} .deb files; fill "
            "it on a connected Debian 13 machine with the packages of 'apt-get install "
            "--download-only ispc'"
        )
    if not shutil.which("dpkg-deb"):
        raise DeviceError("dpkg-deb is needed to unpack packages and is not in PATH; install dpkg")
    return debs


def _unpack(debs: list[Path], tree: Path, watch: Watch) -> None:
    for index, deb in enumerate(debs):
        watch("unpacking ISPC", index, len(debs))
        argv = ("dpkg-deb", "-x", str(deb.resolve()), str(tree))
        ended = run(Command(argv, f"unpacking {deb.name}", UNPACK_SECONDS))
        if not ended.ok:
            raise DeviceError(
                f"unpacking {deb.name} {ended.describe()}: {ended.output.strip()[-500:]}"
            )
    shutil.rmtree(tree / "usr" / "share", ignore_errors=True)  # manuals and translations
    for base, folders, names in os.walk(tree):  # made under a umask that lets others write
        for path in (Path(base, name) for name in (".", *folders, *names)):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))
    watch("unpacking ISPC", len(debs), len(debs))


def _write_wrapper(tree: Path) -> None:
    """Writes ``ispc``: start the program with the loader and the libraries of the packages."""
    loaders = sorted(tree.glob("usr/lib*/ld-linux*.so.*"))
    if not loaders or not (tree / "usr/bin/ispc").exists():
        missing = "the C library's loader" if not loaders else "usr/bin/ispc"
        raise DeviceError(
            f"the packages lack {missing}: all dependencies of ispc are needed, libc6 included"
        )
    folders = sorted({path.parent for path in tree.glob("usr/lib/**/*.so*")})
    keep = [f for f in folders if f.name.endswith("-linux-gnu") or f.parent.name.startswith("llvm")]
    libraries = ":".join(f"$here/{folder.relative_to(tree)}" for folder in keep)
    wrapper = tree / "ispc"
    wrapper.write_text(WRAPPER.format(loader=loaders[0].relative_to(tree), libraries=libraries))
    wrapper.chmod(0o755)


def _try_out(tree: Path) -> None:
    source, target = tree / "try.ispc", tree / "try.o"
    source.write_text("export void f(uniform float x[]) { x[programIndex] *= 2; }\n")
    argv = (str(tree / "ispc"), str(source), "-o", str(target), "--target=avx2-i32x8", "--pic")
    ended = run(Command(argv, "the installed ISPC", 60.0))
    if not ended.ok or not target.exists():
        raise DeviceError(f"the installed ISPC {ended.describe()}: {ended.output.strip()[-500:]}")
    source.unlink()
    target.unlink()


def _name_of(debs: list[Path]) -> str:
    """A folder name that tells the version and differs when any package does."""
    main = next(deb.name for deb in debs if deb.name.startswith("ispc_"))
    version = re.sub(r"[^A-Za-z0-9.]", "-", main.split("_")[1])
    names = "\n".join(deb.name for deb in debs)
    return f"{version}-{hashlib.sha256(names.encode()).hexdigest()[:8]}"
