"""Files for ranges of batches behind a server: it takes each of them, and says which they are."""

from __future__ import annotations

import argparse
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.cli import serve
from minidnn.cli.serve import sources_of
from minidnn.serving.model import ServedModel, Source, load, sizes_of
from tests.devices import unavailable

from .conftest import Running, running

needs_cpu = pytest.mark.skipif(unavailable("cpu") is not None, reason="the CPU cannot be used here")
BATCH = md.Dim("batch", 1, 16)
FORMATS = ["net.onnx", "net.safetensors", pytest.param("net.mdx", marks=needs_cpu)]


def network() -> L.Sequential:
    return L.Sequential(L.Conv2d(1, 4, 3), L.ReLU(), L.Flatten(), L.Linear(16, 3)).initialize(0)


def numbers(rows: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, 1, 4, 4)).astype(np.float32)


def written(path: Path, batch: md.Dim) -> Path:
    shape = (batch, 1, 4, 4)
    if path.suffix == ".onnx":
        pytest.importorskip("onnx")
        md.save_onnx(network(), path, shape)
    elif path.suffix == ".mdx":
        md.compile(network(), shape, device="cpu", threads=1).save(path)
    else:
        md.save_graph(network(), path, shape)
    return path


def source_of(path: Path) -> Source:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    device = "cpu" if path.suffix == ".mdx" else "reference"
    (source,) = sources_of(parser.parse_args([str(path), "--device", device]), print)
    return source


def asked(server: Running, path: str, document: Any = None) -> tuple[int, Any]:
    data = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(f"http://{server.rest}/v2/models/net{path}", data)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def body(x: np.ndarray) -> dict[str, Any]:
    given = {"name": "input", "datatype": "FP32", "shape": x.shape, "data": x.ravel().tolist()}
    return {"inputs": [given]}


@pytest.mark.parametrize("name", FORMATS)
def test_every_batch_in_the_range_is_computed(name: str, tmp_path: Path) -> None:
    """Also more rows than requests share a batch of, which is 4 here."""
    source = source_of(written(tmp_path / name, BATCH))
    with running(source, max_batch=4) as server:
        status, told = asked(server, "")
        assert status == 200
        assert [each["shape"] for each in told["inputs"]] == [[-1, 1, 4, 4]]
        assert told["parameters"] == {"min_rows": 1, "max_rows": 16, "multiple_of_rows": 1}
        for rows in (1, 3, 8, 16):
            x = numbers(rows)
            status, answer = asked(server, "/infer", body(x))
            assert status == 200
            (output,) = answer["outputs"]
            expected = md.compile(network(), x.shape, device="reference")(x)
            found = np.reshape(output["data"], output["shape"])
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
        status, answer = asked(server, "/infer", body(numbers(17)))
        assert status == 400 and "[N, 1, 4, 4] with N from 1 to 16, the same" in answer["error"]


@pytest.mark.parametrize("name", FORMATS)
def test_a_range_that_begins_later(name: str, tmp_path: Path) -> None:
    model = load(source_of(written(tmp_path / name, md.Dim("n", 4, 12, multiple=4))), 8)
    assert model.inputs[0].declared == [-1, 1, 4, 4]
    assert (model.batch.least, model.batch.most, model.sizes) == (4, 12, [4, 8])
    for requests in ([4], [8], [12], [4, 4]):
        _compare(model, requests)


def _compare(model: ServedModel, requests: list[int]) -> None:
    x = [numbers(rows) for rows in requests]
    for given, (result,) in zip(x, model.run([[each] for each in x], requests), strict=True):
        expected = md.compile(network(), given.shape, device="reference")(given)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("least", "most", "multiple", "max_batch", "expected"),
    [
        (1, 64, 1, 8, [1, 2, 4, 8]),
        (1, 6, 1, 8, [1, 2, 4, 6]),
        (4, 12, 4, 2, [4]),
        (3, 30, 3, 10, [3, 6, 9]),
        (5, 5, 5, 8, [5]),
    ],
)
def test_sizes_of_ranges(
    least: int, most: int, multiple: int, max_batch: int, expected: list[int]
) -> None:
    together = md.Dim("n", least, most, multiple).up_to(max_batch)
    assert sizes_of(together, least) == expected


def test_a_file_of_one_size_says_so(tmp_path: Path) -> None:
    """It is announced as it is, and fewer rows are padded."""
    md.save_graph(network(), tmp_path / "net.safetensors", (8, 1, 4, 4))
    with running(source_of(tmp_path / "net.safetensors"), max_batch=4) as server:
        _, told = asked(server, "")
        assert [each["shape"] for each in told["inputs"]] == [[8, 1, 4, 4]]
        assert told["parameters"]["max_rows"] == 8
        assert asked(server, "/infer", body(numbers(3)))[0] == 200
        assert asked(server, "/infer", body(numbers(9)))[0] == 400
