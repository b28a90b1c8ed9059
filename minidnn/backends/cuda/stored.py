"""Stores GPU programs in files and restores them: the table, cubins and cuDNN's serialized plans.

A document of JSON types has the table; a row refers to its cubin or plan by number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...cudnn import machine as cudnn_machine
from ...cudnn.graph.execution import Execution, StoredExecution
from ...runtime.interface import Interface
from ...runtime.operand import KernelArgument, Operand
from ...runtime.program import StoredProgram
from ..codegen.kernel import KernelSource
from .arrays import ArraySlot
from .block import Block
from .captured import CapturedProgram, on_device
from .constants import UploadedConstants
from .contraction.fixed_function import FixedConvolution, PlanCall
from .functions import CompiledKernel, load_compiled
from .kernels import Launch
from .library.call import FunctionCall
from .machine import Machine, machine_of
from .memory import told
from .nvrtc import UNKNOWN
from .table import CudaTable, KernelRow, LibraryRow, Row

_UNIT = "kernels {}"
_PLAN = "plan {}"


def store(table: CudaTable, constants: np.ndarray, machine: Machine) -> StoredProgram:
    """Returns the parts of a file that holds a program.

    Args:
        table: the program's launches.
        constants: the bytes of all constants, in the layout that they have on the device.
        machine: the GPU that the program is compiled for.
    """
    units: dict[bytes, int] = {}
    plans: dict[Execution, int] = {}

    def row(entry: Row) -> list[Any]:
        arguments = [
            one if isinstance(one, int) else [one.slot, one.offset] for one in entry.arguments
        ]
        if isinstance(entry, KernelRow):
            kernel, launch = entry.loaded.kernel, entry.loaded.launch
            unit = units.setdefault(kernel.cubin, len(units))
            shape = (launch.grid, launch.block, launch.shared_bytes)
            return ["kernel", arguments, unit, kernel.name, *shape]
        if isinstance(entry.call, PlanCall):
            number = plans.setdefault(entry.call.plan, len(plans))
            return ["plan", arguments, number, entry.call.settled]
        if isinstance(entry.call, FunctionCall):
            return ["function", arguments, entry.call.stored()]
        assert isinstance(entry.call, FixedConvolution)
        return ["fixed", arguments, entry.call.stored()]

    block = table.block
    document: dict[str, Any] = {
        "card": _card(machine),
        "library": cudnn_machine.library_name(),
        "tasks": [[row(entry) for entry in rows] for rows in table.tasks],
        "block": [block.bytes, block.own_bytes, block.inputs, block.outputs],
        "inputs": table.inputs,
        "outputs": table.outputs,
        "copies": [[to.slot, source.slot, source.offset, n] for to, source, n in table.copies],
    }
    stored_plans = [plan.stored() for plan in plans]
    document["plans"] = [[plan.ids, plan.scalars, plan.epilogue_inputs] for plan in stored_plans]
    code: dict[str, bytes | memoryview] = {_UNIT.format(i): unit for unit, i in units.items()}
    code |= {_PLAN.format(i): plan.text.encode() for i, plan in enumerate(stored_plans)}
    # All constants are read to be copied to the device, so checking only a part would save nothing.
    return StoredProgram(machine.arch, document, code, [constants], constants.nbytes)


def why_not_loadable(document: dict[str, Any], index: int) -> str | None:
    """Why a stored program cannot run here: the GPU or cuDNN that it is for; None if it can."""
    card, library = _card(machine_of(index)), cudnn_machine.library_name()
    if document["card"] != card:
        return f"is for {document['card']}, and cuda:{index} is {card}"
    if document["library"] != library:
        return f"is for {document['library']}, and this is {library}"
    return None


def restore(
    document: dict[str, Any],
    code: Callable[[str], memoryview],
    constants: np.ndarray,
    interface: Interface,
    index: int,
) -> CapturedProgram:
    """Returns the program of a document, on the GPU of that index.

    Args:
        document: the table and what it is for.
        code: returns a part of the file by its name: a cubin or a plan.
        constants: the bytes of the file's constants.
        interface: names and types of inputs and outputs.
        index: the index of the GPU.

    Raises:
        DeviceError: its code cannot be loaded here.
        CuDNNError: cuDNN does not take its plans.
        OutOfMemoryError: the device has no room for it.
    """
    inputs = [ArraySlot.of(f"input {v.name!r}", v.type) for v in interface.inputs]
    outputs = [ArraySlot.of(f"out[{i}]", v.type) for i, v in enumerate(interface.outputs)]
    with told(), on_device(index):
        table = _table(document, code, index)
        weights = UploadedConstants(constants)
        program = CapturedProgram(index, inputs, outputs)
        program.use(table, weights, program.instance(table, weights.address))
    return program


def _table(document: dict[str, Any], code: Callable[[str], memoryview], index: int) -> CudaTable:
    rows = [row for task in document["tasks"] for row in task]
    launched = [row for row in rows if row[0] == "kernel"]
    cubins = {unit: bytes(code(_UNIT.format(unit))) for unit in {row[2] for row in launched}}
    launches = []
    for _, _, unit, name, grid, block, shared in launched:
        launch = Launch(KernelSource(name, ""), tuple(grid), tuple(block), shared)
        launches.append((launch, CompiledKernel(cubins[unit], name, UNKNOWN)))
    loaded = iter(load_compiled(launches))
    plans = []
    for i, (ids, scalars, inputs) in enumerate(document["plans"]):
        text = bytes(code(_PLAN.format(i))).decode()
        plans.append(Execution.restored(StoredExecution(text, ids, scalars, inputs), index))

    def row(stored: Sequence[Any]) -> Row:
        kind, operands, *rest = stored
        arguments: tuple[KernelArgument, ...] = tuple(
            one if isinstance(one, int) else Operand(*one) for one in operands
        )
        if kind == "kernel":
            return KernelRow(next(loaded), arguments)
        if kind == "plan":
            return LibraryRow(PlanCall(plans[rest[0]], tuple(rest[1])), arguments)
        if kind == "function":
            return LibraryRow(FunctionCall.restored(*rest), arguments)
        return LibraryRow(FixedConvolution.restored(*rest), arguments)

    tasks = tuple(tuple(map(row, task)) for task in document["tasks"])
    instance_bytes, own_bytes, inputs, outputs = document["block"]
    return CudaTable(
        tasks,
        Block(instance_bytes, own_bytes, tuple(inputs), tuple(outputs), {}),
        tuple(document["inputs"]),
        tuple(document["outputs"]),
        tuple((Operand(to), Operand(slot, at), n) for to, slot, at, n in document["copies"]),
    )


def _card(machine: Machine) -> str:
    """The GPU that cubins, plans and grids are made for: model, architecture and size."""
    return f"{machine.name} ({machine.arch}, {machine.multiprocessors} multiprocessors)"
