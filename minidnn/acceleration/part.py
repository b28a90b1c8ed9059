"""A compiled subgraph of a network as a PyTorch module, which takes and returns tensors.

Where the tensors have the types, device and layout that the program takes, it computes on their
memory by address, which saves most of the time of a call in Python.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import compress
from operator import attrgetter
from typing import Any, cast

import torch
from torch import nn

from minidnn._torch_internals import TensorGuards
from minidnn.acceleration.threads import rest, team_of
from minidnn.backends.cuda.arrays import TORCH
from minidnn.executable import Executable
from minidnn.frontends.torch.convert import Part
from minidnn.graph.ir import Graph, Value
from minidnn.graph.types import TensorType
from minidnn.runtime.program import DonatedLayout

#: Classes whose memory is what their shape and strides say; subclasses may interpret it otherwise.
PLAIN = frozenset({torch.Tensor, nn.Parameter})

#: The alignment in bytes of tensors that share one allocation: that of PyTorch's allocator.
ALIGNMENT = 512

_IS_NESTED, _LAYOUT = attrgetter("is_nested"), attrgetter("layout")
_DEVICE, _SHAPE, _DTYPE = attrgetter("device"), attrgetter("shape"), attrgetter("dtype")


class CompiledPart(nn.Module):
    """A part as a module, for inference.

    Attributes:
        before_pytorch: whether an operation of PyTorch's runs next, which needs the cores.
        shares_threads: whether it computes with PyTorch's own OpenMP threads, so that no idle
            thread spins on a core that the next operation needs.
        is_addressed: whether it can compute on tensors' memory by address, see :meth:`run_at`.
        takes: tells whether tensors are laid out as the program takes them.
    """

    def __init__(
        self,
        part: Part,
        executable: Executable,
        memory: str,
        before_pytorch: bool = False,
        among_pytorchs: bool = False,
    ) -> None:
        """
        memory: PyTorch's name of the device on whose tensors the part computes.
        among_pytorchs: whether operations of PyTorch's run before or after the part.
        """
        super().__init__()
        self.part = part
        self.executable = executable
        self.before_pytorch = before_pytorch
        self._on_cores = executable.device == "cpu"

        #: The dtypes of PyTorch's results, to which results are cast: a device computes in its own
        #: precision, or lacks the dtype (the reference has no bfloat16).
        self._dtypes = [getattr(torch, value.dtype) for value in part.graph.outputs]
        self._program = cast(Any, executable.program)
        team = None
        if among_pytorchs and self._on_cores:
            team = team_of(self._program.threads)
        self.shares_threads = team is not None
        if team is not None:
            self._program.use_threads_of(team)
        self.is_addressed = (
            (executable.addressed is not None or executable.on_streams is not None)
            and executable.graph.output_names is None
            and _types(part.graph) == _types(executable.graph)
        )
        self._device = torch.device(memory)
        self.takes = self.expected_tensors(part.graph.inputs)
        self._gives = [
            (v.shape, _strides(v.shape), getattr(torch, v.dtype)) for v in part.graph.outputs
        ]
        sizes: dict[torch.dtype, list[int]] = {}
        for shape, _, dtype in self._gives:
            if len(shape) == 1:
                sizes.setdefault(dtype, []).append(*shape)
        self._vectors = {dtype: EmptyVectors(sizes[dtype], dtype, self._device) for dtype in sizes}

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Returns the part's results, in the dtypes of PyTorch's."""
        if self.is_addressed and self.takes(tensors):
            return self.run_at(tensors)
        if self._on_cores and not self.shares_threads:
            rest()
        result = self.executable(*tensors)
        if self.before_pytorch and self._on_cores and not self.shares_threads:
            self._program.rest()
        results = result if isinstance(result, tuple) else (result,)
        if not tensors:  # of weights alone: nothing says that results are PyTorch's
            results = tuple(torch.as_tensor(each, device=self._device) for each in results)
        converted = tuple(each.to(dtype) for each, dtype in zip(results, self._dtypes, strict=True))
        return converted if isinstance(result, tuple) else converted[0]

    def expected_tensors(self, values: Iterable[Value]) -> ExpectedTensors:
        """Returns a predicate: whether tensors are contiguous, of these types, on the device."""
        return ExpectedTensors((v.shape, getattr(torch, v.dtype), self._device) for v in values)

    @property
    def stream(self) -> int:
        """The CUDA stream that the part computes on now; 0 on the CPU."""
        return 0 if self._on_cores else TORCH.stream(self._device.index)

    def run_at(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Computes on the memory of tensors that :attr:`takes` accepts, and returns the results.
        Python's own data is out of the caches at each call, so every step saved counts."""
        results = self.empty()
        self.compute([t.data_ptr() for t in tensors], [r.data_ptr() for r in results])
        return results[0] if len(results) == 1 else tuple(results)

    def empty(self, first: int = 0, end: int | None = None) -> list[torch.Tensor]:
        """Allocates tensors, not initialized, for the results from ``first`` up to ``end``."""
        return [self._empty(*each) for each in self._gives[first:end]]

    def empty_gradients(self) -> list[torch.Tensor]:
        """Allocates tensors for results that are gradients: vectors, the most of them, at once."""
        vectors = {dtype: iter(make()) for dtype, make in self._vectors.items()}
        return [
            next(vectors[each[2]]) if len(each[0]) == 1 else self._empty(*each)
            for each in self._gives
        ]

    def _empty(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        # With strides given, PyTorch need not look for a memory format.  The device is given, too:
        # PyTorch's default may be another one, whose memory the program cannot use.
        return torch.empty_strided(shape, strides, dtype=dtype, device=self._device)

    def use_external_buffers(self, donated: Sequence[int] = ()) -> DonatedLayout | None:
        """Has the program allocate no memory for inputs and outputs, where the device supports it.
        Returns the layout of a buffer that holds these inputs and may be donated; None if the
        device has none."""
        program = self.executable.on_streams
        return None if program is None else program.use_external_buffers(donated)

    def compute(self, inputs: Sequence[int], outputs: Sequence[int], donated: int = 0) -> None:
        """Computes the results of the tensors at these addresses, which :attr:`takes` accepts.

        donated: the address of a buffer in the layout of :meth:`use_external_buffers`, whose
            contents are lost; 0 if there is none.
        """
        program = self._program
        if not self._on_cores:
            program.run_on(self.stream, inputs, outputs, donated)
            return
        if not self.shares_threads:
            rest()
        program.run_at(inputs, outputs)
        if self.before_pytorch and not self.shares_threads:
            program.rest()


def _types(graph: Graph) -> list[TensorType]:
    """The types of a graph's inputs, then of its results."""
    return [value.type for value in (*graph.inputs, *graph.outputs)]


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous array."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def overrides_computation(tensor: torch.Tensor) -> bool:
    """Whether a tensor's class overrides how operations on it are computed."""
    kind = type(tensor)
    return kind not in PLAIN and (
        kind.__torch_function__ is not nn.Parameter.__torch_function__  # the disabled one
        or kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    )


class EmptyVectors:
    """Allocates vectors in one allocation, in a fraction of the time that one tensor each takes.
    To PyTorch no vector is a view: each has a version counter of its own."""

    def __init__(self, sizes: Iterable[int], dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        #: The elements of each vector and of each gap after one, for the alignment.
        self._sizes: list[int] = []
        self._are_vectors: list[bool] = []
        for size in sizes:
            gap = -size % (ALIGNMENT // dtype.itemsize)
            self._sizes += [size, gap] if gap else [size]
            self._are_vectors += [True, False] if gap else [True]

    def __call__(self) -> Iterable[torch.Tensor]:
        """Allocates the vectors, not initialized."""
        memory = torch.empty(sum(self._sizes), dtype=self._dtype, device=self._device)
        return compress(torch.unsafe_split_with_sizes(memory, self._sizes), self._are_vectors)


class ExpectedTensors:
    """A predicate: whether tensors are contiguous, of these shapes and dtypes, on these devices.

    There may be hundreds of tensors, and the device may be idle meanwhile.  So PyTorch's native
    guards compare all of them at once with the last tensors that were as expected.  Where these
    differ, each attribute is compared in one pass over all tensors.
    """

    def __init__(self, types: Iterable[tuple[tuple[int, ...], torch.dtype, torch.device]]) -> None:
        every = list(types)
        self._shapes = [shape for shape, *_ in every]
        self._dtypes = [dtype for _, dtype, _ in every]
        self._devices = [device for *_, device in every]
        self._layouts = [torch.strided] * len(every)
        #: PyTorch's guards of the last tensors that were as expected.
        self._like_before: Any = None

    def __call__(self, tensors: Sequence[Any]) -> bool:
        return (
            len(tensors) == len(self._shapes)
            and PLAIN.issuperset(map(type, tensors))
            and not any(map(_IS_NESTED, tensors))  # these have no shape, at which the guards fail
            and (self._are_like_before(tensors) or self._are_expected(tensors))
        )

    def _are_like_before(self, tensors: Sequence[Any]) -> bool:
        return self._like_before is not None and self._like_before.check(*tensors)

    def _are_expected(self, tensors: Sequence[Any]) -> bool:
        """Compares each attribute of tensors, none nested; makes guards of them if they fit."""
        if not (
            list(map(_LAYOUT, tensors)) == self._layouts
            and list(map(_DEVICE, tensors)) == self._devices
            and list(map(_SHAPE, tensors)) == self._shapes
            and list(map(_DTYPE, tensors)) == self._dtypes
            and all(map(torch.Tensor.is_contiguous, tensors))
            and not any(map(torch.Tensor.is_neg, tensors))
        ):
            return False
        if tensors:
            sizes = {"dynamic_dims_sizes": None, "dynamic_dims_strides": None}
            self._like_before = TensorGuards(*tensors, **sizes)
        return True
