"""normalize_channels: layer normalizations between two moves of channels."""

from __future__ import annotations

from dataclasses import dataclass

from minidnn.fusion.region import FusedNormalization, Region
from minidnn.fusion.target import Target
from minidnn.graph import operators as ops
from minidnn.graph.ir import Graph, Value
from minidnn.graph.trace import apply
from minidnn.passes.channels import NORMALIZE_CHANNELS
from minidnn.passes.infrastructure import Context
from minidnn.passes.linear import FIRST, LAST
from tests.passes.build import Build, assert_same, constant, graph_of, ops_of, relu, run

X = (2, 6, 5, 7)


@dataclass(frozen=True)
class Normalizing(Target):
    def refuse_fusion(self, region: Region) -> str | None:
        if not isinstance(region, FusedNormalization):
            return super().refuse_fusion(region)
        return "it is odd" if region.body.inputs[0].shape[1] % 2 else None


def after(build: Build, shape=X, **options) -> Graph:
    before = graph_of(build, shape)
    result = run(before, NORMALIZE_CHANNELS, context=Context(Normalizing(), **options))
    assert_same(before, result)
    return result


def normalized(t, x: Value, before=LAST, behind=FIRST, axes=1) -> Value:
    x = apply(ops.Transpose(before), x)
    vectors = [constant(t, x.shape[-axes:], f"n{len(t.nodes)}.{p}") for p in "ab"]
    return apply(ops.Transpose(behind), apply(ops.LayerNorm(axes), x, *vectors))


def test_moves_go_into_the_region() -> None:
    found = after(lambda t, x: relu(normalized(t, relu(x))))
    assert ops_of(found) == ["ReLU", "FusedNormalization", "ReLU"]
    op = found.nodes[1].op
    assert isinstance(op, FusedNormalization)
    assert op.core.op == ops.LayerNorm(1) and [v.shape for v in op.vectors] == [(6,)] * 2


def test_other_moves_axes_and_readers_stay() -> None:
    def read(t, x):
        y = apply(ops.Transpose(LAST), x)
        z = apply(ops.LayerNorm(1), y)
        return [apply(ops.Transpose(FIRST), z), relu(y)]

    assert "FusedNormalization" not in ops_of(after(read))
    for options in ({"before": FIRST, "behind": LAST}, {"behind": (0, 1, 3, 2)}, {"axes": 2}):
        found = after(lambda t, x, given=options: normalized(t, x, **given))
        assert ops_of(found) == ["Transpose", "LayerNorm", "Transpose"]


def test_refusals_are_noted_and_layers_stay_apart() -> None:
    context = Context(Normalizing())
    graph = graph_of(lambda t, x: normalized(t, x), (2, 5, 3, 3))
    assert run(graph, NORMALIZE_CHANNELS, context=context) is graph
    assert context.notes == {"layernorm": "channels are moved for it: it is odd"}
    context = Context(Target())
    assert run(graph, NORMALIZE_CHANNELS, context=context) is graph
    assert context.notes == {"layernorm": "channels are moved for it: this device normalizes rows"}
    for options in ({"strategy": "layers"}, {"strategy": "contractions"}, {"fuel": 0}):
        assert len(after(lambda t, x: normalized(t, x), **options).nodes) == 3
