"""Kernels at a plan's ends work in callers' arrays, beside which there may be no memory."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from minidnn import layers as L
from minidnn.backends.cuda import copy
from minidnn.backends.cuda.contraction.gather import Gathering, print_gather
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.sequence import grid as grids_module
from minidnn.backends.cuda.tensor import Tensor, tensor_of
from minidnn.graph.layout import CHANNELS_LAST, PLANAR
from minidnn.graph.types import TensorType, rounded_to

from . import sequences
from .arrays import STORED, numbers, stored, strided
from .emulator.run import Emulated
from .pages import Pages
from .sequences import Case, case_of, run_cases
from .test_sequence_grids import NETWORKS, grids_of, region_of
from .test_sequence_kinds import numbers_for
from .test_sequence_random import collect

DTYPES = ("float32", "float16")


@pytest.fixture(params=[False, True], ids=["in front", "behind"])
def pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Pages:
    made = Pages(at_end=request.param)
    monkeypatch.setattr(sequences, "guarded", made)
    return made


@pytest.mark.usefixtures("pages")
def test_sequences_of_random_graphs(tmp_path: Path) -> None:
    run_cases(collect(examples=8, most=12), tmp_path)


@pytest.mark.usefixtures("pages")
@pytest.mark.parametrize("dtype", DTYPES)
def test_planes_in_registers(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which are moved by 16 bytes, wherever they begin and end."""
    monkeypatch.setattr(grids_module, "BLOCKS_OF_SEVERAL", 1)
    cases: list[Case] = []
    window = L.Sequential(L.MaxPool2d(3, 1, 1), L.AvgPool2d(3, 1, 1))
    shapes = [
        (window, (2, 6, 5, 3)),
        (window, (1, 3, 11, 13)),
        (NETWORKS["segments"], (2, 12, 9, 7)),
    ]
    for network, shape in shapes:
        region = region_of(network, shape, dtype)
        operands = [rounded_to(dtype, array) for array in numbers_for(region.body)]
        found = grids_of(region)
        for count in sorted({one.channels for one in found}):
            grid = next(one for one in found if one.channels == count)
            cases += [case_of(region, operands, PLANAR, extra=e, mapping=grid) for e in (0, 1)]
    run_cases(cases, tmp_path)


def placed(pages: Pages, tensor: Tensor, images: int) -> np.ndarray:
    _, memory = pages(images * tensor.image, STORED[tensor.dtype])
    return memory


@pytest.mark.parametrize("dtype", DTYPES)
def test_moves_and_gathering(dtype: str, pages: Pages, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    launches: list[tuple[Launch, Tensor, Tensor, np.ndarray]] = []
    for channels, rows, columns in ((3, 5, 9), (20, 5, 7), (72, 8, 12)):
        type = TensorType((2, channels, rows, columns), dtype)
        planar, last = tensor_of(type, PLANAR), tensor_of(type, CHANNELS_LAST)
        x = rounded_to(dtype, random.standard_normal(type.shape).astype(np.float32))
        for source, target in ((planar, last), (last, planar)):
            launches.append((copy.print_copy(2, source, target), source, target, x))
    how = Gathering((2, 2), (3, 3), 2)
    image = tensor_of(TensorType((2, 3, 13, 11), dtype), PLANAR)
    made = how.gathered(image, (7, 6), (4, 4))
    x = rounded_to(dtype, random.standard_normal((2, 3, 13, 11)).astype(np.float32))
    launches.append((print_gather(2, image, made, how), image, made, x))
    emulated = Emulated([launch.source for launch, *_ in launches], tmp_path)
    for launch, source, target, x in launches:
        given, result = placed(pages, source, 2), placed(pages, target, 2)
        strided(given, source, 2)[:] = stored(x, dtype)
        emulated.launch(launch, [given, result])
        found = numbers(strided(result, target, 2), dtype)
        if target is made:
            assert np.isfinite(found).all()
        else:
            np.testing.assert_array_equal(found, x)


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_who_reads_beside_is_seen(pages: Pages) -> None:
    """Not by reading there, which would end the tests."""
    room, array = pages(1000, np.dtype(np.float16))
    begin = array.ctypes.data - room.ctypes.data
    assert begin in (0, room.nbytes - array.nbytes) and array.ctypes.data % 16 == 0
    lines = Path("/proc/self/maps").read_text().splitlines()
    beside = {room.ctypes.data, room.ctypes.data + room.nbytes}
    rights = {}
    for line in lines:
        area, right, *_ = line.split()
        first, last = (int(end, 16) for end in area.split("-"))
        for address in beside:
            where = address - 1 if address == room.ctypes.data else address
            if first <= where < last:
                rights[address] = right
    assert [right[:2] for right in rights.values()] == ["--", "--"]
