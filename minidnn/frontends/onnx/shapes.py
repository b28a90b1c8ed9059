"""The shapes of a model's inputs: those that it declares, and those that a caller gives for open
sizes; and a check of the shapes that it declares for its outputs.

The ranges of named sizes are in a metadata property, which ``save_onnx`` writes.  A model's graph
may depend on its inputs' sizes in ways that two examples do not show (:func:`looks_at_sizes`).
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from minidnn.dynamic.dim import Dim, Template
from minidnn.errors import GraphError, MiniDNNWarning
from minidnn.frontends.onnx.library import check_shape
from minidnn.frontends.onnx.model import OWN_DOMAIN, SIZES_KEY, Declared, OnnxModel
from minidnn.frontends.onnx.operators import activations, elementwise
from minidnn.frontends.onnx.tensors import DTYPES
from minidnn.graph.types import TensorType, plain
from minidnn.sizes.sized_graph import dims_from_json

#: Operators whose nodes become the same graph operators for all spatial sizes; or views, whose
#: attributes are sizes, so that two graphs show how these follow from the inputs' sizes.
_SAME = {
    *activations.CONVERTERS,
    *elementwise.CONVERTERS,
    *("Conv", "ConvInteger", "QLinearConv", "Gemm", "MatMul", "QLinearMatMul"),
    *("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"),
    *("DequantizeLinear", "QuantizeLinear"),
    *("BatchNormalization", "Concat", "Constant", "Flatten", "Reshape", "Transpose"),
}


class OpenSizesError(GraphError):
    """Sizes of inputs stay open; ``told`` is the message without advice on how to give them."""

    def __init__(self, told: str) -> None:
        super().__init__(
            f"{told}; give shape=, one shape, a sequence of shapes or a dict of them by name; "
            "minidnn.compile takes a minidnn.Dim in place of a size"
        )
        self.told = told


def bind_shapes(
    title: str,
    inputs: Sequence[Declared],
    given: Any,
    known: Sequence[tuple[Declared, tuple[int, ...]]] = (),
) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every input whose dtype is supported, by name.

    ``given`` is None, one shape, a sequence of shapes or a dict of them by name; open sizes of one
    name are equal everywhere, so a dict need not have every input.  ``known`` are other inputs,
    which are constants, and their shapes.  GraphError if a shape does not fit, OpenSizesError if a
    size stays open.
    """
    shapes = _by_name(title, inputs, given)
    named: dict[str, int] = {}
    pairs = [(declared, shapes.get(declared.name)) for declared in inputs]
    for declared, shape in (*known, *pairs):
        if shape is None:
            continue
        sizes = declared.sizes
        fits = sizes is None or len(sizes) == len(shape)
        for size, declared_size in zip(
            shape, sizes if fits and sizes is not None else (), strict=False
        ):
            if isinstance(declared_size, str):
                fits &= named.setdefault(declared_size, size) == size
            elif declared_size is not None:
                fits &= declared_size == size
        if not fits:
            raise GraphError(
                f"{title}: shape {shape} for input {declared.name!r}; valid is {_text(declared)}"
                + (f" with {named}" if named else "")
            )
    bound_shapes, open_inputs = {}, []
    for declared in inputs:
        shape = shapes.get(declared.name)
        if shape is None and declared.sizes is not None:
            bound = [named.get(s, s) if isinstance(s, str) else s for s in declared.sizes]
            if all(isinstance(size, int) for size in bound):
                shape = tuple(size for size in bound if isinstance(size, int))
        if declared.dtype is None:
            continue
        if shape is None:
            open_inputs.append(f"{declared.name}: {_text(declared)}")
        else:
            bound_shapes[declared.name] = check_shape(f"{title}: input {declared.name!r}", shape)
    if open_inputs:
        raise OpenSizesError(f"{title} leaves sizes of its inputs open ({'; '.join(open_inputs)})")
    return bound_shapes


def check_output(title: str, declared: Any, computed: TensorType) -> None:
    """Compares the type that a model declares for an output with the one that is computed.

    As in ONNX Runtime, another dtype is a GraphError.  Another shape is a warning: models whose
    batch size was changed keep the old one in their declarations.
    """
    if declared.type.WhichOneof("value") != "tensor_type":
        return
    what = f"{title}: output {declared.name!r:.100}"
    tensor = declared.type.tensor_type
    dtype = DTYPES.get(tensor.elem_type, "of another type")
    if tensor.elem_type and dtype != computed.dtype:
        raise GraphError(f"{what} is declared {dtype}; what is computed is {computed.dtype}")
    if not tensor.HasField("shape"):
        return
    sizes = [
        dim.dim_value if dim.WhichOneof("value") == "dim_value" else None
        for dim in tensor.shape.dim
    ]
    fits = len(sizes) == computed.rank and all(
        declared_size in (None, size)
        for declared_size, size in zip(sizes, computed.shape, strict=True)
    )
    if not fits:
        shown = ", ".join("?" if size is None else str(size) for size in sizes)
        warnings.warn(
            f"{what} is declared ({shown}); what is computed is {computed.shape}",
            MiniDNNWarning,
            stacklevel=5,  # the caller of load_onnx
        )


def _by_name(
    title: str, inputs: Sequence[Declared], given: Any
) -> dict[str, tuple[int, ...] | None]:
    """The shapes that a caller gave, by the inputs' names."""
    names, given = [declared.name for declared in inputs], plain(given)
    if given is None:
        return {}
    if isinstance(given, Mapping):
        unknown = [name for name in given if name not in names]
        if unknown:
            raise GraphError(f"{title}: shape for {unknown[0]!r:.100}; its inputs are {names}")
        return {name: _shape(title, shape) for name, shape in given.items()}
    if isinstance(given, (tuple, list)) and all(type(size) is int for size in given):
        given = [given] if len(given) or len(names) == 1 else []
    if not isinstance(given, (tuple, list)) or len(given) != len(names):
        count = len(given) if isinstance(given, (tuple, list)) else type(given).__name__
        raise GraphError(
            f"{title}: shape gives {count}; valid is a shape for each of its {len(names)} inputs "
            f"{names}"
        )
    return {name: _shape(title, shape) for name, shape in zip(names, given, strict=True)}


def _shape(title: str, shape: Any) -> tuple[int, ...]:
    if not isinstance(shape, (tuple, list)) or not all(
        type(size) is int and size >= 0 for size in shape
    ):
        raise GraphError(f"{title}: shape {shape!r:.100}; valid are sizes of at least 0")
    return tuple(shape)


def _text(declared: Declared) -> str:
    """The declared shape of an input, for messages."""
    if declared.sizes is None:
        return "any shape"
    return f"({', '.join('?' if size is None else str(size) for size in declared.sizes)})"


def looks_at_sizes(model: OnnxModel) -> bool:
    """Whether a model has nodes whose graph may change in other ways with its inputs' sizes than
    two examples show, as padding that follows from a size (``auto_pad``) does."""
    return bool(model.functions) or not all(map(_is_same, model.nodes))


def _is_same(node: Any) -> bool:
    """Whether a node becomes the same graph operators for all sizes."""
    is_listed = node.domain in OWN_DOMAIN and node.op_type in _SAME
    return is_listed and not any(
        attribute.name == "auto_pad" and attribute.s not in (b"NOTSET", b"VALID")
        for attribute in node.attribute
    )


def named_shapes(model: OnnxModel) -> dict[str, Template] | None:
    """Returns the shapes of a model's inputs with their named sizes; None if it has no ranges.

    GraphError if the property is malformed or does not fit the inputs.
    """
    ranges = {entry.key: entry.value for entry in model.proto.metadata_props}.get(SIZES_KEY)
    if ranges is None:
        return None
    try:
        dims = dims_from_json(json.loads(ranges))
    except (GraphError, ValueError, RecursionError) as error:
        raise GraphError(f"{model.title}: its property {SIZES_KEY!r}: {error}") from error
    by_name = {dim.name: dim for dim in dims}
    shapes: dict[str, Template] = {}
    for declared in model.inputs:
        shape: list[int | Dim] = []
        for size in declared.sizes if declared.sizes is not None else (None,):
            if not isinstance(size, int) and size not in by_name:
                raise GraphError(
                    f"{model.title}: its property {SIZES_KEY!r} names {list(by_name)}, and input "
                    f"{declared.name!r} has the size {size!r}; valid are these, or no property"
                )
            shape.append(size if isinstance(size, int) else by_name[str(size)])
        shapes[declared.name] = tuple(shape)
    return shapes
