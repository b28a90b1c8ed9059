"""overlap_rank_sums: where sums over ranks begin, and what lives until they are done."""

from __future__ import annotations

from typing import Any

import pytest

import minidnn as md
from minidnn.backends.cuda.target import CudaTarget
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Value
from minidnn.graph.trace import Trace, apply
from minidnn.memory import Annotations, awaited, lifetimes
from minidnn.passes.in_place import OVERLAP_RANK_SUMS
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from minidnn.runtime.plan import make_plan
from minidnn.training.step import Objective, Ranks, step_graph
from tests.cuda.cards import H200
from tests.passes.build import assert_same, conv, graph_of, run

X = (2, 3)


def summed(x: Value, beside: bool = True) -> Any:
    return apply(ops.SumOverRanks(1, beside), x)


def chain(trace: Trace, x: Any) -> list[Value]:
    """Each sum, and what is made of it, stands where the next value is computed."""
    found = []
    for _ in range(3):
        x = x * 2.0
        found.append(summed(x) + 1.0)
    return [*found, x]


def names(graph: Graph) -> list[str]:
    return [node.name for node in graph.nodes]


def test_sums_begin_at_once_and_what_needs_them_comes_last() -> None:
    before = graph_of(chain, X)
    after = run(before, OVERLAP_RANK_SUMS)
    sums = ["sumoverranks", "sumoverranks.1", "sumoverranks.2"]
    assert names(after)[:6] == [
        n for pair in zip(names(before)[::3], sums, strict=True) for n in pair
    ]
    assert names(after)[6:] == names(before)[2::3]
    assert_same(before, after)


def test_order_of_what_depends_on_several_is_that_of_the_last() -> None:
    def build(trace: Trace, x: Any) -> list[Value]:
        one, other = summed(x * 2.0), summed(x * 3.0)
        both = one + other
        return [both, one - 1.0, both * 2.0]

    after = run(graph_of(build, X), OVERLAP_RANK_SUMS)
    kinds = [node.op.name for node in after.nodes]
    assert kinds == ["Mul", "SumOverRanks", "Mul", "SumOverRanks", "Sub", "Add", "Mul"]


def test_what_only_sums_need_is_computed_at_once() -> None:
    """Gradients and their casts, which an order for little memory leaves to the end; not what
    others read, too."""

    def build(trace: Trace, x: Any) -> list[Value]:
        one = conv(trace, x, 4)
        two = conv(trace, one, 4)
        three = conv(trace, two, 4)
        both = two + 1.0
        cast = (one * 2.0).reshape((-1,)) * 3.0
        late = conv(trace, x, 4)
        return [summed(cast), summed(both), summed(late), three, both]

    before = graph_of(build, (1, 4, 2, 2))
    after = run(before, OVERLAP_RANK_SUMS)
    assert [node.op.name for node in after.nodes] == [
        *("Conv2d", "SumOverRanks", "Conv2d", "Mul", "View", "Mul", "SumOverRanks"),
        *("Conv2d", "Conv2d", "Add", "SumOverRanks"),
    ]
    assert_same(before, after)


def test_buckets_of_a_step_begin_while_gradients_are_computed() -> None:
    """Of resnet18 in half precision, whose gradients are cast: when all buckets but the last are on
    their way, more than half of the products of the backward pass are still to come."""
    graph = step_graph(
        md.models.resnet18(),
        [(8, 3, 64, 64)],
        Objective(md.losses.CrossEntropy(), {}),
        md.optim.SGD(0.1, momentum=0.9),
        ranks=Ranks(2),
    )
    context = Context(CudaTarget(H200.device("bfloat16"), "bfloat16"))
    nodes = optimize(graph, context).nodes
    kinds = (ops.Conv2dInputGradient, ops.Conv2dWeightGradient)
    products = [i for i, node in enumerate(nodes) if isinstance(node.op, kinds)]
    left = {
        node.name: sum(i > at for i in products) for at, node in enumerate(nodes) if node.op.lasts
    }
    *early, last = left.values()
    assert len(early) >= 2 and min(early) > len(products) / 2 and last == 0, left


def test_statistics_stay_where_they_are_needed() -> None:
    def build(trace: Trace, x: Any) -> Value:
        found: Value = summed(x * 2.0, beside=False) + 1.0
        return found

    before = graph_of(build, X)
    assert names(run(before, OVERLAP_RANK_SUMS)) == names(before)


def test_it_takes_fuel() -> None:
    before = graph_of(chain, X)
    assert names(run(before, OVERLAP_RANK_SUMS, context=Context(fuel=0))) == names(before)


def test_operands_live_until_a_result_is_read() -> None:
    after = run(graph_of(chain, X), OVERLAP_RANK_SUMS)
    found = {life.value.name: life for life in lifetimes(after, Annotations())}
    for operand, total, reader in zip(range(0, 6, 2), range(1, 6, 2), range(6, 9), strict=True):
        made = after.nodes[operand].output
        if made not in after.outputs:
            assert found[made.name].last == reader, "the sum may still read it"
        assert found[after.nodes[total].output.name].first == total
    assert awaited(after) == {6 + i: [after.nodes[1 + 2 * i]] for i in range(3)}


def test_what_nobody_reads_is_waited_for_at_the_end() -> None:
    def build(trace: Trace, x: Any) -> list[Value]:
        y = x * 2.0
        return [summed(y), y * 3.0 - 1.0]

    graph = graph_of(build, X)
    assert awaited(graph) == {len(graph.nodes): [graph.nodes[1]]}
    (life,) = [each for each in lifetimes(graph, Annotations()) if each.value.name == "mul"]
    assert life.last == len(graph.nodes) - 1
    make_plan(graph, Context())


@pytest.mark.parametrize("ranks", [0, -1, True, 1.0])
def test_numbers_of_ranks_are_checked(ranks: Any) -> None:
    with pytest.raises(Exception, match=rf"ranks={ranks}; valid is an int of at least 1"):
        ops.SumOverRanks(ranks)
