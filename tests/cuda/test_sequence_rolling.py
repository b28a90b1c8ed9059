"""Sums of halves whose channels lie side by side, which threads compute going down rows: when, the
same bits as node by node in the emulator, and what they take of a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from minidnn import layers as L
from minidnn.backends.codegen.kernel import KernelSource
from minidnn.backends.cuda.functions import compile_kernels
from minidnn.backends.cuda.machine import Machine
from minidnn.backends.cuda.sequence.plans import absorb_prologues
from minidnn.backends.cuda.sequence.printer import print_sequence
from minidnn.backends.cuda.sequence.rolling import Rolling, choose_rolling, rollings
from minidnn.backends.cuda.tensor import tensor_of
from minidnn.fusion.region import FusedSequence
from minidnn.fusion.sequence import Schedule
from minidnn.graph.layout import CHANNELS_LAST, PLANAR, Layout
from minidnn.graph.types import rounded_to
from tests.cuda.cards import A100, H200, on_each
from tests.cuda.sequences import Case, case_of, run_cases
from tests.cuda.test_sequence_kinds import numbers_for
from tests.cuda.test_sequence_units import Residual
from tests.cuda.test_sequence_units import region_of as staged_region_of
from tests.sampling import mixed, some

HALF_DTYPES = ("float16", "bfloat16")
AVERAGE = L.AvgPool2d(3, 1, 1)


def region_of(layers: tuple[L.Layer, ...], shape: tuple[int, ...], dtype: str) -> FusedSequence:
    """The sequence in one patch, which copies nothing first: as it is where channels lie last."""
    region = staged_region_of(layers, shape, dtype)
    return replace(region, schedule=Schedule(*region.body.outputs[0].type.plane[2:]))


def rollings_of(region: FusedSequence, layout: Layout = CHANNELS_LAST) -> list[Rolling]:
    plan, binding = region.kernel
    tensors = [tensor_of(slot.value.type, layout) for slot in binding.slots]
    return list(rollings(absorb_prologues(plan), binding, tensors))


def source_of(region: FusedSequence, rolling: Rolling, machine: Machine) -> KernelSource:
    plan, binding = region.kernel
    tensors = [tensor_of(slot.value.type, CHANNELS_LAST) for slot in binding.slots]
    return print_sequence(plan, binding, tensors[:1], tensors[1:], machine, rolling).launch.source


def rolling_case(
    region: FusedSequence, dtype: str, rolling: Rolling | None, extra: int = 0
) -> Case:
    operands = [rounded_to(dtype, array) for array in numbers_for(region.body)]
    return case_of(region, operands, CHANNELS_LAST, extra=extra, mapping=rolling)


WINDOWS = {
    "3x3": ((AVERAGE,), (2, 16, 9, 12)),
    "odd columns": ((AVERAGE,), (1, 24, 11, 7)),
    "packs of two": ((AVERAGE,), (2, 6, 5, 5)),
    "packs of four": ((AVERAGE,), (1, 12, 8, 9)),
    "5x5": ((L.AvgPool2d(5, 1, 2),), (1, 8, 9, 8)),
    "2x2, no padding": ((L.AvgPool2d(2, 1),), (1, 8, 6, 9)),
    "2x4, uneven": ((L.AvgPool2d((2, 4), 1, (1, 2)),), (1, 8, 6, 9)),
    "one row": ((AVERAGE,), (3, 8, 1, 6)),
    "one column": ((AVERAGE,), (3, 8, 6, 1)),
    "columns apart": ((L.AvgPool2d((3, 2), 1, (1, 1)),), (1, 8, 7, 6)),
    "normalized": ((AVERAGE, L.BatchNorm2d(8), L.ReLU()), (2, 8, 7, 9)),
    "vectors that begin anywhere": ((AVERAGE, L.BatchNorm2d(6)), (2, 6, 7, 4)),
}


@pytest.mark.race
@pytest.mark.parametrize(("name", "dtype"), mixed(2, WINDOWS, HALF_DTYPES))
def test_every_strip_gives_the_same_bits(name: str, dtype: str, tmp_path: Path) -> None:
    """Strips of every width and height that may be measured, in buffers that are wider, too, where
    that leaves packs as they are."""
    layers, shape = WINDOWS[name]
    region = region_of(layers, shape, dtype)
    found = rollings_of(region)
    assert found, "all of these are to be computed by strips"
    heights = dict.fromkeys([*found, *(Rolling(f.pack, f.columns, 3) for f in found)])
    extra = next(each for each in (0, 8, 4, 2) if found[0].pack in (8, each) or each == 0)
    cases = [rolling_case(region, dtype, one) for one in heights]
    cases.append(rolling_case(region, dtype, found[0], extra=8))
    cases.append(rolling_case(region, dtype, None, extra=extra))
    run_cases(cases, tmp_path)


def test_which_sums_are_computed_by_strips() -> None:
    """Those that move by one position over halves with channels last and are divided by one number,
    behind which nothing else is read."""
    shape = (2, 16, 14, 14)

    def found(*layers: L.Layer, dtype: str = "float16", layout: Layout = CHANNELS_LAST) -> bool:
        return bool(rollings_of(region_of(layers, shape, dtype), layout))

    assert found(AVERAGE) and found(AVERAGE, L.ReLU())
    assert not found(AVERAGE, layout=PLANAR)
    assert not found(AVERAGE, dtype="float32")
    assert not found(L.MaxPool2d(3, 1, 1))
    assert not found(L.AvgPool2d(3, 2, 1))
    assert not found(L.AvgPool2d((3, 1), 1, (1, 0)))
    assert not found(L.AvgPool2d(3, 1, 1, count_include_pad=False)), "several divisors"
    assert not found(Residual(AVERAGE), L.ReLU())
    assert not found(L.AvgPool2d(7, 1, 3)), "too many sums to be kept"
    assert found(L.AvgPool2d(5, 1, 2))
    assert not found(L.AvgPool2d((3, 5), 1, (1, 2)), L.ReLU()), "no registers for what is behind"
    assert not found(AVERAGE, L.Sigmoid()), "nor for functions"
    assert not rollings_of(region_of((AVERAGE,), (2, 3, 9, 9), "float16")), "no packs"


def test_strips_are_shorter_where_there_are_few() -> None:
    for shape, expected in (
        ((128, 256, 28, 28), Rolling(4, 2, 7)),
        ((128, 288, 35, 35), Rolling(8, 1, 7)),
        ((64, 64, 97, 131), Rolling(8, 1, 7)),
        ((8, 288, 35, 35), Rolling(8, 1, 4)),
        ((1, 288, 35, 35), Rolling(8, 1, 2)),
        ((64, 64, 7, 7), Rolling(8, 1, 2)),
    ):
        region = region_of((AVERAGE,), shape, "float16")
        plan, binding = region.kernel
        tensors = [tensor_of(slot.value.type, CHANNELS_LAST) for slot in binding.slots]
        assert choose_rolling(plan, binding, tensors) == expected, shape


@on_each(H200, full=A100)
def test_nothing_is_spilled(
    machine: Machine, warm_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where registers are promised, and where there is a normalization behind."""
    monkeypatch.setenv("MINIDNN_CACHE", str(warm_cache))
    sources = []
    for layers in (
        (AVERAGE,),
        (L.AvgPool2d(5, 1, 2),),
        (L.AvgPool2d((3, 5), 1, (1, 2)),),
        (AVERAGE, L.BatchNorm2d(64), L.ReLU()),
    ):
        for shape in ((64, 64, 56, 56), (64, 64, 35, 35)):
            for dtype in HALF_DTYPES:
                region = region_of(layers, shape, dtype)
                for one in rollings_of(region)[:: 1 if layers == (AVERAGE,) else 2]:
                    sources.append(source_of(region, one, machine))
    for kernel in compile_kernels(some(sources, 7), machine.arch):
        assert kernel.resources.spill_bytes == 0, kernel.resources
