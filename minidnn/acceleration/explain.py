"""Describes programs of :func:`minidnn.optimize`: operations taken, operations left, and why."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence

from minidnn.acceleration.dynamic_batch import DynamicBatchPart
from minidnn.acceleration.part import CompiledPart
from minidnn.acceleration.program import SizedProgram
from minidnn.acceleration.step import TrainedPart
from minidnn.acceleration.trained import TrainedProgram


def explain_program(program: SizedProgram) -> str:
    """Describes a program: the counts, the operations left with their reasons, then each part."""
    operations = [n for n in program.captured.operations if n.target is not operator.getitem]
    count, taken = len(operations), sum(node not in program.left for node in operations)
    parts = f"{len(program.parts)} part" + ("" if len(program.parts) == 1 else "s")
    trained = ""
    if isinstance(program, TrainedProgram):
        trained = f", trained in {program.half}" if program.half else ", trained"
    lines = [
        f"{program.name} for {program.sizes}{trained} on device {program.engine.device!r}: "
        f"{taken} of {count} operations taken, in {parts}"
    ]
    if program.left:
        lines += ["left to PyTorch:", program.rest()]
    compiled: Sequence[CompiledPart | TrainedPart | DynamicBatchPart] = program.parts
    for number, part in enumerate(compiled, 1):
        lines += ["", f"part {number}: {_described(part)}", *_compiled(part)]
    return "\n".join(lines)


def _compiled(part: CompiledPart | TrainedPart | DynamicBatchPart) -> Iterator[str]:
    """Describes the executables of a part; of a trained one, those of both passes."""
    if isinstance(part, (CompiledPart, DynamicBatchPart)):
        yield _indented(part.executable.explain())
        return
    for pair in part.pairs.values():
        count, kept = len(pair.graphs.backward.differentiated), pair.kept_bytes / 1e6
        yield f"  forwards; {kept:.2f} MB are kept to compute {count} gradients:"
        yield _indented(_indented(pair.forward.executable.explain()))
        for backward, program in pair.backwards.values():
            yield f"  backwards, {len(backward.differentiated)} gradients:"
            yield _indented(_indented(program.executable.explain()))


def _described(part: CompiledPart | TrainedPart | DynamicBatchPart) -> str:
    """Returns a part's number of nodes, its inputs and its outputs, in one line."""
    inputs = ", ".join(map(repr, part.part.graph.inputs))
    outputs = ", ".join(map(repr, part.part.graph.outputs))
    return f"{len(part.part.graph.nodes)} nodes, of {inputs} makes {outputs}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" if line else line for line in text.splitlines())
