"""Kernels of one sequence that are measured beside the cost model's choice: the same bits, on the
same pointers, within what a block can have; and which of them is taken."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from minidnn import layers as L
from minidnn.backends.cuda import fastest
from minidnn.backends.cuda.fastest import Fastest
from minidnn.backends.cuda.functions import CompiledKernel, Loaded, compile_kernels
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.lower import lower_plan
from minidnn.backends.cuda.machine import Machine
from minidnn.backends.cuda.nvrtc import Resources
from minidnn.backends.cuda.sequence.reschedule import print_region, print_variants
from minidnn.backends.cuda.sequence.vectors import SequenceKernel
from minidnn.backends.cuda.task import Task
from minidnn.backends.cuda.tensor import Tensor, tensor_of
from minidnn.errors import MiniDNNWarning
from minidnn.fusion.region import FusedSequence as Region
from minidnn.fusion.sequence import Schedule
from minidnn.graph.ir import Graph, Value
from minidnn.graph.layout import CHANNELS_LAST, PLANAR, Layout
from minidnn.graph.types import rounded_to
from minidnn.layers.build import to_graph
from minidnn.passes.fold import FOLD_BATCH_NORM
from minidnn.passes.infrastructure import Context, run_passes
from minidnn.passes.pipeline import PIPELINE
from tests.cuda.cards import A100, H200, RTX_3090, on_each
from tests.cuda.lowered import planned
from tests.cuda.sequences import Case, case_of, run_cases
from tests.sampling import some

CHAINS: dict[str, tuple[list[L.Layer], tuple[int, ...]]] = {
    "in registers": ([L.MaxPool2d(3, 1, 1), L.BatchNorm2d(5), L.ReLU()] * 2, (2, 5, 12, 20)),
    "patches": ([L.MaxPool2d(3, 2), L.BatchNorm2d(16), L.AvgPool2d(3, 1, 1)], (2, 16, 25, 18)),
    "a lone window": ([L.MaxPool2d(3, 1, 1)], (2, 16, 16, 16)),
    "element-wise": ([L.BatchNorm2d(16), L.ReLU()], (3, 16, 7, 8)),
}


def region_of(layers: list[L.Layer], shape: tuple[int, ...]) -> Region:
    graph = run_passes(
        to_graph(L.Sequential(*layers), shape),
        PIPELINE[: PIPELINE.index(FOLD_BATCH_NORM)],
        Context(),
    )
    _, _, rows, columns = graph.outputs[0].type.plane
    return Region(graph, Schedule(rows, columns))


def lies_in(layout: Layout) -> Callable[[Value], Tensor]:
    return lambda value: tensor_of(value.type, layout)


def numbers_for(graph: Graph) -> list[np.ndarray]:
    random = np.random.default_rng(3)
    arrays = [random.standard_normal(v.shape).astype(np.float32) for v in graph.inputs]
    for array in arrays:
        array[random.random(array.shape) < 0.02] = np.nan
        array[random.random(array.shape) < 0.02] = -np.inf
    return [rounded_to(v.dtype, a) for v, a in zip(graph.inputs, arrays, strict=True)]


def cases_of(name: str, layout: Layout, machine: Machine) -> list[Case]:
    region = region_of(*CHAINS[name])
    case = case_of(region, numbers_for(region.body), layout, machine, suit=True)
    launches = print_variants(region, lies_in(layout), machine)
    return [replace(case, kernel=SequenceKernel(one, case.kernel.vectors)) for one in launches]


@pytest.mark.race
@pytest.mark.parametrize("layout", [PLANAR, CHANNELS_LAST], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("name", CHAINS)
def test_all_give_the_same_bits(name: str, layout: Layout, tmp_path: Path) -> None:
    cases = cases_of(name, layout, H200)
    assert len(cases) >= 3
    run_cases(cases, tmp_path)


def test_they_differ_in_blocks_and_patches() -> None:
    region = region_of(*CHAINS["patches"])
    chosen = print_region(region, lies_in(CHANNELS_LAST), H200).kernel.launch
    others = print_variants(region, lies_in(CHANNELS_LAST), H200)
    assert chosen not in others and len(set(others)) == len(others)
    assert len({one.block for one in others}) > 1
    assert len({one.grid for one in others}) > 2
    assert len({one.shared_bytes for one in others}) > 2


@on_each(H200, full=A100)
def test_they_compile_within_what_a_block_can_have(
    machine: Machine, warm_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINIDNN_CACHE", str(warm_cache))
    launches = [
        one
        for name in CHAINS
        for layout in (PLANAR, CHANNELS_LAST)
        for one in print_variants(region_of(*CHAINS[name]), lies_in(layout), machine)
    ]
    launches = some(launches, 9)
    kernels = compile_kernels([one.source for one in launches], machine.arch)
    for launch, kernel in zip(launches, kernels, strict=True):
        taken, (threads, _, _) = kernel.resources, launch.block
        assert threads <= 1024 and taken.registers * threads <= 65536, launch.source.text
        assert launch.shared_bytes + taken.shared_bytes <= machine.shared_bytes


@on_each(A100, RTX_3090, H200)
def test_twice_the_channels_may_be_too_many(machine: Machine) -> None:
    region = region_of([L.MaxPool2d(3, 1, 1)], (128, 64, 56, 56))
    launches = print_variants(region, lies_in(CHANNELS_LAST), machine)
    assert max(one.shared_bytes for one in launches) <= machine.shared_bytes
    assert max(one.shared_bytes for one in launches) > machine.shared_bytes // 2


# Which of them is taken


class Device:
    """What measuring asks a GPU, and how long each kernel takes there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.races: list[int] = []
        self.times: Callable[[int], list[float | None]] = lambda n: [1.0] * n
        self.spills: set[Launch] = set()
        self.name = "a GPU"
        self.full = False
        runtime = SimpleNamespace(getDevice=lambda: 0)
        memory = SimpleNamespace(OutOfMemoryError=MemoryError)
        cuda = SimpleNamespace(runtime=runtime, memory=memory)
        monkeypatch.setattr(fastest, "cupy", lambda: SimpleNamespace(cuda=cuda))
        monkeypatch.setattr(fastest.machine, "device_name", lambda index: self.name)
        monkeypatch.setattr(fastest.arrays, "random_like", self.random_like)
        monkeypatch.setattr(fastest, "race", self.race)

    def random_like(self, spec: Any, seed: int) -> Any:
        if self.full:
            raise MemoryError(f"no {spec.span} numbers")
        return SimpleNamespace(ptr=4096 * (seed + 1))

    def race(self, contestants: Sequence[Any]) -> list[float | None]:
        self.races.append(len(contestants))
        return self.times(len(contestants))

    def load(self, launches: Sequence[Launch]) -> list[Loaded]:
        return [
            Loaded(one, _compiled(8 * (one in self.spills)), lambda *_, **__: None)
            for one in launches
        ]


CONSTANTS: Any = SimpleNamespace(address=256, offset=lambda data: 0)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Device:
    monkeypatch.setenv("MINIDNN_CACHE", str(tmp_path))
    return Device(monkeypatch)


def measured(device: Device) -> tuple[Fastest, list[Task]]:
    layers, shape = CHAINS["patches"]
    plan = planned(L.Sequential(*layers), shape, "float16")
    tasks = lower_plan(plan, H200, False, others=True)
    made = Fastest(plan, tasks)
    made.measure(device.load, CONSTANTS)
    return made, tasks


def _compiled(spill_bytes: int) -> CompiledKernel:
    return CompiledKernel(b"", "kernel", Resources(32, 0, spill_bytes, 0))


def several(tasks: Sequence[Task]) -> Task:
    (task,) = (task for task in tasks if task.others)
    return task


def test_the_fastest_is_taken_and_remembered(device: Device) -> None:
    device.times = lambda n: [5.0, None, *(3.0 + i for i in range(n - 2))]
    first, tasks = measured(device)
    task = several(tasks)
    assert device.races == [1 + len(task.others)]
    assert first(task) == task.others[1]
    again, tasks = measured(device)
    assert again(several(tasks)) == task.others[1] and len(device.races) == 1
    assert again.launches() == [task.others[1]], "only that is compiled"


def test_another_gpu_measures_anew_and_a_broken_entry_too(device: Device) -> None:
    measured(device)
    device.name = "another GPU"
    measured(device)
    assert len(device.races) == 2
    layers, shape = CHAINS["patches"]
    tasks = lower_plan(planned(L.Sequential(*layers), shape, "float16"), H200, False, others=True)
    key = fastest._key(fastest._launches(several(tasks)))
    for broken in (b"", b"[]", b'{"fastest": 1000}', b'{"fastest": -1}', b'{"fastest": "0"}'):
        fastest._store.put(key, broken)
        device.races.clear()
        made, tasks = measured(device)
        assert len(device.races) == 1 and made(several(tasks)) == several(tasks).work


def test_what_spills_does_not_race(device: Device) -> None:
    layers, shape = CHAINS["patches"]
    tasks = lower_plan(planned(L.Sequential(*layers), shape, "float16"), H200, False, others=True)
    task = several(tasks)
    device.spills = set(task.others[:3])
    measured(device)
    assert device.races == [1 + len(task.others) - 3]


def test_without_memory_the_cost_models_choice_stays(device: Device) -> None:
    device.full = True
    with pytest.warns(MiniDNNWarning, match="not measured"):
        made, tasks = measured(device)
    assert made(several(tasks)) == several(tasks).work and not device.races
    device.full = False
    measured(device)
    assert len(device.races) == 1, "nothing was remembered"


def test_only_exhaustive_tuning_asks_for_others(device: Device) -> None:
    layers, shape = CHAINS["patches"]
    tasks = lower_plan(planned(L.Sequential(*layers), shape, "float16"), H200, False)
    assert not any(task.others for task in tasks)


def test_measuring_says_what_it_found(device: Device, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="minidnn"):
        measured(device)
    assert "the cost model's 1.0000" in caplog.text
