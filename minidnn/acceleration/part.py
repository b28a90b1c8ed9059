"""A compiled part of a network as a PyTorch module: tensors in, tensors out."""

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

#: What lies in memory as it seems to; other classes may look at a tensor in their own way.
PLAIN = frozenset({torch.Tensor, nn.Parameter})

#: The bytes between the beginnings of tensors in one memory are a multiple of this many, as where
#: PyTorch's allocator makes them.
ALIGNMENT = 512

_IS_NESTED, _LAYOUT = attrgetter("is_nested"), attrgetter("layout")
_DEVICE, _SHAPE, _DTYPE = attrgetter("device"), attrgetter("shape"), attrgetter("dtype")


class CompiledPart(nn.Module):
    """A part as a module.

    Attributes:
        before_pytorch: whether an operation of PyTorch's comes next, which needs the cores.
        shares_threads: whether it computes with PyTorch's threads: none of them, and none of
            others, are in the way of whoever comes next.
        is_addressed: whether it computes on tensors' memory by address, see :meth:`run_at`.
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
        memory: PyTorch's name of the device on whose tensors it computes.
        among_pytorchs: whether operations of PyTorch's come before or after it.
        """
        super().__init__()
        self.part = part
        self.executable = executable
        self.before_pytorch = before_pytorch
        self._on_cores = executable.device == "cpu"

        #: A device computes in its precision, or has no such dtype (the reference no bfloat16);
        #: results are what PyTorch's would be.
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
        #: Whether tensors lie there as the program takes them.
        self.takes = self.lying(part.graph.inputs)
        self._gives = [
            (v.shape, _strides(v.shape), getattr(torch, v.dtype)) for v in part.graph.outputs
        ]
        sizes: dict[torch.dtype, list[int]] = {}
        for shape, _, dtype in self._gives:
            if len(shape) == 1:
                sizes.setdefault(dtype, []).append(*shape)
        self._vectors = {dtype: EmptyVectors(sizes[dtype], dtype, self._device) for dtype in sizes}

    def forward(self, *tensors: torch.Tensor) -> Any:
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
        made = tuple(each.to(dtype) for each, dtype in zip(results, self._dtypes, strict=True))
        return made if isinstance(result, tuple) else made[0]

    def lying(self, values: Iterable[Value]) -> ExpectedTensors:
        """What tells whether tensors are these on the program's device."""
        return ExpectedTensors((v.shape, getattr(torch, v.dtype), self._device) for v in values)

    @property
    def stream(self) -> int:
        """The stream that it computes on now; 0 on the CPU."""
        return 0 if self._on_cores else TORCH.stream(self._device.index)

    def run_at(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The results for such tensors: between the networks' regions nothing of Python is in the
        caches, so every step less counts."""
        results = self.empty()
        self.compute([t.data_ptr() for t in tensors], [r.data_ptr() for r in results])
        return results[0] if len(results) == 1 else tuple(results)

    def empty(self, first: int = 0, end: int | None = None) -> list[torch.Tensor]:
        """Tensors for the results, or for some of them in a row, in which nothing is written."""
        return [self._empty(*each) for each in self._gives[first:end]]

    def empty_gradients(self) -> list[torch.Tensor]:
        """Tensors for the results where these are gradients: most are those of vectors."""
        vectors = {dtype: iter(make()) for dtype, make in self._vectors.items()}
        return [
            next(vectors[each[2]]) if len(each[0]) == 1 else self._empty(*each)
            for each in self._gives
        ]

    def _empty(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        # Strides are the shortest way to an array: without them PyTorch looks for a memory format.
        # The device is told: PyTorch's default may be another, whose memory is not for the program.
        return torch.empty_strided(shape, strides, dtype=dtype, device=self._device)

    def use_external_buffers(self, donated: Sequence[int] = ()) -> DonatedLayout | None:
        """Has its program keep no memory for inputs and outputs, where the device can; how a buffer
        is laid out in which these inputs lie, and which may be donated."""
        program = self.executable.on_streams
        return None if program is None else program.use_external_buffers(donated)

    def compute(self, inputs: Sequence[int], outputs: Sequence[int], donated: int = 0) -> None:
        """Computes the results of what lies at these addresses, as :meth:`takes` says.

        donated: the address of a buffer that is laid out as :meth:`use_external_buffers` said, and
            holds nothing of use afterwards; 0 if there is none.
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


def computes_its_own_way(tensor: torch.Tensor) -> bool:
    """Whether a tensor's class has a say in what is computed of it, and in what that gives."""
    kind = type(tensor)
    return kind not in PLAIN and (
        kind.__torch_function__ is not nn.Parameter.__torch_function__  # which has none
        or kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    )


class EmptyVectors:
    """Makes vectors that lie one behind the other in one memory, which takes PyTorch a fraction of
    the time of a tensor each.  No vector is a view to PyTorch: each has its own count of writes."""

    def __init__(self, sizes: Iterable[int], dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        #: The elements of each vector, and of each gap behind one.
        self._sizes: list[int] = []
        self._are_vectors: list[bool] = []
        for size in sizes:
            gap = -size % (ALIGNMENT // dtype.itemsize)
            self._sizes += [size, gap] if gap else [size]
            self._are_vectors += [True, False] if gap else [True]

    def __call__(self) -> Iterable[torch.Tensor]:
        """Vectors in which nothing is written."""
        memory = torch.empty(sum(self._sizes), dtype=self._dtype, device=self._device)
        return compress(torch.unsafe_split_with_sizes(memory, self._sizes), self._are_vectors)


class ExpectedTensors:
    """What tells whether tensors' memory is arrays of these types, on these devices.

    There may be hundreds, and the device may have nothing to do meanwhile.  So PyTorch compares all
    of them at once with the last that were as expected.  Where they differ, each attribute is
    looked at in one pass over all of them.
    """

    def __init__(self, types: Iterable[tuple[tuple[int, ...], torch.dtype, torch.device]]) -> None:
        every = list(types)
        self._shapes = [shape for shape, *_ in every]
        self._dtypes = [dtype for _, dtype, _ in every]
        self._devices = [device for *_, device in every]
        self._layouts = [torch.strided] * len(every)
        #: Tells whether tensors are like the last that were as expected.
        self._like_before: Any = None

    def __call__(self, tensors: Sequence[Any]) -> bool:
        return (
            len(tensors) == len(self._shapes)
            and PLAIN.issuperset(map(type, tensors))
            and not any(map(_IS_NESTED, tensors))  # these have no shape, which ends PyTorch's look
            and (self._are_like_before(tensors) or self._are_expected(tensors))
        )

    def _are_like_before(self, tensors: Sequence[Any]) -> bool:
        return self._like_before is not None and self._like_before.check(*tensors)

    def _are_expected(self, tensors: Sequence[Any]) -> bool:
        """What is not nested is looked at attribute by attribute, and remembered."""
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
