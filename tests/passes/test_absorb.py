"""absorb: contractions take what is point-wise around them, where that is cheaper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from minidnn.backends.cpu.target import CpuTarget
from minidnn.backends.cuda.target import CudaTarget
from minidnn.fusion.region import FusedContraction
from minidnn.fusion.target import Target
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Node
from minidnn.graph.trace import apply
from minidnn.passes.absorb import ABSORB
from minidnn.passes.infrastructure import Context
from tests.passes.build import (
    assert_same,
    constant,
    conv,
    expect,
    graph_of,
    join,
    linear,
    max_pool,
    ops_of,
    relu,
    run,
    scale,
)

X = (2, 4, 6, 6)


def add(a, b):
    return apply(ops.Add(), a, b)


def bodies(graph: Graph) -> list[list[str]]:
    """The operators inside of each fused contraction."""
    return [ops_of(n.op.body) for n in graph.nodes if isinstance(n.op, FusedContraction)]


def test_a_residual_goes_into_the_later_convolution() -> None:
    def build(t, x):
        a = relu(x)
        b = conv(t, relu(conv(t, a, 4, 3, bias=True)), 4, 3)
        return relu(add(b, a))

    before = graph_of(build, X)
    after = run(before, ABSORB)
    expect(
        after,
        """
        g(%x0: float32[2, 4, 6, 6]) {
          %relu: float32[2, 4, 6, 6] = ReLU()(%x0)
          %relu.1: float32[2, 4, 6, 6] = FusedContraction()(%relu)
            relu.1(%relu: float32[2, 4, 6, 6]) {
              %conv2d: float32[2, 4, 6, 6] = Conv2d(padding=((1, 1), (1, 1)))(%relu, @w1, @w1.bias)
              %relu.1: float32[2, 4, 6, 6] = ReLU()(%conv2d)
              return %relu.1
            }
          %relu.2: float32[2, 4, 6, 6] = FusedContraction()(%relu.1, %relu)
            relu.2(%relu.1: float32[2, 4, 6, 6], %relu: float32[2, 4, 6, 6]) {
              %conv2d.1: float32[2, 4, 6, 6] = Conv2d(padding=((1, 1), (1, 1)))(%relu.1, @w3)
              %add: float32[2, 4, 6, 6] = Add()(%conv2d.1, %relu)
              %relu.2: float32[2, 4, 6, 6] = ReLU()(%add)
              return %relu.2
            }
          return %relu.2
        }
        """,
    )
    assert_same(before, after)


@pytest.mark.parametrize("shortcut_first", [True, False])
def test_the_sum_of_two_convolutions_goes_into_the_one_that_stands_first(
    shortcut_first: bool,
) -> None:
    """Which then runs after the other, whose result it reads."""

    def build(t, x):
        if shortcut_first:
            shortcut = conv(t, x, 4)
        main = conv(t, relu(conv(t, x, 4, 3)), 4, 3)
        if not shortcut_first:
            shortcut = conv(t, x, 4)
        return relu(add(main, shortcut))

    before = graph_of(build, X)
    after = run(before, ABSORB)
    assert bodies(after) == [["Conv2d", "ReLU"], ["Conv2d", "Add", "ReLU"]]
    last = after.nodes[-1].op
    assert isinstance(last, FusedContraction)
    first = last.body.nodes[0].name
    assert first == ("conv2d" if shortcut_first else "conv2d.1")
    assert len(after.nodes) == 3
    assert_same(before, after)


def test_a_prologue_of_several_nodes_in_order() -> None:
    def build(t, x):
        return conv(t, relu(scale(t, x)), 8)

    before = graph_of(build, X)
    context = Context()
    after = run(before, ABSORB, context=context)
    assert bodies(after) == [["ScaleShift", "ReLU", "Conv2d"]]
    assert after.nodes[0].name == "conv2d", "a region is named after its last node"
    assert [str(r) for r in context.rewrites] == [
        "#1 absorb: conv2d takes relu (ReLU()) before it",
        "#2 absorb: conv2d takes scaleshift (ScaleShift()) before it",
    ]
    assert_same(before, after)


def test_linear_takes_both_sides() -> None:
    before = graph_of(lambda t, x: relu(linear(t, apply(ops.Tanh(), x), 5)), (3, 7))
    after = run(before, ABSORB)
    assert bodies(after) == [["Tanh", "Linear", "ReLU"]]
    assert_same(before, after)


@pytest.mark.parametrize(
    ("kernel", "options", "reason"),
    [
        (3, {}, "a 3x3 kernel would compute it for every tap"),
        (
            1,
            {"padding": ((0, 1), (0, 0))},
            "the convolution pads with zeros, which it would change",
        ),
    ],
)
def test_prologues_that_targets_refuse(kernel: int, options: dict[str, Any], reason: str) -> None:
    context = Context()
    before = graph_of(lambda t, x: conv(t, relu(x), 4, kernel, **options), X)
    assert run(before, ABSORB, context=context) is before
    assert context.notes == {"relu": f"not absorbed into conv2d: {reason}"}


def test_an_epilogue_that_broadcasts_the_result_is_refused() -> None:
    def build(t, x, y):
        return add(conv(t, x, 4), y)

    context = Context()
    before = graph_of(build, (2, 4, 1, 1), X)
    assert run(before, ABSORB, context=context) is before
    assert context.notes == {"add": "not absorbed into conv2d: it changes the shape"}


@pytest.mark.parametrize("target", [CpuTarget(), CudaTarget()])
@pytest.mark.parametrize("shape", [(8, 6, 6), (2, 1, 6, 1), (2, 8, 6, 6)])
def test_an_epilogue_with_a_constant_tensor_stays_outside(
    target: Target, shape: tuple[int, ...]
) -> None:
    """ONNX's BatchNormalization before opset 9 and PRelu read such; kernels take vectors only."""
    context = Context(target=target)
    before = graph_of(lambda t, x: add(conv(t, x, 8), constant(t, shape)), X)
    assert run(before, ABSORB, context=context) is before
    assert context.notes == {"add": "not absorbed into conv2d: it reads a constant tensor"}


def test_an_epilogue_that_broadcasts_its_other_operand() -> None:
    """Squeeze and excitation: a factor for every channel, computed apart."""

    def build(t, x):
        factor = apply(ops.Sigmoid(), conv(t, apply(ops.AdaptiveAvgPool2d((1, 1)), x), 4))
        return apply(ops.Mul(), conv(t, x, 4, 3), factor)

    before = graph_of(build, X)
    after = run(before, ABSORB)
    assert bodies(after) == [["Conv2d", "Sigmoid"], ["Conv2d", "Mul"]]
    assert_same(before, after)


def test_a_result_with_other_readers_or_as_an_output_is_left() -> None:
    def build(t, x):
        a, b = conv(t, x, 4), conv(t, x, 4)
        return relu(a), apply(ops.Tanh(), a), b, relu(b)

    before = graph_of(build, X)
    assert run(before, ABSORB) is before


def test_an_output_in_the_middle_ends_the_epilogue() -> None:
    def build(t, x):
        a = relu(conv(t, x, 4))
        return a, apply(ops.Tanh(), a)

    before = graph_of(build, X)
    after = run(before, ABSORB)
    assert bodies(after) == [["Conv2d", "ReLU"]]
    assert ops_of(after) == ["FusedContraction", "Tanh"]
    assert_same(before, after)


def test_a_prologue_with_other_readers_is_left() -> None:
    def build(t, x):
        a = relu(x)
        return conv(t, a, 4), conv(t, a, 2)

    before = graph_of(build, X)
    assert run(before, ABSORB) is before


def test_an_operand_that_reads_the_result_twice() -> None:
    def build(t, x):
        y = conv(t, x, 4)
        return apply(ops.Mul(), y, y)

    before = graph_of(build, X)
    after = run(before, ABSORB)
    assert bodies(after) == [["Conv2d", "Mul"]]
    assert_same(before, after)


def test_a_value_that_is_the_weight_too_is_no_prologue() -> None:
    def build(t, x):
        y = relu(x)
        return apply(ops.Linear(), y, y)

    before = graph_of(build, (6, 6))
    assert run(before, ABSORB) is before


def test_windows_and_joins_are_no_epilogue() -> None:
    def build(t, x):
        return max_pool(conv(t, x, 4)), join(conv(t, x, 4), x)

    before = graph_of(build, X)
    assert run(before, ABSORB) is before


def test_a_constant_tensor_in_the_epilogue_but_not_as_a_prologue() -> None:
    def build(t, x):
        c = constant(t, (1, 4, 6, 6), "c")
        return add(conv(t, x, 4), c), conv(t, relu(c), 4)

    before = graph_of(build, (1, 4, 6, 6))
    after = run(before, ABSORB)
    assert bodies(after) == [["Conv2d", "Add"]]
    assert_same(before, after)


def test_each_node_is_taken_once() -> None:
    """What lies between two convolutions goes to the first, as its epilogue."""
    before = graph_of(lambda t, x: conv(t, relu(conv(t, x, 4)), 4), X)
    after = run(before, ABSORB)
    assert bodies(after) == [["Conv2d", "ReLU"]]
    assert ops_of(after) == ["FusedContraction", "Conv2d"]


@pytest.mark.parametrize("seed", range(3))
def test_a_diamond_of_convolutions_makes_no_cycle(seed: int) -> None:
    """Each sum reads the other branch's earlier result: regions still stand in an order."""

    def build(t, x):
        a, b = conv(t, x, 4, 3), conv(t, x, 4, 3)
        left, right = relu(add(a, relu(b))), relu(add(conv(t, relu(b), 4), x))
        for _ in range(seed):
            left, right = (
                relu(add(conv(t, left, 4, 3), right)),
                relu(add(conv(t, right, 4, 3), left)),
            )
        return left, right

    before = graph_of(build, X)
    after = run(before, ABSORB)
    assert len(bodies(after)) >= 2
    assert_same(before, after)


@dataclass(frozen=True)
class Slow(Target):
    """A target on which everything inside a contraction takes a second."""

    def epilogue_seconds(self, contraction: Node, nodes: Sequence[Node], reads: int) -> float:
        return 1.0 * len(nodes)

    def prologue_seconds(self, contraction: Node, nodes: Sequence[Node]) -> float:
        return 1.0


def test_prices_decide_and_are_noted() -> None:
    context = Context(Slow())
    before = graph_of(lambda t, x: apply(ops.Softmax(1), apply(ops.Tanh(), conv(t, relu(x), 4))), X)
    assert run(before, ABSORB, context=context) is before
    assert list(context.notes) == ["tanh", "relu"]
    for note in context.notes.values():
        assert note.startswith("not absorbed into conv2d: 1000000.0 us inside, ")
        assert note.endswith(" us outside")


def test_fuel_gives_prefixes() -> None:
    def build(t, x):
        return relu(add(conv(t, relu(scale(t, x)), 4), x))

    before = graph_of(build, X)
    full = Context()
    run(before, ABSORB, context=full)
    assert len(full.rewrites) == 4
    sizes = []
    for fuel in range(6):
        context = Context(fuel=fuel)
        after = run(before, ABSORB, context=context)
        assert context.rewrites == full.rewrites[:fuel]
        assert_same(before, after)
        sizes.append(len(after.nodes))
    assert sizes == [5, 4, 3, 2, 1, 1]


def test_the_contract() -> None:
    assert ABSORB.requires == ("simplify", "fold_batch_norm")
