"""Typical mistakes: the error says what is wrong, and what to write instead."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch

import minidnn as md
from minidnn import layers as L
from minidnn import models
from minidnn.backends.cpu import isa
from minidnn.backends.cpu.backend import CpuBackend
from minidnn.errors import (
    DeviceError,
    GraphError,
    MiniDNNWarning,
    OutOfMemoryError,
    UnsupportedError,
    WeightsError,
    did_you_mean,
)

SHAPE = (1, 3, 8, 8)


def net() -> L.Layer:
    return L.Sequential(L.Conv2d(3, 8, 3, padding=1), L.ReLU())


def compiled(network: Any = None, shape: Any = SHAPE, **options: Any) -> Any:
    return md.compile(net() if network is None else network, shape, device="reference", **options)


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


def conv(dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3)).to(dtype).eval()


def pictures() -> L.Layer:
    return L.Sequential(L.Preprocess(mean=0.5, std=0.5), net())


def weights_as_network() -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "weights.safetensors"
        md.save_weights(net().state_dict(), path)
        md.compile(path)


def flat(*layers: L.Layer) -> L.Layer:
    return L.Sequential(L.Conv2d(3, 8, 3), *layers)


class Relu(L.Layer):
    def forward(self, x: Any) -> Any:
        return torch.relu(x)


class Uncalled(L.Layer):
    def forward(self, x: Any) -> Any:
        return L.ReLU(x)


MISTAKES: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    # Shapes of arrays.
    "channels last": (
        lambda: compiled()(zeros(1, 8, 8, 3)),
        GraphError,
        r"channels seem to be last: x\.transpose\(0, 3, 1, 2\), .* has shape \(1, 3, 8, 8\)$",
    ),
    "channels last, another size": (
        lambda: compiled()(zeros(2, 9, 7, 3)),
        GraphError,
        r"has shape \(2, 3, 9, 7\), which is another size than was compiled$",
    ),
    "one picture, channels last": (
        lambda: compiled()(zeros(8, 8, 3)),
        GraphError,
        r"x\.transpose\(2, 0, 1\)\[None\], .* has shape \(1, 3, 8, 8\)$",
    ),
    "channels first of bytes": (
        lambda: compiled(pictures(), (1, 9, 8, 3))(zeros(1, 3, 9, 8, dtype=np.uint8)),
        GraphError,
        r"seem to be first: x\.transpose\(0, 2, 3, 1\), .* has shape \(1, 9, 8, 3\)$",
    ),
    "channels first of bytes, another size": (
        lambda: compiled(pictures(), (1, 8, 8, 3))(zeros(2, 3, 8, 8, dtype=np.uint8)),
        GraphError,
        r"seem to be first: .* \(2, 8, 8, 3\), which is another size than was compiled$",
    ),
    "one picture, channels first of bytes": (
        lambda: compiled(pictures(), (1, 8, 8, 3))(zeros(3, 8, 8, dtype=np.uint8)),
        GraphError,
        r"x\.transpose\(1, 2, 0\)\[None\], .* has shape \(1, 8, 8, 3\)$",
    ),
    "another size": (
        lambda: compiled()(zeros(1, 3, 9, 3)),
        GraphError,
        r"call minidnn\.compile\(network, \(1, 3, 9, 3\)\) for this size",
    ),
    "without a batch": (
        lambda: compiled()(zeros(3, 8, 8)),
        GraphError,
        r"a single sample has shape \(1, 3, 8, 8\)",
    ),
    "bytes": (
        lambda: compiled()(zeros(*SHAPE, dtype=np.uint8)),
        GraphError,
        r"dtype uint8; valid is float32.*layers\.Preprocess.*x\.astype\(np\.float32\) / 255",
    ),
    "a layer on an array": (
        lambda: net()(zeros(*SHAPE)),
        GraphError,
        r"Layers describe and never compute.*md\.compile\(net, \(1, 3, 8, 8\)\)\(x\)",
    ),
    # Shapes to compile for.
    "compile for channels last": (
        lambda: compiled(shape=(1, 8, 8, 3)),
        GraphError,
        r"node '0': .*channels seem to be last, and valid is channels first, \(1, 3, 8, 8\)",
    ),
    "compile without a batch": (
        lambda: compiled(shape=(3, 8, 8)),
        GraphError,
        r"of rank 3; valid is rank 4; is the batch missing, as in \(1, 3, 8, 8\)\?",
    ),
    "PyTorch's function": (
        lambda: compiled(L.Sequential(Relu())),
        GraphError,
        r"PyTorch's relu is not known of symbolic values; valid are NumPy's functions",
    ),
    "PyTorch's function by its module": (
        lambda: torch.nn.functional.max_pool2d(md.Input((3, 8, 8)), 2),
        GraphError,
        r"PyTorch's .* is not known of symbolic values",
    ),
    "an array for a shape": (
        lambda: compiled(shape=zeros(*SHAPE)),
        GraphError,
        r"shape is a ndarray of shape \(1, 3, 8, 8\), which is an array itself; valid is a shape",
    ),
    "features, flattened already": (
        lambda: compiled(flat(L.Flatten(), L.Linear(128, 10))),
        GraphError,
        r"has 288 features, but the weight \(10, 128\) takes 128; valid is a layer for so many",
    ),
    "features, to be flattened": (
        lambda: compiled(flat(L.Linear(288, 10))),
        GraphError,
        r"has 6 features, but .* takes 288; is a Flatten in front of it missing\?",
    ),
    "features that do not fit flattened either": (
        lambda: compiled(flat(L.Linear(128, 10))),
        GraphError,
        r"flattened, the input would have 288 features a sample",
    ),
    # What is no network.
    "a class": (lambda: compiled(L.ReLU), GraphError, r"it is a class: ReLU\(\.\.\.\) makes one"),
    "PyTorch's class": (lambda: compiled(torch.nn.ReLU), GraphError, "it is a class: ReLU"),
    "a function": (
        lambda: compiled(models.resnet18),
        GraphError,
        r"it is a function: is it to be called, as resnet18\(\)\?",
    ),
    "a class in a network": (
        lambda: L.Sequential(L.Conv2d(3, 8, 3), L.ReLU),  # type: ignore[arg-type]
        GraphError,
        r"entry '1' is .*valid are layers; it is a class: ReLU\(\.\.\.\) makes one",
    ),
    "PyTorch's layer in a network": (
        lambda: L.Sequential(L.Conv2d(3, 8, 3), torch.nn.ReLU()),
        GraphError,
        r"it is PyTorch's: minidnn\.layers has layers of PyTorch's names",
    ),
    "a layer for optimize": (
        lambda: md.optimize(net(), torch.zeros(SHAPE)),
        GraphError,
        r"valid is a torch\.nn\.Module; md\.compile\(network, shape\)",
    ),
    "an array for optimize": (
        lambda: md.optimize(conv(), zeros(*SHAPE)),
        GraphError,
        r"example is a ndarray; .*torch\.from_numpy\(example\)",
    ),
    # Names.
    "a layer's name": (
        partial(getattr, L, "Relu"),
        AttributeError,
        r"'Relu'; did you mean 'ReLU'\?",
    ),
    "Keras's name": (partial(getattr, L, "Conv2D"), AttributeError, r"did you mean 'Conv2d'\?"),
    "a network's name": (lambda: models.resnet_18, AttributeError, r"did you mean 'resnet18'\?"),
    "a name of the face": (
        partial(getattr, md, "complie"),
        AttributeError,
        r"did you mean 'compile'\?",
    ),
    "a layer in the package": (
        partial(getattr, md, "Conv2d"),
        AttributeError,
        r"minidnn has no Conv2d: it is minidnn\.layers\.Conv2d$",
    ),
    "a layer of Keras": (
        partial(getattr, L, "Dense"),
        AttributeError,
        r"minidnn\.layers has no Dense: minidnn\.layers\.Linear is one",
    ),
    "a loss": (partial(getattr, L, "CrossEntropyLoss"), AttributeError, "md.Trainer"),
    "weights in lower case": (
        lambda: md.compile("resnet18.default"),
        GraphError,
        r"there is no such file; did you mean 'DEFAULT'\? valid are",
    ),
    "no version of weights": (
        lambda: md.compile("resnet18.IMAGENET1K_V9"),
        WeightsError,
        r"weights 'resnet18\.IMAGENET1K_V9' are not known; versions of resnet18: DEFAULT, IMAG",
    ),
    "weights as a network": (
        weights_as_network,
        GraphError,
        r"holds weights, but no graph .*; a network takes weights by net\.load_state_dict\(md\.lo",
    ),
    "a layer made of a symbol": (
        lambda: compiled(Uncalled()),
        GraphError,
        r"result 0 is ReLU\(\) \(ReLU\); .* \(a layer is made first, and then called: ReLU\(",
    ),
    "an ONNX file that is a pointer": (
        lambda: md.load_onnx(b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n"),
        GraphError,
        r"is no ONNX model: it is a Git LFS pointer: fetch the file itself with 'git lfs pull'",
    ),
    "an ONNX file that is a page": (
        lambda: md.load_onnx(b"<!DOCTYPE html><html>404</html>"),
        GraphError,
        r"is no ONNX model: it is an HTML or XML page",
    ),
    "no name at all": (partial(getattr, md, "xyz"), AttributeError, r"it has: .*compile"),
    "an argument's name": (
        lambda: L.Conv2d(3, 8, 3, strides=2),  # type: ignore[call-arg]
        TypeError,
        r"^Conv2d\(\) got an unexpected argument strides=2; valid are in_channels, .*'stride'\?$",
    ),
    "no argument": (
        lambda: L.Linear(3, 8, activation="relu"),  # type: ignore[call-arg]
        TypeError,
        r"^Linear\(\) got an unexpected argument activation='relu'; valid are .*bias$",
    ),
    # Devices and precisions.
    "gpu": (lambda: md.compile(net(), SHAPE, device="gpu"), DeviceError, "'cuda' is an NVIDIA"),
    "half": (
        lambda: compiled(precision="half"),
        UnsupportedError,
        r"valid are 'float32', 'float64'; it is called 'float16'; device 'cuda' computes in 'float",
    ),
    "nonsense": (
        lambda: compiled(precision="int4"),
        UnsupportedError,
        r"precision='int4' on device 'reference'; valid are 'float32', 'float64'$",
    ),
    # PyTorch modules.
    "channels last, PyTorch": (
        lambda: compiled(conv(), (1, 8, 8, 3)),
        GraphError,
        r"Sequential fails on arguments of shapes \(1, 8, 8, 3\), as shape gives them \(Runtime",
    ),
    "a million pictures": (
        lambda: compiled(conv(), (10**6, 3, 2240, 2240)),
        OutOfMemoryError,
        r"shape=\(1000000, 3, 2240, 2240\): an input of 60211200000000 bytes does not fit",
    ),
    **{
        f"{dtype} and float32": (
            partial(md.optimize, conv(dtype), torch.zeros(SHAPE)),
            GraphError,
            rf"parameters of {dtype} and fails on an example of torch\.float32; valid is "
            rf"example\.to\({dtype}\), or the module converted by module\.to\(torch\.float32\)",
        )
        for dtype in (torch.float16, torch.bfloat16, torch.float64)
    },
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_error_says_what_to_write(mistake: str) -> None:
    make, kind, message = MISTAKES[mistake]
    with pytest.raises(kind, match=message):
        make()


def test_a_size_that_does_not_fit_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the error, and not by PyTorch's log of its capture as well."""
    logger, logged = logging.getLogger("torch._subclasses.fake_tensor"), []
    monkeypatch.setattr(logger, "handle", lambda r: logged.append(r) if logger.filter(r) else None)
    nn = torch.nn
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 5)).eval()
    with pytest.raises(
        GraphError, match=r"shapes \(1, 3, 9, 9\), as shape gives them \(RuntimeErr"
    ):
        md.compile(module, (1, 3, 9, 9), device="reference")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        md.optimize(module, torch.ones(SHAPE), device="reference")(torch.ones(1, 3, 9, 9))
    assert [record.getMessage() for record in logged] == [] == logger.filters


def test_bfloat16_on_the_cpu() -> None:
    if (reason := CpuBackend().unavailable()) is not None:
        pytest.skip(reason)
    able = CpuBackend().why_not_in("bfloat16") is None
    text = "is in bfloat16: results in bfloat16, which NumPy has not, and all between them is flo"
    told = nullcontext() if able else pytest.warns(MiniDNNWarning, match=text)
    with told:
        executable = md.compile(conv(torch.bfloat16), SHAPE, device="cpu")
    assert executable.precision == ("bfloat16" if able else "float32")
    assert executable(zeros(*SHAPE)).dtype == np.float32


def test_bfloat16_where_the_processor_lacks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    if (reason := CpuBackend().unavailable()) is not None:
        pytest.skip(reason)
    flags = isa.processor_flags() - {"avx512_bf16"}
    monkeypatch.setattr(isa, "processor_flags", lambda: flags)
    lacks = (
        r"precision='bfloat16' on device 'cpu': (this processor lacks avx512.*|isa='avx2' has no "
        "products of bfloat16, which 'avx512' has); valid here is 'float32'"
    )
    with pytest.raises(UnsupportedError, match=lacks):
        md.compile(net(), SHAPE, device="cpu", precision="bfloat16")
    with pytest.raises(UnsupportedError, match=lacks):
        md.compile(net(), SHAPE, device="cpu", precision="bfloat16", isa="avx2")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_precisions_that_the_cpu_has_not(dtype: torch.dtype) -> None:
    if (reason := CpuBackend().unavailable()) is not None:
        pytest.skip(reason)
    name = str(dtype).removeprefix("torch.")
    other = {"float16": "cuda", "float64": "reference"}[name]
    advice = f"device '{other}' computes in '{name}'"
    with pytest.raises(
        UnsupportedError, match=f"valid (is|are) 'float32'(, 'bfloat16')?; {advice}"
    ):
        md.compile(net(), SHAPE, device="cpu", precision=name)
    text = rf"computes in float32, and the network is in {name}: .* precision='float32' says"
    with pytest.warns(MiniDNNWarning, match=text):
        md.compile(conv(dtype), SHAPE, device="cpu")


def test_near_names() -> None:
    assert did_you_mean("RESNET_18", ["resnet18", "vgg11"]) == "; did you mean 'resnet18'?"
    assert did_you_mean("abcd1", ["abcd2", "abcd3", "x"], 2) in (
        "; did you mean 'abcd2' or 'abcd3'?",
        "; did you mean 'abcd3' or 'abcd2'?",
    )
    assert did_you_mean("quite another", ["resnet18"]) == ""
