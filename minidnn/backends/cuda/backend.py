"""The CUDA backend: generated kernels and cuDNN, on one NVIDIA GPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ...errors import DeviceError, GraphError
from ...fusion.functions import LayerFunction
from ...fusion.region import FusedContraction, FusedElements, parts_of
from ...fusion.region import Region as FusedRegion
from ...fusion.target import Target
from ...gpu import cupy
from ...graph import operators as ops
from ...graph.index_map import Indexed
from ...graph.ir import Node, Value
from ...graph.operator import Contraction, Elementwise, Reshaping, Windowed
from ...graph.types import FLOATS, INT8_DTYPES
from ...runtime.agreement import agree_on_sums
from ...runtime.plan import Plan
from ...runtime.program import Program
from ..options import (
    accuracy_option,
    any_size_option,
    check_options,
    memory_limit_option,
    tune_option,
)
from .captured import on_device
from .contraction.int8_filter import why_not_bytes
from .expressions import STORED
from .machine import machine_of
from .memory import told
from .nvrtc import why_unusable
from .prelude import TYPES
from .target import STORAGE, CudaTarget

OLDEST = (8, 0)
"""The oldest compute capability that generated kernels are written for."""

#: Operators that have kernels; dtypes are those of :data:`.prelude.TYPES`, but for those below.
_KNOWN = (
    FusedRegion,
    LayerFunction,
    Contraction,
    ops.Conv2dInputGradient,
    ops.Conv2dWeightGradient,
    ops.Softmax,
    ops.LogSoftmax,
    ops.AdaptiveAvgPool2d,
    ops.GroupNorm,
    ops.LayerNorm,
    ops.MatMul,
    ops.Reorder,
    ops.Variance,
    Windowed,
)
#: Operators whose kernels take every dtype of :data:`.expressions.STORED`.
_OF_ANY_DTYPE = (
    *(Elementwise, FusedElements, Indexed, Reshaping),
    *(ops.ArgMax, ops.Concat, ops.Gather, ops.RandomDrop, ops.Reduce, ops.TakeChannels),
    ops.SumOverRanks,
)
#: Operators that take some integers: products, which are checked on their own, and copies of their
#: int32 sums.
_WITH_WHOLE = (Contraction, FusedContraction, ops.MatMul, ops.Reorder)
#: Operators that add numbers one after another in the dtype of the values, which is too coarse in
#: half precision.
_IN_FULL = (ops.ScatterAdd,)


class CudaBackend:
    """Generated CUDA kernels and cuDNN on the GPU of an index."""

    name = "cuda"
    keeps_states = True
    any_size_options: Mapping[str, Any] = {"any_size": True}
    of_one_size = INT8_DTYPES

    def __init__(self, index: int = 0) -> None:
        self.index = index

    def unavailable(self) -> str | None:
        if importlib.util.find_spec("cupy") is None:
            return "CuPy is not installed; pip install 'minidnn[cuda]'"
        try:
            machine = machine_of(self.index)
        except DeviceError as error:
            return str(error)
        if machine.capability < OLDEST:
            have, need = (".".join(map(str, pair)) for pair in (machine.capability, OLDEST))
            return f"{machine.name} has compute capability {have}; at least {need} is needed"
        from ... import cudnn

        return cudnn.why_unavailable() or why_unusable()

    def precisions(self) -> Sequence[str]:
        return tuple(STORAGE)

    def target(self, precision: str, options: Mapping[str, Any]) -> Target:
        device = machine_of(self.index).device(precision)
        return CudaTarget(device, precision, any_size_option(options))

    def unsupported(self, node: Node, precision: str) -> str | None:
        if not isinstance(node.op, (*_KNOWN, *_OF_ANY_DTYPE, *_IN_FULL)):
            return f"there is no kernel for {node.op.name}"
        if (reason := _why_not_whole(node, precision)) is not None:
            return reason
        dtypes = tuple(STORED if isinstance(node.op, (*_OF_ANY_DTYPE, *_WITH_WHOLE)) else TYPES)
        dtypes = ("float32", "int32", "int64") if isinstance(node.op, _IN_FULL) else dtypes
        for value in (*node.inputs, *node.outputs):
            if value.dtype not in dtypes:
                return f"{value!r} is none of {', '.join(dtypes)}"
        return None

    def compile(self, plan: Plan, precision: str, options: Mapping[str, Any]) -> Program:
        # A process that only loads stored programs does not need these modules.
        from .lower import lower_plan
        from .program import CudaProgram

        valid = ("accuracy", "deterministic", "memory_limit", "tune", "any_size")
        check_options("cuda", options, valid)
        any_size = any_size_option(options)
        tune = tune_option(options, "heuristic" if any_size else "quick")
        # Without Winograd and FFT, all remaining algorithms add up products.
        accuracy = "normal" if accuracy_option(options) == "normal" else "high"
        limit, deterministic = memory_limit_option(options), _deterministic(options)
        machine = machine_of(self.index)
        with told(), on_device(self.index):  # there may be no room for CUDA's context
            _, memory = cupy().cuda.runtime.memGetInfo()
            plan.check_fits(memory, machine.name)
            others = tune == "exhaustive"
            agree_on_sums(plan.graph)
            lower = partial(
                lower_plan,
                machine=machine,
                tf32=precision == "tf32",
                accuracy=accuracy,
                others=others,
                deterministic=deterministic,
                any_size=any_size,
            )
            return CudaProgram(plan, lower(plan), self.index, machine, tune, limit, lower)


def _why_not_whole(node: Node, precision: str) -> str | None:
    """Why a node does not compute with the integers that it reads or writes; None if it does."""
    if STORAGE[precision] != "float32" and (value := _quantized(node)) is not None:
        valid = ", ".join(name for name, storage in STORAGE.items() if storage == "float32")
        return f"{value!r} is quantized, which is not computed in {precision}; valid are {valid}"
    if isinstance(node.op, (Contraction, FusedContraction)):
        return why_not_bytes(parts_of(node))
    return None


def _quantized(node: Node) -> Value | None:
    """A value of a node that is quantized: int8 or computed as uint8, or int32 sums of products of
    these.  A uint8 value that is only read is not: it may be a picture's pixels."""
    makes = isinstance(node.op, (Elementwise, Contraction, ops.MatMul))
    for value in (*node.inputs, *node.outputs):
        is_computed = makes and value.producer is node
        if value.dtype == "int8" or (is_computed and value.dtype == "uint8"):
            return value
        if is_computed and value.dtype not in FLOATS and not isinstance(node.op, Elementwise):
            return value
    return None


def _deterministic(options: Mapping[str, Any]) -> bool:
    deterministic = options.get("deterministic", True)
    if type(deterministic) is not bool:
        raise GraphError(f"deterministic={deterministic!r}; valid are True and False")
    return deterministic
