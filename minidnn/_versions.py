"""Which versions minidnn supports of what it needs or can use, and which of them are tested.

A range ends where tests do: with the oldest version that they run with, and before the version
after the newest one.  ``setup.cfg`` has the same ranges (``tests/packaging/test_versions.py``
compares), ``make test-versions`` runs the tests, and ``minidnn doctor`` shows the table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["PYTHON", "SUPPORTED", "Supported", "numbers"]


def numbers(version: str) -> tuple[int, ...]:
    """Returns the numbers that a version begins with.

    >>> numbers("2.13.0+cpu")
    (2, 13, 0)
    """
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


@dataclass(frozen=True)
class Supported:
    """The versions of one package.

    Attributes:
        name: the package's name.
        extra: the extra of minidnn that brings it; "" for what every installation needs.
        oldest: the first version that is supported.
        below: the first version that no longer is.
        cpu: the versions that tests run with on a CPU, oldest first.
        gpu: the versions that tests run with on a GPU.
    """

    name: str
    extra: str
    oldest: str
    below: str
    cpu: tuple[str, ...] = ()
    gpu: tuple[str, ...] = ()

    @property
    def range(self) -> str:
        """The range of versions as ``setup.cfg`` writes it."""
        return f">={self.oldest},<{self.below}"

    def takes(self, version: str) -> bool:
        """Whether a version is supported."""
        return numbers(self.oldest) <= numbers(version) < numbers(self.below)

    def tested(self) -> str:
        """Describes the versions that tests run with."""
        places = ((self.cpu, "CPU"), (self.gpu, "GPU"))
        return "; ".join(f"{', '.join(found)} on a {place}" for found, place in places if found)


#: The newest is that of the last minor version; of a minor version, the newest is taken.
PYTHON = Supported("Python", "", "3.11.2", "3.14", ("3.11.2", "3.12.1", "3.13.0"), ("3.12",))

SUPPORTED = (
    Supported("numpy", "", "2.0", "2.6", ("2.0.0", "2.5.5"), ("2.5.2",)),
    Supported("pillow", "images", "11.0", "13.1", ("11.0.0", "13.0.0")),
    Supported("cupy-cuda13x", "cuda", "14.2", "14.3", (), ("14.2.0",)),
    Supported("nvidia-cuda-nvrtc", "cuda", "13.0", "13.6", ("13.0.48", "13.5.37")),
    Supported("nvidia-cudnn-cu13", "cuda", "9.19", "9.20", (), ("9.19.0",)),
    Supported(
        "torch", "torch", "2.11", "2.15", ("2.11.0", "2.12.1", "2.13.0", "2.14.1"), ("2.11.0",)
    ),
    Supported("onnx", "onnx", "1.18", "1.24", ("1.18.0", "1.23.2"), ("1.23.1",)),
    Supported("tensorboard", "tensorboard", "2.19", "2.22", ("2.19.0", "2.21.0")),
    Supported("resvg-py", "plots", "0.5", "0.6", ("0.5.0",)),
    Supported("grpcio", "serve", "1.78", "1.86", ("1.78.0", "1.85.3")),
    Supported("httptools", "serve", "0.6.3", "0.10", ("0.6.3", "0.9.0")),
    Supported("prometheus-client", "serve", "0.21", "0.27", ("0.21.0", "0.26.0")),
    Supported("protobuf", "serve", "6.31", "7.37", ("6.31.0", "7.36.2")),
    Supported("starlette", "serve", "1.0", "1.11", ("1.0.0", "1.10.0")),
    Supported("uvicorn", "serve", "0.38", "0.55", ("0.38.0", "0.54.0")),
    Supported("pyarrow", "batch", "20.0", "26.1", ("20.0.0", "26.0.1")),
    Supported("ray", "batch", "2.60", "2.61", ("2.60.0",)),
    Supported("MNN", "bench", "3.6", "3.7", ("3.6.0", "3.6.1")),
    Supported("onnxruntime", "bench", "1.31", "1.33", ("1.31.0", "1.32.0")),
    Supported("openvino", "bench", "2026.4", "2026.5", ("2026.4.0", "2026.4.1")),
    Supported("torchvision", "bench", "0.26", "0.30", ("0.26.0", "0.29.1"), ("0.26.0",)),
    Supported("scikit-learn", "demo", "1.6", "1.10", ("1.6.0", "1.9.1")),
    Supported("safetensors", "test", "0.7", "0.9", ("0.7.0", "0.8.0"), ("0.8.0",)),
)
