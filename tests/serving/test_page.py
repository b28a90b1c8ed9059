"""The page, the metrics, and who may see them."""

from __future__ import annotations

import http.client
import ssl
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tritonclient import grpc as triton_grpc
from tritonclient import http as triton_http
from tritonclient.utils import InferenceServerException

import minidnn as md
from minidnn.errors import DeviceError
from minidnn.serving.server import Server
from minidnn.serving.settings import Settings

from .conftest import Running, linear, running, weights
from .test_clients import ask, rows


def get(address: str, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=20)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_requests_are_counted_and_shown() -> None:
    with running(linear(weights())) as server:
        with triton_grpc.InferenceServerClient(server.grpc) as client:
            client.module = triton_grpc
            for count in (1, 3):
                ask(client, rows(count))
            with pytest.raises(InferenceServerException):
                ask(client, rows(9))
        _, page = get(server.rest, "/")
        _, text = get(server.rest, "/metrics")
    found = {
        (sample.name, sample.labels.get("status")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.labels.get("model") == "linear"
    }
    assert found["minidnn_requests_total", "ok"] == 2
    assert found["minidnn_requests_total", "invalid"] == 1
    assert found["minidnn_rows_total", None] == 4
    assert found["minidnn_batch_rows_count", None] == 2
    assert found["minidnn_queue_rows", None] == 0
    assert "linear 1" in page and "<svg" in page and "The server is ready" in page
    assert "<script" not in page and "http" not in page.replace('href="#', "")


TOKEN = "a secret"


@pytest.fixture(scope="module")
def closed() -> Iterator[Running]:
    with running(linear(weights()), token=TOKEN) as found:
        yield found


def test_a_token_is_asked_for(closed: Running) -> None:
    for path in ("/", "/metrics", "/v2", "/v2/models/linear"):
        assert get(closed.rest, path)[0] == 401
        assert get(closed.rest, path, Authorization="Bearer another")[0] == 401
        assert get(closed.rest, path, Authorization=f"Bearer {TOKEN}")[0] == 200
    assert get(closed.rest, "/v2/repository/models/linear/load", "POST")[0] == 401
    assert get(closed.rest, "/v2/health/ready") == (200, '{"ready":true}')
    password = b64encode(f"any:{TOKEN}".encode()).decode()
    assert get(closed.rest, "/", Authorization=f"Basic {password}")[0] == 200
    assert get(closed.rest, "/", Authorization="Basic ?")[0] == 401


def test_a_token_is_asked_for_over_grpc(closed: Running) -> None:
    with triton_grpc.InferenceServerClient(closed.grpc) as client:
        client.module = triton_grpc
        assert client.is_server_ready()
        for given in (None, {"authorization": "Bearer another"}):
            with pytest.raises(InferenceServerException, match="UNAUTHENTICATED"):
                ask(client, rows(1), headers=given)
        ask(client, rows(1), headers={"authorization": f"Bearer {TOKEN}"})


def test_pages_of_other_sites_are_refused(server: Running) -> None:
    load = "/v2/repository/models/linear/load"
    assert get(server.rest, load, "POST", Origin="https://example.org")[0] == 403
    assert get(server.rest, "/v2", Host="example.org")[0] == 403
    assert get(server.rest, load, "POST", Origin=f"http://{server.rest}")[0] == 200


def make_certificate(folder: Path, *password: str) -> tuple[Path, Path]:
    """A key, without a password unless openssl is told of one, and its certificate."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        *(password or ("-nodes",)),
        "-days",
        "1",
        "-subj",
        "/CN=localhost",
    ]
    made += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(
        [*made, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True
    )
    return key, certificate


def test_tls(tmp_path: Path) -> None:
    key, certificate = make_certificate(tmp_path)
    x, mine = rows(2), weights()
    with running(linear(mine), certificate=str(certificate), key=str(key)) as server:
        context = ssl.create_default_context(cafile=str(certificate))
        host, _, port = server.rest.rpartition(":")
        connection = http.client.HTTPSConnection(host, int(port), context=context)
        connection.request("GET", "/v2/health/live")
        assert connection.getresponse().status == 200
        connection.close()
        with triton_grpc.InferenceServerClient(
            server.grpc, ssl=True, root_certificates=str(certificate)
        ) as client:
            client.module = triton_grpc
            assert ask(client, x).as_numpy("output").shape == (2, 4)


@pytest.mark.parametrize("wrong", ["garbage", "gone", "another's key", "password"])
def test_a_certificate_that_cannot_be_used_is_named(wrong: str, tmp_path: Path) -> None:
    password = ("-passout", "pass:secret") if wrong == "password" else ()
    key, certificate = make_certificate(tmp_path, *password)
    if wrong == "garbage":
        certificate.write_text("no certificate")
    elif wrong == "gone":
        key.unlink()
    elif wrong == "another's key":
        (tmp_path / "other").mkdir()
        key, _ = make_certificate(tmp_path / "other")
    server = Server([linear(weights())], Settings(certificate=str(certificate), key=str(key)))
    with pytest.raises(DeviceError, match=r"certificate .* and key .* cannot be used: .*; valid"):
        server.run()


def test_not_ready_until_all_models_are(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading
    from dataclasses import replace

    may_load, source = threading.Event(), linear(weights())

    def opened() -> Any:
        assert may_load.wait(20)
        return source.open()

    with running(replace(source, open=opened), wait=False) as server:
        while not server.grpc:
            threading.Event().wait(0.01)
        assert get(server.rest, "/v2/health/live")[0] == 200
        assert get(server.rest, "/v2/health/ready") == (503, '{"ready":false}')
        assert get(server.rest, "/v2/models/linear/ready")[0] == 503
        status, told = get(server.rest, "/v2/models/linear")
        assert status == 503 and "it is being loaded" in told
        may_load.set()
        assert server.ready.wait(20)
        assert get(server.rest, "/v2/health/ready")[0] == 200


def test_a_model_that_cannot_be_loaded_ends_the_server() -> None:
    broken = weights()
    broken.weight = broken.weight[:, :2]
    with running(linear(broken), wait=False) as server:
        assert server.ready.wait(20)
    assert isinstance(server.error, md.MiniDNNError)
    assert "model 'linear', version 1, cannot be loaded" in str(server.error)


def test_an_address_that_is_taken_is_told() -> None:
    with running(linear(weights())) as server:
        port = int(server.rest.rpartition(":")[2])
        with running(linear(weights()), port=port, wait=False) as other:
            assert other.ready.wait(20)
        assert isinstance(other.error, md.DeviceError)
        assert f"127.0.0.1:{port} cannot be listened on" in str(other.error)
        grpc_port = int(server.grpc.rpartition(":")[2])
        with running(linear(weights()), grpc_port=grpc_port, wait=False) as other:
            assert other.ready.wait(20)
        assert isinstance(other.error, md.DeviceError)


def test_extensions_are_told(server: Running) -> None:
    with triton_http.InferenceServerClient(server.rest) as client:
        assert client.get_server_metadata()["extensions"] == [
            "binary_tensor_data",
            "model_repository",
        ]
