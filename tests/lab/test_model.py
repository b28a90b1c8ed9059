"""Accesses and predictions beside numbers counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from minidnn.lab.access import Access, Work
from minidnn.lab.api import A100, H100, RTX_4090
from minidnn.lab.cuda.convolution import CONVOLUTION
from minidnn.lab.cuda.product import PRODUCT
from minidnn.lab.model import Prediction
from minidnn.lab.operands import ConvolutionShape, ProductShape
from minidnn.lab.step import Block, points_of
from minidnn.lab.studies import predict, study
from tests.sampling import only

LANES = np.arange(32)


def access(at: np.ndarray, space: Any = "global", width: int = 1) -> Access:
    return Access("x", space, at.reshape(1, -1, 32), 1.0, width=width)


@pytest.mark.parametrize(
    ("at", "sectors", "lines"),
    [
        (LANES, 4, 1),
        (LANES + 1, 5, 2),  # shifted by a float
        (2 * LANES, 8, 2),
        (8 * LANES, 32, 8),
        (32 * LANES, 32, 32),
        (0 * LANES + 5, 1, 1),
        (np.where(LANES < 8, LANES, -1), 1, 1),
        (LANES // 8 * 56 + LANES % 8, 4, 4),  # four rows of 8 in an image 56 wide
        (0 * LANES - 1, 0, 0),
    ],
)
def test_sectors_and_lines(at: np.ndarray, sectors: int, lines: int) -> None:
    found = access(at)
    assert (found.sectors, found.wavefronts) == (sectors, lines)
    assert found.requests == bool(sectors)


def test_transactions_of_the_lecture() -> None:
    """Two threads that need 16 of 64 bytes get a quarter of the bandwidth."""
    far = access(np.where(LANES < 2, LANES * 8, -1), width=2)
    assert far.wanted_bytes / (32 * far.sectors) == 0.25


@pytest.mark.parametrize(
    ("at", "width", "turns", "least"),
    [
        (LANES, 1, 1, 1),
        (2 * LANES, 1, 2, 1),
        (32 * LANES, 1, 32, 1),
        (33 * LANES, 1, 1, 1),  # rows one word longer
        (0 * LANES, 1, 1, 1),
        (LANES // 16 * 18 + LANES % 16, 1, 2, 1),  # two rows of a tile 18 wide
        (4 * LANES, 4, 4, 4),
    ],
)
def test_bank_conflicts(at: np.ndarray, width: int, turns: int, least: int) -> None:
    found = access(at, "shared", width)
    assert (found.wavefronts, found.least_wavefronts) == (turns, least)


def convolution_work(name: str, shape: ConvolutionShape, block: Block) -> Work:
    step = CONVOLUTION.step(name)
    return step.work(shape, block, step.parameters)


def reads(work: Work, operand: str, space: str, store: bool = False) -> Access:
    (found,) = (
        one
        for one in work.accesses
        if (one.operand, one.space, one.store) == (operand, space, store)
    )
    return found


def test_naive_convolution_counted_by_hand() -> None:
    """Images of 2 channels of 10 x 10, 3 filters of 3 x 3: blocks of 8 x 4 are whole warps."""
    shape = ConvolutionShape(4, 2, 10, 10, 3, 3, 3)
    work = convolution_work("naive", shape, (8, 4))
    products = 2 * 3 * 4 * 2 * 9  # warps: blocks, filters; images, channels, window
    assert work.multiply_adds == products == reads(work, "x", "global").requests
    assert reads(work, "w", "global").sectors == products
    x = reads(work, "x", "global")
    rows = np.arange(4)[:, None]
    sectors = 0
    for plane, top, i, j in np.ndindex(8, 2, 3, 3):
        at = (plane * 10 + top * 4 + rows + i) * 10 + np.arange(8) + j
        sectors += len(np.unique(at // 8))
    assert x.sectors == 3 * sectors
    assert x.wanted_bytes == products * 32 * 4
    y = reads(work, "y", "global", store=True)
    assert y.wanted_bytes == 4 * shape.operands["y"]


def test_a_tile_with_its_halo_counted_by_hand() -> None:
    shape = ConvolutionShape(4, 2, 10, 10, 16, 3, 3)
    work = convolution_work("registers", shape, (8, 4))
    blocks = 2 * 2 * 4  # tiles, groups of filters, images
    copied = reads(work, "x", "global")
    assert copied.wanted_bytes == blocks * 2 * 10 * 6 * 4  # channels, a tile of 10 x 6
    assert copied.requests == blocks * 2 * 2  # 60 numbers by 32 threads
    assert reads(work, "x", "shared").requests == blocks * 2 * 9
    # Weights begin behind 60 numbers, so that the compiler joins four of a group of 8.
    assert reads(work, "w", "shared").requests == blocks * 2 * 9 * 8 / 4
    assert reads(work, "w", "global").wanted_bytes == blocks * 2 * 9 * 8 * 4
    assert work.multiply_adds * 32 * 2 == shape.operations


def test_a_register_tile_counted_by_hand() -> None:
    """Four positions of 8 threads fill 32 columns: a row of the result is four sectors."""
    shape = ConvolutionShape(2, 3, 10, 34, 16, 3, 3)
    work = convolution_work("vectors", shape, (8, 4))
    blocks = 2 * 2 * 2  # tiles, groups of filters, images
    assert work.multiply_adds * 32 * 2 == shape.operations
    assert reads(work, "x", "shared").requests == blocks * 3 * 9 * 4
    assert reads(work, "w", "shared").requests == blocks * 3 * 9 * 2
    assert reads(work, "x", "global").wanted_bytes == blocks * 3 * 34 * 6 * 4
    y = reads(work, "y", "global", store=True)
    assert (y.requests, y.sectors) == (blocks * 8 * 4, blocks * 8 * 4 * 4)


@pytest.mark.parametrize("step", PRODUCT.steps, ids=lambda step: step.name)
def test_products_counted_by_hand(step: Any) -> None:
    shape = ProductShape(256, 512, 64)
    work = step.work(shape, (16, 16), step.parameters)
    # An instruction of tensor cores makes 16 by 8 sums of 16 products.
    products = work.multiply_adds * 32 + work.tensor_products * 16 * 8 * 16
    assert products * 2 == shape.operations
    (y,) = (one for one in work.accesses if one.store and one.space == "global")
    number = 2 if step.name == "tensor" else 4
    assert y.wanted_bytes == number * shape.operands["y"]
    loaded = {
        one.operand: one.wanted_bytes
        for one in work.accesses
        if one.space == "global" and not one.store
    }
    if step.name in ("naive", "coalesced"):  # 16 rows and 2 columns a warp, or the other way
        assert sorted(loaded.values()) == [work.multiply_adds * 4 * n for n in (2, 16)]
    else:
        own = 8 if step.name in ("buffered", "warps", "tensor") else 1
        rows = 16 * step.parameters.get("THREAD_ROWS", own)
        columns = 16 * step.parameters.get("THREAD_COLUMNS", own)
        assert loaded["a"] == number * shape.operands["a"] * 512 / columns
        assert loaded["b"] == number * shape.operands["b"] * 256 / rows


def found(name: str, block: Block, shape: ConvolutionShape) -> Prediction:
    step = CONVOLUTION.step(name)
    (prediction,) = predict(points_of([step], [block], None), shape, H100)
    assert isinstance(prediction, Prediction)
    return prediction


def test_waves_and_the_parts_of_the_machine() -> None:
    shape = replace(CONVOLUTION.shape, batch=256, channels=3)  # L2 cannot keep its result
    prediction = found("coalesced", (16, 16), shape)
    assert prediction.blocks == 13 * 32 * 256 and not prediction.is_kept
    per = prediction.occupancy.blocks
    assert prediction.waves == prediction.blocks / (132 * per)
    work = prediction.work
    busiest = -(-prediction.blocks // 132) / prediction.blocks
    assert prediction.limits["arithmetic"] == pytest.approx(
        work.multiply_adds / 4 * busiest / 1.98e9
    )
    assert prediction.limits["memory"] == prediction.bytes_moved["memory"] / H100.bandwidth
    sizes = shape.operands
    assert prediction.bytes_moved["memory"] == 4 * (sizes["x"] + sizes["w"] + sizes["y"])
    parts = prediction.limits
    four = [parts[name] for name in ("arithmetic", "issue", "load units", "L2")]
    most = -(-prediction.blocks // 132)
    assert (per, most) == (8, 807)  # 100 waves of 8 blocks, and 7 more
    waiting = parts["latency"] / 101
    one = sum(part**2 for part in four) ** 0.5 / most  # with 8 warps it fills the schedulers
    waves = 100 * max(8 * one, waiting + one) + max(7 * one, waiting + one)
    expected = max(parts["launch"], (waves**2 + parts["memory"] ** 2) ** 0.5)
    assert prediction.seconds == pytest.approx(2e-6 + expected)
    assert parts["launch"] == pytest.approx(prediction.blocks / 0.83 / 1.98e9)


def test_what_l2_keeps_takes_no_time_of_memory() -> None:
    prediction = found("coalesced", (16, 16), replace(CONVOLUTION.shape, channels=3))
    assert prediction.is_kept and prediction.limits["memory"] == 0
    assert prediction.bytes_moved["memory"] > 0


def test_few_warps_issue_less() -> None:
    """Blocks of two warps, one a multiprocessor: two schedulers of four, not all the time."""
    shape = ConvolutionShape(1, 64, 56, 56, 64, padding=1)
    prediction = found("implicit", (8, 8), shape)
    assert prediction.blocks == 49
    issue = prediction.limits["issue"] / (2 * 0.6 / 4)
    assert prediction.seconds > issue > 3 * prediction.limits["issue"]


def test_spilled_registers_cost_turns_and_bytes_of_l2() -> None:
    step = PRODUCT.step("warps")
    fits, spills = (
        predict(points_of([step], [(16, 16)], {"RESIDENT": resident}), ProductShape(), H100)[0]
        for resident in (2, 8)
    )
    assert not isinstance(fits, str) and not isinstance(spills, str)
    (kernel,) = [spills]
    assert isinstance(kernel, Prediction) and kernel.resources.spill_bytes > 4000
    # Each of 512 tiles, a warp instruction for four bytes a lane.
    turns = kernel.blocks * 8 * 512 * kernel.resources.spill_bytes / 4
    share = -(-kernel.blocks // 132) / kernel.blocks / 1.98e9
    own = sum(kernel.load_turns.values())
    assert kernel.limits["load units"] == pytest.approx((own + turns) * share)
    assert kernel.limits["L2"] > 128 * turns / 32 * share
    assert spills.seconds > 10 * fits.seconds


def test_a_tiny_launch_is_limited_by_latency() -> None:
    assert found("general", (8, 8), ConvolutionShape(1, 64, 8, 8, 1, padding=1)).limit == "latency"


def test_ladders_climb_in_the_model() -> None:
    names = ("general", "tiled", "registers")
    times = [found(name, (32, 8), CONVOLUTION.shape).seconds for name in names]
    assert times == sorted(times, reverse=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "machine", only((H100,), (A100, H100, RTX_4090)), ids=lambda machine: machine.arch
)
def test_a_study_of_every_ladder(machine: Any) -> None:
    for ladder in (CONVOLUTION, PRODUCT):
        written = study(ladder, ladder.steps, [(16, 16)], [ladder.shape], machine)
        assert [cell["step"] for cell in written["cells"]] == [s.name for s in ladder.steps]
        for cell in written["cells"]:
            assert 0 < cell["coalescing"] <= 1 and 0 < cell["occupancy"] <= 1
            tensor = cell["step"] == "tensor"
            peak = machine.tensor_operations if tensor else machine.peak_operations
            reached = cell["operations"] / cell["predicted_seconds"]
            kept = 4 * sum(ladder.shape.operands.values()) <= machine.cache_bytes
            assert reached < (peak if kept else cell["attainable_performance"])
            assert cell["attainable_performance"] <= peak
            assert cell["bank_conflicts"] >= 1
            moved = cell["bytes"]
            assert moved["L1"] >= moved["L2"] * 0.999 and moved["L2"] * 1.001 >= moved["memory"]
