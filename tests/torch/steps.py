"""Steps of training programs, by minidnn, and by PyTorch in float64 and in float32."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

import minidnn as md
from minidnn.acceleration.trained import TrainedProgram
from tests.cases.record import one_thread

#: Errors are parts of the largest number of an array, and at least that of rounding it a few times.
FLOOR = 4 * float(np.finfo(np.float32).eps)

#: What a program leaves behind, by name.
Results = Mapping[str, Any]
#: Trains a module, in the dtype of its parameters; gives its losses.
Program = Callable[[Any], list[float]]


def trained_programs(fast: Any) -> list[TrainedProgram]:
    """What was compiled of an optimized module with PyTorch's tape around it."""
    return [each for each in fast.programs if isinstance(each, TrainedProgram)]


def left_behind(module: Any, program: Program, state: nn.Module) -> Results:
    torch.manual_seed(1)
    losses = program(module)
    held = state.state_dict()
    arrays = {name: tensor.detach().double().cpu().numpy() for name, tensor in held.items()}
    return {"losses": np.array(losses), **arrays}


def error(found: Results, exact: Results) -> float:
    errors = []
    for name, array in exact.items():
        scale = max(float(np.abs(array).max()), 1e-3)
        errors.append(float(np.abs(found[name] - array).max()) / scale)
    return max(*errors, FLOOR)


def errors_of(net: nn.Module, program: Program, device: str) -> tuple[float, float, Any]:
    """The errors of minidnn and of PyTorch in float32, and the optimized module."""
    wide, single = copy.deepcopy(net).double().train(), copy.deepcopy(net).train()
    fast: Any = md.optimize(net.to(device if device == "cuda" else "cpu").eval(), device=device)
    with one_thread():
        exact = left_behind(wide, program, wide)
        theirs = error(left_behind(single, program, single), exact)
    ours = error(left_behind(fast.train(), program, net), exact)
    return ours, theirs, fast


def is_near(found: list[tuple[float, float]]) -> bool:
    """Whether the median of minidnn's errors is at most three times that of PyTorch's."""
    ours, theirs = np.median(np.array(found), axis=0)
    return bool(ours <= 3 * theirs)


def like(module: nn.Module, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor where a module's parameters lie, and in their dtype if both are floating-point."""
    weight = next(module.parameters())
    return tensor.to(weight.device, weight.dtype if tensor.is_floating_point() else None)
