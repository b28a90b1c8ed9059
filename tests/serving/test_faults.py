"""Requests that are malformed, huge, slow, half sent or left: no wrong answer, and nothing kept."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from tritonclient import grpc as triton_grpc
from tritonclient import http as triton_http
from tritonclient.utils import InferenceServerException

import minidnn as md
from minidnn import layers as L
from minidnn.serving.connections import Unfinished
from minidnn.serving.json_numbers import NumberText, text_of
from minidnn.serving.model import Opened, Source
from minidnn.serving.rest_infer import RestRequest
from minidnn.serving.settings import Fault, Refusal
from minidnn.serving.tensors import DATATYPES, Spec, arrays_of

from .conftest import FEATURES, Running, Weights, linear, running
from .test_clients import ask, rows

_X = np.arange(FEATURES, dtype=np.float32)


def body(**changes: Any) -> bytes:
    given = {"name": "input", "datatype": "FP32", "shape": [1, FEATURES], "data": _X.tolist()}
    return json.dumps({"inputs": [{**given, **changes}]}).encode()


def post(address: str, content: bytes, path: str = "infer", **headers: str) -> tuple[int, Any]:
    """The status and the document of an answer."""
    import http.client

    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    try:
        connection.request("POST", f"/v2/models/linear/{path}", content, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def connected(server: Running) -> socket.socket:
    host, _, port = server.rest.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "the body is no JSON"),
        (b"\xff\xfe", "the body is no JSON"),
        (b"[" * 100_000, "the body is no JSON"),
        (b'{"inputs": [' + b"9" * 5000 + b"]}", "the body is no JSON"),
        (b"[]", "the body is a list; valid is a JSON object"),
        (b"{}", "inputs is []; valid is a list of at least 1"),
        (b'{"inputs": [1]}', "inputs is [1]; valid is"),
        (body(name=3), "an input has name 3; valid is a text"),
        (body(shape="16"), "input 'input' has shape '16'; valid is a list"),
        (body(shape=[1, -6]), "has shape [1, -6]; valid is a list"),
        (
            body(shape=[1, 1 << 40]),
            "valid is a list of at most 16 integers from 0 to 2^40 - 1",
        ),
        (body(shape=[1, True]), "has shape [1, True]; valid is a list"),
        (body(shape=[1] * 99), "valid is a list of at most 16"),
        (body(data=None), "input 'input' has no data; valid is a list"),
        (body(data=[1.0] * 5), "has 5 elements; valid are 6 elements for shape [1, 6]"),
        (body(data=[[1.0] * 3] * 2), "is nested in another way; valid are 6"),
        (body(data=[[1.0] * 5 + ["6"]]), "has data of type str; valid for FP32 is int or float"),
        (body(data=[True] * 6), "has data of type bool; valid for FP32 is int or float"),
        (body(data=[None] * 6), "has data of type NoneType; valid for FP32"),
        (body(data=[10**400] * 6), "a number that FP32 cannot hold"),
        (body(data=[1e39] * 6), "a number that FP32 cannot hold (1e+39); valid are numbers from"),
        (body(data=[0.5]).replace(b"0.5", b"[1,2,3,4,5,-1e400]"), "a number that FP32 cannot hold"),
        (body(data=[]), "has 0 elements; valid are 6 elements"),
        (body(data=[[]]), "is nested in another way"),
        (body(data=[1]).replace(b"[1]", b"[1,2,3,4,5,6,]"), "has 7 elements"),
        (body(data=[1]).replace(b"[1]", b"[1,,3,4,5,6]"), "the body is no JSON: data of input"),
        (body(data=[1]).replace(b"[1]", b"[1 2,3,4,5,6,7]"), "the body is no JSON: data of input"),
        (body(data=[1]).replace(b"[1]", b"[1,2,3][4,5,6]"), "is nested in another way"),
        (body(id=float("nan")), "the body is no JSON: NaN, Infinity and -Infinity stand outside"),
        (body(parameters=[]), "has parameters []; valid is a JSON object"),
        (body(parameters={"binary_data_size": 24}), "valid is that without data, and with the"),
        (body(parameters={"shared_memory_region": "a"}), "which is not supported here"),
    ],
)
def test_malformed_json_is_told(server: Running, content: bytes, told: str) -> None:
    status, document = post(server.rest, content)
    assert status == 400 and told in document["error"]
    assert len(document["error"]) < 700


@pytest.mark.parametrize(
    ("length", "size", "behind", "told"),
    [
        ("abc", 24, 24, "is 'abc'; valid is a number of bytes"),
        ("99999", 24, 24, "is 99999, and the body has"),
        (None, 25, 24, "has binary_data_size 25; 24 bytes are there"),
        (None, -1, 24, "has binary_data_size -1; 24 bytes are there"),
        (None, 20, 20, "has 20 bytes; valid are 24 for FP32 [1, 6]"),
        (None, 24, 30, "6 bytes are left behind the last input"),
    ],
)
def test_malformed_binary_is_told(
    server: Running, length: str | None, size: int, behind: int, told: str
) -> None:
    given: dict[str, Any] = {"name": "input", "datatype": "FP32", "shape": [1, FEATURES]}
    given["parameters"] = {"binary_data_size": size}
    head = json.dumps({"inputs": [given]}).encode()
    headers = {"Inference-Header-Content-Length": length or str(len(head))}
    status, document = post(server.rest, head + bytes(behind), **headers)
    assert status == 400 and told in document["error"]


def served(dtype: str, count: int) -> Any:
    """What takes so many numbers of a dtype, without a server."""
    spec = Spec("x", np.dtype(dtype), (count,), True)

    def read(data: str) -> list[Any]:
        text = f'{{"name": "x", "datatype": "{spec.datatype}", "shape": [1, {count}], "data": '
        given = RestRequest((f'{{"inputs": [{text}{data}}}]}}').encode(), None, 1 << 20)
        arrays, _ = arrays_of([spec], given.request.inputs, md.Dim("rows", 1, 1))
        assert arrays[0].dtype == spec.dtype
        return list(arrays[0][0].tolist())

    return read


@pytest.mark.parametrize("dtype", DATATYPES)
def test_numbers_are_refused_that_a_dtype_cannot_hold(dtype: str) -> None:
    """Its own bounds are held, and the next number is refused; so are other kinds of numbers."""
    read, kind = served(dtype, 1), np.dtype(dtype).kind
    refused = ["null", '"1"', "[1, 1]", "1e999", "-1e999", "10" * 300]
    if kind == "b":
        assert read("[true]") == [True]
        refused += ["0", "1", "0.0"]
    elif kind == "f":
        bounds = np.finfo(dtype)
        for value in (float(bounds.max), float(bounds.min), float(bounds.smallest_subnormal)):
            assert read(f"[{value!r}]") == [value]
        assert read("[Infinity]") == [np.inf] and read("[-Infinity]") == [-np.inf]
        assert np.isnan(read("[NaN]")[0])
        refused += ["true", str(2 * int(bounds.max)), str(2 * int(bounds.min))]
    else:
        limits = np.iinfo(dtype)
        low, high = int(limits.min), int(limits.max)
        assert read(f"[{low}]") == [low] and read(f"[[{high}]]") == [high]
        refused += ["true", "1.5", "1.0", "NaN", "Infinity", str(low - 1), str(high + 1)]
    for text in refused:
        with pytest.raises(Fault, match="input 'x'") as fault:
            read(f"[{text}]")
        assert fault.value.kind is Refusal.INVALID


@pytest.mark.parametrize("seed", range(5))
def test_long_lists_are_read_as_json_reads_them(seed: int) -> None:
    """Lists of many pieces, flat and nested, with any space between."""
    random = np.random.default_rng(seed)
    shape = (int(random.integers(2, 40)), int(random.integers(2, 300)))
    exact = random.standard_normal(shape).astype(np.float32)
    exact[0, 0], exact[-1, -1] = np.nan, np.inf
    for given in (exact.tolist(), exact.reshape(-1).tolist()):
        text = json.dumps(given).replace(", ", [",", " ,\n", ", "][seed % 3])
        spec = Spec("x", exact.dtype, shape, False)
        found = NumberText(memoryview(text.encode()))
        np.testing.assert_array_equal(found.array("x", "FP32", spec.dtype, shape), exact)
        written: list[bytes] = []
        text_of(exact, written.append)
        assert json.dumps(json.loads(b"".join(written))) == json.dumps(exact.reshape(-1).tolist())


def test_other_paths_and_methods_are_json(server: Running) -> None:
    assert post(server.rest, b"", path="explode")[0] == 404
    assert post(server.rest, b"", path="ready")[0] == 405
    assert post(server.rest, body(), **{"Content-Encoding": "br"})[0] == 415


def test_garbage_over_grpc(server: Running) -> None:
    import grpc

    with grpc.insecure_channel(server.grpc) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as refused:
            call(b"\xff" * 10)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "is no ModelInferRequest" in refused.value.details()


def slow(seconds: float, weight: Weights) -> Source:
    """A model whose batches take a while."""
    plain = linear(weight)

    def opened() -> Opened:
        inner = plain.open()

        def compiled(count: int | None) -> Any:
            executable: Any = inner.compile(count)
            run = executable.program.run

            def later(*arguments: Any) -> None:
                time.sleep(seconds)
                run(*arguments)

            executable.program.run = later
            return executable

        return Opened(compiled, True)

    return replace(plain, open=opened)


@pytest.fixture(scope="module")
def busy(known: Weights) -> Iterator[Running]:
    """A server whose queue is soon full, and that waits for nobody long."""
    limits: dict[str, Any] = {
        "max_queue": 4,
        "max_batch": 2,
        "max_requests": 40,
        "read_seconds": 1.0,
    }
    with running(slow(0.05, known), max_request_bytes=10_000, **limits) as found:
        yield found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("module", [triton_http, triton_grpc])
def test_a_full_queue_refuses_and_recovers(busy: Running, known: Weights, module: Any) -> None:
    """Whatever is answered is right, and as soon as there is room all is answered again."""
    url = busy.rest if module is triton_http else busy.grpc

    def one(seed: int) -> str:
        with module.InferenceServerClient(url) as client:
            client.module = module
            x = rows(1, seed)
            try:
                found = ask(client, x).as_numpy("output")
            except InferenceServerException as error:
                assert "rows wait for model 'linear'" in error.message()
                return str(error.status())
            np.testing.assert_allclose(found, known(x), rtol=1e-4, atol=1e-5)
            return "ok"

    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(one, range(20)))
    full = "429" if module is triton_http else "StatusCode.RESOURCE_EXHAUSTED"
    assert found.count("ok") >= 4 and found.count("ok") + found.count(full) == 20 > found.count(
        "ok"
    )
    assert [one(seed) for seed in range(3)] == ["ok"] * 3


def test_huge_requests_are_refused_early(busy: Running, known: Weights) -> None:
    status, document = post(busy.rest, bytes(20_000))
    assert status == 413 and "valid are at most 10000 bytes" in document["error"]
    with connected(busy) as raw:  # never sent
        raw.sendall(b"POST /v2/models/linear/infer HTTP/1.1\r\nHost: localhost\r\n")
        raw.sendall(b"Content-Length: 99999999999\r\n\r\n")
        assert raw.recv(20).startswith(b"HTTP/1.1 413")
    with connected(busy) as raw:  # of unknown length
        raw.sendall(b"POST /v2/models/linear/infer HTTP/1.1\r\nHost: localhost\r\n")
        raw.sendall(
            b"Transfer-Encoding: chunked\r\n\r\n" + (b"1000\r\n" + bytes(4096) + b"\r\n") * 3
        )
        assert raw.recv(20).startswith(b"HTTP/1.1 413")
    with triton_grpc.InferenceServerClient(busy.grpc) as client:
        client.module = triton_grpc
        with pytest.raises(InferenceServerException, match="RESOURCE_EXHAUSTED"):
            ask(client, np.zeros((500, FEATURES), np.float32))
        x = rows(1)
        np.testing.assert_allclose(ask(client, x).as_numpy("output"), known(x), rtol=1e-4)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST /v2/models/linear/infer HT",
        b"POST /v2/models/linear/infer HTTP/1.1\r\nHost: localhost\r\nX: ",
    ],
)
def test_half_a_head_is_closed(busy: Running, sent: bytes) -> None:
    with connected(busy) as raw:
        raw.sendall(sent)
        assert raw.recv(100) == b""


def test_a_head_without_end_is_refused(busy: Running) -> None:
    with connected(busy) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n")
        for i in range(1000):
            raw.sendall(b"X-%d: %s\r\n" % (i, bytes(1000).replace(b"\0", b"a")))
        assert raw.recv(20).startswith(b"HTTP/1.1 431")


def test_half_a_body_is_answered(busy: Running) -> None:
    with connected(busy) as raw:
        raw.sendall(b"POST /v2/models/linear/infer HTTP/1.1\r\nHost: localhost\r\n")
        raw.sendall(b"Content-Length: 500\r\n\r\n{")
        assert raw.recv(20).startswith(b"HTTP/1.1 408")


def test_a_slow_reader_of_the_head_keeps_nobody_out(busy: Running, known: Weights) -> None:
    x = rows(2)
    waiting = [connected(busy) for _ in range(50)]
    try:
        with triton_http.InferenceServerClient(busy.rest) as client:
            client.module = triton_http
            np.testing.assert_allclose(ask(client, x).as_numpy("output"), known(x), rtol=1e-4)
    finally:
        for each in waiting:
            each.close()


def test_an_answer_that_is_not_read_is_given_up(known: Weights) -> None:
    """Its connection is closed after a while, and its memory is free."""
    wide = Weights(np.ones((300_000, FEATURES), np.float32), np.ones(300_000, np.float32))
    content = body(shape=[8, FEATURES], data=_X.tolist() * 8)[:-1]
    content += b', "parameters": {"binary_data_output": true}}'
    with running(linear(wide), read_seconds=1.0) as server, connected(server) as raw:
        raw.sendall(b"POST /v2/models/linear/infer HTTP/1.1\r\nHost: localhost\r\n")
        raw.sendall(b"Content-Length: %d\r\n\r\n" % len(content) + content)
        time.sleep(2.5)
        found = 0
        with suppress(ConnectionResetError):
            while data := raw.recv(1 << 16):
                found += len(data)
        assert found < 8 * 300_000 * 4


def test_what_is_unfinished_for_longest_is_given_up() -> None:
    gone: list[str] = []
    unfinished = Unfinished(100)
    held = [unfinished.add(partial(gone.append, name)) for name in "abcd"]
    for each, size in zip(held[1:], (60, 30, 10), strict=True):
        each.holds(size)
    assert gone == [] and unfinished.size == 100
    held[3].holds(11)
    assert gone == ["b"] and unfinished.size == 41
    held[1].holds(500)  # it was given up, and is told so only once
    held[2].end()
    held[0].holds(89)
    assert gone == ["b"] and unfinished.size == 100
    held[3].holds(200)
    assert gone == ["b", "a", "d"] and unfinished.size == 0


def test_clients_that_vanish_leave_nothing(known: Weights) -> None:
    """Their rows are taken from the queue, and those of others are computed."""
    with running(slow(0.3, known), max_batch=1, max_queue=3) as server:
        content = body()
        head = "POST /v2/models/linear/infer HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Content-Length: {len(content)}\r\n\r\n"
        with triton_grpc.InferenceServerClient(server.grpc) as client:
            client.module = triton_grpc
            gone = [connected(server) for _ in range(3)]
            for each in gone:
                each.sendall(head.encode() + content)
            with pytest.raises(InferenceServerException, match=r"(?i)deadline"):
                ask(client, rows(1), client_timeout=0.1)
            for each in gone:
                each.close()
            time.sleep(0.2)
            x, begun = rows(1), time.monotonic()
            np.testing.assert_allclose(ask(client, x).as_numpy("output"), known(x), rtol=1e-4)
            assert time.monotonic() - begun < 1.0  # one batch that had begun, and its own


def test_stopping_finishes_what_was_taken(known: Weights) -> None:
    with running(slow(0.3, known), max_batch=1) as server, ThreadPoolExecutor(4) as pool:

        def one(seed: int) -> None:
            module = (triton_http, triton_grpc)[seed % 2]
            url = (server.rest, server.grpc)[seed % 2]
            with module.InferenceServerClient(url) as client:
                client.module = module
                x = rows(1, seed)
                np.testing.assert_allclose(ask(client, x).as_numpy("output"), known(x), rtol=1e-4)

        taken = [pool.submit(one, seed) for seed in range(4)]
        time.sleep(0.4)
        server.server.stop()
        for each in taken:
            each.result()
        time.sleep(0.3)
        with pytest.raises(OSError):
            connected(server)


def test_a_model_that_fails_is_told_and_goes_on(known: Weights) -> None:
    broken = threading.Event()
    source = slow(0.0, known)

    def opened() -> Opened:
        inner = source.open()

        def compiled(count: int | None) -> Any:
            executable: Any = inner.compile(count)
            run = executable.program.run

            def fail(*arguments: Any) -> None:
                if broken.is_set():
                    raise RuntimeError("the device has gone")
                run(*arguments)

            executable.program.run = fail
            return executable

        return Opened(compiled, True)

    with running(replace(source, open=opened)) as server:
        broken.set()
        status, document = post(server.rest, body())
        assert (status, document["error"]) == (
            500,
            "model 'linear' fails: RuntimeError: the device has gone",
        )
        broken.clear()
        assert post(server.rest, body())[0] == 200


def test_rows_that_depend_on_each_other_are_refused() -> None:
    from minidnn.serving.model import load

    net = md.Sequential(L.Softmax(0))
    source = Source(
        "mixed",
        1,
        "minidnn",
        lambda: Opened(lambda n: md.compile(net, (n or 1, 3), device="reference"), True),
    )
    with pytest.raises(md.UnsupportedError, match=r"first row of output .* depends on the"):
        load(source, 4)
    fixed = replace(
        source, open=lambda: Opened(lambda n: md.compile(net, (4, 3), device="reference"), False)
    )
    assert load(fixed, 8).inputs[0].declared == [4, 3]  # whole requests of its own size alone
    rowwise = md.Sequential(L.ReLU())
    apart = replace(
        source,
        open=lambda: Opened(lambda n: md.compile(rowwise, (4, 3), device="reference"), False),
    )
    assert load(apart, 8).inputs[0].declared == [4, 3]


def test_binary_tensors_may_begin_anywhere(server: Running, known: Weights) -> None:
    """A JSON head of any length: arrays of odd addresses never reach a kernel."""
    x = rows(8)
    for pad in range(4):
        given: dict[str, Any] = {"name": "input", "datatype": "FP32", "shape": [8, FEATURES]}
        given["parameters"] = {"binary_data_size": x.nbytes}
        head = json.dumps({"id": "x" * pad, "inputs": [given]}).encode()
        headers = {"Inference-Header-Content-Length": str(len(head))}
        status, document = post(server.rest, head + x.tobytes(), "versions/1/infer", **headers)
        assert status == 200
        found = np.reshape(document["outputs"][0]["data"], (8, 4))
        np.testing.assert_allclose(found, known(x), rtol=1e-4, atol=1e-5)
