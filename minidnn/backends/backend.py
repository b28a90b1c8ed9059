"""What a backend is, and which there are.

A backend describes a device, says what it supports, and compiles plans.  Third parties add one
by an entry point in the group ``minidnn.backends`` whose object is a function without arguments
that gives a :class:`Backend`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
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

#: The precision with which ``minidnn.compile`` chooses one.
AUTO = "auto"


@runtime_checkable
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


def why_no_states(backend: Backend) -> str | None:
    """Why a backend's programs cannot have states; None if they can.

    A backend whose programs are :class:`~minidnn.runtime.program.StatefulProgram` says so by the
    attribute ``keeps_states = True``.
    """
    if getattr(backend, "keeps_states", False):
        return None
    return f"device {backend.name!r} has no states; devices 'cpu', 'cuda' and 'reference' have"


def training_options(device: str) -> Mapping[str, Any]:
    """The options with which a device computes steps of training, unless others are given.

    A backend that has some says so by an attribute of this name.
    """
    found: Mapping[str, Any] = getattr(get_backend(device), "training_options", {})
    return found


def check_not_automatic(precision: str | None, what: str, valid: Sequence[str] = ()) -> None:
    """UnsupportedError if a precision is to be chosen by measuring where that is not done.

    ``what``: which is compiled there; ``valid``: the precisions that it may be.
    """
    if precision == AUTO:
        listed = ", ".join(map(repr, valid)) or "one of the device's precisions"
        raise UnsupportedError(
            f"precision={AUTO!r} is not for {what}: minidnn.compile chooses by it for inference, "
            f"for a network of one size; valid {'are' if len(valid) > 1 else 'is'} {listed}"
        )


def any_size_options(device: str, graph: Graph) -> Mapping[str, Any] | None:
    """The options with which a device's kernels are those of planes of any size, so that nothing is
    compiled for another size; None if it has no such kernels for a graph.

    A backend that has says so by an attribute of this name, and by ``of_one_size`` for values of
    which dtypes it has none.
    """
    backend = get_backend(device)
    found: Mapping[str, Any] | None = getattr(backend, "any_size_options", None)
    without = getattr(backend, "of_one_size", ())
    return None if any(value.dtype in without for value in graph.values) else found


def why_not_in(backend: Backend, precision: str) -> str | None:
    """Why a backend does not compute in one of its precisions on this machine; None if it does.

    A backend that needs more than itself for some precision has a method of this name.
    """
    method = getattr(backend, "why_not_in", None)
    reason: str | None = None if method is None else method(precision)
    return reason


def check_inputs_and_outputs_fit(backend: Backend, graph: Graph) -> None:
    """OutOfMemoryError if the inputs and outputs of a graph, which passes never do without, do not
    fit into the memory that a backend computes in: some passes take as long as these are large.

    A backend that computes in the memory of its process says so by ``uses_host_memory = True``.
    """
    if not getattr(backend, "uses_host_memory", False):
        return
    outside = dict.fromkeys((*graph.inputs, *graph.outputs))
    needed, memory = sum(value.type.bytes for value in outside), usable_memory()
    if needed > memory:
        largest = max(outside, key=lambda value: value.type.bytes)
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


def _reference() -> Backend:
    backend: Backend = import_module("minidnn.backends.reference").ReferenceBackend()
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
    return sorted({*_BUILT_IN, *(entry.name for entry in entries(BACKENDS))})


def get_backend(name: str) -> Backend:
    """The backend of that name; "cuda:1" is the second GPU.

    DeviceError if there is none, or if it cannot be used here, with the reason, which for one of a
    third party may be that it is broken.
    """
    if isinstance(name, str) and name in _BUILT_IN:
        backend = _BUILT_IN[name]()
        reason = backend.unavailable()
    elif isinstance(name, str) and re.fullmatch(r"cuda:\d{1,4}", name):
        backend = _cuda(int(name.removeprefix("cuda:")))
        reason = backend.unavailable()
    else:
        backend, reason = _third_party(name)
    if reason is not None:
        raise DeviceError(f"device={name!r} cannot be used here: {reason}")
    return backend


def _third_party(name: str) -> tuple[Backend, str | None]:
    """The backend of a third party, and why it cannot be used."""
    found = [entry for entry in entries(BACKENDS) if entry.name == name]
    if not found:
        valid = ", ".join(map(repr, backend_names()))
        hint = did_you_mean(name, backend_names())
        if name in ("gpu", "cudnn", "nvidia"):
            hint = "; 'cuda' is an NVIDIA GPU, 'cuda:1' the second one"
        raise DeviceError(f"device={name!r}; valid are {valid}{hint}")
    backend: Backend = make(found[0], Backend)
    try:
        return backend, backend.unavailable()
    except Exception as error:  # whatever its own code does
        raise broken(found[0], error) from error


#: Other names of precisions.
_PRECISIONS = {
    "float32": ("fp32", "single", "float", "full", "f32"),
    "float16": ("fp16", "half", "f16"),
    "bfloat16": ("bf16",),
    "float64": ("fp64", "double", "f64"),
}


def advice_on_precision(given: object) -> str:
    """What a message ends with about a precision that a device has not: its usual name, and the
    devices that compute in it."""
    plain = str(given).removeprefix("torch.")
    name = next((own for own, others in _PRECISIONS.items() if plain in others), plain)
    able = [each for each, make in _BUILT_IN.items() if name in make().precisions()]
    called = f"; it is called {name!r}" if able and name != given else ""
    if not able:
        return called
    plural = "s" if len(able) > 1 else ""
    verb = "compute" if plural else "computes"
    return f"{called}; device{plural} {' and '.join(map(repr, able))} {verb} in {name!r}"


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
