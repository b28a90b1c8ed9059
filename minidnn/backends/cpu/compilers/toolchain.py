"""Finds ISPC and the C compiler, and their versions.

ISPC is looked for in this order: the program that ``MINIDNN_ISPC`` names, ``ispc`` in ``PATH``,
the private copy that :mod:`.install` made in the cache folder.  The C compiler is ``CC``, then
``cc``, ``gcc``, ``clang`` in ``PATH``.  What a program answers to ``--version`` is remembered in
the cache with its size and time stamp, so that a warm start runs no compiler at all.

Keys of the cache include the compiler that made an entry.  Where compiling is forbidden no compiler
is looked for, so that none need be installed: entries are found by the compilers that the cache
remembers.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from ....cache import (
    CacheStore,
    building_forbidden,
    digest,
    open_folder,
    root,
    why_any_untrusted,
    why_unsafe,
)
from ....errors import DeviceError, MiniDNNError
from ..isa import Isa
from .process import Command, run

log = logging.getLogger("minidnn.cpu")

ISPC_VARIABLE = "MINIDNN_ISPC"
OLDEST_ISPC = (1, 24)
"""What the printed source needs: ``external_only`` and LLVM intrinsics in templates of today."""

PROBE_SECONDS = 20.0
"""After this many seconds a compiler that does not tell its version counts as hanging."""

INSTALL_HINT = (
    "run 'minidnn doctor --install-ispc', put ispc into PATH, or set MINIDNN_ISPC to the program"
)


@dataclass(frozen=True)
class Ispc:
    """An ISPC that works: program, version, where it was found, its targets."""

    path: str
    version: tuple[int, ...]
    banner: str
    source: str
    targets: tuple[str, ...]

    def require(self, isa: Isa) -> None:
        """Raises DeviceError when this ISPC has no such target."""
        if isa.target not in self.targets:
            raise DeviceError(
                f"ISPC {self.path} (version {dotted(self.version)}) has no target {isa.target}; "
                f"it has {', '.join(self.targets)}"
            )


@dataclass(frozen=True)
class CCompiler:
    """A C compiler that answers: command line, first line of its version, where it came from."""

    argv: tuple[str, ...]
    banner: str
    source: str


@dataclass(frozen=True)
class ToolchainStatus:
    """What ``minidnn doctor`` shows: each tool, or the reason why there is none."""

    ispc: Ispc | None
    ispc_problem: str
    cc: CCompiler | None
    cc_problem: str

    @property
    def usable(self) -> bool:
        return self.ispc is not None and self.cc is not None

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(text for text in (self.ispc_problem, self.cc_problem) if text)

    def lines(self) -> list[str]:
        """The status as lines of text."""
        if self.ispc:
            version = dotted(self.ispc.version)
            first = f"ispc {version}: {self.ispc.path} (from {self.ispc.source})"
        else:
            first = f"ispc: {self.ispc_problem}"
        if self.cc:
            second = f"C compiler: {shlex.join(self.cc.argv)} (from {self.cc.source}): "
            second += self.cc.banner
        else:
            second = f"C compiler: {self.cc_problem}"
        return [first, second]


def toolchain_status() -> ToolchainStatus:
    """Both tools, with problems as text instead of exceptions."""
    ispc, ispc_problem = None, ""
    cc, cc_problem = None, ""
    try:
        ispc = find_ispc()
    except DeviceError as error:
        ispc_problem = str(error)
    try:
        cc = find_cc()
    except DeviceError as error:
        cc_problem = str(error)
    return ToolchainStatus(ispc, ispc_problem, cc, cc_problem)


def why_unusable() -> str | None:
    """Why kernels cannot be compiled here, or None when they can."""
    return "; ".join(toolchain_status().problems) or None


def find_ispc() -> Ispc:
    """The ISPC to use.

    Raises:
        DeviceError: there is none, or the one that ``MINIDNN_ISPC`` names (or the first one found)
            does not start, hangs, or is older than :data:`OLDEST_ISPC`.
    """
    chosen = os.environ.get(ISPC_VARIABLE, "")
    if chosen:
        path = shutil.which(os.path.expanduser(chosen))
        if path is None:
            state = "is not executable" if os.path.exists(chosen) else "does not exist"
            raise DeviceError(
                f"{ISPC_VARIABLE}={chosen} {state}; set it to an ispc program, or unset it to "
                "look in PATH and the cache folder"
            )
        return _probe_ispc(path, ISPC_VARIABLE)
    private = private_ispc()
    if found := shutil.which("ispc"):
        try:
            return _probe_ispc(found, "PATH")
        except DeviceError as error:
            if private is None:
                raise
            log.warning("the private copy of ISPC is used, since %s", error)
    if private:
        _require_trusted(private)
        return _probe_ispc(str(private), "the cache folder")
    raise DeviceError(
        f"ISPC was not found: {ISPC_VARIABLE} is not set, there is no ispc in PATH and no private "
        f"copy in {private_root()}; {INSTALL_HINT}"
    )


def find_cc() -> CCompiler:
    """The C compiler that links kernels and builds the runner.

    Raises:
        DeviceError: there is none, or it does not answer ``--version``.
    """
    chosen = os.environ.get("CC", "").strip()
    if chosen:
        argv = shlex.split(chosen)
        path = shutil.which(argv[0])
        if path is None:
            raise DeviceError(
                f"CC={chosen}: {argv[0]!r} is not a program in PATH; set CC to a C compiler or "
                "unset it to use cc, gcc or clang"
            )
        return _probe_cc((path, *argv[1:]), "CC")
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return _probe_cc((path,), "PATH")
    raise DeviceError(
        "no C compiler was found (CC is not set; looked for cc, gcc, clang in PATH); install one: "
        "'apt-get install gcc', 'apk add gcc musl-dev', or Xcode's command line tools"
    )


def private_root() -> Path:
    """The folder that holds private copies of ISPC; it need not exist."""
    return root() / "ispc-toolchain"


def private_ispc() -> Path | None:
    """The program of the private copy, if one was installed."""
    program = private_root() / "current" / "ispc"
    return program if os.access(program, os.X_OK) else None


def _require_trusted(program: Path) -> None:
    """Raises DeviceError when others could have written to the private copy of ISPC."""
    tree = Path(os.path.realpath(program)).parent
    state = os.stat(tree)
    key = f"{tree} {state.st_ino} {state.st_mode} {state.st_uid} {state.st_mtime_ns}"
    if key in _trusted:
        return
    try:
        with open_folder(root(), private_root().name, tree.name):
            reason = why_unsafe(tree) or why_any_untrusted(tree)
    except OSError as error:
        reason = str(error)
    if reason is not None:
        raise DeviceError(f"the private copy of ISPC is not run: {reason}")
    _trusted.add(key)


_trusted: set[str] = set()


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _probe_ispc(path: str, source: str) -> Ispc:
    version_text = _answer((path, "--version"), f"ISPC {path} (from {source})")
    match = re.search(r"\bISPC\)?,? (\d+(?:\.\d+)+)", version_text)
    if match is None:
        raise DeviceError(
            f"ISPC {path} (from {source}) is not ISPC: 'ispc --version' printed "
            f"{_first_line(version_text)!r}; {INSTALL_HINT}"
        )
    version = tuple(int(part) for part in match[1].split("."))
    if version < OLDEST_ISPC:
        raise DeviceError(
            f"ISPC {path} (from {source}) is version {dotted(version)}; minidnn needs "
            f"{dotted(OLDEST_ISPC)} or newer: {INSTALL_HINT}"
        )
    help_text = _answer((path, "--help"), f"ISPC {path} (from {source})")
    listed = re.search(r"--target=<t>\].*?<t>=\{(.*?)\}", help_text, re.DOTALL)
    targets = re.findall(r"[a-z0-9.]+-[ix0-9]+", listed[1]) if listed else []
    return Ispc(path, version, _first_line(version_text), source, tuple(targets))


def _probe_cc(argv: tuple[str, ...], source: str) -> CCompiler:
    text = _answer((*argv, "--version"), f"the C compiler {shlex.join(argv)} (from {source})")
    return CCompiler(argv, _first_line(text), source)


def _answer(argv: tuple[str, ...], what: str) -> str:
    """The output of a program that is asked for its version or help, which runs once for each state
    of its file."""
    try:
        stat = os.stat(argv[0])
    except OSError as error:
        raise DeviceError(f"{what} cannot be read: {error}") from error
    key = digest("toolchain answer", argv, stat.st_size, stat.st_mtime_ns, stat.st_ino)
    if (text := _remembered.get(key)) is not None:
        return text
    store = CacheStore("toolchain", ".json", 1 << 20)
    if (known := store.read(key)) is not None:
        text = str(json.loads(known)["text"])
    else:
        try:
            ended = run(Command(argv, what, PROBE_SECONDS))
        except OSError as error:
            raise DeviceError(f"{what} cannot be started: {error}") from error
        if not ended.ok:
            output = _first_line(ended.output)
            raise DeviceError(
                f"{what}: '{shlex.join(argv)}' {ended.describe()}"
                + (f", printing {output!r}" if output else "")
                + f"; {INSTALL_HINT if 'ISPC' in what else 'set CC to one that works'}"
            )
        text = ended.output
        with contextlib.suppress(MiniDNNError):  # nowhere to write: the next process asks again
            store.put(key, json.dumps({"argv": argv, "text": text}).encode())
    _remembered[key] = text
    return text


_remembered: dict[str, str] = {}


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


BUILD_LOCK = "ispc-build"
"""One process compiles at a time: a second would most likely do the same work."""


@dataclass(frozen=True)
class CompilerIdentity:
    """A compiler as keys of the cache identify it.

    Attributes:
        tool: "ispc" or "cc".
        banner: the first line of its version.
        arguments: the arguments that it is always given.
    """

    tool: str
    banner: str
    arguments: tuple[str, ...] = ()


def ispc_banners() -> list[str]:
    """The banners of the versions of ISPC whose kernels are used, the preferred first.

    Raises:
        DeviceError: there is no ISPC, and compiling is not forbidden.
    """
    if building_forbidden():
        return [identity.banner for identity in known_compilers("ispc")]
    return [find_ispc().banner]


def remember(compiler: CompilerIdentity) -> None:
    """Records in the cache that it has, or will have, entries that this compiler made."""
    fields = {"tool": compiler.tool, "banner": compiler.banner, "arguments": compiler.arguments}
    _made_by().put(digest("compiler", compiler), json.dumps(fields).encode(), label=compiler.tool)


def known_compilers(tool: str) -> list[CompilerIdentity]:
    """The compilers that made entries of the cache, the last recorded first."""
    store = _made_by()
    entries = sorted(store, key=lambda entry: -entry.written)
    texts = [store.read(entry.key) for entry in entries if entry.label == tool]
    fields = [json.loads(text) for text in texts if text is not None]
    return [
        CompilerIdentity(tool, str(compiler["banner"]), tuple(compiler["arguments"]))
        for compiler in fields
    ]


def _made_by() -> CacheStore:
    return CacheStore("compilers", ".json", 1 << 20)
