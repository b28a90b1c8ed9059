"""What passes ask of a backend: refusals with reasons, and prices.

The methods here are the device-free answers, from the device's figures alone.  A backend
overrides those that it knows better.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from minidnn.errors import UnsupportedError
from minidnn.fusion.attention import FusedAttention, FusedAttentionGradient
from minidnn.fusion.device import TWO_CORES, Device
from minidnn.fusion.functions import LibraryFunction, LibraryFunctions
from minidnn.fusion.region import (
    FusedContraction,
    FusedElements,
    FusedGradient,
    FusedNormalization,
    FusedSequence,
    FusedSums,
    MakeRegion,
    Region,
)
from minidnn.fusion.rows import FusedRows
from minidnn.fusion.stacks import Groups, computes_in_several
from minidnn.graph.ir import Constant, Node, Value
from minidnn.graph.layout import PLANAR, Layout
from minidnn.graph.operator import Contraction
from minidnn.graph.operators import Conv2d

#: Former names of methods, by which backends of others may still define them.
_FORMER_NAMES = {
    "adds_planes": "fuses_spatial_sums",
    "multiplies_bytes": "multiplies_int8",
    "refuse_by_image": "refuse_batch_tiling",
    "turns_products": "transposes_products",
}
#: Former methods that nothing asks any more: regions are refused by ``refuse_fusion``.
_FORMER_REFUSALS = (
    *("refuse_attention", "refuse_attention_gradient", "refuse_channel_norm", "refuse_front"),
    *("refuse_producer", "refuse_rows", "refuse_statistics", "refuse_summed"),
    *("refuse_summed_gradient", "refuse_sums", "stores_summed"),
)

_ADDS = "this device adds up stored values"
_ATTENDS = "this device multiplies matrices one batch after the other"
_NO_KERNEL = "this device has no kernel for it"
#: Why a target that says nothing else has no kernel for a kind of region.
_REFUSALS: Mapping[type[Region], str] = {
    **dict.fromkeys((FusedContraction, FusedSequence, FusedSums), _ADDS),
    **dict.fromkeys((FusedAttention, FusedAttentionGradient), _ATTENDS),
    FusedGradient: "this device stores what gradients are computed from, and adds up stored values",
    FusedNormalization: "this device normalizes rows",
    FusedRows: "this device stores the results of reductions",
}


@dataclass(frozen=True)
class Target:
    """A device, and what can be computed on it in which way."""

    device: Device = TWO_CORES

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for former, name in _FORMER_NAMES.items():
            if former in cls.__dict__:
                message = f"{cls.__name__}.{former} is called {name} now"
                warnings.warn(message, DeprecationWarning, stacklevel=2)
                setattr(cls, name, cls.__dict__[former])
        for former in _FORMER_REFUSALS:
            if former in cls.__dict__:
                raise TypeError(f"{cls.__name__}.{former}: passes ask {cls.__name__}.refuse_fusion")

    @property
    def storage(self) -> str | None:
        """The dtype in which float32 values are kept; None for float32 itself."""
        return None

    @property
    def keeps_interface(self) -> bool:
        """Whether inputs and outputs of a graph stay float32 though other values do not."""
        return False

    @property
    def multiplies_int8(self) -> bool:
        """Whether contractions of int8 and uint8 are computed, and faster than those of floats."""
        return False

    @property
    def prefers_linear(self) -> bool:
        """Whether linear layers in bfloat16 are faster than matrix products."""
        return False

    @property
    def contracts_matrices(self) -> bool:
        """Whether gradients of 1x1 convolutions are faster than matrix products."""
        return False

    @property
    def transposes_products(self) -> bool:
        """Whether batched matrix products read and write matrices whose axes are permuted."""
        return False

    @property
    def any_size(self) -> bool:
        """Whether kernels are compiled once for planes of any size."""
        return False

    @property
    def drops_in_stacks(self) -> bool:
        """Whether a stack that drops samples, by random numbers that were drawn before, is faster
        than a kernel that draws them."""
        return False

    def layer_functions(self, node: Node) -> LibraryFunctions | str:
        """The functions that a library has for a node, or why it has none."""
        return "this device has no library of layers"

    def product_gradient(self, node: Node, operand: int) -> LibraryFunction | None:
        """The function that a library has for the gradient of a convolution or linear layer for an
        operand, where that gradient is no node that it has a function for."""
        return None

    def refuse_strategy(self, strategy: str) -> str | None:
        """Why nothing can be compiled under a strategy; None if it can."""
        return "valid is device='cuda'" if strategy == "cudnn" else None

    def seconds(self, operations: float, bytes: int, contraction: bool = False) -> float:
        """A region's predicted time: the larger of arithmetic and memory, and the overhead."""
        device = self.device
        peak = device.contraction_operations if contraction else device.operations
        return device.overhead + max(operations / peak, bytes / device.bandwidth)

    def compute_seconds(self, node: Node) -> float:
        """A node's predicted time without memory traffic."""
        nodes = node.op.body.nodes if isinstance(node.op, Region) else (node,)
        contracts = any(isinstance(inner.op, Contraction) for inner in nodes)
        device = self.device
        return _operations((node,)) / (
            device.contraction_operations if contracts else device.operations
        )

    def weight_bytes(self, node: Node) -> int:
        """Bytes of the constants that a node reads, as it reads them."""
        nodes = node.op.body.nodes if isinstance(node.op, Region) else (node,)
        constants = (v for inner in nodes for v in inner.inputs if isinstance(v, Constant))
        return sum(value.type.bytes for value in dict.fromkeys(constants))

    def refuse_convolution_gradient(self, node: Node) -> str | None:
        """Why a gradient of a convolution must be composed of convolutions; None if the device
        computes it as one."""
        return None

    def refuse_fusion(self, region: Region) -> str | None:
        """Why nodes cannot be fused to a region, which is to be one kernel; None if they can.

        Passes ask this before they make a region.  Here, contractions take the operators around
        them that :meth:`refuse_prologue` and :meth:`refuse_epilogue` let pass, and stacks are
        computed patch by patch; other regions are refused.
        """
        if isinstance(region, FusedContraction) and not region.reductions:
            return self.refuse_around(region)
        if isinstance(region, FusedSequence) and not region.summed:
            return None
        return (
            None if isinstance(region, FusedElements) else _REFUSALS.get(type(region), _NO_KERNEL)
        )

    def refuse_around(self, region: FusedContraction) -> str | None:
        """Why point-wise operators cannot be prologue and epilogue of a contraction; None if they
        can."""
        core = region.core
        before = (self.refuse_prologue(core, node) for node in region.prologue)
        after = (self.refuse_epilogue(core, node) for node in region.epilogue)
        return next((reason for reason in chain(before, after) if reason is not None), None)

    def refuse_prologue(self, contraction: Node, node: Node) -> str | None:
        """Why ``node`` cannot be computed while the contraction reads its input; None if it can."""
        op = contraction.op
        if (reason := self.refuse_mixed(node)) is not None:
            return reason
        if isinstance(op, Conv2d):
            kernel = contraction.inputs[1].shape[2:]
            if kernel != (1, 1):
                return f"a {kernel[0]}x{kernel[1]} kernel would compute it for every tap"
            if op.padding != ((0, 0), (0, 0)):
                return "the convolution pads with zeros, which it would change"
        return None

    def refuse_epilogue(self, contraction: Node, node: Node) -> str | None:
        """Why ``node`` cannot be computed on the contraction's results; None if it can."""
        if node.output.shape != contraction.output.shape:
            return "it changes the shape"
        return self.refuse_mixed(node)

    def refuse_mixed(self, node: Node) -> str | None:
        """Why ``node`` cannot be computed in a contraction's kernel because of its dtypes; None if
        it can."""
        return computes_in_several(node)

    @property
    def adds_columns(self) -> bool:
        """Whether sums over all axes but the last are faster as sums of a matrix's columns."""
        return False

    @property
    def fuses_spatial_sums(self) -> bool:
        """Whether sums of planes are computed in sweeps, too, which may then read one element for
        each plane."""
        return False

    @property
    def computes_together(self) -> bool:
        """Whether element-wise operators outside of stacks are fused with others of the same shape
        into one kernel: where each launch takes some time."""
        return False

    def prologue_seconds(self, contraction: Node, nodes: Sequence[Node]) -> float:
        """Predicted extra time of absorbing ``nodes`` as a prologue."""
        return _operations(nodes) / self.device.operations

    def epilogue_seconds(self, contraction: Node, nodes: Sequence[Node], reads: int) -> float:
        """Predicted extra time of absorbing ``nodes``, which read ``reads`` bytes of other
        tensors, as an epilogue."""
        return max(_operations(nodes) / self.device.operations, reads / self.device.bandwidth)

    def layouts(self, node: Node) -> tuple[Layout, ...]:
        """The layouts in which a node can read and write its values, the preferred one first."""
        return (PLANAR,)

    def reads(self, node: Node, value: Value, layout: Layout) -> Layout:
        """The layout in which a node that runs in ``layout`` reads one of its operands."""
        return layout

    def reads_any(self, node: Node, value: Value) -> bool:
        """Whether a node reads a value in whatever layout it is made, at no notable cost."""
        return False

    def layout_seconds(self, node: Node, layout: Layout) -> float:
        """Predicted time of a node in a layout, over that in its preferred one."""
        return 0.0

    def slice_seconds(self, node: Node, value: Value) -> float:
        """Predicted extra time of a node's writing ``value`` into a slice of a wider buffer."""
        return 0.0

    def refuse_batch_tiling(self, node: Node) -> str | None:
        """Why a node cannot be computed for one image of a batch at a time; None if it can."""
        return "this device computes whole batches"

    def refuse_slice(self, node: Node, value: Value, channel: int) -> str | None:
        """Why a node cannot write ``value`` into a wider buffer, from ``channel`` on; None if it
        can."""
        return None

    def refuse_part(self, node: Node, value: Value, channel: int) -> str | None:
        """Why a node cannot read ``value`` in a wider buffer, from ``channel`` on; None if it
        can."""
        return None


@dataclass(frozen=True, eq=False)
class Proposal:
    """Nodes that a rule would make one region of.

    Attributes:
        nodes: the nodes, in the graph's order.  They may include all nodes of regions that were
            accepted before, which the new region then replaces.
        make: makes the region of the graph of these nodes.
        rewrite: what is done, as the list of rewrites says it.
        about: the node whose note gives the reason if the proposal is not accepted.
        apart: what is the case then, which the note begins with; nothing is noted without it.
        inside: the predicted seconds of the nodes in the region.
        outside: the predicted seconds of the nodes outside of it.
    """

    nodes: Sequence[Node]
    make: MakeRegion
    rewrite: str
    about: Node
    apart: str = ""
    inside: float = 0.0
    outside: float = 0.0


Rule = Callable[[Groups, Target], Iterator[Proposal]]
"""Yields proposals for the graph of the groups.  Once a proposal is accepted, its nodes are one
group."""


def check_target(target: Target, device: str, strategy: str) -> Target:
    """The target; UnsupportedError if nothing can be compiled for it under a strategy."""
    if (reason := target.refuse_strategy(strategy)) is not None:
        raise UnsupportedError(f"strategy={strategy!r} on device {device!r}; {reason}")
    return target


def _operations(nodes: Sequence[Node]) -> int:
    return sum(
        node.op.operations(tuple(v.type for v in node.inputs), tuple(v.type for v in node.outputs))
        for node in nodes
    )
