"""What is compiled for a GPU of a network that trains under autocast, without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import minidnn as md
from minidnn.backends.cuda.lower import lower_plan
from minidnn.fusion.region import FusedGradient, FusedSums
from minidnn.graph.evaluate import evaluate
from minidnn.graph.expression import linearize
from minidnn.graph.ir import Graph, Node
from minidnn.graph.operator import Elementwise
from minidnn.graph.operators import Concat, Reorder, TakeChannels, Transpose
from minidnn.graph.types import rounded_to
from tests.cuda.cards import H200
from tests.cuda.lowered import planned_mixed
from tests.cuda.test_emulated_step import check_values
from tests.torch.test_trained import program

_LAST, _FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


class Network(nn.Module):
    """Normalized rows, a maximum, an average, a sum and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.second = nn.Conv2d(16, 16, 3, padding=1)
        self.head = nn.Linear(16 * 16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.max_pool2d(self.norm(self.first(x)).relu(), 3, 2, 1)
        return self.head(F.avg_pool2d((self.second(y) + y).relu(), 2).flatten(1))


class Dense(nn.Module):
    """Layers of which each reads a join of all before."""

    def __init__(self) -> None:
        super().__init__()
        widths = (64, 96, 128)
        self.first = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(map(nn.BatchNorm2d, (*widths, 160)))
        self.layers = nn.ModuleList(nn.Conv2d(w, 32, 3, padding=1, bias=False) for w in widths)
        self.head = nn.Linear(160, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = [self.first(x)]
        for norm, layer in zip(self.norms[:-1], self.layers, strict=True):
            values.append(layer(norm(torch.cat(values, 1)).relu()))
        return self.head(self.norms[-1](torch.cat(values, 1)).relu().mean((2, 3)))


class Rows(nn.Module):
    """Blocks whose linear layers and normalizations are over channels that lie last."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rows = nn.Conv2d(3, 16, 2, 2), nn.LayerNorm(16)
        self.blocks = nn.ModuleList(map(self.block, range(2)))
        self.scale = nn.Parameter(torch.full((16, 1, 1), 0.5))
        self.last, self.norm = nn.Conv2d(16, 24, 2, 2), nn.LayerNorm(24)
        self.head = nn.Linear(24, 5)

    @staticmethod
    def block(number: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=1, groups=16),
            Moved(_LAST),
            *(nn.LayerNorm(16), nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)),
            Moved(_FIRST),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.rows(self.first(x).permute(_LAST)).permute(_FIRST)
        for block in self.blocks:
            y = y + self.scale * block(y)
        y = self.last(self.rows(y.permute(_LAST)).permute(_FIRST))
        return self.head(self.norm(y.mean((2, 3))))


class Moved(nn.Module):
    def __init__(self, axes: tuple[int, ...]) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(self.axes)


@pytest.mark.parametrize(
    "half", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.full)], ids=str
)
@pytest.mark.parametrize("make", [Network, Dense, Rows])
def test_both_programs(make: type[nn.Module], half: torch.dtype, tmp_path: Path) -> None:
    """That of gradients works in the memory of what is kept for it."""
    fast: Any = md.optimize(make().train(), device="reference")
    with torch.autocast("cpu", half):
        fast(torch.randn(4, 3, 16, 16))
    (part,) = program(fast).parts
    (pair,) = part.pairs.values()
    ((found, backward),) = pair.backwards.values()
    name, random = str(half).removeprefix("torch."), np.random.default_rng(0)

    def check(graph: Graph, given: list[np.ndarray], within: range) -> list[np.ndarray]:
        assert {"float32", name} <= {value.dtype for value in graph.values}
        check_values(planned_mixed(graph, name), given, name, tmp_path, ends=within)
        return list(evaluate(graph, given))

    forward = pair.forward.part.graph
    given = [0.3 * random.standard_normal(v.shape).astype(np.float32) for v in forward.inputs]
    results = check(forward, given, range(0))
    kept = [rounded_to(forward.outputs[p].dtype, results[p]) for p in found.kept]
    # As large as the gradients of a mean over the batch.
    seed = rounded_to(name, 0.1 * random.standard_normal(results[0].shape).astype(np.float32))
    first = [given[place] for place in found.given]
    within = range(len(first), len(first) + len(kept))
    check(backward.part.graph, [*first, *kept, seed], within)


def test_images_are_kept_as_they_are_computed() -> None:
    """Channels last, for which no kernel runs on either side."""
    fast: Any = md.optimize(Network().train(), device="reference")
    with torch.autocast("cpu", torch.bfloat16):
        fast(torch.randn(4, 3, 16, 16))
    (part,) = program(fast).parts
    (pair,) = part.pairs.values()
    ((_, backward),) = pair.backwards.values()
    for compiled in (pair.forward, backward):
        plan = planned_mixed(compiled.part.graph, "bfloat16")
        moved = {n for n in plan.graph.nodes if n.op in (Transpose(_LAST), Transpose(_FIRST))}
        assert len(moved) == 4  # both convolutions, the maximum and its places
        assert moved.isdisjoint(task.node for task in lower_plan(plan, H200, False))


def test_rows_are_kept_as_they_are_computed() -> None:
    """Between linear layers as their axes are, and in half precision where products read them, so
    that no image is moved but those at the ends."""
    pair, backward = halves(md.optimize(Rows().train(), device="reference"))
    kept = pair.forward.part.graph.outputs[pair.outputs :]
    images = [value for value in kept if value.type.rank == 4]
    # But for the last sum, whose rows are normalized in float32.
    assert [v.dtype for v in images if v.dtype != "bfloat16"] == ["float32"]
    assert {value.shape for value in images} >= {(16, 16, 16, 16), (16, 16, 16, 64)}
    for compiled in (pair.forward, backward):
        plan = planned_mixed(compiled.part.graph, "bfloat16")
        tasks = {task.node for task in lower_plan(plan, H200, False)}
        moved = [n for n in plan.graph.nodes if n in tasks and isinstance(n.op, Reorder)]
        assert not [node for node in moved if node.output.type.size >= 16 * 16 * 16 * 16]


def _has_roots_of_images(node: Node) -> bool:
    """Whether it takes a root for each element of an image."""
    body = getattr(node.op, "body", None)
    if isinstance(body, Graph):
        return any(map(_has_roots_of_images, body.nodes))
    if not isinstance(node.op, Elementwise) or node.output.type.rank != 4:
        return False
    return any(line.op == "sqrt" for line in linearize(node.op.expression()))


def halves(fast: Any) -> tuple[Any, Any]:
    """The pair of programs of the only part under autocast, and the one that runs backwards."""
    with torch.autocast("cpu", torch.bfloat16):
        fast.prepare(torch.randn(16, 3, 32, 32))
    (part,) = program(fast).parts
    (pair,) = part.pairs.values()
    ((_, backward),) = pair.backwards.values()
    return pair, backward


def test_a_backward_pass_stores_no_normalized_images() -> None:
    """Each normalization's gradient takes one sweep for its sums, as a trainer's does, and what a
    rectifier gave is computed again of what is read for them."""

    def block(channels: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()]

    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 5)]
    fast: Any = md.optimize(nn.Sequential(*block(3), *block(64), *end).train(), device="reference")
    pair, backward = halves(fast)
    nodes = planned_mixed(backward.part.graph, "bfloat16").graph.nodes
    forwards = planned_mixed(pair.forward.part.graph, "bfloat16").graph.nodes
    assert not any(map(_has_roots_of_images, (*nodes, *forwards)))  # but of channels
    images = [v for n in nodes for v in n.outputs if v.type.rank == 4 and v.shape[2:] == (32, 32)]
    assert images and {value.dtype for value in images} == {"bfloat16"}
    sums = [node for node in nodes if isinstance(node.op, FusedSums)]
    assert sorted(len(n.outputs) for n in sums if n.inputs[0].type.rank == 4)[-2:] == [2, 2]


def test_a_backward_pass_through_joins_is_a_trainers() -> None:
    """Sums read a join and a gradient, and store nothing; gradients are added up join by join."""
    _, backward = halves(md.optimize(Dense().train(), device="reference"))
    nodes = planned_mixed(backward.part.graph, "bfloat16").graph.nodes
    images = [v for n in nodes for v in n.outputs if v.type.rank == 4 and v.shape[2:] == (32, 32)]
    assert images and {value.dtype for value in images} == {"bfloat16"}
    regions = [n.op.sums if isinstance(n.op, FusedGradient) else n.op for n in nodes]
    sums = [r for r in regions if isinstance(r, FusedSums) and len(r.shape) == 4]
    assert [len(each.body.outputs) for each in sums] == [2] * 4  # one sweep for each normalization
    assert sum(isinstance(n.op, FusedGradient) for n in nodes) == 3  # behind windows
    parts = [node for node in nodes if isinstance(node.op, TakeChannels)]
    # Of the join, which is kept, what was joined before; and of the gradient of each join the same
    # and the rest.
    assert len(parts) == 3 + 2 * 3


def test_joins_are_kept_where_they_are_written() -> None:
    """Neither program copies what is joined."""
    pair, backward = halves(md.optimize(Dense().train(), device="reference"))
    forwards = planned_mixed(pair.forward.part.graph, "bfloat16")
    joins = [
        node
        for node in forwards.graph.nodes
        if isinstance(node.op, Concat) and node.output.type.rank == 4  # not their statistics
    ]
    assert len(joins) == 3 and not any(list(forwards.annotations.copied(each)) for each in joins)
    plan = planned_mixed(backward.part.graph, "bfloat16")
    assert not any(isinstance(node.op, Concat) for node in plan.graph.nodes)
    given = {plan.roots[value] for value in plan.graph.inputs}
    parts = [node for node in plan.graph.nodes if isinstance(node.op, TakeChannels)]
    own = [node for node in parts if plan.roots[node.output] in given]
    assert len(own) == 3 and all(map(plan.annotations.is_view, own))
