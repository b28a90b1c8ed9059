"""``minidnn serve`` as a process: what it is told to serve, signals, and the container's file."""

from __future__ import annotations

import argparse
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient import http as triton_http

import minidnn as md
from minidnn import layers as L
from minidnn.cli import serve
from minidnn.cli.preparing import of_zoo
from minidnn.cli.serve import sources_of
from minidnn.serving.model import Opened, Source, load
from tools.serving_limits_page import page

from .conftest import running


def options(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    return parser.parse_args([*arguments, "--device", "reference"])


@pytest.mark.parametrize(
    ("text", "name", "version", "platform"),
    [
        ("resnet18", "resnet18", 1, "minidnn"),
        ("resnet18.DEFAULT", "resnet18.DEFAULT", 1, "minidnn"),
        ("folder/net.v2.onnx", "net.v2", 1, "minidnn_onnx"),
        ("net=folder/a=b.mdx", "net", 1, "minidnn_compiled"),
        ("net:12=digits", "net", 12, "minidnn"),
    ],
)
def test_what_a_model_is_told_by(text: str, name: str, version: int, platform: str) -> None:
    (source,) = sources_of(options(text), print)
    assert (source.name, source.version, source.platform) == (name, version, platform)


@pytest.mark.parametrize("text", ["net:0=digits", "net:x=digits", "=digits", "net=", "a/b=digits"])
def test_what_makes_no_sense_is_told(text: str) -> None:
    with pytest.raises(md.MiniDNNError, match="valid are PATH, name=PATH and name:version=PATH"):
        sources_of(options(text), print)


def test_two_models_of_one_name_are_told() -> None:
    with pytest.raises(md.MiniDNNError, match="version 1 of 'net' is given twice"):
        sources_of(options("net=digits", "net:1=resnet18"), print)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network as an ONNX file of any batch and of two rows, and as a saved graph."""
    import onnx

    folder = tmp_path_factory.mktemp("models")
    net = md.Sequential(L.Linear(3, 2), L.ReLU())
    md.save_onnx(net, folder / "fixed.onnx", (2, 3))
    md.save_graph(net, folder / "fixed.safetensors", (2, 3))
    model = onnx.load(folder / "fixed.onnx")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, folder / "any.onnx")
    return folder


@pytest.mark.parametrize(
    ("name", "sizes", "rows"),
    [("any.onnx", [1, 2, 4], -1), ("fixed.onnx", [2], 2), ("fixed.safetensors", [2], 2)],
)
def test_files_are_loaded(files: Path, name: str, sizes: list[int], rows: int) -> None:
    (source,) = sources_of(options(str(files / name)), print)
    model = load(source, 4)
    assert model.sizes == sizes and model.inputs[0].declared == [rows, 3]
    x = np.random.default_rng(0).standard_normal((1, 3)).astype(np.float32)
    expected = md.compile(md.load_graph(files / "fixed.safetensors"), device="reference")(
        np.concatenate([x, x])
    )[:1]
    np.testing.assert_allclose(model.run([[x]], [1])[0][0], expected, rtol=1e-6)


SAID = md.Preparation(36, 32, classes=("cat", "dog"))


def test_what_a_file_says_of_pictures_is_told(tmp_path: Path) -> None:
    """In REST's metadata; and what a file leaves open is for pictures of that size."""
    import onnx

    net = md.Sequential(L.AdaptiveAvgPool2d(1), L.Flatten())
    md.save_onnx(net, tmp_path / "net.onnx", (2, 3, 32, 32), preparation=SAID)
    model = onnx.load(tmp_path / "net.onnx")
    for axis, name in ((0, "batch"), (2, "rows"), (3, "columns")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(model, tmp_path / "open.onnx")
    said: list[str] = []
    for more, told in ((), SAID), (("--size", "64"), SAID.resized(64)):
        (source,) = sources_of(options(str(tmp_path / "open.onnx"), *more), said.append)
        loaded = load(source, 1)
        assert loaded.inputs[0].shape == (3, told.crop, told.crop) and loaded.preparation == told
        assert said[-1].startswith("model 'open' takes pictures that are prepared as the file says")
        assert str(told) in said[-1] and ("but for --size" in said[-1]) == bool(more)
    (source,) = sources_of(options(str(tmp_path / "net.onnx")), said.append)
    with running(source) as server, triton_http.InferenceServerClient(server.rest) as client:
        metadata = client.get_model_metadata("net")
    rows = {"min_rows": 1, "max_rows": 2, "multiple_of_rows": 1}
    assert metadata["parameters"] == {**rows, "preparation": json.loads(json.dumps(asdict(SAID)))}


def test_published_weights_are_prepared_for_as_torchvision_does() -> None:
    found = of_zoo("resnet50.DEFAULT")
    assert found is not None and (found.resize, found.crop) == (232, 224)
    assert found.classes is not None and found.classes[1] == "goldfish"
    assert of_zoo("ResNet50_Weights.IMAGENET1K_V1") == replace(found, resize=256)
    assert of_zoo("resnet50") is None
    assert of_zoo("digits.DEFAULT") == md.Preparation(8, 8, channels=1)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    arguments = ["digits", "--device", "reference", "--port", "0", "--grpc-port", "0"]
    command = [sys.executable, "-m", "minidnn", "serve", *arguments, "--max-batch", "2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as found:
        yield found
        found.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it(process: subprocess.Popen[str], number: signal.Signals) -> None:
    assert process.stderr is not None
    address = ""
    for line in process.stderr:
        if found := re.search(r"REST on http://(\S+)", line):
            address = found[1]
        if line == "minidnn serve: ready\n":
            break
    with triton_http.InferenceServerClient(address) as client:
        assert client.is_model_ready("digits")
    process.send_signal(number)
    assert process.wait(20) == 0
    assert process.stderr.read() == ""


def test_the_page_runs(root: Path) -> None:
    """The example of docs/how-to/serve.md, with a network that is quicker than its own."""
    text = (root / "docs/how-to/serve.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    net = md.Sequential(L.AdaptiveAvgPool2d(1), L.Flatten())
    source = Source(
        "resnet50.DEFAULT",
        1,
        "minidnn",
        lambda: Opened(
            lambda rows: md.compile(net, (rows or 1, 3, 224, 224), device="reference"), True
        ),
    )
    found: dict[str, Any] = {}
    with running(source, max_batch=1) as server:
        exec(block.replace("localhost:8000", server.rest), found)
        found["triton"].InferenceServerClient(server.rest).close()
    assert found["y"].shape == (1, 3)


def test_the_container_starts_what_there_is(root: Path) -> None:
    text = (root / "Containerfile").read_text(encoding="utf-8")
    (started,) = re.findall(r"^ENTRYPOINT (.*)$", text, flags=re.MULTILINE)
    command, name, *arguments = json.loads(started)
    assert (command, name) == ("minidnn", "serve")
    assert options(*arguments, "digits").host == "0.0.0.0"
    for copied in re.findall(r"^COPY (.*) /\S+$", text, flags=re.MULTILINE):
        assert all((root / each).exists() for each in copied.split())


def test_the_page_of_limits_is_up_to_date(root: Path) -> None:
    found = (root / "docs/reference/serving-limits.md").read_text(encoding="utf-8")
    assert found == page(), "python -m tools.serving_limits_page prints it"
