"""Encoded pictures as inputs: what the server makes of them, and which it refuses."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient import grpc as triton_grpc
from tritonclient import http as triton_http
from tritonclient.utils import InferenceServerException

import minidnn as md
from minidnn import layers as L
from minidnn.pictures import read_picture
from minidnn.serving import tensors
from minidnn.serving.model import Opened, Source, load

from .conftest import Running, linear, running, weights

image = pytest.importorskip("PIL.Image")
SAYS = md.Preparation(9, 8, 3, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
FOUR = md.Dim("rows", 1, 4)


def source(preparation: md.Preparation = SAYS) -> Source:
    net = md.Sequential(L.AvgPool2d(4), L.Flatten())

    def compiled(rows: int | None) -> Any:
        return md.compile(net, (rows or 1, 3, 8, 8), device="reference")

    return Source("pictures", 1, "minidnn", lambda: Opened(compiled, True, preparation))


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(source(), linear(weights()), max_batch=4) as found:
        yield found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Pictures of several sizes and formats, in colours and grey."""
    folder, random = tmp_path_factory.mktemp("files"), np.random.default_rng(0)
    found = []
    for number, (shape, ending) in enumerate(
        [((9, 12, 3), "png"), ((30, 20), "png"), ((16, 16, 3), "jpg")]
    ):
        found.append(folder / f"{number}.{ending}")
        image.fromarray(random.integers(0, 256, shape, np.uint8)).save(found[-1])
    return found


def ask(address: str, client: Any, contents: list[bytes], model: str = "pictures") -> np.ndarray:
    given = client.InferInput("input", [len(contents)], "BYTES")
    given.set_data_from_numpy(np.array([*contents, None], np.object_)[:-1])
    with client.InferenceServerClient(address) as connection:
        found: np.ndarray = connection.infer(model, [given]).as_numpy("output")
    return found


@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_they_are_prepared_as_the_file_says(
    protocol: str, server: Running, files: list[Path]
) -> None:
    client = {"rest": triton_http, "grpc": triton_grpc}[protocol]
    found = ask(getattr(server, protocol), client, [file.read_bytes() for file in files])
    x = np.concatenate([read_picture(file, SAYS) for file in files]).astype(np.float64)
    means = x.reshape(3, 3, 2, 4, 2, 4).mean(axis=(3, 5)).reshape(3, 12)
    np.testing.assert_allclose(found, means, rtol=1e-5, atol=1e-6)


def large() -> bytes:
    """A picture of few bytes that has more pixels than are decoded."""
    file = io.BytesIO()
    image.new("1", (4097, 4096)).save(file, "png")
    return file.getvalue()


@pytest.mark.parametrize(
    ("contents", "text"),
    [
        ([b"no picture"], "picture 0 of input 'input' cannot be read: cannot identify"),
        ([b""], "picture 0 of input 'input' cannot be read"),
        ([large()], "of 4097x4096 pixels has 16,781,312 pixels; valid are at most 16,777,216"),
        ([b"x"] * 5, "has shape [5]; valid is [N] with N from 1 to 4"),
    ],
    ids=["text", "empty", "large", "many"],
)
def test_what_cannot_be_read(contents: list[bytes], text: str, server: Running) -> None:
    for client, address in ((triton_http, server.rest), (triton_grpc, server.grpc)):
        with pytest.raises(InferenceServerException) as error:
            ask(address, client, contents)
        assert text in str(error.value)


def test_many_are_as_many_bytes_of_numbers_as_a_request_may_have(files: list[Path]) -> None:
    """A file for a large range takes more than a shared batch, if not any number."""
    rows = md.Dim("n", 1, 1000)
    compile = source().open().compile
    many = Source("pictures", 1, "", lambda: Opened(compile, True, SAYS, rows, [1, 2]))
    small = io.BytesIO()
    image.new("RGB", (9, 9)).save(small, "png")
    most = (1 << 12) // (3 * 8 * 8 * 4)
    with running(many, max_batch=2, max_request_bytes=1 << 12) as server:
        found = ask(server.rest, triton_http, [small.getvalue()] * most)
        assert len(found) == most == 5
        with pytest.raises(InferenceServerException, match="with N from 1 to 5"):
            ask(server.rest, triton_http, [small.getvalue()] * (most + 1))


def test_models_that_say_nothing_take_numbers_alone(server: Running, files: list[Path]) -> None:
    with pytest.raises(InferenceServerException) as error:
        ask(server.rest, triton_http, [files[0].read_bytes()], "linear")
    assert "datatype BYTES; valid for this model is FP32" in str(error.value)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "end within an element"),
        (struct.pack("<I", 3) + b"ab", "end within an element"),
        (struct.pack("<I", 2**32 - 1) + b"ab", "end within an element"),
        (struct.pack("<I", 1) + b"ab", "has 1 bytes behind its 1 elements"),
    ],
)
def test_lengths_that_lie(data: bytes, text: str) -> None:
    given = tensors.RequestTensor("input", "BYTES", (1,), data)
    spec = tensors.Spec("input", np.dtype(np.float32), (3, 8, 8), True)
    with pytest.raises(tensors.Fault) as error:
        tensors.with_pictures(SAYS, [spec], [given], FOUR)
    assert text in str(error.value)


@pytest.mark.parametrize("shape", [(), (0,), (1, 1), (5,)])
def test_shapes_that_are_none(shape: tuple[int, ...]) -> None:
    given = tensors.RequestTensor("input", "BYTES", shape, b"")
    spec = tensors.Spec("input", np.dtype(np.float32), (3, 8, 8), True)
    with pytest.raises(tensors.Fault, match=r"valid is \[N\] with N from 1 to 4"):
        tensors.with_pictures(SAYS, [spec], [given], FOUR)
    in_json = tensors.RequestTensor("input", "BYTES", (1,), ["text"])
    with pytest.raises(tensors.Fault, match="valid are binary tensors"):
        tensors.with_pictures(SAYS, [spec], [in_json], FOUR)


def test_a_preparation_for_another_network_is_refused() -> None:
    with pytest.raises(
        md.GraphError, match=r"makes pictures of \(3, 6, 6\), and network 'pictures'"
    ):
        load(source(md.Preparation(6, 6)), 2)
