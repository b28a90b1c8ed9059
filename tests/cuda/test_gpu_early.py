"""Recipes of contractions read a residual only when the kernel in front has written it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from minidnn.backends.cuda.contraction import tune
from minidnn.backends.cuda.contraction.algorithms import algorithms_for
from minidnn.backends.cuda.contraction.config import ContractionExecutable, build
from minidnn.backends.cuda.contraction.problem import Addresses, ContractionProblem
from minidnn.backends.cuda.functions import Loaded, load_launches
from minidnn.backends.cuda.kernels import Launch
from minidnn.backends.cuda.machine import machine_of
from tests.cuda.contractions import residual
from tests.cuda.lowered import problems_of
from tests.cudnn_graph.late import read_early

pytestmark = pytest.mark.gpu
MOST = 4


def configs(problem: ContractionProblem) -> list[ContractionExecutable]:
    """The first of each form."""
    machine = machine_of(0)
    known: dict[Launch, Loaded] = {}

    def load(launches: Sequence[Launch]) -> list[Loaded]:
        missing = [one for one in launches if one not in known]
        known.update(zip(missing, load_launches(missing, machine.arch), strict=True))
        return [known[one] for one in launches]

    tuning = tune.Tuning(machine, "exhaustive", 1 << 30, load)
    return [
        build(problem, config, core, machine, load)
        for algorithm in algorithms_for(problem, machine)
        for config, core in tune._candidates(problem, algorithm, MOST, tuning)
    ]


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "tf32", "float32"])
@pytest.mark.parametrize(("channels", "window"), [(256, 1), (512, 3)])
def test_residual(channels: int, window: int, precision: str) -> None:
    import torch

    network = residual(channels, window)
    (problem,) = problems_of(network, (16, channels, 14, 14), precision)
    kind = getattr(torch, problem.x.dtype)
    image = torch.randn(16 * channels * 14 * 14, device="cuda").to(kind)
    weight = torch.randn(problem.w.span, device="cuda").to(kind) / (channels * window) ** 0.5
    vectors = [torch.randn(channels, device="cuda").to(getattr(torch, d)) for d in problem.vectors]
    out, other = torch.empty_like(image), torch.randn_like(image)
    built = configs(problem)
    assert len(built) > 1
    found: dict[str, Any] = {}
    for one in built:
        room = torch.zeros(max(1, one.workspace), dtype=torch.uint8, device="cuda")
        at = Addresses(
            image.data_ptr(),
            weight.data_ptr(),
            out.data_ptr(),
            (other.data_ptr(),),
            tuple(vector.data_ptr() for vector in vectors),
        )
        run = one.bind(at, room.data_ptr())
        early = read_early(run, out, {"image": image, "residual": other})
        if early:
            found[f"{one.config.algorithm}: {one.config.algorithm_name(one.problem)}"] = early
    assert not found, found
