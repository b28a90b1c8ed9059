"""The server beside the protocol's public clients, Triton's, over both protocols."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tritonclient import grpc as triton_grpc
from tritonclient import http as triton_http
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

import minidnn as md
from minidnn.serving.grpc_service import _CONTENTS, _request_of
from minidnn.serving.messages import FIELDS, message
from minidnn.serving.settings import Fault
from minidnn.serving.tensors import DATATYPES, Spec, arrays_of

from .conftest import FEATURES, Running, Weights, linear, running, weights


@pytest.fixture(scope="module", params=["http", "grpc"])
def client(server: Running, request: pytest.FixtureRequest) -> Iterator[Any]:
    module, url = {"http": (triton_http, server.rest), "grpc": (triton_grpc, server.grpc)}[
        request.param
    ]
    with module.InferenceServerClient(url) as found:
        found.module = module
        yield found


def ask(client: Any, x: np.ndarray, datatype: str = "FP32", **more: Any) -> Any:
    given = client.module.InferInput("input", list(x.shape), datatype)
    given.set_data_from_numpy(x)
    return client.infer("linear", [given], **more)


def rows(count: int, seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, FEATURES)).astype(np.float32)


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_results_are_those_of_numpy(client: Any, known: Weights, count: int) -> None:
    x = rows(count)
    answer = ask(client, x, model_version="1", request_id="mine")
    np.testing.assert_allclose(answer.as_numpy("output"), known(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
def test_requests_and_answers_may_be_packed(known: Weights, coding: str, binary: bool) -> None:
    """A large answer is packed; a request has as many bytes of JSON as before it was packed."""
    wide = linear(known, "wide")
    with running(wide, max_batch=64) as found, triton_http.InferenceServerClient(found.rest) as one:
        x = rows(64)
        given = triton_http.InferInput("input", list(x.shape), "FP32")
        given.set_data_from_numpy(x, binary_data=binary)
        asked = triton_http.InferRequestedOutput("output", binary_data=binary)
        packing = {f"{each}_compression_algorithm": coding for each in ("request", "response")}
        answer = one.infer("wide", [given], outputs=[asked], **packing)
        np.testing.assert_allclose(answer.as_numpy("output"), known(x), rtol=1e-4, atol=1e-5)
        packed = rest_answer(found, x, coding)
        assert packed.headers["Content-Encoding"] == coding
        plain = rest_answer(found, x, f"identity, {coding};q=0")
        assert "Content-Encoding" not in plain.headers
        assert int(packed.headers["Content-Length"]) < int(plain.headers["Content-Length"])


def rest_answer(server: Running, x: np.ndarray, accepted: str) -> Any:
    given = {"name": "input", "datatype": "FP32", "shape": list(x.shape), "data": x.tolist()}
    request = urllib.request.Request(
        f"http://{server.rest}/v2/models/wide/infer",
        json.dumps({"inputs": [given]}).encode(),
        {"Accept-Encoding": accepted},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        answer.read()
        return answer


def test_the_newest_version_answers(client: Any) -> None:
    x = rows(2)
    np.testing.assert_allclose(ask(client, x).as_numpy("output"), weights(1)(x), rtol=1e-4)


def test_nan_and_infinity_are_passed_on(client: Any, known: Weights) -> None:
    x = rows(3)
    x[1, 2], x[2, 0] = np.nan, np.inf
    found = ask(client, x, model_version="1").as_numpy("output")
    assert np.isnan(found[1]).all() and not np.isfinite(found[2]).any()
    np.testing.assert_allclose(found[0], known(x[:1])[0], rtol=1e-4)


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("linear") and client.is_model_ready("linear", "1")
    told = client.get_model_metadata("linear")
    told = told if isinstance(told, dict) else _as_dict(told)
    (taken,), (given,) = told["inputs"], told["outputs"]
    assert (taken["name"], taken["datatype"]) == ("input", "FP32")
    assert list(map(int, taken["shape"])) == [-1, FEATURES]
    assert (given["name"], list(map(int, given["shape"]))) == ("output", [-1, 4])
    assert told["versions"] == ["1", "2"]


def _as_dict(told: Any) -> dict[str, Any]:
    from google.protobuf.json_format import MessageToDict

    found: dict[str, Any] = MessageToDict(told, preserving_proto_field_name=True)
    return found


@pytest.mark.parametrize(
    ("shape", "datatype", "told"),
    [
        ((9, FEATURES), "FP32", r"'input' has shape \[9, 6\]; valid is \[N, 6\] with N from 1"),
        ((2, 5), "FP32", r"'input' has shape \[2, 5\]; valid is \[N, 6\]"),
        ((6,), "FP32", r"'input' has shape \[6\]; valid is"),
        ((0, FEATURES), "FP32", r"'input' has shape \[0, 6\]; valid is"),
        ((2, FEATURES), "FP64", "'input' has datatype 'FP64'; valid is FP32"),
        ((2, FEATURES), "INT32", "'input' has datatype 'INT32'; valid is FP32"),
    ],
)
def test_wrong_inputs_are_named(
    client: Any, shape: tuple[int, ...], datatype: str, told: str
) -> None:
    dtype = {"FP32": np.float32, "FP64": np.float64, "INT32": np.int32}[datatype]
    with pytest.raises(InferenceServerException, match=told):
        ask(client, np.zeros(shape, dtype), datatype)


def test_unknown_names_are_told(client: Any) -> None:
    given = client.module.InferInput("inptu", [1, FEATURES], "FP32")
    given.set_data_from_numpy(rows(1))
    with pytest.raises(InferenceServerException, match=r"\['inptu'\] are given; valid are \['inp"):
        client.infer("linear", [given])
    with pytest.raises(InferenceServerException, match="did you mean 'linear'"):
        client.infer("liner", [given])
    with pytest.raises(InferenceServerException, match="no version '3'; valid are 1, 2"):
        client.infer("linear", [given], model_version="3")
    wanted = client.module.InferRequestedOutput("logits")
    with pytest.raises(InferenceServerException, match=r"\['logits'\] are asked for; valid are"):
        ask(client, rows(1), outputs=[wanted])


def test_what_would_change_the_meaning_is_refused(client: Any) -> None:
    wanted = client.module.InferRequestedOutput("output", class_count=2)
    with pytest.raises(InferenceServerException, match="'classification', which is not supp"):
        ask(client, rows(1), outputs=[wanted])
    with pytest.raises(InferenceServerException, match=r"'sequence_(id|start)', which is not supp"):
        ask(client, rows(1), sequence_id=7)
    with pytest.raises(InferenceServerException, match="loaded from where the server was told"):
        client.load_model("linear", config="{}")


@pytest.mark.parametrize("module", [triton_http, triton_grpc])
def test_models_are_loaded_again_and_unloaded(module: Any) -> None:
    mine = weights(2)
    with running(linear(mine)) as server:
        url = server.rest if module is triton_http else server.grpc
        with module.InferenceServerClient(url) as client:
            client.module = module
            x = rows(2)
            before = ask(client, x).as_numpy("output")
            mine.weight = mine.weight * 2
            np.testing.assert_array_equal(ask(client, x).as_numpy("output"), before)
            client.load_model("linear")
            np.testing.assert_allclose(ask(client, x).as_numpy("output"), mine(x), rtol=1e-4)
            mine.weight = mine.weight[:, :3]  # a file that cannot be loaded
            with pytest.raises(InferenceServerException, match="cannot be loaded"):
                client.load_model("linear")
            assert client.is_model_ready("linear") and client.is_server_ready()
            assert ask(client, x).as_numpy("output").shape == (2, 4)
            client.unload_model("linear")
            assert not client.is_model_ready("linear")
            with pytest.raises(InferenceServerException, match="is not ready: it was unloaded"):
                ask(client, x)


def test_json_alone(server: Running, known: Weights) -> None:
    x = rows(3)
    with triton_http.InferenceServerClient(server.rest) as client:
        given = triton_http.InferInput("input", [3, FEATURES], "FP32")
        given.set_data_from_numpy(x, binary_data=False)
        wanted = triton_http.InferRequestedOutput("output", binary_data=False)
        answer = client.infer("linear", [given], model_version="1", outputs=[wanted])
    assert answer.get_output("output")["data"]
    np.testing.assert_allclose(answer.as_numpy("output"), known(x), rtol=1e-5, atol=1e-5)


def test_typed_contents(server: Running, known: Weights) -> None:
    """gRPC without raw tensors, with the messages that the client library has of protoc."""
    import grpc

    x = rows(2)
    request = service_pb2.ModelInferRequest(model_name="linear", model_version="1")
    given = request.inputs.add(name="input", datatype="FP32", shape=x.shape)
    given.contents.fp32_contents.extend(x.ravel().tolist())
    with grpc.insecure_channel(server.grpc) as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            service_pb2.ModelInferRequest.SerializeToString,
            service_pb2.ModelInferResponse.FromString,
        )
        answer = call(request)
        request.raw_input_contents.append(x.tobytes())
        with pytest.raises(grpc.RpcError) as refused:
            call(request)
    found = np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(2, 4)
    np.testing.assert_allclose(found, known(x), rtol=1e-5, atol=1e-5)
    assert "contents beside raw_input_contents" in refused.value.details()


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        *(("bool", "bool"), ("uint8", "uint"), ("int8", "int"), ("int32", "int")),
        *(("int64", "int64"), ("float32", "fp32"), ("float64", "fp64")),
    ],
)
def test_contents_of_every_datatype(dtype: str, kind: str) -> None:
    """Of all that is served but FP16, whose numbers the protocol has raw only."""
    assert set(_CONTENTS) == set(DATATYPES.values()) - {"FP16"}
    exact = np.dtype(dtype)
    limits = {"b": [0, 1], "f": [-1.5, 2.0]}.get(exact.kind)
    x = np.array(limits or [np.iinfo(dtype).min, np.iinfo(dtype).max], exact)
    request = service_pb2.ModelInferRequest(model_name="any")
    given = request.inputs.add(name="x", datatype=DATATYPES[dtype], shape=x.shape)
    getattr(given.contents, f"{kind}_contents").extend(x.tolist())
    batch = md.Dim("rows", 1, 2)
    ((found,), _) = arrays_of([Spec("x", exact, (), True)], _request_of(request, []).inputs, batch)
    np.testing.assert_array_equal(found, x, strict=True)
    if exact.itemsize == 1 and not limits:
        getattr(given.contents, f"{kind}_contents")[0] = 300
        with pytest.raises(Fault, match=rf"{given.datatype} cannot hold .*valid are numbers from"):
            arrays_of([Spec("x", exact, (), True)], _request_of(request, []).inputs, batch)


@pytest.mark.parametrize("name", FIELDS)
def test_messages_are_those_of_the_protocol(name: str) -> None:
    """Field by field, as the client library has them of the protocol's own file."""
    ours, theirs = message(name).DESCRIPTOR, service_pb2
    for part in name.split("."):
        theirs = getattr(theirs, part)
    assert _described(ours) == _described(theirs.DESCRIPTOR)


def _described(descriptor: Any) -> list[tuple[Any, ...]]:
    return [
        (
            each.name,
            each.number,
            each.type,
            each.is_repeated,
            each.message_type and each.message_type.full_name,
            each.message_type and each.message_type.GetOptions().map_entry,
            each.containing_oneof and each.containing_oneof.name,
        )
        for each in descriptor.fields
    ]
