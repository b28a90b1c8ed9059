"""Damaged and hostile ONNX models, drawn at random (see :mod:`tests.damage`)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from tests.onnx.drawers import DRAWERS
from tests.onnx.models import moves, network, with_external_data
from tests.onnx.random_models import random_model

NUMBERS = (0, 1, -1, 2, 7, 2**31 - 1, 2**31, -(2**31), 2**40, 2**63 - 1, -(2**63), 10**9)
PATHS = (
    *("../../etc/passwd", "/etc/passwd", "..\\x", "link/passwd", "a\0b", "", ".", "missing.bin"),
    *("long" * 100, "deep/" * 2000 + "x", "model.onnx/x", "\ud7ff"),
)


def whole_models(folder: Path) -> tuple[bytes, ...]:
    """Models to be changed: some written by hand, and as many random ones of all operators.  One
    has its weights in a file in the folder."""
    written = (network().SerializeToString(), moves().SerializeToString())
    drawn = [random_model(seed, DRAWERS, 8) for seed in range(60)]
    models = [made.model() for made in drawn if made.nodes and made.outputs()]
    return (*(*written, with_external_data(folder)) * 20, *(m.SerializeToString() for m in models))


def mutated_structure(draw: random.Random, data: bytes) -> bytes:
    """A model with a change of what it says, that is still a model; bytes that are none stay."""
    try:
        proto = ModelProto.FromString(data)
    except Exception:
        return data
    change = draw.choice((_tensor, _tensor, _dims, _attribute, _attribute, _names, _external))
    change(draw, proto)
    return bytes(proto.SerializeToString())


def _tensor(draw: random.Random, proto: Any) -> None:
    """Other integers in an operand that says a shape, an axis, padding, ..."""
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
