"""ISPC's packages through the machine's own apt, without root and without touching the system.

apt runs on a private state: an empty list of installed packages (so that it resolves the whole
closure of dependencies), its own lists and archives.  Proxies and everything else come from the
machine's configuration.  Signatures are always checked, whatever that configuration says.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ....errors import DeviceError
from .process import Command, Finished, Watch, run

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
