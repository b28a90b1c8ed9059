"""What somebody else could have written is neither read nor run nor waited for in silence."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minidnn import cache
from minidnn.cache import _folders
from minidnn.cache._trust import why_unsafe, why_untrusted
from minidnn.errors import CompileError, MiniDNNError, MiniDNNWarning

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="there are no users here")

ROOT = Path(__file__).parents[2]
KEY = cache.digest("a")
SOMEBODY = 12345
as_root = pytest.mark.skipif(
    getattr(os, "geteuid", lambda: 1)() != 0, reason="only root gives files to somebody else"
)


@pytest.fixture(autouse=True)
def _say_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_folders, "_warned", {})
    monkeypatch.setattr(_folders, "_refused", {})
    monkeypatch.setattr(_folders, "_private", {})


@pytest.fixture(params=[0o000, 0o002, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    found = [folder, *folder.rglob("*")]
    return {str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode) for path in found}


def others_write(path: Path) -> None:
    path.chmod(0o777)


def the_group_writes(path: Path) -> None:
    path.chmod(0o775)


def all_write_with_sticky_bit(path: Path) -> None:
    path.chmod(0o1777)


def another_owns(path: Path) -> None:
    os.chown(path, SOMEBODY, SOMEBODY)


bad_folder = pytest.mark.parametrize(
    "spoil",
    [
        others_write,
        the_group_writes,
        all_write_with_sticky_bit,
        pytest.param(another_owns, marks=as_root),
    ],
)


def test_every_level_is_for_this_user_alone(
    umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINIDNN_CACHE", str(tmp_path / "a" / "b" / "cache"))
    store = cache.CacheStore("unit", ".so")
    store.put(KEY, b"x")
    source = store.workspace() / "download"
    source.write_bytes(b"y")
    store.put_file(cache.digest("b"), source)
    with cache.one_at_a_time("build", "builds", 1.0), cache.temporary_folder() as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name, mode in modes(tmp_path / "a").items():
        is_folder = (tmp_path / "a" / name).is_dir()
        assert mode == 0o700 if is_folder else mode & 0o022 == 0, (name, oct(mode))
    assert store.read(KEY) == b"x"


@bad_folder
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_what_lies_in_a_folder_of_others_is_not_used(
    spoil: Callable[[Path], None], depth: int, cache_root: Path
) -> None:
    store = cache.CacheStore("unit", ".so")
    path = store.put(KEY, b"planted")
    bad = [cache_root, cache_root / "unit", path.parent][depth]
    spoil(bad)
    used: list[str] = []
    why = "belongs to user 12345" if spoil is another_owns else "can be written by others"
    with pytest.warns(MiniDNNWarning, match=rf"{cache_root} is not used: {bad} {why}") as caught:
        assert store.read(KEY) is None
        assert store.use(KEY, lambda path, place: used.append(place)) is None
        assert store.path(KEY) is None
    assert used == [] and len(caught) == 1
    own = store.put(KEY, b"own")  # goes to a folder of this process
    assert cache_root not in own.parents and store.read(KEY) == b"own"
    assert path.read_bytes() == b"planted"
    assert (store.workspace().parent == cache_root) == (depth == 2)
    with cache.forbid_builds(), pytest.raises(CompileError, match=rf"not used, since {bad} {why}"):
        cache.building_allowed("kernel x")


@as_root
def test_who_owns_a_file_is_looked_at(cache_root: Path, tmp_path: Path) -> None:
    """In a folder that was closed after somebody had written to it."""
    store = cache.CacheStore("unit")
    for number, spoil in enumerate((another_owns, others_write, the_group_writes)):
        key = cache.digest(number)
        spoil(store.put(key, b"planted"))
        with pytest.warns(MiniDNNWarning, match=r"cannot be read \(.* (belongs to|can be written)"):
            assert store.read(key) is None
        assert store.read(key) is None
    path = store.put(KEY, b"content")
    path.unlink()
    os.mkfifo(path)  # opening it would wait for somebody to write
    with pytest.warns(MiniDNNWarning, match="is not a file"):
        assert store.read(KEY) is None
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"planted")
    another_owns(foreign)
    with (
        pytest.warns(MiniDNNWarning, match="is not used: .* belongs to user 12345"),
        pytest.raises(MiniDNNError, match="belongs to user 12345"),
    ):
        store.put_file(KEY, foreign)


@as_root
def test_links_to_folders_of_ones_own_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = cache.CacheStore("unit")
    path = store.put(KEY, b"content")
    link = tmp_path / "link"
    link.symlink_to(path.parents[2])
    monkeypatch.setenv("MINIDNN_CACHE", str(link))
    assert store.read(KEY) == b"content"
    another_owns(path.parents[2])
    with pytest.warns(MiniDNNWarning, match=f"{link} belongs to user 12345"):
        assert store.read(KEY) is None


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that everybody gets to."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(os.path.realpath(folder))


def test_what_was_checked_is_what_is_used(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may write above the cache exchanges it between the check and the use."""
    cache_root = shared / "cache"
    monkeypatch.setenv("MINIDNN_CACHE", str(cache_root))
    store = cache.CacheStore("unit", ".so")
    path = store.put(KEY, b"checked")
    assert store.use(KEY, lambda path, place: place) == str(path)  # nobody can exchange anything
    shared.chmod(0o777)

    def exchanged(path: Path, place: str) -> bytes:
        cache_root.rename(shared / "away")
        path.parent.mkdir(parents=True)
        path.write_bytes(b"planted")
        return Path(place).read_bytes()

    assert store.use(KEY, exchanged) == b"checked"


@as_root
def test_of_root_is_trusted_by_all_and_of_others_by_nobody(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache that an administrator filled, read by somebody else."""
    cache_root = shared / "cache"
    monkeypatch.setenv("MINIDNN_CACHE", str(cache_root))
    path = cache.CacheStore("unit").put(KEY, b"content")
    for folder in [cache_root, *cache_root.rglob("*")]:
        folder.chmod(0o755)
    script = f"""
import os, sys, warnings
from minidnn import cache
from minidnn.errors import MiniDNNWarning
warnings.simplefilter("ignore")
os.chdir("/")
os.setgid({SOMEBODY}); os.setuid({SOMEBODY})
print(cache.CacheStore("unit").read({KEY!r}), os.access({str(path)!r}, os.W_OK))
"""
    command = [sys.executable, "-c", script]
    assert subprocess.check_output(command, cwd=ROOT, text=True) == "b'content' False\n"
    shutil.chown(cache_root, SOMEBODY + 1)
    assert subprocess.check_output(command, cwd=ROOT, text=True) == "None False\n"


def test_reasons(tmp_path: Path) -> None:
    tmp_path.chmod(0o775)
    assert why_untrusted(tmp_path.stat(), tmp_path) == (
        f"{tmp_path} can be written by others (its mode is 0775); if nobody has put anything "
        f"there, run 'chmod -R go-w {tmp_path}'"
    )
    tmp_path.chmod(0o700)
    assert why_untrusted(tmp_path.stat(), tmp_path) is None


def test_paths_that_nobody_can_exchange(shared: Path) -> None:
    inner = shared / "outer" / "inner"
    inner.mkdir(parents=True)
    outer = inner.parent
    outer.chmod(0o755)
    assert why_unsafe(inner) is None
    outer.chmod(0o1777)  # as /tmp
    assert why_unsafe(inner) is None
    for mode in (0o777, 0o775):
        outer.chmod(mode)
        assert f"{outer} can be written by others" in str(why_unsafe(inner))
        shared.chmod(0o700)  # nobody else gets there
        assert why_unsafe(inner) is None
        shared.chmod(0o755)
    outer.chmod(0o755)
    assert "cannot be looked at" in str(why_unsafe(inner / "none"))
    (shared / "link").symlink_to(outer)
    assert "can be written by others" in str(why_unsafe(shared / "link" / "inner"))
    if os.geteuid() == 0:
        another_owns(outer)
        assert f"{outer} belongs to user 12345" in str(why_unsafe(inner))
