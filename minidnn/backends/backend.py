"""The protocol of backends, and the function that finds the backend of a device's name.

A backend describes a device, says what it supports, and compiles plans.  Third parties add a
backend by an entry point in the group ``minidnn.backends``, whose object is a function without
arguments that returns a :class:`Backend`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from minidnn.cache import building_forbidden
from minidnn.errors import DeviceError, OutOfMemoryError, UnsupportedError, did_you_mean
from minidnn.fusion.target import Target
from minidnn.graph.ir import Graph, Node
from minidnn.runtime.cores import usable_memory
from minidnn.runtime.plan import Plan
from minidnn.runtime.program import Program
from minidnn.third_parties import BACKENDS, broken, entries, make

#: The value of ``precision`` with which ``minidnn.compile`` chooses a precision by measuring.
AUTO = "auto"


@runtime_checkable
class Backend(Protocol):
    """A device that plans are compiled for."""

    name: str

    def unavailable(self) -> str | None:
        """Why the backend cannot be used on this machine, and what to do; None if it can."""

    def target(self, precision: str, options: Mapping[str, Any]) -> Target:
        """What the passes ask: the device, predicted times, and refusals of fusions."""

    def precisions(self) -> Sequence[str]:
        """The precisions that the backend computes in, the default first."""

    def unsupported(self, node: Node, precision: str) -> str | None:
        """Why the backend cannot run a node of an optimized graph; None if it can."""

    def compile(self, plan: Plan, precision: str, options: Mapping[str, Any]) -> Program:
        """Compiles a plan to a program; raises UnsupportedError for unknown options."""


def why_no_states(backend: Backend) -> str | None:
    """Why a backend's programs cannot have states; None if they can.

    A backend whose programs are :class:`~minidnn.runtime.program.StatefulProgram` says so by the
    attribute ``keeps_states = True``.
    """
    if getattr(backend, "keeps_states", False):
        return None
    return f"device {backend.name!r} has no states; devices 'cpu', 'cuda' and 'reference' have"


def training_options(device: str) -> Mapping[str, Any]:
    """The options with which a device's training steps are compiled, unless others are given.

    A backend that has such options declares them by an attribute of this name.
    """
    options: Mapping[str, Any] = getattr(get_backend(device), "training_options", {})
    return options


def check_not_automatic(precision: str | None, what: str, valid: Sequence[str] = ()) -> None:
    """UnsupportedError if a precision is to be chosen by measuring where that is not done.

    ``what``: what is compiled there, for the message; ``valid``: the precisions that are valid.
    """
    if precision == AUTO:
        listed = ", ".join(map(repr, valid)) or "one of the device's precisions"
        raise UnsupportedError(
            f"precision={AUTO!r} is not for {what}: minidnn.compile chooses by it for inference, "
            f"for a network of one size; valid {'are' if len(valid) > 1 else 'is'} {listed}"
        )


def any_size_options(device: str, graph: Graph) -> Mapping[str, Any] | None:
    """The options with which a device's kernels serve any spatial size, so that nothing is compiled
    for another size; None if the device has no such kernels for a graph.

    A backend with such kernels declares these options by an attribute of this name, and by
    ``of_one_size`` the dtypes of values for which it has none.
    """
    backend = get_backend(device)
    options: Mapping[str, Any] | None = getattr(backend, "any_size_options", None)
    unsupported_dtypes = getattr(backend, "of_one_size", ())
    return None if any(value.dtype in unsupported_dtypes for value in graph.values) else options


def why_not_in(backend: Backend, precision: str) -> str | None:
    """Why a backend does not compute in one of its precisions on this machine; None if it does.

    A backend has a method of this name if some machines lack one of its precisions.
    """
    method = getattr(backend, "why_not_in", None)
    reason: str | None = None if method is None else method(precision)
    return reason


def check_inputs_and_outputs_fit(backend: Backend, graph: Graph) -> None:
    """OutOfMemoryError if the inputs and outputs of a graph do not fit into the memory that a
    backend computes in.  No pass removes these, and some passes take longer the larger they are.

    A backend that computes in the memory of its process says so by ``uses_host_memory = True``.
    """
    if not getattr(backend, "uses_host_memory", False):
        return
    boundary = dict.fromkeys((*graph.inputs, *graph.outputs))
    needed, memory = sum(value.type.bytes for value in boundary), usable_memory()
    if needed > memory:
        largest = max(boundary, key=lambda value: value.type.bytes)
        raise OutOfMemoryError(
            f"{largest!r} takes {largest.type.bytes} bytes, and all inputs and outputs of graph "
            f"{graph.name!r} {needed}; this process has {memory}"
        )


def takes_float32(backend: Backend) -> bool:
    """Whether the floating-point inputs and outputs of a backend's programs are float32, whatever
    the precision.

    A backend says so by the attribute ``interface = "float32"``.
    """
    return getattr(backend, "interface", None) == "float32"


def _imported(module: str, kind: str, *arguments: int) -> Backend:
    """An instance of a class in a module of this package."""
    backend: Backend = getattr(import_module(f"minidnn.backends.{module}"), kind)(*arguments)
    return backend


_BUILT_IN: dict[str, Callable[[], Backend]] = {
    "cpu": partial(_imported, "cpu.backend", "CpuBackend"),
    "cuda": partial(_imported, "cuda.backend", "CudaBackend"),
    "reference": partial(_imported, "reference", "ReferenceBackend"),
}

#: Devices in the order in which the default is looked for.
PREFERENCE = ("cuda", "cpu", "reference")


def backend_names() -> list[str]:
    """The names of all backends, those of third parties included."""
    return sorted({*_BUILT_IN, *(entry.name for entry in entries(BACKENDS))})


def get_backend(name: str) -> Backend:
    """The backend of that name; "cuda:1" is the second GPU.

    DeviceError if there is none, or if it cannot be used here, with the reason, which for a backend
    of a third party may be that it is broken.
    """
    if isinstance(name, str) and name in _BUILT_IN:
        backend = _BUILT_IN[name]()
        reason = backend.unavailable()
    elif isinstance(name, str) and re.fullmatch(r"cuda:\d{1,4}", name):
        backend = _imported("cuda.backend", "CudaBackend", int(name.removeprefix("cuda:")))
        reason = backend.unavailable()
    else:
        backend, reason = _third_party(name)
    if reason is not None:
        raise DeviceError(f"device={name!r} cannot be used here: {reason}")
    return backend


def _third_party(name: str) -> tuple[Backend, str | None]:
    """The backend of a third party, and why it cannot be used."""
    matches = [entry for entry in entries(BACKENDS) if entry.name == name]
    if not matches:
        valid = ", ".join(map(repr, backend_names()))
        hint = did_you_mean(name, backend_names())
        if name in ("gpu", "cudnn", "nvidia"):
            hint = "; 'cuda' is an NVIDIA GPU, 'cuda:1' the second one"
        raise DeviceError(f"device={name!r}; valid are {valid}{hint}")
    backend: Backend = make(matches[0], Backend)
    try:
        return backend, backend.unavailable()
    except Exception as error:  # whatever its own code does
        raise broken(matches[0], error) from error


#: Precisions, and other names by which people know them.
_PRECISIONS = {
    "float32": ("fp32", "single", "float", "full", "f32"),
    "float16": ("fp16", "half", "f16"),
    "bfloat16": ("bf16",),
    "float64": ("fp64", "double", "f64"),
}


def advice_on_precision(given: object) -> str:
    """The end of a message about a precision that a device lacks: the precision's usual name, and
    the devices that compute in it."""
    plain = str(given).removeprefix("torch.")
    name = next((usual for usual, aliases in _PRECISIONS.items() if plain in aliases), plain)
    devices = [device for device, make in _BUILT_IN.items() if name in make().precisions()]
    called = f"; it is called {name!r}" if devices and name != given else ""
    if not devices:
        return called
    plural = "s" if len(devices) > 1 else ""
    verb = "compute" if plural else "computes"
    return f"{called}; device{plural} {' and '.join(map(repr, devices))} {verb} in {name!r}"


def default_device(among: Sequence[str] = PREFERENCE) -> tuple[str, list[str]]:
    """The device used when none is named (the first of ``among`` that can be used here), and why
    those preferred to it are not.

    DeviceError if there is none, or none but NumPy where compiling is forbidden: whoever forbids it
    counts on kernels that are in the cache.
    """
    reasons: list[str] = []
    for name in among:
        if name not in _BUILT_IN:
            continue
        reason = _BUILT_IN[name]().unavailable()
        if reason is None:
            if name == "reference" and reasons and (cause := building_forbidden()) is not None:
                raise DeviceError(
                    f"{cause} forbids to compile, and only NumPy (device='reference', which is "
                    f"slow) could be used without: {'; '.join(reasons)}"
                )
            return name, reasons
        reasons.append(f"{name}: {reason}")
    raise DeviceError("no device can be used here: " + "; ".join(reasons))
