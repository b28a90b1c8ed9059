"""Programs, as people write them, through minidnn in both ways: the same as eager, step by step."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.torch.programs import themes  # noqa: F401 (fills PROGRAMS)
from tests.torch.programs.compare import Fault
from tests.torch.programs.harness import PROGRAMS, Program, Run, faults, run
from tests.torch.programs.known import KNOWN
from tests.torch.programs.ways import COMPILE, EAGER, OPTIMIZE

#: Programs that differ on GPUs alone, or with the PyTorch that is there, in one of both ways.
KNOWN_ON_GPUS = {
    "class_activation_by_gradients": "share",  # of a module with hooks on the way back
    "counter_on_data": "share",  # PyTorch 2.11 makes no functional graph of it
    "data_scaled_between_evaluations": "wrong value",  # writes past counters are seen on CPUs
    "student_and_teacher": "wrong value",  # the same
    "vmap_inside_forward": "error",  # of PyTorch 2.11 itself
    "norms_logged_by_item": "error",  # device="cuda", and a piece on the CPU
}


class DiffersError(AssertionError):
    """A run differs from eager PyTorch's."""


def cases(device: str, sampled: bool = False) -> list[Any]:
    """All programs in both ways; those that are known to fail as such, by name and kind."""
    made = []
    quick = [name for name, program in PROGRAMS.items() if program.is_quick]
    for name, program in PROGRAMS.items():
        for i, way in enumerate((OPTIMIZE, COMPILE)):
            marks = []
            # Of the sample each program goes one of the ways, every other one the same.
            if sampled and (name not in quick or quick.index(name) % 2 != i):
                marks.append(pytest.mark.full)
            kind = KNOWN[way].get(name)
            if device == "cuda":
                kind = kind or KNOWN_ON_GPUS.get(name)
            if kind is not None:
                strict = device == "reference"  # where the list comes from
                marks.append(pytest.mark.xfail(strict=strict, reason=kind, raises=DiffersError))
            made.append(pytest.param(program, way, id=f"{way}-{name}", marks=marks))
    return made


@cache
def eager(name: str, device: str) -> Run:
    return run(PROGRAMS[name], EAGER, device)


def check(program: Program, way: str, device: str) -> None:
    memory = "cuda" if device == "cuda" else "reference"
    found: list[Fault] = faults(program, run(program, way, device), eager(program.name, memory))
    if found:
        raise DiffersError("\n".join(map(str, found[:8])))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("program", "way"), cases("reference", sampled=True))
def test_program(program: Program, way: str) -> None:
    check(program, way, "reference")


@pytest.mark.full
@pytest.mark.parametrize(("program", "way"), cases("cpu"))
def test_program_on_the_cpu(program: Program, way: str) -> None:
    check(program, way, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize(("program", "way"), cases("cuda"))
def test_program_on_a_gpu(program: Program, way: str) -> None:
    check(program, way, "cuda")
