"""Ranks that end early, in every way, and how long the others go on: seconds."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

RANK = """
import os, signal, sys, time
from minidnn.distributed import rank as module
from minidnn.distributed.rank import RankWatch, find_rank
module.ALIVE_SECONDS, module.SILENT_SECONDS = 0.2, 3.0
place = find_rank()
watch = RankWatch(place, {"from": "rank 0"} if place.rank == 0 else None)
assert watch.told == {"from": "rank 0"}
print("ready", flush=True)
sys.stdin.readline()
if place.rank == int(sys.argv[1]):
    if sys.argv[2] == "raises":
        raise ValueError("its own reason")
    if sys.argv[2] == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[2] == "hangs":
        os.kill(os.getpid(), signal.SIGSTOP)
    if sys.argv[2] in ("exits", "leaves"):
        sys.exit(0)
if sys.argv[2] == "leaves":
    watch.enter()
time.sleep(1 if sys.argv[2] == "exits" else 60)  # as in a collective operation of a library
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def start(
    root: Path, size: int, *arguments: str, ports: tuple[int, int] | None = None
) -> list[subprocess.Popen[str]]:
    """``ports``: at which rank 0 listens, and which the others take for it."""
    here, there = ports or (free_port(),) * 2
    found = []
    for rank in range(size):
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size}
        own["MASTER_PORT"] = (there if rank else here) - 1
        environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "PYTHONPATH": str(root)}
        found.append(
            subprocess.Popen(
                [sys.executable, "-c", RANK, *arguments],
                env={**environment, **{name: str(value) for name, value in own.items()}},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return found


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("end", ["raises", "is killed"])
def test_all_end_when_one_fails(root: Path, rank: int, end: str) -> None:
    running = start(root, 3, str(rank), end)
    for each in running:
        assert each.stdout is not None and each.stdout.readline() == "ready\n"
    begin = time.monotonic()
    for each in running:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    told = [each.communicate(timeout=30)[1] for each in running]
    assert time.monotonic() - begin < 10
    reason = "ValueError: its own reason" if end == "raises" else "it ended without a word: it was"
    for place, (each, err) in enumerate(zip(running, told, strict=True)):
        if place == rank:
            assert each.returncode == (1 if end == "raises" else -signal.SIGKILL)
        else:
            assert each.returncode == 1
            assert f"rank {place} ends, since rank {rank} failed: {reason}" in err


def ends(running: list[subprocess.Popen[str]], act: Callable[[], object]) -> list[str]:
    """What all but the last say, and that they end within seconds of what happens."""
    for each in running:
        assert each.stdout is not None and each.stdout.readline() == "ready\n"
    begin = time.monotonic()
    act()
    told = [each.communicate(timeout=30)[1] for each in running[:-1]]
    assert time.monotonic() - begin < 15
    assert {each.returncode for each in running[:-1]} == {1}
    return told


def go(running: list[subprocess.Popen[str]]) -> None:
    for each in running:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()


SILENT = "nothing was heard of it for 3 s: it hangs, or the network does"


def test_who_hangs_ends_all(root: Path) -> None:
    running = start(root, 3, "2", "hangs")
    try:
        told = ends(running, lambda: go(running))
    finally:
        running[-1].kill()
        running[-1].communicate()
    for place, err in enumerate(told):
        assert f"rank {place} ends, since rank 2 failed: {SILENT}" in err


def test_who_leaves_before_the_others_ends_all(root: Path) -> None:
    """What all ranks are needed for would wait for ever."""
    running = start(root, 3, "2", "leaves")
    told = ends(running, lambda: go(running))
    running[-1].communicate(timeout=10)
    assert running[-1].returncode == 0
    for err in told:
        assert "rank 2 has ended its training, while others go on, which need it; valid is" in err


class Cable:
    """Between other ranks and rank 0, until it is cut: then both sides hear nothing, and neither
    is told that."""

    def __init__(self, to: int) -> None:
        self.to, self.is_cut = to, threading.Event()
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.server.getsockname()[1]
        self.ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                one = self.server.accept()[0]
                try:
                    other = socket.create_connection(("127.0.0.1", self.to), 5)
                except OSError:
                    one.close()
                    continue
                self.ends += [one, other]
                for pair in ((one, other), (other, one)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if not self.is_cut.is_set():
                    to.sendall(data)
            if not self.is_cut.is_set():
                to.close()

    def close(self) -> None:
        for each in (self.server, *self.ends):
            each.close()


def test_a_network_that_is_cut_ends_all(root: Path) -> None:
    port = free_port()
    cable = Cable(port)
    try:
        running = start(root, 3, "2", "waits", ports=(port, cable.port))

        def cut() -> None:
            cable.is_cut.set()
            go(running)

        told = ends(running, cut)
        running[-1].communicate(timeout=10)
        assert running[-1].returncode == 1
    finally:
        cable.close()
    assert f"rank 0 ends, since rank 1 failed: {SILENT}" in told[0] or (
        f"rank 0 ends, since rank 2 failed: {SILENT}" in told[0]
    )
    assert f"rank 1 ends, since rank 0 failed: {SILENT}" in told[1]


def test_who_ends_well_ends_nobody(root: Path) -> None:
    running = start(root, 3, "1", "exits")
    ended = [each.communicate("\n", timeout=30) for each in running]
    assert [each.returncode for each in running] == [0, 0, 0], ended


def test_who_is_missing_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from minidnn.distributed import DistributedError, RankInfo, rank

    monkeypatch.setattr(rank, "_CONNECT_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(
            DistributedError, match=rf"rank 0 cannot listen at .* port {port}: Addr"
        ):
            rank.RankWatch(RankInfo(0, 2, 0, "127.0.0.1", port))
    with pytest.raises(DistributedError, match=r"no rank 1, 2 came to 127.0.0.1, port"):
        rank.RankWatch(RankInfo(0, 3, 0, "127.0.0.1", port))
    with pytest.raises(
        DistributedError, match=r"rank 1 found no rank 0 at 127.0.0.1, port .* refu"
    ):
        rank.RankWatch(RankInfo(1, 2, 1, "127.0.0.1", port))


def test_strangers_are_sent_away() -> None:
    """Who says nothing sensible is no rank, and the ranks find each other all the same."""
    from minidnn.distributed import RankInfo, rank

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    found: list[rank.RankWatch] = []
    place = RankInfo(0, 2, 0, "127.0.0.1", port)
    listening = threading.Thread(target=lambda: found.append(rank.RankWatch(place, "told")))
    listening.start()
    said = (
        b"GET / HTTP/1.1\r\n",
        b'{"rank": 1, "size": 3}\n',
        b'{"rank": 7, "size": 2}\n',
        b"[]\n",
    )
    for each in said:
        deadline = time.monotonic() + 20
        while True:
            try:
                stranger = socket.create_connection(("127.0.0.1", port), 5)
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        with stranger:
            stranger.sendall(each)
            assert stranger.recv(100) == b""
    other = rank.RankWatch(RankInfo(1, 2, 1, "127.0.0.1", port))
    listening.join(20)
    assert other.told == "told"
    for one in (other, *found):
        one.leave()
