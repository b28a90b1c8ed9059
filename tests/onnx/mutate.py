"""Damaged and hostile models, drawn at random, and what reading them does.

``python -m tests.onnx.mutate FIRST COUNT FOLDER`` reads that many in this process and prints one
JSON line for each: the test starts it, so that a crash ends nothing but the child, and memory can
be limited.  An allocation beyond that limit fails, and that it failed is an outcome of its own,
even if it was turned into one of our errors.  Seconds are the process's own, so that other work on
the machine does not count; a process that waits forever is ended by the test.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
import time
import traceback
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, numpy_helper

import minidnn as md
from minidnn.errors import MiniDNNError, MiniDNNWarning
from minidnn.frontends.onnx.convert import load_onnx
from tests.onnx.drawers import DRAWERS
from tests.onnx.models import moves, network, with_external_data
from tests.onnx.random_models import random_model

#: Seconds that reading one may take, and bytes of address space beside what imports take: 4 times
#: what ``minidnn.frontends.onnx.limits`` allows to compute.
MOST_SECONDS = 5
MOST_BYTES = 1 << 30
#: What graphs may hold in all to be run as well.
SMALL = 1 << 22

NUMBERS = (0, 1, -1, 2, 7, 2**31 - 1, 2**31, -(2**31), 2**40, 2**63 - 1, -(2**63), 10**9)
PATHS = (
    *("../../etc/passwd", "/etc/passwd", "..\\x", "link/passwd", "a\0b", "", ".", "missing.bin"),
    *("long" * 100, "deep/" * 2000 + "x", "model.onnx/x", "\ud7ff"),
)


@cache
def seeds(folder: Path) -> tuple[bytes, ...]:
    """Models to be changed: some written by hand, and as many random ones of all operators."""
    written = (network().SerializeToString(), moves().SerializeToString())
    drawn = [random_model(seed, DRAWERS, 8) for seed in range(60)]
    models = [made.model() for made in drawn if made.nodes and made.outputs()]
    return (*(*written, with_external_data(folder)) * 20, *(m.SerializeToString() for m in models))


def mutated(seed: int, folder: Path) -> bytes:
    """A model with one or two changes."""
    draw = random.Random(seed)
    data = draw.choice(seeds(folder))
    for _ in range(draw.randint(1, 2)):
        data = draw.choice((_bytes, *(_structure,) * 5))(draw, data)
    return data


def _bytes(draw: random.Random, data: bytes) -> bytes:
    if not data:
        return data
    at = draw.randrange(len(data))
    kind = draw.randrange(5)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
    if kind == 2:
        return data[:at] + draw.randbytes(draw.randint(1, 9)) + data[at:]
    if kind == 3:
        return data[:at] + data[at + draw.randint(1, 50) :]
    other = draw.randrange(len(data))
    return data[:at] + data[other : other + 40] + data[at + 40 :]


def _structure(draw: random.Random, data: bytes) -> bytes:
    try:
        proto = ModelProto.FromString(data)
    except Exception:
        return data
    change = draw.choice((_tensor, _tensor, _dims, _attribute, _attribute, _names, _external))
    change(draw, proto)
    return bytes(proto.SerializeToString())


def _tensor(draw: random.Random, proto: Any) -> None:
    """Other whole numbers in an operand that says a shape, an axis, padding, ..."""
    whole = [t for t in proto.graph.initializer if t.data_type == 7 and len(t.raw_data)]
    if whole:
        tensor = draw.choice(whole)
        array = np.frombuffer(tensor.raw_data, np.int64).copy()
        if len(array):
            array[draw.randrange(len(array))] = draw.choice(NUMBERS)
        tensor.raw_data = array.tobytes()


def _dims(draw: random.Random, proto: Any) -> None:
    """Sizes of an initializer or an input."""
    if proto.graph.initializer and draw.random() < 0.5:
        dims = draw.choice(proto.graph.initializer).dims
        if len(dims):
            dims[draw.randrange(len(dims))] = draw.choice(NUMBERS)
    elif proto.graph.input:
        shape = draw.choice(proto.graph.input).type.tensor_type.shape.dim
        if len(shape):
            draw.choice(shape).dim_value = draw.choice(NUMBERS)


def _attribute(draw: random.Random, proto: Any) -> None:
    nodes = [node for node in proto.graph.node if len(node.attribute)]
    if not nodes:
        return
    attribute = draw.choice(draw.choice(nodes).attribute)
    if len(attribute.ints):
        attribute.ints[draw.randrange(len(attribute.ints))] = draw.choice(NUMBERS)
    elif attribute.type == 2:
        attribute.i = draw.choice(NUMBERS)
    else:
        attribute.type = draw.randrange(15)


def _names(draw: random.Random, proto: Any) -> None:
    """Cycles, missing operands, other operators."""
    nodes = proto.graph.node
    if len(nodes) < 2:
        return
    one, other = draw.choice(nodes), draw.choice(nodes)
    kind = draw.randrange(4)
    if kind == 0 and len(one.input) and len(other.output):
        one.input[draw.randrange(len(one.input))] = draw.choice(other.output)
    elif kind == 1:
        one.op_type = other.op_type
    elif kind == 2 and len(one.output):
        one.output[0] = draw.choice(("", "x", "y", "w1"))
    elif len(one.input):
        del one.input[draw.randrange(len(one.input))]


def _external(draw: random.Random, proto: Any) -> None:
    if proto.graph.initializer:
        tensor = draw.choice(proto.graph.initializer)
        tensor.data_location = 1
        entry = tensor.external_data.add()
        entry.key = draw.choice(("location", "offset", "length"))
        entry.value = draw.choice((*PATHS, "-1", "99999999999999999999", "4294967296"))


def outcome(data: bytes, path: Path) -> str:
    """What reading a model, and running it if it is small, ends with."""
    path.write_bytes(data)
    shapes = {"x": (1, 2, 6, 7) if b"starts" in data else (1, 3, 16, 16)}
    try:
        graph = load_onnx(path, shapes if b"times" in data or b"w1" in data else None)
        if sum(value.type.bytes for value in graph.values) < SMALL:
            executable = md.compile(graph, device="reference", strategy="layers")
            executable(*executable.random_inputs())
    except MiniDNNError as error:
        assert len(str(error)) < 20_000
        reason: BaseException | None = error
        while reason is not None:
            if isinstance(reason, MemoryError):
                return f"an allocation beyond the limit: {error}"
            reason = reason.__cause__ or reason.__context__
        return type(error).__name__
    return "read"


def _too_long(*_: object) -> None:
    raise TimeoutError(f"over {MOST_SECONDS} s")


def main(first: int, count: int, folder: Path) -> None:
    warnings.simplefilter("ignore", MiniDNNWarning)  # of outputs that are declared otherwise
    numpy_helper.from_array(np.zeros(1), "all imported")
    md.compile(load_onnx(moves()), device="reference")
    seeds(folder)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.signal(signal.SIGPROF, _too_long)
    for seed in range(first, first + count):
        data = mutated(seed, folder)
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
        try:
            found = outcome(data, folder / "model.onnx")
        except BaseException:
            found = traceback.format_exc()
        signal.setitimer(signal.ITIMER_PROF, 0)
        seconds = time.process_time() - began
        print(json.dumps({"seed": seed, "outcome": found, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
