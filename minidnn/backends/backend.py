"""What a backend is, and which there are.

A backend describes a device, says what it supports, and compiles plans.  Third parties add one
by an entry point in the group ``minidnn.backends`` whose object is a function without arguments
that gives a :class:`Backend`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Protocol

from minidnn.errors import DeviceError
from minidnn.fusion.target import Target
from minidnn.graph.ir import Node
from minidnn.runtime.plan import Plan
from minidnn.runtime.program import Program


class Backend(Protocol):
    """A device that plans are compiled for."""

    name: str

    def unavailable(self) -> str | None:
        """Why the backend cannot be used on this machine, and what to do; None if it can."""

    def target(self, precision: str, options: Mapping[str, Any]) -> Target:
        """Device, prices and refusals, which the passes ask."""

    def precisions(self) -> Sequence[str]:
        """The precisions that it computes in, the default first."""

    def unsupported(self, node: Node, precision: str) -> str | None:
        """Why it cannot run a node of an optimized graph; None if it can."""

    def compile(self, plan: Plan, precision: str, options: Mapping[str, Any]) -> Program:
        """The plan as a program; raises UnsupportedError for options that it does not know."""


def _reference() -> Backend:
    backend: Backend = import_module("minidnn.backends.reference.backend").ReferenceBackend()
    return backend


def _cpu() -> Backend:
    backend: Backend = import_module("minidnn.backends.cpu.backend").CpuBackend()
    return backend


def _cuda(index: int = 0) -> Backend:
    backend: Backend = import_module("minidnn.backends.cuda.backend").CudaBackend(index)
    return backend


_BUILT_IN: dict[str, Callable[[], Backend]] = {
    "cpu": _cpu,
    "cuda": _cuda,
    "reference": _reference,
}

#: Devices in the order in which the default is looked for.
PREFERENCE = ("cuda", "cpu", "reference")


def backend_names() -> list[str]:
    """The names of all backends, those of third parties included."""
    return sorted({*_BUILT_IN, *(e.name for e in entry_points(group="minidnn.backends"))})


def get_backend(name: str) -> Backend:
    """The backend of that name; "cuda:1" is the second GPU.

    DeviceError if there is none, or if it cannot be used here, with the reason.
    """
    if isinstance(name, str) and name in _BUILT_IN:
        backend = _BUILT_IN[name]()
    elif isinstance(name, str) and re.fullmatch(r"cuda:\d{1,4}", name):
        backend = _cuda(int(name.removeprefix("cuda:")))
    else:
        found = [e for e in entry_points(group="minidnn.backends") if e.name == name]
        if not found:
            valid = ", ".join(map(repr, backend_names()))
            raise DeviceError(f"device={name!r}; valid are {valid}")
        backend = found[0].load()()
    reason = backend.unavailable()
    if reason is not None:
        raise DeviceError(f"device={name!r} cannot be used here: {reason}")
    return backend


def default_device(among: Sequence[str] = PREFERENCE) -> tuple[str, list[str]]:
    """The device used when none is named (the first of ``among`` that can be used here), and why
    those preferred to it are not."""
    reasons: list[str] = []
    for name in among:
        if name not in _BUILT_IN:
            continue
        reason = _BUILT_IN[name]().unavailable()
        if reason is None:
            return name, reasons
        reasons.append(f"{name}: {reason}")
    raise DeviceError("no device can be used here: " + "; ".join(reasons))
