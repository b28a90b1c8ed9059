"""Which compilers made what is in the cache: they are a part of its keys.

Where compiling is forbidden no compiler is looked for, so that none need be there: what is in the
cache is found by the compilers that the cache remembers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from ....cache import CacheStore, building_forbidden, digest
from .toolchain import find_ispc

BUILD_LOCK = "ispc-build"
"""One process compiles at a time: a second would most likely do the same work."""


@dataclass(frozen=True)
class CompilerIdentity:
    """A compiler as keys know it.

    Attributes:
        tool: "ispc" or "cc".
        banner: the first line of what it says of its version.
        arguments: that are always given to it.
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
    """Notes in the cache that it has, or will have, something that this compiler made."""
    fields = {"tool": compiler.tool, "banner": compiler.banner, "arguments": compiler.arguments}
    _store().put(digest("compiler", compiler), json.dumps(fields).encode(), label=compiler.tool)


def known_compilers(tool: str) -> list[CompilerIdentity]:
    """The compilers that made what is in the cache, the last noted first."""
    store = _store()
    entries = sorted(store, key=lambda entry: -entry.written)
    found = [store.read(entry.key) for entry in entries if entry.label == tool]
    fields = [json.loads(text) for text in found if text is not None]
    return [
        CompilerIdentity(tool, str(each["banner"]), tuple(each["arguments"])) for each in fields
    ]


def _store() -> CacheStore:
    return CacheStore("compilers", ".json", 1 << 20)
