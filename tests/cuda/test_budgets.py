"""Every kernel of the zoo's networks compiles for sm_80 and sm_90 within its budget.

No GPU is needed.  A budget is what lets enough threads run side by side: no spills, registers
that fit a multiprocessor's, shared memory that a block can have.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from minidnn import models
from minidnn.backends.cuda.arch import shared_limit
from minidnn.backends.cuda.build import compile_kernels
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.lower import lower_plan
from minidnn.backends.cuda.machine import Machine
from minidnn.backends.cuda.target import CudaTarget
from minidnn.layers.build import to_graph
from minidnn.passes.infrastructure import Context
from minidnn.passes.pipeline import optimize
from minidnn.runtime.plan import make_plan

REGISTERS = 65536
SPILLS = 0
FEW = (("squeezenet1_1", "float32"), ("inception_v3", "tf32"))
ALL = [(name, p) for name in models.list_models() for p in ("float32", "float16", "bfloat16")]


def launches_of(name: str, precision: str, arch: str, batch: int = 8) -> list[Launch]:
    """The kernels of a network of the zoo on an H200, those for cuDNN left out."""
    machine = Machine("NVIDIA H200", (9, 0), 132, 4.3e12)
    network = getattr(models, name)()
    size = 299 if name == "inception_v3" else 224
    graph = to_graph(network, (batch, 3, size, size))
    context = Context(CudaTarget(machine.device(precision), precision))
    plan = make_plan(optimize(graph, context), context)
    works = [task.work for task in lower_plan(plan, arch, precision == "tf32")]
    return [work for work in works if isinstance(work, Launch)]


def check(launches: list[Launch], arch: str) -> None:
    kernels = compile_kernels([launch.source for launch in launches], arch)
    for launch, kernel in zip(launches, kernels, strict=True):
        taken = kernel.resources
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        where = f"{arch}: {taken} of {threads} threads\n{launch.source.text}"
        assert taken.spill_bytes <= SPILLS and taken.stack_bytes == 0, where
        assert taken.registers * threads <= REGISTERS, where
        assert taken.registers <= 255 and threads <= 1024, where
        assert launch.shared_bytes + taken.shared_bytes <= shared_limit(arch), where


@pytest.mark.parametrize(("name", "precision"), FEW)
def test_networks_keep_to_the_budget(
    name: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINIDNN_CACHE", str(tmp_path))
    for arch in ("sm_80", "sm_90"):
        launches = launches_of(name, precision, arch)
        assert any(launch.source.name.startswith("seq_") for launch in launches)
        check(launches, arch)


@pytest.mark.full
@pytest.mark.parametrize(("name", "precision"), ALL)
def test_all_networks_keep_to_the_budget(name: str, precision: str) -> None:
    for arch in ("sm_80", "sm_90"):
        check(launches_of(name, precision, arch, batch=128), arch)
