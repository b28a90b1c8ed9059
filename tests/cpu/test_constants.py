"""Packed weights are shared by the programs of a process, byte for byte, and by nothing else."""

from __future__ import annotations

import gc
from functools import partial

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.backends.cpu.backend import CpuProgram
from minidnn.backends.cpu.execution import packing
from minidnn.backends.cpu.execution.packing import PackedConstants


def _net(seed: int = 0) -> L.Sequential:
    random = np.random.default_rng(seed)
    net = L.Sequential(
        L.Conv2d(3, 32, 3), L.BatchNorm2d(32), L.ReLU(), L.Conv2d(32, 64, 1), L.Flatten(),
        L.Linear(64 * 36, 16),
    )  # fmt: skip
    for name, array in net.state_dict().items():
        if name.endswith("weight"):
            array[...] = random.standard_normal(array.shape)
    return net


def _program(net: L.Sequential, batch: int) -> CpuProgram:
    program = md.compile(net, (batch, 3, 8, 8), device="cpu", threads=1).program
    assert isinstance(program, CpuProgram)
    return program


def test_other_sizes_of_a_network_use_the_same_weights() -> None:
    net = _net()
    one, again, other = _program(net, 1), _program(net, 1), _program(net, 2)
    assert set(again.constants.all) == set(one.constants.all)
    large = {each for each in other.constants.all if each.bytes > 4096}
    assert large
    assert large <= set(one.constants.all)
    assert set(_program(_net(1), 1).constants.all).isdisjoint(large)


def test_shared_weights_outlive_who_packed_them_and_go_with_the_last() -> None:
    net = _net()
    x = np.random.default_rng(1).standard_normal((2, 3, 8, 8), np.float32)
    want = md.compile(net, x.shape, device="reference")(x)
    first = md.compile(net, (1, 3, 8, 8), device="cpu", threads=1)
    second = md.compile(net, x.shape, device="cpu", threads=1)
    del first
    gc.collect()
    np.testing.assert_allclose(second(x), want, rtol=1e-4, atol=1e-4)
    del second
    gc.collect()
    assert not [each for each in packing._known.values() if each.bytes == 4 * 64 * 36 * 16]


def test_arrays_that_a_sample_does_not_tell_apart_stay_apart() -> None:
    one = np.random.default_rng(2).standard_normal(1 << 16, np.float32)
    other = one.copy()
    other[1] += 1
    assert packing._sample(one) == packing._sample(other)
    made = [PackedConstants(threads=1, guarded=False) for _ in range(3)]
    first, second, third = (
        each.add(partial(np.copy, array))
        for each, array in zip(made, (one, other, one), strict=True)
    )
    assert first is third
    assert first is not second
    np.testing.assert_array_equal(first.array(), one)
    np.testing.assert_array_equal(second.array(), other)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_equal_bytes_of_other_dtypes_are_not_confused(dtype: type) -> None:
    own = PackedConstants(threads=1, guarded=False)
    constant = own.add(lambda: np.zeros(5, dtype))
    assert constant.array().dtype == dtype
    assert own.bytes == 20


def test_a_guarded_program_shares_nothing() -> None:
    net = _net()
    one = _program(net, 1)
    guarded = md.compile(net, (1, 3, 8, 8), device="cpu", threads=1, guarded=True).program
    assert isinstance(guarded, CpuProgram)
    assert set(guarded.constants.all).isdisjoint(one.constants.all)
