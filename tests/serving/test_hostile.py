"""Clients that send what costs most, to a server process: it stays awake and small, and serves."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import random
import re
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import grpc
import numpy as np
import pytest
from tritonclient import grpc as triton_grpc

from minidnn.serving.messages import SERVICE, message

_INFER = "/v2/models/digits/infer"
_HEAD = f"POST {_INFER} HTTP/1.1\r\nHost: localhost\r\n".encode()
_CHUNKED = _HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
_MOST_SECONDS = 0.25
_MOST_MEBIBYTES = 24  # what one request may take: six times the most that JSON may have


@dataclass
class Process:
    """A server process and its addresses."""

    popen: subprocess.Popen[str]
    port: int = 0
    grpc: str = ""

    def connected(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def memory(self, what: str) -> float:
        text = Path(f"/proc/{self.popen.pid}/status").read_text(encoding="utf-8")
        return int(re.findall(rf"{what}:\s+(\d+)", text)[0]) / 1024

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()

    @contextmanager
    def watched(self) -> Iterator[list[float]]:
        """Within it health is asked for all the time; gives the seconds of its answers."""
        seconds, over = [], threading.Event()

        def watch() -> None:
            while not over.is_set():
                begin = time.perf_counter()
                assert self.ask("GET", "/v2/health/live") == 200
                seconds.append(time.perf_counter() - begin)
                over.wait(0.005)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield seconds
        finally:
            over.set()
            thread.join()

    def stands(self, attack: Callable[[], object]) -> None:
        """Checks that health is answered soon meanwhile, that memory stays, and that honest
        requests are served after it.  Others may use this machine: a stall shows every time."""
        for repeated in (True, True, False):
            Path(f"/proc/{self.popen.pid}/clear_refs").write_text("5", encoding="utf-8")
            before = self.memory("VmRSS")
            with self.watched() as seconds:
                attack()
            grown = self.memory("VmHWM") - before
            assert self.ask("POST", _INFER, honest()) == 200
            assert grown < _MOST_MEBIBYTES
            if max(seconds) < _MOST_SECONDS:
                return
            assert repeated, f"health took {max(seconds):.2f} s"


@pytest.fixture(scope="module")
def process() -> Iterator[Process]:
    arguments = ["digits", "--device", "reference", "--port", "0", "--grpc-port", "0"]
    command = [sys.executable, "-m", "minidnn", "serve", *arguments, "--max-requests", "16"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as popen:
        found = Process(popen)
        assert popen.stderr is not None
        for line in popen.stderr:
            if "REST on" in line:
                found.port = int(line.rpartition(":")[2])
            if "gRPC on" in line:
                found.grpc = line.split()[-1]
            if line == "minidnn serve: ready\n":
                break
        yield found
        popen.kill()


def honest(data: str | None = None) -> bytes:
    given = {"name": "input", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0.5] * 64}
    text = json.dumps({"inputs": [given]})
    return (text if data is None else text.replace(json.dumps(given["data"]), data)).encode()


def filled(piece: str, size: int, where: str) -> bytes:
    """A request that has a piece many times, in one of its parts."""
    text = piece * (size // len(piece))
    return {
        "data": lambda: honest(f"[{text}]"),
        "unquoted": lambda: honest(text),
        "shape": lambda: honest().replace(b"[1, 1,", b"[" + text.encode() + b"1, 1,"),
        "all": lambda: b"[" + text.encode() + b"[]]",
        "id": lambda: b'{"id": "' + text.encode() + b'",' + honest()[1:],
        "inputs": lambda: honest().replace(b'[{"', b"[" + text.encode() + b'{"'),
    }[where]()


_PLACES = ("data", "unquoted", "shape", "all", "id", "inputs")
_PIECES = (
    *("[],", "{},", '"",', "0,", "1e999,", "[[", "]", " ", "9", "-", "NaN,", '{"data":[', "[1],"),
    *("] ", '"data":', '"data":[1],', "\\u0000", "null,", '{"name":"a","data":[1]},', "[1,", "],"),
)


def relatives(seed: int) -> Iterator[tuple[str, str]]:
    """Pieces and where they stand, in random order, without end."""
    chance = random.Random(seed)
    while True:
        one = "".join(chance.choices(_PIECES, k=chance.choice((1, 1, 2, 3))))
        yield one, chance.choice(_PLACES)


def check_relatives(process: Process, seed: int, count: int) -> None:
    for piece, where in islice(relatives(seed), count):
        body = filled(piece, (4 << 20) - 1000, where)
        found: list[int] = []

        def attack(body: bytes = body, found: list[int] = found) -> None:
            found.append(process.ask("POST", _INFER, body))

        process.stands(attack)
        assert set(found) <= {400, 413}, (piece, where)


def test_json_that_takes_much(process: Process) -> None:
    for piece, where in (("[],", "data"), ("[],", "all"), ("9", "data"), ("1,", "data")):
        body = filled(piece, (4 << 20) - 1000, where)
        process.stands(partial(process.ask, "POST", _INFER, body))
    check_relatives(process, 0, 4)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1, 6))
def test_json_that_takes_much_at_length(process: Process, seed: int) -> None:
    check_relatives(process, seed, 30)


def with_header(text: bytes) -> bytes:
    return b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n" + text + b"\r\n\r\n"


_BOMB = gzip.compress(bytes(200 << 20), 1)
_SENT = {
    "JSON": (413, _HEAD + b"Content-Length: 30000002\r\n\r\n[" + b"[]," * 10_000_000 + b"]"),
    "body": (413, _HEAD + b"Content-Length: 41943040\r\n\r\n" + bytes(40 << 20)),
    "header": (431, with_header(b"X: " + b"a" * (1 << 20))),
    "headers": (431, with_header(b"\r\n".join([b"X: a"] * 50_000))),
    "name": (431, with_header(b"X" * (1 << 20) + b": a")),
    "URL": (414, b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    "URL without end": (414, b"GET /" + b"a" * (1 << 20)),
    "query": (414, b"GET /v2?" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    "two lengths": (400, _HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}"),
    "length and chunks": (400, _HEAD + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"),
    "chunks": (413, _CHUNKED + (b"10000\r\n" + bytes(1 << 16) + b"\r\n") * 100),
    "small chunks": (400, _CHUNKED + b"1\r\na\r\n" * (5 << 20)),
    "no chunk": (400, _CHUNKED + b"z"),
    "trailer": (400, _CHUNKED + b"1\r\n{\r\n0\r\nX: " + b"a" * (1 << 20)),
    "extension": (400, _CHUNKED + b"1;" + b"a" * (1 << 20)),
    "bomb": (
        413,
        _HEAD
        + b"Inference-Header-Content-Length: 2\r\nContent-Encoding: gzip\r\n"
        + f"Content-Length: {len(_BOMB)}\r\n\r\n".encode()
        + _BOMB,
    ),
    "coding": (415, _HEAD + b"Content-Encoding: br\r\nContent-Length: 1\r\n\r\na"),
    "other path": (
        404,
        b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000\r\n\r\n"
        + bytes(4_000_000),
    ),
}


@pytest.mark.parametrize("name", _SENT)
def test_what_is_too_much_is_answered(process: Process, name: str) -> None:
    """The client sends all before it reads, and is not told of a reset."""
    status, sent = _SENT[name]
    for _ in range(3):
        with process.watched() as seconds, process.connected() as raw:
            raw.sendall(sent)
            answer = http.client.HTTPResponse(raw)
            answer.begin()
            document = json.loads(answer.read())
            assert (answer.status, list(document)) == (status, ["error"])
        if max(seconds) < _MOST_SECONDS:
            break
    assert max(seconds) < _MOST_SECONDS
    assert process.ask("POST", _INFER, honest()) == 200


def test_half_open_requests_keep_nobody_out(process: Process) -> None:
    def attack() -> None:
        opened = [process.connected() for _ in range(300)]
        for i, each in enumerate(opened):
            each.sendall(_HEAD + b"Content-Length: 500\r\n\r\n{" if i % 2 else _HEAD)
        assert process.ask("POST", _INFER, honest()) == 200
        for each in opened:
            each.close()  # in the middle of a request

    process.stands(attack)


def test_many_requests_ahead_are_not_kept(process: Process) -> None:
    """What is sent ahead is answered as far as it is taken, in order; the rest is not."""

    def attack() -> None:
        with process.connected() as raw:
            raw.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3)
            raw.sendall(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20_000)
            found = b""
            while data := raw.recv(1 << 16):
                found += data
        answers = found.count(b"HTTP/1.1 200")
        assert 17 <= answers < 100 and found.count(b'{"live":true}') == 3

    process.stands(attack)


def test_half_open_calls_keep_nobody_out(process: Process) -> None:
    async def attack() -> None:
        async with grpc.aio.insecure_channel(process.grpc) as channel:
            opened = [
                channel.stream_unary(f"/{SERVICE}/{name}")()
                for name in ("ModelInfer", "ServerLive")
                for _ in range(40)
            ]
            await asyncio.gather(*(each.wait_for_connection() for each in opened))
            with triton_grpc.InferenceServerClient(process.grpc) as client:
                live = await asyncio.to_thread(client.is_server_live, client_timeout=5)
                x = triton_grpc.InferInput("input", [1, 1, 8, 8], "FP32")
                x.set_data_from_numpy(np.zeros((1, 1, 8, 8), np.float32))
                found = await asyncio.to_thread(client.infer, "digits", [x], client_timeout=5)
            assert live and found.as_numpy("output").shape == (1, 10)
            for each in opened:
                each.cancel()

    process.stands(lambda: asyncio.run(attack()))


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"\x2a\x00" * (15 << 20), "more than 8192 fields"),
        (b"\x2a\xff\xff\xff\x07" + b"\x1a\x00" * (1 << 23), "more than 8192 fields|is cut off"),
        (b"\x0a\xff\xff\xff\x07" + bytes((1 << 24) - 1), "the message is too long"),
        (bytes(33 << 20), "larger than max"),
        (b"\xff" * 100, "a number has no end"),
        (b"\x3a\xff\x7f\x00", "it is cut off"),
    ],
)
def test_messages_that_mean_much(process: Process, sent: bytes, told: str) -> None:
    with grpc.insecure_channel(process.grpc) as channel:
        call = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        for _ in range(3):
            with process.watched() as seconds, pytest.raises(grpc.RpcError) as refused:
                call(sent)
            assert re.search(told, refused.value.details())
            if max(seconds) < _MOST_SECONDS:
                break
        assert max(seconds) < _MOST_SECONDS
        live = channel.unary_unary(f"/{SERVICE}/ServerLive")
        assert message("ServerLiveResponse").FromString(live(b"")).live


def test_bodies_may_be_packed(process: Process) -> None:
    for coding, body in (
        ("gzip", gzip.compress(honest())),
        ("gzip", gzip.compress(honest()[:50]) + gzip.compress(honest()[50:])),
        ("deflate", zlib.compress(honest())),
        ("deflate", zlib.compress(honest(), wbits=-15)),
        ("identity", honest()),
    ):
        assert process.ask("POST", _INFER, body, **{"Content-Encoding": coding}) == 200
        damaged = body[: len(body) // 2]
        assert process.ask("POST", _INFER, damaged, **{"Content-Encoding": coding}) == 400
