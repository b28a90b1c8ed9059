"""What a program leaves behind at a step, and how two runs of it differ, by kind."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

#: Relative and absolute: float32 sums in another order, halves round once more.
TOLERANCES = {
    torch.float64: (1e-7, 1e-9),
    torch.float32: (2e-4, 2e-5),
    torch.float16: (1e-2, 1e-2),
    torch.bfloat16: (4e-2, 4e-2),
    torch.complex64: (2e-4, 2e-5),
}


NO_ERROR = "no error"
"""Stands where the name of an exception would."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A tensor at a moment, with what its reader may ask of it.

    role: "value", "state" (a parameter or buffer), "gradient", or "raised" for the name of an
        exception.
    """

    role: str
    value: Any
    requires_grad: bool = False


#: What was found at a step: from the path of a leaf, like ``[0].fc.weight.grad``, to the leaf.
Snapshot = Mapping[str, Leaf]


@dataclasses.dataclass(frozen=True)
class Fault:
    """One difference between a run and eager PyTorch's.

    kind: one word or two that says what went wrong: "lost write", "double write", "wrong state",
        "wrong value", "gradient missing", "gradient extra", "wrong gradient", "requires_grad",
        "structure", "error", "no error", "share", "warned twice".
    """

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def snapshot(*values: Any) -> Snapshot:
    """Copies of all tensors in values, which may be nested, or modules."""
    found: dict[str, Leaf] = {}
    for place, value in enumerate(values):
        found.update(_leaves(value, f"[{place}]"))
    return found


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Leaf]]:
    if isinstance(value, torch.Tensor):
        yield path, Leaf("value", _copied(value), value.requires_grad)
        if value.is_leaf and value.requires_grad:
            yield f"{path}.grad", Leaf("gradient", _copied(value.grad))
    elif isinstance(value, nn.Module):
        yield from _module_leaves(value, path)
    elif isinstance(value, Mapping):
        yield path, Leaf("value", f"{type(value).__name__} of {list(value)}")
        for key, each in value.items():
            yield from _leaves(each, f"{path}[{key!r}]")
    elif isinstance(value, (tuple, list)):
        yield path, Leaf("value", f"{type(value).__name__} of {len(value)}")
        for place, each in enumerate(value):
            yield from _leaves(each, f"{path}[{place}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _leaves(getattr(value, field.name), f"{path}.{field.name}")
    else:
        yield path, Leaf("value", value)


def _module_leaves(module: nn.Module, path: str) -> Iterator[tuple[str, Leaf]]:
    for name, parameter in module.named_parameters(remove_duplicate=False):
        where = f"{path}.{name}"
        yield where, Leaf("state", _copied(parameter), parameter.requires_grad)
        yield f"{where}.grad", Leaf("gradient", _copied(parameter.grad))
    for name, buffer in module.named_buffers(remove_duplicate=False):
        yield f"{path}.{name}", Leaf("state", _copied(buffer), buffer.requires_grad)


def _copied(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.detach().clone()


def differences(
    found: list[Snapshot],
    expected: list[Snapshot],
    looseness: float = 1.0,
    initial: Snapshot | None = None,
) -> Iterator[Fault]:
    """All differences of the first step that has any.

    initial: the state of modules before the first step, by the names of parameters and buffers.
    """
    if len(found) != len(expected):
        yield Fault("structure", f"{len(found)} steps instead of {len(expected)}")
        return
    before = initial or {}
    for step, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        faults = list(_step_differences(ours, theirs, before, looseness))
        if faults:
            yield from (Fault(f.kind, f"step {step}, {f.text}") for f in faults)
            return
        before = theirs


def _step_differences(
    found: Snapshot, expected: Snapshot, before: Snapshot, looseness: float
) -> Iterator[Fault]:
    for path in expected.keys() - found.keys():
        yield Fault("structure", f"{path} is missing")
    for path in found.keys() - expected.keys():
        yield Fault("structure", f"{path} should not be there")
    faults = {}
    for path in expected.keys() & found.keys():
        earlier = before.get(path, before.get(path.partition("].")[2]))
        fault = _difference(found[path], expected[path], earlier, looseness)
        if fault is not None:
            faults[path] = Fault(fault.kind, f"{path}: {fault.text}")
    for path in expected:
        # A weight that differs after a step because its gradient did is no fault of its own.
        if path in faults and f"{path}.grad" not in faults:
            yield faults[path]


def _difference(found: Leaf, expected: Leaf, before: Leaf | None, looseness: float) -> Fault | None:
    ours, theirs = found.value, expected.value
    if not isinstance(theirs, torch.Tensor) or not isinstance(ours, torch.Tensor):
        return _plain_difference(found, expected)
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        text = f"{ours.dtype}{[*ours.shape]} instead of {theirs.dtype}{[*theirs.shape]}"
        return Fault("structure", text)
    if not is_close(ours, theirs, looseness):
        old = None if before is None else before.value
        return Fault(_kind(found.role, ours, theirs, old), _beside(ours, theirs))
    if found.requires_grad != expected.requires_grad:
        return Fault("requires_grad", f"requires_grad is {found.requires_grad}")
    return None


def _plain_difference(found: Leaf, expected: Leaf) -> Fault | None:
    ours, theirs = found.value, expected.value
    if expected.role == "gradient" and (ours is None or theirs is None):
        if (ours is None) == (theirs is None):
            return None
        return Fault("gradient missing" if ours is None else "gradient extra", "None or not")
    if isinstance(ours, float) and isinstance(theirs, float):
        both_nan = math.isnan(ours) and math.isnan(theirs)
        same = both_nan or math.isclose(ours, theirs, rel_tol=2e-4, abs_tol=2e-5)
    else:
        same = type(ours) is type(theirs) and ours == theirs
    if not same and expected.role == "raised":
        return Fault("no error" if ours == NO_ERROR else "error", f"{ours} instead of {theirs}")
    return None if same else Fault("wrong value", f"{ours!r:.80} instead of {theirs!r:.80}")


def is_close(found: torch.Tensor, expected: torch.Tensor, looseness: float) -> bool:
    """Whether tensors are equal but for what rounding explains."""
    if expected.dtype not in TOLERANCES:
        return bool((found == expected).all())
    relative, absolute = (looseness * each for each in TOLERANCES[expected.dtype])
    return torch.allclose(found, expected, relative, absolute, equal_nan=True)


def _kind(role: str, found: torch.Tensor, expected: torch.Tensor, before: Any) -> str:
    if role != "state" or not isinstance(before, torch.Tensor) or before.shape != found.shape:
        return {"gradient": "wrong gradient", "state": "wrong state"}.get(role, "wrong value")
    if is_close(found, before, 1.0):
        return "lost write"
    if not found.is_floating_point() and found.dtype != torch.bool:
        found, expected, before = found.double(), expected.double(), before.double()
    if found.dtype != torch.bool and is_close(found - before, 2 * (expected - before), 10.0):
        return "double write"
    return "wrong state"


def _beside(found: torch.Tensor, expected: torch.Tensor) -> str:
    def first(tensor: torch.Tensor) -> str:
        return ", ".join(f"{each:.6g}" for each in tensor.flatten()[:4].tolist())

    if found.is_complex() or not found.numel():
        return "values differ"
    apart = (found.double() - expected.double()).abs().max()
    return f"[{first(found)}, ...] instead of [{first(expected)}, ...], {float(apart):.3g} apart"
