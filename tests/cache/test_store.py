from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minidnn import cache
from minidnn.cache import _files, _folders
from minidnn.errors import MiniDNNError, MiniDNNWarning

ROOT = Path(__file__).parents[2]
KEY = cache.digest("a")
OTHER = cache.digest("b")


def age(path: Path, seconds: float) -> None:
    moment = time.time_ns() - int(seconds * 1e9)
    os.utime(path, ns=(moment, moment))


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_put_read_path_remove(cache_root: Path) -> None:
    store = cache.CacheStore("unit", ".bin")
    assert store.read(KEY) is None
    assert store.path(KEY) is None
    assert not cache_root.exists()  # looking writes nothing
    put = store.put(KEY, b"content", label="resnet 50/x")
    assert put.read_bytes() == b"content"  # the file is what was put, nothing around it
    assert store.read(KEY) == b"content"
    assert store.path(KEY) == put
    assert put.name.startswith(KEY) and put.name.endswith("-resnet_50_x.bin")
    assert store.read(OTHER) is None
    assert store.remove(KEY)
    assert not store.remove(KEY)
    assert store.read(KEY) is None


def test_put_replaces() -> None:
    store = cache.CacheStore("unit", grace=0)
    for number in range(20):
        store.put(KEY, b"%d" % number)
        assert store.read(KEY) == b"%d" % number
    assert len(list(store)) == 1


def test_last_write_wins_even_while_the_replaced_entry_is_being_used() -> None:
    store = cache.CacheStore("unit", grace=1000)
    old = store.put(KEY, b"old")
    store.put(KEY, b"new")
    assert old.exists()  # another process may be about to open it
    future = time.time_ns() + 10**9
    os.utime(old, ns=(future, old.stat().st_mtime_ns))  # used later than the new one was written
    assert store.read(KEY) == b"new"
    assert store.remove(KEY)
    assert store.read(KEY) is None


def test_put_file_moves(tmp_path: Path) -> None:
    source = tmp_path / "download"
    source.write_bytes(b"x" * 1000)
    store = cache.CacheStore("unit", ".pth")
    assert store.put_file(KEY, source).read_bytes() == b"x" * 1000
    assert not source.exists()


def test_stores_of_one_kind_with_different_suffixes_do_not_meet() -> None:
    source, binary = (
        cache.CacheStore("unit", ".c", grace=0),
        cache.CacheStore("unit", ".so", grace=0),
    )
    source.put(KEY, b"source")
    binary.put(KEY, b"binary")
    assert (source.read(KEY), binary.read(KEY)) == (b"source", b"binary")


@pytest.mark.parametrize("damage", ["truncate", "flip", "append", "empty"])
@pytest.mark.parametrize("how", ["read", "path"])
def test_damaged_entry_is_deleted_and_said_so(
    damage: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = cache.CacheStore("unit")
    path = store.put(KEY, b"0123456789")
    data = {"truncate": b"01234", "flip": b"0123456788", "append": b"01234567890", "empty": b""}
    path.write_bytes(data[damage])
    with pytest.warns(MiniDNNWarning, match=r"cache entry .* is damaged: its checksum is .*"):
        assert getattr(store, how)(KEY) is None
    assert "is damaged" in caplog.text
    assert not path.exists()
    assert getattr(store, how)(KEY) is None  # without another warning
    store.put(KEY, b"again")
    assert store.read(KEY) == b"again"


def test_damage_does_not_bring_back_an_older_version() -> None:
    store = cache.CacheStore("unit", grace=1000)
    store.put(KEY, b"old")
    store.put(KEY, b"new").write_bytes(b"bad")
    with pytest.warns(MiniDNNWarning, match="damaged"):
        assert store.read(KEY) is None
    assert store.read(KEY) is None


def test_limit_removes_the_least_recently_used() -> None:
    store = cache.CacheStore("unit", limit=1000, grace=0)
    keys = [cache.digest(number) for number in range(10)]
    for number, key in enumerate(keys):
        age(store.put(key, bytes(100)), 100 - number)
    assert store.read(keys[0]) is not None  # now the most recently used
    store.put(OTHER, bytes(250))
    left = [key for key in keys if store.read(key) is not None]
    assert left == [keys[0], *keys[4:]]
    assert sum(entry.size for entry in store) <= 1000


def test_many_small_writes_keep_the_limit_within_some_hundredths() -> None:
    """One of five of these counts all entries; that none of 200 does has odds of 2e-21."""
    store = cache.CacheStore("unit", limit=6000, grace=0)
    for number in range(300):
        store.put(cache.digest(number), bytes(20))
    assert len(list(store)) == 300
    for number in range(300, 600):
        store.put(cache.digest(number), bytes(20))
    assert 6000 <= sum(entry.size for entry in store) < 10_000


def test_a_write_does_not_read_the_whole_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cost of compiling a kernel must not grow with how many there are."""
    store = cache.CacheStore("unit", grace=0)
    for number in range(300):
        store.put(cache.digest(number), b"%d" % number)
    asked = set()

    class Item:
        def __init__(self, path: Path) -> None:
            self.path, self.name = path, path.name

        def stat(self, **options: bool) -> os.stat_result:
            asked.add(self.name.split("-")[0])
            return self.path.stat(**options)

    def listing(folder: Path) -> list[Item]:
        # Where a test before this one had no other cache, a private folder is looked into, too.
        return [Item(path) for path in folder.iterdir()] if folder.is_dir() else []

    monkeypatch.setattr(_files, "listing", listing)
    monkeypatch.setattr(secrets, "randbelow", lambda limit: limit - 1)  # the usual draw
    store.put(cache.digest(7), b"new")
    assert store.read(cache.digest(7)) == b"new"
    assert asked == {cache.digest(7)}
    monkeypatch.setattr(secrets, "randbelow", lambda limit: 0)
    store.put(cache.digest(7), b"newer")
    assert len(asked) == 300


def test_what_was_just_written_stays_even_above_the_limit() -> None:
    store = cache.CacheStore("unit", limit=10, grace=0)
    store.put(KEY, bytes(100))
    assert store.read(KEY) == bytes(100)
    store.put(OTHER, bytes(100))
    assert store.read(OTHER) == bytes(100)
    assert store.read(KEY) is None


def test_grace_protects_what_another_process_may_be_about_to_open() -> None:
    store = cache.CacheStore("unit", limit=10, grace=60)
    first = store.put(KEY, bytes(100))
    store.put(OTHER, bytes(100))
    assert first.exists()
    age(first, 61)
    store.put(OTHER, bytes(100))
    assert not first.exists()


def test_abandoned_files_are_removed_after_a_week() -> None:
    store = cache.CacheStore("unit")
    old, new = store.workspace() / ".work-old", store.workspace() / ".work-new"
    old.write_bytes(b"old")
    new.write_bytes(b"new")
    age(old, 8 * 24 * 3600)
    store.put(KEY, b"x")
    assert (old.exists(), new.exists()) == (False, True)


def test_entries_usage_clear(cache_root: Path) -> None:
    cache.CacheStore("one", ".so").put(KEY, bytes(10), label="k")
    cache.CacheStore("two").put(KEY, bytes(20))
    cache.CacheStore("two").put(OTHER, bytes(30))
    part, busy = (
        cache.CacheStore("two").workspace() / f".work-{name}" for name in ("part", "busy")
    )
    part.write_bytes(bytes(7))
    age(part, 10)
    busy.write_bytes(b"")
    innocent = cache_root / "two" / "ab" / "notes.txt"
    innocent.parent.mkdir(exist_ok=True)
    innocent.write_text("mine")
    found = [(e.kind, e.key, e.label, e.suffix, e.size) for e in cache.entries()]
    assert found == [
        ("one", KEY, "k", ".so", 10),
        *sorted([("two", KEY, "", "", 20), ("two", OTHER, "", "", 30)]),
    ]
    assert cache.usage() == {"one": cache.Usage(1, 10, 0), "two": cache.Usage(2, 50, 7)}
    with pytest.raises(ValueError, match=r"kind 'three' is not in the cache .*; valid: one, two"):
        cache.clear("three")
    assert cache.clear("one") == 10
    assert cache.clear() == 57
    assert files(cache_root) == [".work-busy", "notes.txt"]


def test_symbolic_links_are_not_followed_out_of_the_cache(tmp_path: Path) -> None:
    store = cache.CacheStore("unit")
    path = store.put(KEY, b"x")
    victim = tmp_path / "victim"
    victim.write_bytes(b"secret")
    path.unlink()
    path.symlink_to(victim)
    with pytest.warns(MiniDNNWarning, match="damaged"):
        assert store.read(KEY) is None
    assert victim.read_bytes() == b"secret"


@pytest.mark.parametrize("key", ["", "short", "../../etc/passwd", "ABCDEF0123", "0" * 65, "g" * 64])
def test_bad_keys(key: str) -> None:
    with pytest.raises(ValueError, match="is not 8 to 64 lower-case digits"):
        cache.CacheStore("unit").put(key, b"")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("../x",), "kind '../x' is not of the form"),
        (("x", "so"), "suffix 'so' is not of the form"),
        (("x", "./y"), "suffix './y' is not of the form"),
        (("x", "", 0), "limit 0 is not a positive number"),
    ],
)
def test_bad_stores(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cache.CacheStore(*arguments)  # type: ignore[arg-type]


# --- a cache that cannot be written ---


@pytest.fixture
def not_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("MINIDNN_CACHE", str(blocked / "cache"))
    monkeypatch.setattr(_folders, "_warned", {})
    return blocked


def test_unwritable_cache_warns_once_and_works(not_a_folder: Path) -> None:
    store = cache.CacheStore("unit", ".so")
    with pytest.warns(MiniDNNWarning, match=r"the cache folder .* cannot be written.*set MINIDNN"):
        first = store.put(KEY, b"one")
    second = store.put(OTHER, b"two")  # without a second warning: those are errors here
    assert not_a_folder not in first.parents
    assert (store.read(KEY), store.read(OTHER)) == (b"one", b"two")
    assert store.path(OTHER) == second
    assert {entry.key for entry in store} >= {KEY, OTHER}
    assert store.workspace().is_dir()
    assert list(cache.entries()) == []
    assert store.remove(KEY) and store.remove(OTHER)


def test_private_folder_is_removed_at_exit_but_not_by_a_fork(not_a_folder: Path) -> None:
    script = f"""
import os, sys, warnings
from minidnn import cache
warnings.simplefilter("ignore")
path = cache.CacheStore("unit").put({KEY!r}, b"x")
child = os.fork()
if not child:
    other = cache.CacheStore("unit").put({KEY!r}, b"y")
    assert other.parents[2] != path.parents[2]
    print(other, flush=True)
    sys.exit(0)  # runs the exit handlers
os.waitpid(child, 0)
assert path.exists()
print(path)
"""
    output = subprocess.check_output([sys.executable, "-c", script], cwd=ROOT, text=True)
    paths = [Path(line) for line in output.split()]
    assert len(paths) == 2
    assert not any(path.parents[2].exists() for path in paths)


def test_disk_full_in_the_middle_of_a_write(cache_root: Path) -> None:
    # A limit on the size of files fails in the middle of a write like a full disk does.
    script = f"""
import pytest, resource, signal, warnings
from pathlib import Path
from minidnn import cache
from minidnn.errors import MiniDNNError
warnings.simplefilter("error")
store = cache.CacheStore("unit")
store.put({OTHER!r}, b"small")
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
with pytest.warns(UserWarning, match="cannot be written"), pytest.raises(MiniDNNError) as caught:
    store.put({KEY!r}, bytes(100_000))
print(caught.value)
assert store.read({OTHER!r}) == b"small"
assert store.read({KEY!r}) is None
"""
    output = subprocess.check_output([sys.executable, "-c", script], cwd=ROOT, text=True)
    assert output.startswith("neither the cache folder")
    assert "set MINIDNN_CACHE or TMPDIR" in output
    assert len(files(cache_root)) == 1  # no half-written file is left


def test_neither_can_be_written(not_a_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_folders, "_private", {os.getpid(): not_a_folder / "tmp"})
    with (
        pytest.warns(MiniDNNWarning),
        pytest.raises(MiniDNNError, match=r"neither the cache folder .* nor the temporary folder"),
    ):
        cache.CacheStore("unit").put(KEY, b"x")


# --- where the cache is ---


def test_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MINIDNN_CACHE", "~/mine")
    assert cache.root() == tmp_path / "mine"
    monkeypatch.setenv("MINIDNN_CACHE", "relative")
    assert cache.root() == Path.cwd() / "relative"
    monkeypatch.setenv("MINIDNN_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache.root() == tmp_path / "xdg" / "minidnn"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert cache.root() == tmp_path / ".cache" / "minidnn"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache.root() == tmp_path / "Library" / "Caches" / "minidnn"


def test_without_a_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("MINIDNN_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(_folders, "_warned", {})
    with pytest.warns(MiniDNNWarning, match=r"no cache folder: Could not determine home"):
        assert cache.root().is_dir()


# --- many processes ---

WORKER = """
import random, sys
from minidnn import cache
store = cache.CacheStore("unit", ".bin", limit=20_000, grace=float(sys.argv[2]))
rng = random.Random(int(sys.argv[1]))
for turn in range(150):
    number = rng.randrange(40)
    key, content = cache.digest(number), bytes([number]) * 1000
    data = store.read(key)
    assert data in (None, content), (number, data)
    if data is None:
        path = store.put(key, content)
        if float(sys.argv[2]):
            assert path.read_bytes() == content
    if turn % 50 == 49 and not float(sys.argv[2]):
        cache.clear()
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("grace", [0, 60])
def test_many_processes_read_write_and_remove(cache_root: Path, grace: int) -> None:
    workers = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", WORKER, str(seed), str(grace)], cwd=ROOT
        )
        for seed in range(4)
    ]
    assert [worker.wait(timeout=60) for worker in workers] == [0, 0, 0, 0]
    assert not [name for name in files(cache_root) if name.startswith(".work-")]
