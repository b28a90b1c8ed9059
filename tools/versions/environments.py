"""The environments that tests run in: a Python, a version of each package, and which tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minidnn._versions import SUPPORTED, numbers

__all__ = ["ENVIRONMENTS", "Environment", "pins_of"]

#: What PyTorch needs beside NVIDIA's packages, which stand-ins replace.
_OF_TORCH = ("filelock", "fsspec", "jinja2", "networkx", "setuptools <82", "sympy")
#: What runs the tests, and what some of them compare with or need.
_OF_TESTS = ("pytest >=9,<10", "pytest-timeout", "pytest-xdist", "typing-extensions")
_OF_ALL_TESTS = (
    *("flask", "flask-cors", "hypothesis", "ml-dtypes", "moto[s3]", "schemathesis", "scipy"),
    "tritonclient[grpc,http]",
)
#: They are installed without what they say they need.
ALONE = ("torch", "torchvision")
#: What the part has that CI runs.
_FEW = ("numpy", "onnx", "pillow", "safetensors", "torch")

PUBLIC = ("tests/layers/test_signatures.py", "tests/packaging/test_public_face.py")
BRIDGE = ("tests/torch", "tests/frontends", "tests/compile")
FILES = ("tests/onnx", "tests/weights", "tests/storage")
OTHERS = (
    *("tests/batch", "tests/bench", "tests/data", "tests/digits", "tests/documentation"),
    *("tests/layers", "tests/serving", "tests/training", "tests/lab/test_plot.py"),
    "tests/cuda/test_nvrtc.py",
)
_QUICK = (
    *PUBLIC,
    *("tests/torch/test_internals.py", "tests/torch/test_optimize.py"),
    *("tests/onnx/test_reading.py", "tests/weights/test_checkpoints.py", "tests/frontends"),
    "tests/data/test_folder.py",
    # They measure time, or import what only benchmarks need.
    *("-k", "not second and not 200_ms and not benchmarks"),
)


@dataclass(frozen=True)
class Environment:
    """One environment.

    Attributes:
        name: what the command line calls it.
        python: the version of Python; of a minor version, whichever is there.
        end: which tested version of each package: 0, the oldest; -1, the newest.
        tests: files and folders that run in it, and options of pytest.
        packages: which packages of the table it has; all if empty.
        torch: a version of PyTorch between the ends.
    """

    name: str
    python: str
    end: int
    tests: tuple[str, ...]
    packages: tuple[str, ...] = ()
    torch: str = ""

    def pins(self) -> dict[str, str]:
        """Package -> version."""
        return pins_of(self.end, self.packages, self.torch)

    def requirements(self) -> list[str]:
        """What is installed with all that it needs."""
        pinned = [f"{_extras(name)}=={v}" for name, v in self.pins().items() if name not in ALONE]
        return [*pinned, *_OF_TORCH, *_OF_TESTS, *(() if self.packages else _OF_ALL_TESTS)]

    def alone(self) -> list[str]:
        """What is installed without it."""
        return [f"{name}=={v}" for name, v in self.pins().items() if name in ALONE]


def pins_of(end: int, packages: Sequence[str] = (), torch: str = "") -> dict[str, str]:
    """The version of each package that tests run with on a CPU at one end of the ranges."""
    pins = {s.name: s.cpu[end] for s in SUPPORTED if s.cpu and (not packages or s.name in packages)}
    if torch:
        pins["torch"] = torch
        pins.pop("torchvision", None)  # goes with one version of PyTorch
    return pins


def _extras(name: str) -> str:
    return "ray[data,train]" if name == "ray" else name


def _between() -> list[Environment]:
    """One for each version of PyTorch that is at neither end."""
    (versions,) = (s.cpu[1:-1] for s in SUPPORTED if s.name == "torch")
    return [
        Environment(
            f"torch-{'.'.join(map(str, numbers(version)[:2]))}",
            "3.12",
            -1,
            (*PUBLIC, *BRIDGE),
            _FEW,
            version,
        )
        for version in versions
    ]


#: In the order in which they run; the first is the part that CI runs.
ENVIRONMENTS = (
    Environment("quick", "3.11.2", 0, _QUICK, _FEW),
    Environment("oldest", "3.11.2", 0, (*PUBLIC, *BRIDGE, *FILES, *OTHERS)),
    Environment("newest", "3.13", -1, (*PUBLIC, *BRIDGE, *FILES, *OTHERS)),
    *_between(),
)
