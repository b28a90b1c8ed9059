from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from minidnn import cache
from minidnn.errors import CompileError

ROOT = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True)
class Key:
    shape: tuple[int, ...]
    name: str


@dataclasses.dataclass(frozen=True)
class OtherKey:
    shape: tuple[int, ...]
    name: str


EXPRESSION = (
    "cache.digest('a', 1, 1.5, None, True, b'\\x00\\xff', [1, (2, 3)], {'y': 1, 'x': {'z': -0.0}})"
)


def test_digest_is_the_same_in_every_process() -> None:
    found = set()
    for seed in ("0", "1"):
        script = f"from minidnn import cache; print({EXPRESSION})"
        command = [sys.executable, "-c", script]
        found.add(
            subprocess.check_output(command, env={"PYTHONHASHSEED": seed}, cwd=ROOT, text=True)
        )
    # The value itself is part of the contract: a change empties every user's cache.
    assert found == {"37cedd26efbc563db353ac2e404f4da3a9a238a6c5e12f62cb305dc048a8eb95\n"}


def test_digest_separates_what_differs() -> None:
    parts: list[object] = [
        1, 1.0, True, "1", b"1", None, 0, False, 0.0, -0.0, "", b"", [], {}, [[]], [1, 2], [12],
        ["a", "b"], ["ab"], [["a"], "b"], {"a": 1}, {"a": 2}, ["a", 1], Key((1,), "k"),
        OtherKey((1,), "k"), Key((1,), "l"), Key((2,), "k"), "s1:a", float("nan"), float("inf"),
        2**70, -(2**70),
    ]  # fmt: skip
    digests = [cache.digest(part) for part in parts]
    assert len(set(digests)) == len(parts)
    assert cache.digest("a", "b") != cache.digest("ab")
    assert cache.digest() != cache.digest(None)
    assert all(len(text) == 64 for text in digests)


def test_digest_ignores_the_order_of_a_dict_and_the_kind_of_sequence() -> None:
    assert cache.digest({"a": 1, "b": 2}) == cache.digest({"b": 2, "a": 1})
    assert cache.digest((1, 2)) == cache.digest([1, 2])
    assert cache.digest(bytearray(b"x")) == cache.digest(memoryview(b"x")) == cache.digest(b"x")


@pytest.mark.parametrize("part", [{1, 2}, frozenset(), object(), Key, Path("x")])
def test_digest_refuses_what_has_no_stable_form(part: object) -> None:
    with pytest.raises(TypeError, match=f"type {type(part).__name__} has no stable encoding"):
        cache.digest("a", [part])


def test_building_is_allowed_by_default() -> None:
    cache.building_allowed("kernel x")


def test_forbid_builds_holds_in_every_thread_and_ends() -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            cache.building_allowed("kernel x")
        except CompileError as error:
            errors.append(error)

    with cache.forbid_builds():
        with cache.forbid_builds():
            pass
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        with pytest.raises(
            CompileError, match=r"^the cache .* lacks kernel x, and cache\.forbid_builds"
        ):
            cache.building_allowed("kernel x")
    assert len(errors) == 1
    cache.building_allowed("kernel x")


@pytest.mark.parametrize(("value", "allowed"), [("1", False), ("yes", False), ("0", True)])
def test_environment_forbids_builds(
    monkeypatch: pytest.MonkeyPatch, value: str, allowed: bool
) -> None:
    monkeypatch.setenv("MINIDNN_NO_COMPILE", value)
    if allowed:
        cache.building_allowed("kernel x")
    else:
        with pytest.raises(CompileError, match=f"MINIDNN_NO_COMPILE={value} forbids"):
            cache.building_allowed("kernel x")


def test_the_cache_needs_only_the_standard_library() -> None:
    script = (
        "import sys; before = set(sys.modules); import minidnn.cache._store, minidnn.errors;"
        "new = {m.split('.')[0] for m in set(sys.modules) - before};"
        "print(sorted(new - set(sys.stdlib_module_names)))"
    )
    package = "import sys, types; p = types.ModuleType('minidnn'); p.__path__ = ['minidnn'];"
    package += "sys.modules['minidnn'] = p;"
    output = subprocess.check_output([sys.executable, "-c", package + script], cwd=ROOT, text=True)
    assert output == "['minidnn']\n"
