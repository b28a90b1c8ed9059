"""The compiler settings of a network's parts: a device, a precision and options.

An :class:`Engine` compiles graphs with these settings; :func:`engine_for` picks one for the device
that PyTorch's tensors are on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from minidnn.backends.backend import (
    PREFERENCE,
    default_device,
    get_backend,
    training_options,
    why_not_in,
)
from minidnn.compiler import compile, compile_mixed, unsupported_nodes
from minidnn.errors import DeviceError, MiniDNNError
from minidnn.executable import Executable
from minidnn.graph.ir import Graph
from minidnn.graph.trace import tracing
from minidnn.graph.types import TensorType

#: The device that computes on PyTorch's "cuda" tensors.  All others compute on CPU tensors.
_CUDA = "cuda"
#: The devices on which float16 or bfloat16 values may be mixed with float32 values.
_MIXING = (_CUDA, "reference")
_CPU = "cpu"


@dataclass(frozen=True)
class Engine:
    """Compiles graphs for one device, in one precision, with its options."""

    device: str
    precision: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def memory(self) -> str:
        """PyTorch's name of the device whose tensors the engine computes on: "cpu", "cuda:0"."""
        name, _, index = self.device.partition(":")
        return f"{name}:{index or 0}" if name == _CUDA else "cpu"

    @property
    def is_priced(self) -> bool:
        """Whether a cost model compares parts with PyTorch's operations: on the CPU alone."""
        return self.device == _CPU

    def why_not(self, graph: Graph) -> str | None:
        """Why the device cannot run a graph; None if it can."""
        reasons = unsupported_nodes(graph, self.device, self.precision, **self.options)
        return next(iter(reasons.values()), None)

    def check(self) -> None:
        """Raises what compiling raises for an illegal precision or option."""
        if self.precision is not None or self.options:
            with tracing("nothing") as trace:
                self.compile(trace.graph([trace.input(TensorType((1, 1)), "x")]))

    def compile(self, graph: Graph) -> Executable:
        """Compiles a graph for inference."""
        return compile(graph, device=self.device, precision=self.precision, **self.options)

    def compile_trained(self, graph: Graph) -> Executable:
        """Compiles one half of a training step: the forward or the backward graph."""
        options = {**training_options(self.device), **self.options}
        return compile(graph, device=self.device, precision=self.precision, **options)

    @property
    def lays_last(self) -> bool:
        """Whether the device keeps images in half precision in channels-last layout (NHWC)."""
        return self.device != _CPU

    def why_not_mixed(self, half: str) -> str | None:
        """Why the device cannot mix ``half`` (float16 or bfloat16) with float32; None if it can."""
        if self.device in _MIXING or self.device.startswith(f"{_CUDA}:"):
            return None
        if self.device != _CPU:
            return f"device {self.device!r} trains in float32"
        backend = get_backend(_CPU)
        if (reason := why_not_in(backend, "bfloat16")) is not None:
            return f"device 'cpu' trains in float32, and not in bfloat16: {reason}"
        if half != "bfloat16":
            return "device 'cpu' trains in float32 and bfloat16"
        try:
            backend.target(half, self.options)
        except MiniDNNError as error:  # the options may exclude what the processor supports
            return str(error)
        return None

    def compile_mixed(self, graph: Graph, dtype: str) -> Executable:
        """Compiles a graph in mixed precision: its types say which values are in ``dtype``."""
        if self.device != _CPU and self.memory == "cpu":
            # The reference computes each value in its own dtype.
            return compile(graph, device=self.device, **self.options)
        options = {**training_options(self.device), **self.options}
        return compile_mixed(graph, device=self.device, precision=dtype, **options)


def memory_of(tensor: Any) -> str:
    """PyTorch's name of the device that a tensor is on: "cpu", "cuda:0"."""
    if tensor.is_cpu:
        return "cpu"
    device = tensor.device
    return f"{_CUDA}:{device.index or 0}" if device.type == _CUDA else str(device.type)


def engine_for(
    memory: str, device: str | None, precision: str | None, options: Mapping[str, Any]
) -> Engine:
    """Returns the engine for tensors on PyTorch's device ``memory``: see :func:`memory_of`.

    device: as :func:`minidnn.compile` takes it; None is the best one for these tensors.

    DeviceError if there is none, or if ``device`` computes on other tensors.
    """
    if device is not None:
        get_backend(device)
        engine = Engine(device, precision, options)
        if engine.memory != memory:
            raise DeviceError(
                f"device={device!r} computes on tensors of PyTorch's {engine.memory!r}, but those "
                f"given are on {memory!r}; move them, or leave device away to have it follow them"
            )
        return engine
    if memory.startswith(_CUDA):
        cuda = _CUDA if memory == f"{_CUDA}:0" else memory
        get_backend(cuda)
        return Engine(cuda, precision, options)
    if memory != "cpu":
        raise DeviceError(f"the tensors are on PyTorch's {memory!r}; valid are 'cpu' and 'cuda'")
    best, _ = default_device([name for name in PREFERENCE if name != _CUDA])
    return Engine(best, precision, options)
