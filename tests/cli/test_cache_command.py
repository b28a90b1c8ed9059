"""``minidnn cache``: shows what is there, removes what it is told to, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from minidnn.cache import CacheStore
from minidnn.cli import main

KEYS = ("0a" * 32, "0b" * 32, "ff" * 32)


def cache(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["cache", *arguments]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(cache(capsys, *arguments, "--json"))


@pytest.fixture
def filled(cache_root: Path) -> Path:
    CacheStore("weights", ".pth").put(KEYS[0], b"w" * 3000, label="resnet18")
    CacheStore("ispc", ".so").put(KEYS[1], b"k" * 100)
    CacheStore("ispc", ".so").put(KEYS[2], b"k" * 200, label="conv")
    (cache_root / "mine.txt").write_text("not the cache's")
    return cache_root


@pytest.fixture
def toolchain(cache_root: Path) -> Path:
    folder = cache_root / "ispc-toolchain"
    (folder / "1.26" / "usr").mkdir(parents=True)
    (folder / "1.26" / "usr" / "ispc").write_bytes(b"i" * 5000)
    (folder / "current").symlink_to("1.26")
    return folder


def test_size_is_the_default(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = cache(capsys)
    rows = [line.split() for line in out.splitlines()]
    assert rows[1] == ["ispc", "2", "300", "B"]
    assert rows[2] == ["weights", "1", "2.9", "KiB"]
    assert out.splitlines()[-1] == f"3.2 KiB in {filled}"
    assert document(capsys, "size", "--kind", "ispc") == {
        "folder": str(filled),
        "kinds": {"ispc": {"entries": 2, "bytes": 300, "unfinished": 0}},
    }


def test_unfinished_downloads_are_shown(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (filled / "weights" / ".work-1-abc").write_bytes(b"x" * 2048)
    assert "  and 2.0 KiB unfinished" in cache(capsys)


def test_list_names_every_entry(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = cache(capsys, "list").splitlines()
    assert [line.split()[0] for line in lines] == ["kind", "ispc", "ispc", "weights", "3"]
    assert lines[1].endswith(KEYS[1][:12]) and lines[3].endswith("  resnet18")
    assert lines[-1] == f"3 entries, 3.2 KiB in {filled}"
    entries = document(capsys, "list")["entries"]
    assert [(e["kind"], e["key"], e["bytes"], e["label"]) for e in entries] == [
        ("ispc", KEYS[1], 100, ""),
        ("ispc", KEYS[2], 200, "conv"),
        ("weights", KEYS[0], 3000, "resnet18"),
    ]
    assert all(Path(e["file"]).stat().st_size == e["bytes"] for e in entries)
    assert len(document(capsys, "list", "--kind", "weights")["entries"]) == 1


def test_clear_of_a_kind(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cache(capsys, "clear", "--kind", "ispc") == f"freed 300 B in {filled}\n"
    assert list(document(capsys)["kinds"]) == ["weights"]


def test_clear_leaves_what_is_not_its_own(
    filled: Path, toolchain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = cache(capsys, "clear")
    assert out.startswith(f"freed 3.2 KiB in {filled}; the private copy of ISPC (4.9 KiB) stays: ")
    assert (filled / "mine.txt").exists() and (toolchain / "1.26" / "usr" / "ispc").exists()
    assert document(capsys)["kinds"] == {
        "ispc-toolchain": {"entries": 1, "bytes": 5000, "unfinished": 0}
    }
    assert document(capsys, "clear")["freed"] == 0


def test_the_toolchain_goes_when_told(
    filled: Path, toolchain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "(by doctor --install-ispc)" in cache(capsys)
    assert document(capsys, "clear", "--kind", "ispc-toolchain")["freed"] == 5000
    assert not toolchain.exists()
    assert sorted(document(capsys)["kinds"]) == ["ispc", "weights"]


def test_an_empty_cache(cache_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cache(capsys, "size").splitlines()[1:] == [f"0 B in {cache_root}"]
    assert cache(capsys, "list").splitlines()[1:] == [f"0 entries, 0 B in {cache_root}"]
    assert cache(capsys, "clear") == f"freed 0 B in {cache_root}\n"
    assert not cache_root.exists()


@pytest.mark.parametrize("action", ["list", "size", "clear"])
def test_unknown_kinds(action: str, filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", action, "--kind", "wheights"]) == 2
    assert capsys.readouterr().err == (
        f"minidnn cache: --kind wheights: not in the cache {filled}; valid are ispc, weights\n"
    )
