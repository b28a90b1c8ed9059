"""The registry of engines on the CPU: how each is made, what model it loads, what it needs.

``KINDS`` has an entry for each engine.  Functions of :mod:`.peers` make them, in processes of their
own.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minidnn.bench.networks import Prepared
from minidnn.bench.process import EngineProcess
from minidnn.errors import UnsupportedError

OWN = "minidnn"
INSTALL = "pip install 'minidnn[bench]'"
#: Packages that preparing a case needs, since all outputs are compared with PyTorch's.
NEEDED = ("torch", "torchvision")

#: Environment variables that restrict oneDNN (in OpenVINO and PyTorch) and PyTorch's own kernels to
#: an instruction set.
LIMITS: Mapping[str, Mapping[str, str]] = {
    "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
}


@dataclass(frozen=True)
class Kind:
    """An engine: how to make it, and what it needs.

    Attributes:
        name: of the engine, in options and tables.
        target: the function that makes it, as :class:`.process.EngineProcess` takes it.
        takes: the model that it loads: "layer" (minidnn's network), "module" (torchvision's),
            "onnx" (a file), or "file", which ``convert`` makes of the module or the ONNX file.
        packages: packages that must be installed.
        imports: modules that are imported before the engine's making is timed.
        settings: further arguments of the target.
        limited: whether :data:`LIMITS` restricts it.
        convert: the function that writes the file; the engine that it returns does nothing.
        suffix: of the file, which engines with the same suffix share; by default the name.
    """

    name: str
    target: str
    takes: str
    packages: tuple[str, ...]
    imports: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    limited: bool = False
    convert: str = ""
    suffix: str = ""

    def missing(self) -> list[str]:
        """The packages that it needs and that are not installed."""
        needed = dict.fromkeys((*self.packages, *(NEEDED if self.name != OWN else ())))
        return [name for name in needed if importlib.util.find_spec(name) is None]

    @property
    def needs_module(self) -> bool:
        """Whether it needs PyTorch's module instead of an ONNX file, as pnnx, ncnn's converter,
        does."""
        return self.takes == "module" or self.convert.endswith(":convert_to_ncnn")

    def prepare(self, prepared: Prepared) -> None:
        """Converts the network for an engine with its own file format, unless the file exists.
        minidnn compiles the network once, so that its cache has the kernels.

        Raises:
            EngineError: it cannot be converted, or minidnn cannot compile it.
        """
        if self.name == OWN:
            self.start(prepared).close()
        target = self._file(prepared)
        if self.takes != "file" or target.exists():
            return
        shape = prepared.case.shape
        options: dict[str, Any] = {"onnx": str(prepared.onnx), "target": str(target)}
        options |= {"shape": shape, "inputs": str(prepared.inputs)}
        if not prepared.case.file:
            options |= _network(prepared, "theirs")
        EngineProcess(self.name, self.convert, options).close()

    def _file(self, prepared: Prepared) -> Path:
        return prepared.onnx.with_suffix(f".{self.suffix or self.name}")

    def start(self, prepared: Prepared) -> EngineProcess:
        """Starts the process of the engine, ready to run a case.

        Raises:
            EngineError: it cannot be made.
        """
        case = prepared.case
        options: dict[str, Any] = {"inputs": str(prepared.inputs), "threads": case.threads}
        if self.takes == "layer":
            options |= _network(prepared, "ours")
        elif self.takes == "module":
            options |= _network(prepared, "theirs")
        elif self.takes == "onnx":
            options["model"] = str(prepared.onnx)
        else:
            self.prepare(prepared)
            options["model"] = str(self._file(prepared))
        if self.name == OWN and case.isa:
            options["isa"] = case.isa
        if self.name == OWN and case.dtype != "float32":
            options["precision"] = case.dtype
        if self.name == OWN and case.tune:
            options["tune"] = True
        limit = LIMITS.get(case.isa or "", {}) if self.limited else {}
        return EngineProcess(
            self.name, self.target, {**options, **self.settings}, limit, imports=self.imports
        )


def _network(prepared: Prepared, function: str) -> dict[str, Any]:
    """The arguments with which an engine makes the network."""
    if prepared.case.file:
        arguments = {"path": str(prepared.onnx)}
        return {"network": "minidnn.bench.files:path_of", "options": arguments}
    arguments = {"name": prepared.case.network, "weights": str(prepared.weights)}
    return {"network": f"minidnn.bench.networks:{function}", "options": arguments}


_PEERS = "minidnn.bench.peers"
_TO_INT8, _INT8 = f"{_PEERS}:convert_to_int8", "int8.onnx"
_OPENVINO = (f"{_PEERS}:openvino", "onnx", ("openvino",), ("openvino",))
_TORCHVISION = ("minidnn.bench.torchvision_models",)
_TORCH = (f"{_PEERS}:torch", "module", ("torch", "torchvision"), _TORCHVISION)

KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            OWN, "minidnn.bench.peers:minidnn", "layer", (), ("minidnn.models", "minidnn.compiler")
        ),
        Kind("openvino", *_OPENVINO, limited=True),
        Kind("openvino-streams", *_OPENVINO, {"streams": True}, limited=True),
        Kind("openvino-bf16", *_OPENVINO, {"precision": "bf16"}, limited=True),
        Kind(
            "openvino-int8",
            f"{_PEERS}:openvino",
            "file",
            ("openvino", "onnxruntime", "onnx"),
            ("openvino",),
            {"precision": "int8"},
            limited=True,
            convert=_TO_INT8,
            suffix=_INT8,
        ),
        Kind(
            "onnxruntime",
            f"{_PEERS}:onnxruntime",
            "onnx",
            ("onnxruntime",),
            ("onnxruntime",),
            {"count_kernels": False},  # its compilation is timed
        ),
        Kind(
            "onnxruntime-int8",
            f"{_PEERS}:onnxruntime",
            "file",
            ("onnxruntime", "onnx"),
            ("onnxruntime",),
            {"count_kernels": False, "precision": "int8"},
            convert=_TO_INT8,
            suffix=_INT8,
        ),
        Kind("torch", *_TORCH, limited=True),
        Kind("torch-channels-last", *_TORCH, {"mode": "channels_last"}, limited=True),
        Kind("torch-compile", *_TORCH, {"mode": "compile"}, limited=True),
        Kind(
            "mnn", f"{_PEERS}:mnn", "file", ("MNN",), ("MNN",), convert=f"{_PEERS}:convert_to_mnn"
        ),
        Kind(
            "ncnn",
            f"{_PEERS}:ncnn",
            "file",
            ("ncnn", "pnnx"),
            ("ncnn",),
            convert=f"{_PEERS}:convert_to_ncnn",
        ),
    )
}
PEERS = tuple(name for name in KINDS if name != OWN)
"""Names of all engines but minidnn's own, on the CPU."""
NAMES = (*KINDS, "torch-max-autotune", "torch-calls")
"""Names of all engines, on GPUs too, in the order of tables."""


def chosen(names: Sequence[str] | None) -> list[Kind]:
    """The engines with these names, by default all peers that are installed.

    Raises:
        UnsupportedError: a name is unknown, or what an engine needs is not installed.
    """
    if names is None:
        return [KINDS[name] for name in PEERS if not KINDS[name].missing()]
    for name in names:
        if name not in PEERS:
            raise UnsupportedError(f"--against {name!r}: valid are {', '.join(PEERS)}")
        if missing := KINDS[name].missing():
            raise UnsupportedError(
                f"--against {name!r} needs {' and '.join(missing)}, which "
                f"{'is' if len(missing) == 1 else 'are'} not installed: {INSTALL}"
            )
    return [KINDS[name] for name in dict.fromkeys(names)]
