"""Metrics, occupancy and roofline beside values computed by hand."""

from __future__ import annotations

import re

import pytest

from minidnn.errors import DeviceError
from minidnn.lab.api import A100, CARDS, H100, RTX_4090
from minidnn.lab.counters import METRICS
from minidnn.lab.model import LIMITS, Occupancy, Roofline, occupancy, roofline_of, why_no_block

KIB = 1 << 10


def test_metrics_have_formulas_and_counters_of_one_form() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert metric.name and metric.formula
        for word in re.findall(r"[a-z]\w*(?:\.\w+)*", metric.counter):
            assert re.fullmatch(r"(sm|smsp|gpu|dram|l1tex|lts|launch)__\w+(\.\w+)*", word), word


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared_bytes", "blocks", "warps", "limit"),
    [
        ((9, 0), 256, 32, 0, 8, 64, "warps"),
        # 65 registers take 72 * 32 = 2,304 of a warp: 7 warps a quarter, 28 of 8 each: 3 blocks.
        ((9, 0), 256, 65, 0, 3, 24, "registers"),
        ((9, 0), 256, 64, 0, 4, 32, "registers"),
        ((9, 0), 32, 16, 0, 32, 32, "blocks"),
        ((8, 6), 32, 16, 0, 16, 16, "blocks"),
        ((8, 9), 1024, 32, 0, 1, 32, "warps"),
        ((8, 0), 128, 32, 40 * KIB, 4, 16, "shared memory"),  # 41 KiB each of 164
        ((8, 0), 128, 32, 40 * KIB + 1, 3, 12, "shared memory"),
        ((9, 0), 64, 32, 227 * KIB, 1, 2, "shared memory"),
        ((9, 0), 1, 255, 0, 8, 8, "registers"),  # two warps a quarter
        ((9, 0), 96, 40, 0, 16, 48, "registers"),  # 1,280 of a warp: 12 a quarter
    ],
)
def test_occupancy(
    capability: tuple[int, int],
    threads: int,
    registers: int,
    shared_bytes: int,
    blocks: int,
    warps: int,
    limit: str,
) -> None:
    found = occupancy(capability, threads, registers, shared_bytes)
    assert found == Occupancy(blocks, warps, LIMITS[capability].warps, limit)
    assert found.fraction == warps / LIMITS[capability].warps


@pytest.mark.parametrize(
    ("threads", "registers", "shared_bytes", "reason"),
    [
        (1025, 32, 0, "a block of 1025 threads; valid are 1 to 1024"),
        (0, 32, 0, "a block of 0 threads"),
        (32, 256, 0, "256 registers a thread; there are at most 255"),
        (1024, 65, 0, "73728 registers a block; there are 65536"),
        (32, 32, 227 * KIB + 1, "232449 bytes of shared memory a block; there are 232448"),
    ],
)
def test_blocks_that_cannot_run(
    threads: int, registers: int, shared_bytes: int, reason: str
) -> None:
    assert (why_no_block((9, 0), threads, registers, shared_bytes) or "").startswith(reason)
    with pytest.raises(ValueError, match=reason):
        occupancy((9, 0), threads, registers, shared_bytes)


def test_unknown_capabilities_are_named() -> None:
    with pytest.raises(DeviceError, match=r"capability 3\.5 are not known; known are"):
        occupancy((3, 5), 32, 32, 0)


def test_described_cards_agree_with_the_limits() -> None:
    for card in CARDS.values():
        assert card.shared_bytes == LIMITS[card.capability].block_bytes


@pytest.mark.parametrize(
    ("name", "teraflops"), [("A100", 19.5), ("H100", 66.9), ("RTX4090", 82.6), ("RTX3090", 35.7)]
)
def test_peaks_are_those_of_the_data_sheets(name: str, teraflops: float) -> None:
    assert CARDS[name].peak_operations == pytest.approx(teraflops * 1e12, rel=5e-3)


def test_roofline() -> None:
    roof = Roofline(100.0, 10.0)
    assert roof.ridge == 10.0
    assert (roof.attainable(2.0), roof.attainable(10.0), roof.attainable(99.0)) == (20, 100, 100)
    assert roofline_of(A100).ridge < roofline_of(H100).ridge < roofline_of(RTX_4090).ridge
