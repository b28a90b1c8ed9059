"""Arrays that have nothing but DLPack, or nothing but ``__cuda_array_interface__``."""

from __future__ import annotations

import gc
from functools import cache
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cuda.arrays import ArraySlot, as_it_is, read
from minidnn.cudnn.graph.timing import keep_busy
from minidnn.errors import DeviceError, GraphError

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")
SHAPE = (4, 3, 17, 19)
CYCLES = 20_000_000
"""Of the GPU's clock, about 10 ms: longer than it takes to call and to let go of an input."""


class ByDlpack:
    """An array of some library, seen by nothing but DLPack."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> object:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, index = self._array.__dlpack_device__()
        return int(kind), int(index)


class ByInterface:
    """An array of some library, seen by nothing but its address, strides and stream."""

    def __init__(self, array: Any) -> None:
        self._array = array

    @property
    def __cuda_array_interface__(self) -> Any:
        return self._array.__cuda_array_interface__


class Elsewhere(ByDlpack):
    """An array that says it is on another device."""

    def __init__(self, array: Any, place: tuple[int, int]) -> None:
        super().__init__(array)
        self._place = place

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._place


BARE = pytest.mark.parametrize("bare", [ByDlpack, ByInterface])


@cache
def network() -> md.Layer:
    return L.Sequential(L.Conv2d(3, 8, 3, padding=1), L.ReLU(), L.MaxPool2d(2))


@cache
def compiled() -> Any:
    return md.compile(network(), SHAPE, device="cuda", tune="heuristic")


def numbers(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SHAPE, np.float32)


def check(result: Any, given: np.ndarray) -> None:
    assert isinstance(result, cupy.ndarray)
    expected = md.compile(network(), SHAPE, device="reference")(given)
    np.testing.assert_allclose(cupy.asnumpy(result), expected, atol=1e-5)


def slot() -> ArraySlot:
    (value,) = compiled().graph.inputs
    return ArraySlot.of("input 'x'", value.type)


@BARE
def test_contiguous_ones_are_taken_as_they_are(bare: Any) -> None:
    array = cupy.asarray(numbers())
    given = read(slot(), bare(array), 0)
    assert given.pointer == array.data.ptr and as_it_is(bare(array), given)
    check(compiled()(bare(array)), numbers())


@BARE
def test_others_are_made_contiguous(bare: Any) -> None:
    wide = cupy.zeros((4, 17, 2 * 19, 3), cupy.float32)
    wide[:, :, ::2] = cupy.asarray(numbers()).transpose(0, 2, 3, 1)
    array = wide[:, :, ::2].transpose(0, 3, 1, 2)
    assert not array.flags.c_contiguous
    given = read(slot(), bare(array), 0)
    assert given.pointer != array.data.ptr and not as_it_is(bare(array), given)
    check(compiled()(bare(array)), numbers())


@BARE
def test_those_that_begin_anywhere_are_copied_and_not_bound(bare: Any) -> None:
    memory = cupy.zeros(1 + int(np.prod(SHAPE)), cupy.float32)
    array = memory[1:].reshape(SHAPE)
    array[...] = cupy.asarray(numbers())
    check(compiled()(bare(array)), numbers())
    with pytest.raises(GraphError, match=r"'input' begins at 0x.*valid is a multiple of 16"):
        compiled().bind(bare(array))


@BARE
def test_other_floats_are_converted_and_other_types_refused(bare: Any) -> None:
    array = cupy.asarray(numbers()).astype(cupy.float16)
    check(compiled()(bare(array)), cupy.asnumpy(array).astype(np.float32))
    with pytest.raises(GraphError, match="input 'input' has dtype int32; valid is float32"):
        compiled()(bare(array.astype(cupy.int32)))
    with pytest.raises(GraphError, match=r"input 'input' has shape \(2, 3, 17, 19\), but the"):
        compiled()(bare(array[:2]))


@BARE
@pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "strided"])
def test_inputs_may_go_while_the_gpu_is_still_to_read_them(bare: Any, strided: bool) -> None:
    """What is freed is given to the next array on the stream, which is written later."""
    exe = compiled()
    exe(cupy.asarray(numbers()))
    keep_busy(1)
    for seed in range(4):
        array = cupy.asarray(numbers(seed))
        if strided:
            array = cupy.asarray(array.transpose(0, 2, 3, 1), order="C").transpose(0, 3, 1, 2)
        cupy.cuda.get_current_stream().synchronize()
        keep_busy(CYCLES)
        result = exe(bare(array))
        del array
        rubbish = [cupy.full(SHAPE, cupy.nan, cupy.float32) for _ in range(8)]
        check(result, numbers(seed))
        del rubbish


@BARE
def test_bound_ones_stay(bare: Any) -> None:
    array = cupy.asarray(numbers())
    run = compiled().bind(bare(array))
    run()
    check(run.outputs[0], numbers())
    array.set(numbers(1))  # it was not copied
    run()
    check(run.outputs[0], numbers(1))
    del array
    gc.collect()
    rubbish = [cupy.full(SHAPE, cupy.nan, cupy.float32) for _ in range(8)]
    run()
    check(run.outputs[0], numbers(1))
    del rubbish
    strided = cupy.zeros((4, 3, 19, 17), cupy.float32).transpose(0, 1, 3, 2)
    with pytest.raises(GraphError, match="cannot be bound: valid is a contiguous array"):
        compiled().bind(bare(strided))


def test_those_on_the_host_are_copied_and_those_elsewhere_refused() -> None:
    result = compiled()(ByDlpack(numbers()))
    assert isinstance(result, np.ndarray)
    check(cupy.asarray(result), numbers())
    array = cupy.asarray(numbers())
    with pytest.raises(DeviceError, match="input 'input' is on device cuda:5; valid is cuda:0"):
        compiled()(Elsewhere(array, (2, 5)))
    with pytest.raises(DeviceError, match="is on DLPack device type 8; valid is cuda:0"):
        compiled()(Elsewhere(array, (8, 0)))
