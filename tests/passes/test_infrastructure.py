"""Running passes: requirements, names in errors, observers, fuel."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import pairwise

import pytest

from minidnn.errors import GraphError, UnsupportedError
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Node, Rewriter
from minidnn.graph.layout import PLANAR
from minidnn.graph.trace import apply
from minidnn.memory import Annotations, BufferView
from minidnn.passes.absorb import ABSORB
from minidnn.passes.infrastructure import Context, Pass, Rewrite, run_passes
from minidnn.passes.pipeline import PIPELINE, optimize
from tests.passes.build import assert_same, conv, graph_of, join, max_pool, norm, relu, scale

X = (1, 4, 6, 6)


def network() -> Graph:
    """Something for every pass to rewrite."""

    def build(t, x):
        conv(t, x, 2)  # dead
        y = relu(norm(t, conv(t, apply(ops.Dropout(), x), 4, 3)))
        a, b = conv(t, y, 4), relu(scale(t, max_pool(y)))
        z = join(a, b, conv(t, b, 2))
        return apply(ops.Flatten(), apply(ops.AdaptiveAvgPool2d((1, 1)), conv(t, z, 3, 3)))

    return graph_of(build, X)


def same(graph: Graph, context: Context) -> Graph:
    return graph


def test_a_missing_requirement_names_both_passes() -> None:
    with pytest.raises(
        GraphError, match=r"^pass absorb requires simplify, fold_batch_norm to run before it$"
    ):
        run_passes(network(), PIPELINE[PIPELINE.index(ABSORB) :], Context())
    with pytest.raises(GraphError, match=r"^pass second requires first to run before it$"):
        passes = [Pass("second", same, requires=("first",)), Pass("first", same)]
        run_passes(network(), passes, Context())


def test_the_pipelines_own_order_is_legal() -> None:
    names = [step.name for step in PIPELINE]
    assert names == [
        "freeze",
        "keep_layers",
        "multiply_int8",
        "transpose_linear",
        "contract_matrices",
        "compose_gradients",
        "share_sums",
        "compose_variance",
        "repeat_inside",
        "drop_samples",
        "view_channels",
        "simplify",
        "take_channels",
        "share_concats",
        "compose_branches",
        "fold_pad",
        "fold_bias",
        "linear_to_conv",
        "fold_batch_norm",
        "hoist_pooling",
        "sink_pooling",
        "reduce_precision",
        "mix_precision",
        "matmul_to_linear",
        "attend",
        "transpose_products",
        "rederive",
        "absorb",
        "normalize_channels",
        "sum_columns",
        "fuse_rows",
        "compose_vectors",
        "global_pools_to_means",
        "sum_together",
        "store_summed",
        "depth_first",
        "fuse_plane_reductions",
        "compute_together",
        "launch_together",
        "fuse_epilogue_reductions",
        "fuse_producers",
        "layout",
        "concat_in_place",
        "slice_in_place",
        "schedule",
        "overlap_rank_sums",
        "recompute",
        "batch_tiling",
        "update_in_place",
    ]
    for i, step in enumerate(PIPELINE):
        assert set(step.requires) <= set(names[:i])


@pytest.mark.parametrize("kind", [GraphError, UnsupportedError])
def test_an_error_names_the_pass_and_keeps_its_kind(kind: type[Exception]) -> None:
    def fail(graph: Graph, context: Context) -> Graph:
        raise kind("something is wrong")

    with pytest.raises(kind, match=r"^pass broken: something is wrong$") as caught:
        run_passes(network(), [Pass("broken", fail)], Context())
    assert isinstance(caught.value.__cause__, kind)


def test_a_bug_in_a_pass_is_not_disguised_but_named() -> None:
    def fail(graph: Graph, context: Context) -> Graph:
        return graph.nodes[100]  # type: ignore[return-value]

    with pytest.raises(IndexError) as caught:
        run_passes(network(), [Pass("broken", fail)], Context())
    assert caught.value.__notes__ == ["in pass broken"]


def test_an_illegal_graph_is_found_behind_the_pass_that_made_it() -> None:
    def reverse(graph: Graph, context: Context) -> Graph:
        return Graph(graph.inputs, graph.outputs, graph.nodes[::-1], graph.name)

    steps = [Pass("fine", same), Pass("reverse", reverse)]
    with pytest.raises(GraphError, match=r"^pass reverse: graph 'g' is not legal:\n") as caught:
        run_passes(network(), steps, Context(), verify=True)
    assert "reads %" in str(caught.value)
    run_passes(network(), steps, Context())


def test_annotations_of_another_graph_are_found() -> None:
    """Values and nodes that a pass replaced after they had been annotated."""

    def renew(graph: Graph, context: Context) -> Graph:
        rewriter = Rewriter(graph)
        for node in graph.nodes:
            new = rewriter.add(node.op, list(map(rewriter.value, node.inputs)), node.name)
            for old, value in zip(node.outputs, new.outputs, strict=True):
                rewriter.replace(old, value)
        return rewriter.finish()

    def reorder(graph: Graph, context: Context) -> Graph:
        return Graph(graph.inputs, graph.outputs, (*graph.nodes[1:], graph.nodes[0]), graph.name)

    graph = network()
    first, second = graph.nodes[0].output, graph.nodes[1].output
    lost = "annotations have %{}: .*, which is not in the graph$"
    for found, change, text in (
        (Annotations({first: PLANAR}), renew, lost.format(first.name)),
        (Annotations(placements={first: BufferView(second, 0)}), renew, lost.format(first.name)),
        (
            Annotations(groups=(graph.nodes[:2],)),
            reorder,
            "conv2d to dropout are computed image after image, but do not follow each other",
        ),
    ):
        run_passes(graph, [Pass("p", same)], Context(annotations=found), verify=True)
        with pytest.raises(GraphError, match=rf"^pass p: {text}"):
            run_passes(graph, [Pass("p", change)], Context(annotations=found), verify=True)


def test_all_broken_facts_are_named() -> None:
    def no_relu(graph: Graph) -> Iterator[str]:
        yield from (f"node {n.name!r} is a ReLU" for n in graph.nodes if n.op.name == "ReLU")

    step = Pass("p", same, ensures=(no_relu, no_relu))
    expected = "pass p broke its contract: " + "; ".join(
        ["node 'relu' is a ReLU", "node 'relu.1' is a ReLU"] * 2
    )
    with pytest.raises(GraphError) as caught:
        run_passes(network(), [step], Context(), verify=True)
    assert str(caught.value) == expected


def test_observers_see_every_pass_with_both_graphs() -> None:
    seen: list[tuple[Pass, Graph, Graph]] = []
    graph = network()
    result = optimize(graph, observe=lambda *args: seen.append(args))
    assert [step.name for step, _, _ in seen] == [step.name for step in PIPELINE]
    assert seen[0][1] is graph
    assert seen[-1][2] is result
    for (_, _, after), (_, before, _) in pairwise(seen):
        assert after is before


def test_rewrites_are_numbered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    context = Context()
    with caplog.at_level(logging.DEBUG, "minidnn.passes.infrastructure"):
        optimize(network(), context)
    assert [r.number for r in context.rewrites] == list(range(1, len(context.rewrites) + 1))
    assert caplog.messages == [str(r) for r in context.rewrites]
    assert context.rewrites[0] == Rewrite(1, "simplify", "drop conv2d, which nobody reads")
    used = {rewrite.pass_name for rewrite in context.rewrites}
    assert used >= {"simplify", "fold_batch_norm", "absorb", "depth_first", "concat_in_place"}


def test_fuel_none_means_all_and_zero_none() -> None:
    graph = network()
    context = Context(fuel=0)
    result = optimize(graph, context, verify=True)
    assert context.rewrites == []
    assert result.nodes == graph.nodes


def test_fuel_k_makes_the_first_k_rewrites() -> None:
    """The prefix property: a result that changes at fuel k is the k-th rewrite's doing."""
    graph = network()
    full = Context()
    optimize(graph, full)
    count = len(full.rewrites)
    assert count >= 10
    before: tuple[Node, ...] = graph.nodes
    changed = 0
    for fuel in range(count + 2):
        context = Context(fuel=fuel)
        result = optimize(graph, context, verify=True)
        assert context.rewrites == full.rewrites[:fuel]
        assert_same(graph, result, 1e-5)
        changed += result.nodes != before
        before = result.nodes
    assert changed >= count - 4, "rewrites that change no nodes place values"
