"""A CuPy and a cuDNN in pure Python, so that the binding's own work can be tested without a GPU.

The cuDNN keeps books about descriptors and handles, records its calls, answers queries with
fixed numbers and fails where a test tells it to.  It computes nothing.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np

from minidnn.cudnn.library import PROTOTYPES


class FakeArray(np.ndarray):
    """A NumPy array with what the binding asks of CuPy's."""

    device_id = 0

    def __array_finalize__(self, other: Any) -> None:
        self.device_id = getattr(other, "device_id", 0)

    @property
    def device(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(id=self.device_id)

    @property
    def data(self) -> Any:  # type: ignore[override]
        return SimpleNamespace(ptr=self.ctypes.data, device_id=self.device_id)


class OutOfMemory(MemoryError):
    """What the fake pool raises."""


class FakeCupy:
    """The module ``cupy``."""

    ndarray = FakeArray

    def __init__(self) -> None:
        self.stream = SimpleNamespace(ptr=0)
        self.device = 0
        self.capturing = False
        self.memory_left = 1 << 40
        self.allocated: list[int] = []
        self.cuda = SimpleNamespace(
            runtime=SimpleNamespace(
                getDevice=lambda: self.device,
                streamIsCapturing=lambda stream: self.capturing,
                getDeviceProperties=lambda device: dict(
                    name=b"Fake GPU", major=9, minor=0, multiProcessorCount=132
                ),
                driverGetVersion=lambda: 13000,
            ),
            get_current_stream=lambda: self.stream,
            memory=SimpleNamespace(alloc=self._alloc, OutOfMemoryError=OutOfMemory),
            Device=lambda device: SimpleNamespace(compute_capability="90"),
        )
        self._util = SimpleNamespace(PerformanceWarning=UserWarning)

    def _alloc(self, size: int) -> Any:
        if size > self.memory_left:
            raise OutOfMemory(f"out of memory allocating {size} bytes")
        self.allocated.append(size)
        block = np.empty(max(1, size), np.uint8)
        return SimpleNamespace(ptr=block.ctypes.data, mem=SimpleNamespace(size=size), block=block)

    def empty(self, shape: Any, dtype: Any = "float32") -> FakeArray:
        return np.zeros(shape, dtype).view(FakeArray)  # never NaN by chance

    def zeros(self, shape: Any, dtype: Any = "float32") -> FakeArray:
        return np.zeros(shape, dtype).view(FakeArray)

    def empty_like(self, array: Any) -> FakeArray:
        return np.zeros_like(array).view(FakeArray)

    def ascontiguousarray(self, array: Any, dtype: Any = None) -> FakeArray:
        return np.ascontiguousarray(array, dtype).view(FakeArray)

    def copyto(self, target: Any, source: Any, casting: Any = "same_kind") -> None:
        np.copyto(target, source, casting=casting)


class FakeCuDNN:
    """The shared library: every function of the prototypes' table is an attribute."""

    def __init__(self) -> None:
        self.live: dict[int, str] = {}
        self.created: Counter[str] = Counter()
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.status: dict[str, int] = {}
        self.message = b"the fake says no"
        #: Rows for the searches: algorithm, time, memory, deterministic, math.
        self.rows: list[tuple[int, float, int, int, int]] = [(1, 0.1, 1000, 1, 0)]
        self.size = 64  # of workspaces
        self.version = 91900
        self._next = 0x1000

    def __getattr__(self, name: str) -> Any:
        if name not in PROTOTYPES:
            raise AttributeError(name)

        def function(*arguments: Any) -> Any:
            return self._call(name, arguments)

        setattr(self, name, function)
        return function

    def names(self) -> list[str]:
        """The functions called so far, in order."""
        return [name for name, _ in self.calls]

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        if name == "cudnnGetVersion":
            return self.version
        if name == "cudnnGetLastErrorString":
            arguments[0].value = self.message
            return None
        self.calls.append((name, arguments))
        if self.status.get(name):
            return self.status[name]
        self._answer(name, arguments)
        return 0

    def _answer(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "cudnnCreate" or (name.startswith("cudnnCreate") and "Descriptor" in name):
            self._next += 16
            self.live[self._next] = name
            self.created[name] += 1
            arguments[0]._obj.value = self._next
        elif name == "cudnnDestroy" or name.startswith("cudnnDestroy"):
            assert arguments[0] in self.live, f"{name} of something that does not live"
            del self.live[arguments[0]]
        elif name.endswith("MaxCount"):
            arguments[1]._obj.value = 8
        elif "Algorithm" in name:
            self._search(name, arguments)
        elif name.endswith(("Size", "SizeInBytes")):
            arguments[-1]._obj.value = self.size if "Workspace" in name else 64

    def _search(self, name: str, arguments: tuple[Any, ...]) -> None:
        found, rows = arguments[-2:] if not name.endswith("Ex") else arguments[-4:-2]
        found._obj.value = len(self.rows)
        for row, (algorithm, time, memory, same, math) in zip(rows, self.rows, strict=False):
            row.algo, row.time, row.memory = algorithm, time, memory
            row.determinism, row.mathType, row.status = same, math, 0


def write_int(reference: Any, value: int) -> None:
    """Store a number through a byref argument."""
    ctypes.cast(reference, ctypes.POINTER(ctypes.c_int))[0] = value
