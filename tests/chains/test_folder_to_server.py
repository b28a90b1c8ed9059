"""From a folder of pictures to int8 behind HTTP, on a machine that compiles nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn.backends.cpu.backend import CpuBackend
from minidnn.pictures import read_picture
from tests.chains.conftest import CLASSES, SAYS, Run, share_right

triton_http = pytest.importorskip("tritonclient.http")


@contextmanager
def served(file: Path, folder: Path) -> Iterator[str]:
    """The address of a server that finds neither a compiler nor what one made before."""
    nowhere = {"PATH": "/nowhere", "CC": "/nowhere/cc", "MINIDNN_ISPC": "/nowhere/ispc"}
    own = {"MINIDNN_CACHE": str(folder), "HOME": str(folder)}
    given = [str(file), "--port", "0", "--grpc-port", "0"]
    command = [sys.executable, "-m", "minidnn", "serve", *given]
    with subprocess.Popen(command, env=nowhere | own, stderr=subprocess.PIPE, text=True) as process:
        address, told = "", []
        assert process.stderr is not None
        for line in process.stderr:
            told.append(line)
            if found := re.search(r"REST on http://(\S+)", line):
                address = found[1]
            if line == "minidnn serve: ready\n":
                break
        assert any(SAYS in line for line in told), told
        yield address
        process.terminate()
        assert process.wait(20) == 0


@pytest.mark.usefixtures("in_a_loop")
def test_from_a_folder_to_a_server_without_compilers(
    trained: Path, pictures: Path, classify: Any, run: Run, tmp_path: Path
) -> None:
    if (reason := CpuBackend().unavailable()) is not None:
        pytest.skip(reason)
    small, path = tmp_path / "int8.onnx", tmp_path / "net.mdx"
    exact, _ = classify("--network", "digits", "--weights", trained)
    given = ("--weights", trained, "--data", pictures, "--batch", "1:8", "--device", "reference")
    out, err = run("quantize", "digits", small, *given)
    assert f"accuracy: {100 * exact:.1f} % of 30 before" in out and SAYS in err
    assert "input: float32[batch, 1, 16, 16] with batch 1 to 8, " in out
    out, err = run("export", small, path, "--threads", 1)
    assert "in int8 for input: float32[batch, 1, 16, 16] with batch 1 to 8, " in out
    preparation = md.load_preparation(path)
    assert preparation is not None and preparation.classes == tuple(CLASSES)

    # Other commands take the file as well, and prepare as it says.
    found, err = classify("--network", path, "--device", "cpu")
    assert found > 0.9 and SAYS in err
    output = ("--format", "jsonl", "--top", 1, "--output", tmp_path / "out", "--device", "cpu")
    _, err = run("batch", path, "--input", pictures, *output)
    assert SAYS in err and share_right(tmp_path / "out") == found
    for more in (("--size", 16), ("--weights", trained), ("--tune",)):
        _, err = run("classify", pictures / "down", "--network", path, *more, code=2)
        assert f"{more[0]}" in err and "has its" in err

    files = [pictures / name / f"{i}.png" for i in range(4) for name in CLASSES]
    x = np.concatenate([read_picture(file, preparation) for file in files])
    expected = md.compile(small, x[:8].shape, device="reference")(x[:8])
    (empty := tmp_path / "empty").mkdir()
    with served(path, empty) as address, triton_http.InferenceServerClient(address) as client:
        told = client.get_model_metadata("net")
        assert told["inputs"][0]["shape"] == [-1, 1, 16, 16]
        assert told["parameters"]["preparation"]["classes"] == list(CLASSES)
        (name,) = (each["name"] for each in told["outputs"])
        for rows in (1, 3, 8):
            numbers = triton_http.InferInput("input", [rows, 1, 16, 16], "FP32")
            numbers.set_data_from_numpy(x[:rows])
            encoded = triton_http.InferInput("input", [rows], "BYTES")
            contents = [file.read_bytes() for file in files[:rows]]
            encoded.set_data_from_numpy(np.array([*contents, None], np.object_)[:-1])
            for sent in (numbers, encoded):
                scores = client.infer("net", [sent]).as_numpy(name)
                np.testing.assert_allclose(scores, expected[:rows], rtol=0.02, atol=0.05)
                labels = [preparation.classes[i] for i in scores.argmax(1)]
                assert labels == [file.parent.name for file in files[:rows]]
