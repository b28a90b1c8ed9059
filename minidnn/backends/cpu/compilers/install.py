"""``minidnn doctor --install-ispc``: a private copy of ISPC in the cache folder.

The copy is a folder of unpacked Debian packages with their own C library, started through their
own loader, so it runs on any Linux of the same architecture.  It is unpacked in a ``.work-``
folder, tried, and renamed; the link ``current`` is then replaced in one step.  One process installs
at a time, the others wait and find it done; a process that was killed leaves its ``.work-`` folder,
which the next installation removes.

The packages come through the machine's own apt, without root and without touching the system.  apt
runs on a private state: an empty list of installed packages (so that it resolves the whole closure
of dependencies), its own lists and archives.  Proxies and everything else come from the machine's
configuration.  Signatures are always checked, whatever that configuration says.
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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ....cache import one_at_a_time, open_folder, root
from ....errors import DeviceError
from .process import Command, Finished, Watch, run, terminal_progress
from .toolchain import Ispc, find_ispc, private_root

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
OS_RELEASE = Path("/etc/os-release")
FIRST_DEBIAN_WITH_ISPC = (13, "trixie")
UPDATE_SECONDS = 300.0
DOWNLOAD_SECONDS = 1200.0


@dataclass(frozen=True)
class Distribution:
    """What ``os-release`` says: ``debian``, 12, ``bookworm`` (version 0: it says none)."""

    name: str
    like: tuple[str, ...]
    version: int
    codename: str
    pretty: str


def distribution() -> Distribution:
    """The Linux distribution of this machine (empty names elsewhere)."""
    fields: dict[str, str] = {}
    if OS_RELEASE.exists():
        for line in OS_RELEASE.read_text(encoding="utf-8", errors="replace").splitlines():
            name, equals, value = line.partition("=")
            if equals:
                fields[name.strip()] = value.strip().strip("'\"")
    version = re.match(r"\d+", fields.get("VERSION_ID", ""))
    return Distribution(
        fields.get("ID", ""),
        tuple(fields.get("ID_LIKE", "").split()),
        int(version[0]) if version else 0,
        fields.get("VERSION_CODENAME", ""),
        fields.get("PRETTY_NAME", fields.get("ID", "")),
    )


def why_not() -> str | None:
    """Why apt cannot provide ISPC's packages here, or None when it can be asked."""
    missing = [tool for tool in ("apt-get", "apt-cache", "dpkg-deb") if not shutil.which(tool)]
    return f"{', '.join(missing)} not found in PATH" if missing else None


def fetch(folder: Path, watch: Watch) -> list[Path]:
    """Downloads ispc and all that it depends on into ``folder``; returns the package files.

    The distribution's own package is taken where it has one; on a Debian that has none, that of
    Debian 13, from the mirror that this machine's apt uses.

    Raises:
        DeviceError: this distribution has no ispc, or apt failed (its output is quoted).
    """
    for name in ("archives/partial", "lists/partial", "sources", "state"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "status").touch()
    options = _private_options(folder)
    if not candidate_here():
        options += _debian_sources(folder)
        watch("reading the package lists", 0, 0)
        _apt(("apt-get", *options, "update"), "reading the package lists", UPDATE_SECONDS)
    command = ("apt-get", *options, "--yes", "--no-install-recommends")
    listed = _apt((*command, "--print-uris", "install", "ispc"), "resolving ispc", UPDATE_SECONDS)
    sizes = [int(size) for size in re.findall(r"^'[^']*' \S+ (\d+)", listed.output, re.MULTILINE)]
    if not sizes:
        raise DeviceError(f"apt resolved ispc to no package at all: {_tail(listed.output)}")
    archives = folder / "archives"

    def poll() -> None:
        watch("downloading ISPC", _bytes_in(archives), sum(sizes))

    _apt((*command, "--download-only", "install", "ispc"), "downloading", DOWNLOAD_SECONDS, poll)
    return sorted(archives.glob("*.deb"))


def candidate_here() -> bool:
    """Whether the machine's own package lists offer ispc."""
    ended = run(Command(("apt-cache", "policy", "ispc"), "apt-cache policy", 60.0))
    match = re.search(r"Candidate:\s*(\S+)", ended.output)
    return ended.ok and match is not None and match[1] != "(none)"


def mirror_of(printed: str, codename: str) -> str | None:
    """The archive's address for ``codename`` in the output of ``apt-get --print-uris update``."""
    pattern = r"^'([^']+?)/dists/([^/']+)/(?:In)?Release'"
    for address, suite in re.findall(pattern, printed, re.MULTILINE):
        if suite == codename:
            return str(address)
    return None


def _debian_sources(folder: Path) -> list[str]:
    here = distribution()
    if here.name != "debian":
        raise DeviceError(
            f"apt on {here.pretty or 'this system'} offers no package ispc; run 'apt-get update' "
            "and enable the component that carries it (universe on Ubuntu), then 'apt-get "
            "install ispc'"
        )
    if not KEYRING.exists():
        raise DeviceError(
            f"{KEYRING} is missing, so downloads could not be verified; install the package "
            "debian-archive-keyring"
        )
    first, first_name = FIRST_DEBIAN_WITH_ISPC
    suite = here.codename if here.version >= first else first_name
    printed = _apt(("apt-get", "--print-uris", "update"), "reading apt's sources", 60.0)
    mirror = mirror_of(printed.output, here.codename)
    if mirror is None:
        raise DeviceError(
            f"this machine's apt names no mirror for {here.codename}; add one to "
            "/etc/apt/sources.list.d, or use --packages with a folder of .deb files"
        )
    source = folder / "sources" / "ispc.sources"
    source.write_text(
        f"Types: deb\nURIs: {mirror}\nSuites: {suite}\nComponents: main\nSigned-By: {KEYRING}\n"
    )
    return [
        "-oDir::Etc::SourceList=/dev/null",
        f"-oDir::Etc::SourceParts={folder / 'sources'}",
        f"-oDir::State::Lists={folder / 'lists'}",
    ]


def _private_options(folder: Path) -> list[str]:
    return [
        f"-oDir::State={folder / 'state'}",
        f"-oDir::State::Status={folder / 'status'}",
        f"-oDir::Cache={folder}",
        f"-oDir::Cache::Archives={folder / 'archives'}",
        f"-oDir::Log={folder / 'state'}",
        *_machine_lists(),
        "-oAcquire::AllowInsecureRepositories=false",
        "-oAcquire::AllowDowngradeToInsecureRepositories=false",
        "-oAcquire::AllowWeakRepositories=false",
        "-oAcquire::Languages=none",
        "-oAPT::Get::AllowUnauthenticated=false",
        "-oBinary::apt::APT::Keep-Downloaded-Packages=true",
        "-oAPT::Keep-Downloaded-Packages=true",
    ]


def _machine_lists() -> list[str]:
    """Keeps apt on the machine's own lists, which Dir::State would have moved."""
    ended = _apt(("apt-config", "shell", "LISTS", "Dir::State::Lists/d"), "apt-config", 60.0)
    match = re.search(r"LISTS='([^']*)'", ended.output)
    return [f"-oDir::State::Lists={match[1]}"] if match else []


def _apt(
    argv: tuple[str, ...], what: str, timeout: float, poll: Callable[[], None] | None = None
) -> Finished:
    environment = (("DEBIAN_FRONTEND", "noninteractive"),)
    ended = run(Command(argv, what, timeout, env=environment), poll)
    if not ended.ok:
        raise DeviceError(
            f"{what}: '{argv[0]} {argv[-1]}' {ended.describe()}: {_tail(ended.output)}"
        )
    return ended


def _bytes_in(folder: Path) -> int:
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(base, name)).st_size
            except FileNotFoundError:  # apt has just renamed it
                continue
    return total


def _tail(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("E:", "W:", "Err:"))]
    return " | ".join((errors or lines)[-6:]) or "it printed nothing"


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
    return why_not()


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
        target = folder / name
        if target.exists():  # left without its link: what is there may be broken
            target.rename(work / "replaced")
        tree.rename(target)
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
        return fetch(apt_folder, watch)
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
