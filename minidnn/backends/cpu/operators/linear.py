"""Linear layers of few rows whose weight changes from run to run: it is read as it lies.

Packing the weight would move it twice more than the product itself, which reads it once.  Rows lie
in lanes for that: the input is turned first, and the result back.  Sums are added up in the order
of the direct algorithm, so the bits are those of a weight that is packed.
"""

from __future__ import annotations

from math import prod

from ....fusion.contraction import Parts
from ....graph.ir import Constant, Node
from ....graph.operators import Linear, Transpose
from ..contraction import choose_by_price, question_of
from ..contraction.scheme import Scheme
from ..contraction.stage import Pointer, Stage, Workspace
from ..isa import Isa
from ..tensor import Tensor
from .indexing import print_move
from .matmul import product_stage
from .staged import Staged

FEW_ROWS = 64
"""With more rows, packing the weight is a small part of the time."""


def reads_weight_as_it_lies(node: Node, accuracy: str) -> bool:
    """Whether a node is such a layer."""
    if not isinstance(node.op, Linear) or isinstance(node.inputs[1], Constant):
        return False
    few = prod(node.output.shape[:-1]) <= FEW_ROWS
    return few and accuracy != "high" and all(v.dtype == "float32" for v in node.inputs)


def print_linear(node: Node, isa: Isa) -> Staged:
    """The kernels; the pointers are the operands and the output."""
    outputs, features = node.inputs[1].shape
    rows, result = prod(node.output.shape[:-1]), len(node.inputs)
    turned, products = Workspace(0), Workspace(-(-4 * rows * features // 64) * 64)
    product = product_stage(
        (outputs, rows, features),
        (1, turned, products),
        isa,
        parts=_parts(node, rows, isa),
        start=2 if result == 3 else None,
    )
    stages = (
        _turn((rows, features), 0, turned),
        product,
        _turn((outputs, rows), products, result),
    )
    return Staged(stages, products.offset + 4 * rows * outputs)


def _parts(node: Node, rows: int, isa: Isa) -> tuple[int, int]:
    """Products of a chunk, and of a part, of the direct algorithm's sums."""
    tensors = [Tensor(v.shape[-1], 1, 1, 1, v.shape[-1]) for v in (node.inputs[0], node.output)]
    question = question_of(Parts(node), rows, tensors[0], (), tensors[1], isa)
    scheme = choose_by_price(question).scheme
    assert isinstance(scheme, Scheme) and scheme.part and not scheme.compensated
    return scheme.chunk * scheme.unit, scheme.part * scheme.unit


def _turn(shape: tuple[int, int], source: Pointer, result: Pointer) -> Stage:
    move = print_move(Transpose((1, 0)).index_map(shape), "float32")
    return Stage(move.source, (source, result, lambda: move.sizes), move.tasks, move.grain)
