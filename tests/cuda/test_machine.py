"""Everything that is chosen follows the GPU that is described, none of which is here."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import minidnn as md
from minidnn import layers as L
from minidnn import models
from minidnn.backends.cuda import machine as cuda_machine
from minidnn.backends.cuda.contraction.algorithms import launches_of
from minidnn.backends.cuda.contraction.problem import ContractionProblem
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.lower import lower_plan
from minidnn.backends.cuda.machine import Machine, machine_of
from minidnn.backends.cuda.target import CudaTarget
from minidnn.layers.build import to_graph
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from minidnn.runtime.plan import make_plan
from tests.sampling import mixed

from .cards import A100, H100, H200, RTX_3090, RTX_4090


def chosen(net: md.Layer, shape: tuple[int, ...], precision: str, machine: Machine) -> list[Launch]:
    """All kernels of ours that a network may run, after the whole pipeline."""
    context = Context(CudaTarget(machine.device(precision), precision))
    plan = make_plan(optimize(to_graph(net, shape), context), context)
    launches: list[Launch] = []
    for task in lower_plan(plan, machine, precision == "tf32"):
        work = task.work
        if isinstance(work, Launch):
            launches.append(work)
        else:
            assert isinstance(work, ContractionProblem)
            launches += launches_of(work, machine)
    return launches


@pytest.mark.parametrize(
    ("machine", "precision"),
    mixed(2, (A100, RTX_3090, RTX_4090, H100, H200), ["float32", "tf32", "bfloat16"]),
    ids=lambda one: one.arch if isinstance(one, Machine) else None,
)
def test_all_that_is_chosen_fits_the_gpu(machine: Machine, precision: str) -> None:
    net = models.densenet121()
    launches = chosen(net, (2, *net.input_shape), precision, machine)
    assert max(launch.shared_bytes for launch in launches) <= machine.shared_bytes
    specific = [launch for launch in launches if launch.source.specific]
    assert not specific or machine.arch == "sm_90"


def test_a_smaller_gpu_gets_fewer_blocks() -> None:
    """Blocks that stay while there is work are as many as multiprocessors run."""
    net, shape = L.Conv2d(64, 64, 1), (32, 64, 56, 56)
    half = replace(H200, multiprocessors=66)
    whole, fewer = (
        max(launch.grid[0] for launch in chosen(net, shape, "float16", machine))
        for machine in (H200, half)
    )
    assert whole > fewer


def test_patches_follow_the_shared_memory() -> None:
    chain = L.Sequential(*[L.MaxPool2d(3, stride=1, padding=1), L.ReLU()] * 6)
    large, small = (
        max(launch.shared_bytes for launch in chosen(chain, (8, 64, 112, 112), "bfloat16", machine))
        for machine in (H200, RTX_4090)
    )
    assert 0 < small <= RTX_4090.shared_bytes < H200.shared_bytes
    assert large > 0


def test_the_cost_model_scales_what_an_h200_does() -> None:
    known = H200.device("float32")
    slower = replace(H200, hertz=H200.hertz / 2, multiprocessors=66).device("float32")
    assert slower.operations == pytest.approx(known.operations / 4)
    assert slower.bandwidth == known.bandwidth and slower.workers == 66
    exact, halves = (RTX_4090.device(p).contraction_operations for p in ("float32", "float16"))
    assert 1.5 < halves / exact < 2.5  # by NVIDIA's whitepaper 165 and 83 TFLOP/s


def test_what_architectures_have() -> None:
    assert [card.has_max3 for card in (A100, RTX_4090, H200)] == [False, False, True]
    assert [card.has_clusters for card in (A100, RTX_4090, H200)] == [False, False, True]


def test_a_gpu_is_described_by_its_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    attributes: dict[str, int] = {
        "MaxSharedMemoryPerBlockOptin": 232448,
        "L2CacheSize": 52428800,
        "ClockRate": 1980000,
        "MemoryClockRate": 2619000,
        "GlobalMemoryBusWidth": 5120,
    }
    properties = {"name": b"NVIDIA H100", "major": 9, "minor": 0, "multiProcessorCount": 132}
    runtime = SimpleNamespace(
        getDeviceCount=lambda: 1, getDeviceProperties=lambda index: properties
    )

    def device(index: int) -> Any:
        return SimpleNamespace(attributes=attributes)

    cuda = SimpleNamespace(runtime=runtime, Device=device)
    monkeypatch.setattr(cuda_machine, "cupy", lambda: SimpleNamespace(cuda=cuda))
    machine_of.cache_clear()
    found = machine_of(0)
    machine_of.cache_clear()
    assert found == replace(H100, bandwidth=found.bandwidth)
    assert found.bandwidth == pytest.approx(H100.bandwidth, rel=0.02)
    with pytest.raises(md.DeviceError, match="cuda:1 does not exist: CUDA sees 1 GPU"):
        machine_of(1)
