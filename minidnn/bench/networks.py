"""Cases of the zoo's networks: minidnn's layers, torchvision's module, and an ONNX file of it.

All have the same weights: random ones, with normalizations calibrated on noise, which are written
once to a file that every engine loads.  The outputs of all engines are compared with PyTorch's.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import minidnn as md
from minidnn import models
from minidnn.bench.process import EngineProcess
from minidnn.bench.worker import LoadedEngine, made_by
from minidnn.errors import GraphError
from minidnn.layers.calibration import calibrate_on_noise

SEED = 0

#: torchvision's networks beyond the classics, which minidnn compiles from the PyTorch module.
BEYOND = (
    "convnext_tiny",
    "efficientnet_b0",
    "googlenet",
    "mnasnet1_0",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "regnet_y_400mf",
    "resnext50_32x4d",
    "shufflenet_v2_x1_0",
    "wide_resnet50_2",
)


@dataclass(frozen=True)
class Case:
    """What is measured: a network, the shape of its input, and how it is computed.

    Attributes:
        network: a name of the zoo, or the name of ``file``.
        batch, channels, rows, columns: sizes of the input.
        dtype: the precision of minidnn, such as "tf32" on a GPU.
        threads: of every engine; not used on a GPU.
        isa: restricts minidnn, and the peers that can be; None is the processor's best.
        tune: whether minidnn measures which kernels are fastest.
        file: path of an ONNX file; "" for a network of the zoo.
        device: "cpu" or "cuda".
        training: whether training steps are measured, not predictions.
    """

    network: str
    batch: int
    rows: int
    columns: int
    dtype: str = "float32"
    threads: int = 1
    isa: str | None = None
    tune: bool = False
    channels: int = 3
    file: str = ""
    device: str = "cpu"
    training: bool = False

    @property
    def name(self) -> str:
        """The key of results in a file: ``resnet18, batch 16, 224x224, float32, 2 threads``."""
        what = f"{self.network}, training" if self.training else self.network
        text = f"{what}, batch {self.batch}, {self.rows}x{self.columns}, {self.dtype}"
        if self.device != "cpu":
            return f"{text}, {self.device}"
        text += f", {self.threads} thread{'s' * (self.threads != 1)}"
        return text + (f", {self.isa}" if self.isa else "") + (", tuned" if self.tune else "")

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.batch, self.channels, self.rows, self.columns)


@dataclass(frozen=True)
class Prepared:
    """The files of a case: weights, inputs, expected outputs, and the network as ONNX."""

    case: Case
    folder: Path

    @property
    def weights(self) -> Path:
        return self.folder / f"{self.case.network}.safetensors"

    @property
    def inputs(self) -> Path:
        return self._file("inputs.npz")

    @property
    def expected(self) -> Path:
        return self._file("outputs.npy")

    @property
    def onnx(self) -> Path:
        return self._file("model.onnx")

    def _file(self, what: str) -> Path:
        case = self.case
        return self.folder / f"{case.network}-{case.batch}x{case.rows}x{case.columns}-{what}"


def case_of(
    network: str,
    batch: int,
    size: tuple[int, int] | None = None,
    threads: int = 1,
    isa: str | None = None,
    tune: bool = False,
) -> Case:
    """A case of a network of the zoo; ``size`` is the network's own by default.

    Raises:
        GraphError: there is no such network, or it is none that torchvision has.
    """
    if network == "digits":
        raise GraphError("network 'digits' is minidnn's own; valid are those that torchvision has")
    rows, columns = size or models.get_model(network).input_shape[1:]
    return Case(network, batch, rows, columns, "float32", threads, isa, tune)


def prepare(case: Case, folder: Path) -> Prepared:
    """Writes those files of a case that ``folder`` does not have yet, in a process of its own.

    Raises:
        EngineError: PyTorch or torchvision is missing, or they cannot make the network.
    """
    prepared = _with_inputs(case, folder)
    if not (prepared.expected.exists() and prepared.onnx.exists()):
        options = {"name": case.network, "weights": str(prepared.weights)}
        files = {key: str(getattr(prepared, key)) for key in ("inputs", "expected", "onnx")}
        target = f"{__name__}:from_torch"
        EngineProcess(f"preparing {case.network}", target, {"options": options, **files}).close()
    return prepared


def prepare_alone(case: Case, folder: Path) -> Prepared:
    """Does what :func:`prepare` does if there are no peers: without PyTorch and an ONNX file, and
    with the expected outputs of minidnn's reference."""
    prepared = _with_inputs(case, folder)
    if not prepared.expected.exists():
        arguments = {"name": case.network, "weights": str(prepared.weights)}
        write_reference(prepared, f"{__name__}:ours", arguments)
    return prepared


def write_reference(prepared: Prepared, network: str, options: Mapping[str, Any]) -> None:
    """Writes the outputs of minidnn's reference, in a process of its own."""
    files = {key: str(getattr(prepared, key)) for key in ("inputs", "expected")}
    target = f"{__name__}:from_reference"
    arguments = {"network": network, "options": options, **files}
    EngineProcess(f"preparing {prepared.case.network}", target, arguments).close()


def _with_inputs(case: Case, folder: Path) -> Prepared:
    prepared = Prepared(case, folder)
    if not prepared.weights.exists():
        state = calibrate_on_noise(models.get_model(case.network), SEED).state_dict()
        for key, array in state.items():
            if key.endswith(".weight") and not array.any():
                # A transformer's last layer is initialized to 0, which would hide any error.
                state[key] = noise(array.shape, SEED) * np.float32(0.02)
        write_whole(prepared.weights, lambda path: md.save_weights(state, path))
    if not prepared.inputs.exists():
        x = noise(case.shape, SEED + 1)
        write_whole(prepared.inputs, lambda path: np.savez(path, x=x))
    return prepared


def noise(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Normally distributed numbers, the same for the same seed."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def write_whole(path: Path, fill: Any) -> None:
    """Writes a file atomically: ``fill`` writes a temporary one, which is renamed when complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    work = path.with_name(f".{os.getpid()}-{path.name}")  # NumPy looks at the extension
    try:
        fill(work)
        os.replace(work, path)
    finally:
        work.unlink(missing_ok=True)


# Functions that the engines' processes call


def ours(name: str, weights: str) -> Any:
    """minidnn's network with the weights of a file."""
    network = models.get_model(name)
    network.load_state_dict(md.load_weights(weights))
    return network


def theirs(name: str, weights: str) -> Any:
    """torchvision's network with the weights of a file."""
    import torch

    from minidnn.bench.torchvision_models import unfilled

    module = unfilled(name)
    loaded = md.load_weights(weights)  # read-only memory, which PyTorch warns of
    state = module.state_dict()  # MNASNet reads the version that PyTorch keeps in its metadata
    state |= {key: torch.from_numpy(np.array(value)) for key, value in loaded.items()}
    module.load_state_dict(state, strict=True, assign=True)
    return module.requires_grad_(False)


def from_reference(
    network: str, options: Mapping[str, Any], inputs: str, expected: str
) -> LoadedEngine:
    """Writes the outputs of minidnn's reference; the returned engine does nothing."""
    model = made_by(network, options)
    with np.load(inputs) as arrays:
        x = arrays["x"]
    y = np.asarray(md.compile(model, x.shape, device="reference")(x))
    write_whole(Path(expected), lambda path: np.save(path, y))
    return LoadedEngine(lambda: None, about={"version": md.__version__})


def from_torch(options: Mapping[str, Any], inputs: str, expected: str, onnx: str) -> LoadedEngine:
    """Writes PyTorch's outputs and the ONNX file; the returned engine does nothing."""
    import torch

    module = theirs(**options)
    with np.load(inputs) as arrays:
        x = torch.from_numpy(arrays["x"])
    with torch.inference_mode():
        y = module(x).numpy()

    _replace_uneven_pooling(module, x)

    def export(path: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter without further packages is deprecated
            names = {"input_names": ["x"], "output_names": ["y"]}
            torch.backends.mha.set_fastpath_enabled(False)  # ONNX has no operator for that
            torch.onnx.export(module, (x,), str(path), dynamo=False, opset_version=17, **names)

    write_whole(Path(onnx), export)
    write_whole(Path(expected), lambda path: np.save(path, y))
    return LoadedEngine(lambda: None, about={"version": torch.__version__})


def _replace_uneven_pooling(module: Any, x: Any) -> None:
    """Replaces adaptive average poolings whose windows differ in size, for which ONNX has no
    operator, by products with constant matrices of rows and columns.  The matrices are small:
    AlexNet's and VGG's."""
    import torch

    class Averages(torch.nn.Module):
        def __init__(self, rows: torch.Tensor, columns: torch.Tensor) -> None:
            super().__init__()
            self.register_buffer("rows", rows)
            self.register_buffer("columns", columns)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.matmul(torch.matmul(self.rows, x), self.columns)

    sizes: dict[str, tuple[int, ...]] = {}
    named = dict(module.named_modules())
    pools = {k: m for k, m in named.items() if isinstance(m, torch.nn.AdaptiveAvgPool2d)}
    hooks = [
        pool.register_forward_pre_hook(
            lambda _, given, name=name: sizes.__setitem__(name, tuple(given[0].shape[2:]))
        )
        for name, pool in pools.items()
    ]
    with torch.inference_mode():
        module(x[:1])
    for hook in hooks:
        hook.remove()
    for name, size in sizes.items():
        out = pools[name].output_size
        targets = out if isinstance(out, tuple) else (out, out)
        targets = tuple(t or side for t, side in zip(targets, size, strict=True))
        if any(side % target for side, target in zip(size, targets, strict=True)):
            rows, columns = (_averaging(*pair) for pair in zip(size, targets, strict=True))
            parent, _, last = name.rpartition(".")
            columns = torch.from_numpy(columns.T.copy())
            setattr(named[parent], last, Averages(torch.from_numpy(rows), columns))


def _averaging(size: int, target: int) -> np.ndarray:
    """A (target, size) matrix, each row of which averages a window of an adaptive pooling."""
    matrix = np.zeros((target, size), np.float32)
    for i in range(target):
        begin, end = i * size // target, -(-(i + 1) * size // target)
        matrix[i, begin:end] = 1 / (end - begin)
    return matrix
