"""Kernels into which one limiter was planted: compiled, predicted for a GPU, and explained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial

import pytest

from minidnn.backends.cuda.machine import Machine
from minidnn.lab.api import A100, H100, ladder_of
from minidnn.lab.cuda.product import tiles
from minidnn.lab.cuda.step import CudaStep
from minidnn.lab.explain import explain
from minidnn.lab.step import Block, Point
from minidnn.lab.studies import predict

Change = Callable[[CudaStep], CudaStep]


@dataclass(frozen=True)
class Planted:
    """A step of a ladder with a limiter that its shape, block, parameters or text bring."""

    limit: str
    ladder: str
    step: str
    sizes: dict[str, int] = field(default_factory=dict)
    block: Block = (16, 16)
    parameters: dict[str, int] = field(default_factory=dict)
    change: Change | None = None
    machine: Machine = H100
    names: str = ""


def crowded(step: CudaStep) -> CudaStep:
    """Eight blocks of a multiprocessor leave each thread too few registers."""
    bounds = "__launch_bounds__(BLOCK_X *BLOCK_Y)"
    assert bounds in step.text
    return replace(step, source=step.text.replace(bounds, bounds.replace(")", ", 8)")))


def tight(step: CudaStep) -> CudaStep:
    """Rows of the first tile follow each other without a number between them."""
    assert "[TILE_DEPTH + 1]" in step.text
    text = step.text.replace("[TILE_DEPTH + 1]", "[TILE_DEPTH]")
    return replace(step, source=text, work=partial(tiles, padded=0))


SMALL = {"batch": 1, "channels": 64, "height": 10, "width": 10, "filters": 4}
LAYER = {"batch": 32, "channels": 64, "height": 56, "width": 56, "filters": 64, "padding": 1}
THOUSAND = {"rows": 1024, "columns": 1024, "depth": 1024}
THOUSANDS = {"rows": 2048, "columns": 2048, "depth": 2048}

PLANTED = [
    Planted("too few blocks", "conv", "general", SMALL, names="4 blocks for 132"),
    Planted("too few blocks", "product", "warps", {"rows": 512, "columns": 512, "depth": 512}),
    Planted("spills", "product", "vectors", THOUSANDS, change=crowded),
    Planted("spills", "conv", "positions", LAYER, change=crowded),
    Planted("spills", "conv", "implicit", LAYER, parameters={"RESIDENT": 8}),
    Planted("tail", "product", "tiled", {"rows": 528, "columns": 528, "depth": 2048}),
    Planted("tail", "memory", "words", {"count": 132 * 8 * 256 + 4096}),
    Planted("bank conflicts", "transpose", "shared", block=(32, 8)),
    Planted(
        "bank conflicts",
        *("product", "column_tile", THOUSANDS),
        parameters={"TILE_DEPTH": 32, "THREAD_ROWS": 4},
        change=tight,
        block=(8, 32),
    ),
    Planted("bank conflicts", "transpose", "shared", block=(32, 32)),
    Planted("uncoalesced accesses", "memory", "strided", parameters={"STRIDE": 32}),
    Planted("uncoalesced accesses", "memory", "structures", parameters={"FIELDS": 32}),
    Planted("uncoalesced accesses", "product", "naive", THOUSANDS, block=(32, 8)),
    Planted("uncoalesced accesses", "transpose", "rows", block=(32, 8), names="a store of a warp"),
    Planted("memory", "memory", "words"),
    Planted("memory", "memory", "vectors"),
    Planted("L2", "weight-gradient", "naive", LAYER, block=(8, 8)),
    Planted("shared memory", "product", "tiled", THOUSANDS),
    Planted("load units", "product", "coalesced", THOUSANDS),
    Planted("issue", "conv", "coalesced", LAYER),
    Planted("arithmetic", "product", "warps", machine=A100),
    Planted("occupancy", "product", "register_tile", THOUSAND, block=(8, 8)),
    Planted("occupancy", "product", "vectors", THOUSANDS),
    Planted("launch", "memory", "words", block=(32, 1)),
    Planted("launch", "transpose", "padded", block=(8, 8)),
    Planted("launch", "conv", "columns", LAYER, block=(8, 8)),
    Planted(
        "latency",
        *("product", "coalesced", {"rows": 144, "columns": 32, "depth": 4096}),
        block=(32, 1),
    ),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("planted", PLANTED, ids=lambda one: f"{one.limit}-{one.ladder}-{one.step}")
def test_the_limiter_is_named(planted: Planted) -> None:
    ladder = ladder_of(planted.ladder)
    step = ladder.step(planted.step)
    if planted.change is not None:
        step = planted.change(step)
    shape = replace(ladder.shape, **planted.sizes)
    point = Point(step, planted.block, step.with_own(planted.parameters))
    (found,) = predict([point], shape, planted.machine)
    assert not isinstance(found, str), found
    cell = {"step": step.name, **found.record()}
    told = explain(cell, asdict(planted.machine))
    assert told.limit == planted.limit, told
    assert planted.names in told.evidence


def test_there_are_twenty() -> None:
    assert len(PLANTED) >= 20
    assert len({planted.limit for planted in PLANTED}) >= 12
