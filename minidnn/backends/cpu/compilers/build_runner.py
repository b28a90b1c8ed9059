"""Builds the native runner with the C compiler, once for each cache."""

from __future__ import annotations

import platform
from pathlib import Path

from ....cache import (
    CacheStore,
    building_allowed,
    building_forbidden,
    digest,
    one_at_a_time,
    root,
    temporary_folder,
    why_not_used,
)
from ....errors import CompileError
from .library import SOURCES, SharedObject, load
from .process import Command, run
from .toolchain import BUILD_LOCK, CCompiler, CompilerIdentity, find_cc, known_compilers, remember

FLAGS = ("-O3", "-std=gnu11", "-ffp-contract=off", "-fPIC", "-shared", "-pthread")
BUILD_SECONDS = 60.0


def why_not_cached() -> str | None:
    """Why the runner cannot be had without a C compiler; None if it can."""
    if any(_store().path(key) is not None for key in _keys(())):
        return None
    refused = why_not_used()
    return (
        f"the cache {root()}{f' ({refused})' if refused else ''} has no native runner of this "
        "version of minidnn"
    )


def cached_runner(extra_flags: tuple[str, ...]) -> SharedObject | None:
    """The runner, if the cache has it."""
    for key in _keys(extra_flags):
        if (library := _store().use(key, load)) is not None:
            return library
    return None


def built_runner(extra_flags: tuple[str, ...]) -> SharedObject:
    """Compiles the runner, unless another process has done so meanwhile."""
    building_allowed("the native runner")
    with one_at_a_time(BUILD_LOCK, "compiles", BUILD_SECONDS):
        if (library := cached_runner(extra_flags)) is not None:
            return library
        compiler = find_cc()
        remember(_identity(compiler))
        with temporary_folder() as folder:
            target = folder / "runner.so"
            files = [str(path) for path in _sources() if path.suffix == ".c"]
            argv = (*compiler.argv, *FLAGS, *extra_flags, "-o", str(target), *files)
            ended = run(Command(argv, "the native runner", BUILD_SECONDS, folder))
            if not ended.ok:
                raise CompileError(
                    f"the C compiler {compiler.argv[0]} {ended.describe()} on the native "
                    f"runner: {ended.output.strip()[:4000]}"
                )
            key = _key(extra_flags, _identity(compiler))
            path = _store().put_file(key, target, label="runner")
        library = _store().use(key, load)
        if library is None:
            raise CompileError(f"{path} was removed or damaged as soon as it was compiled")
        return library


def _keys(extra_flags: tuple[str, ...]) -> list[str]:
    """The keys that the runner may have in the cache: that of this machine's compiler, or, where
    compiling is forbidden, those of all compilers that filled the cache."""
    if building_forbidden():
        return [_key(extra_flags, identity) for identity in known_compilers("cc")]
    return [_key(extra_flags, _identity(find_cc()))]


def _key(extra_flags: tuple[str, ...], compiler: CompilerIdentity) -> str:
    texts = [(path.name, path.read_bytes()) for path in _sources()]
    flags = (*FLAGS, *extra_flags)
    return digest("runner", texts, flags, compiler.banner, compiler.arguments, platform.machine())


def _identity(compiler: CCompiler) -> CompilerIdentity:
    return CompilerIdentity("cc", compiler.banner, compiler.argv[1:])


def _sources() -> list[Path]:
    return sorted(SOURCES.glob("*.[ch]"))


def _store() -> CacheStore:
    return CacheStore("runner", ".so", 64 << 20)
