"""The ranges of a model's open sizes, which ``save_onnx`` writes into its properties.

What is made of a model may depend on its inputs' sizes beyond what two of them show.
"""

from __future__ import annotations

import json
from typing import Any

from minidnn.dynamic.dim import Dim, Template
from minidnn.errors import GraphError
from minidnn.frontends.onnx.model import OWN_DOMAIN, SIZES_KEY, OnnxModel
from minidnn.frontends.onnx.operators import activations, elementwise
from minidnn.sizes.sized_graph import dims_from_json

#: What becomes the same operators of the graph for all planes, or views, which name sizes and so
#: show where these differ.
_SAME = {
    *activations.CONVERTERS,
    *elementwise.CONVERTERS,
    *("Conv", "ConvInteger", "QLinearConv", "Gemm", "MatMul", "QLinearMatMul"),
    *("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"),
    *("DequantizeLinear", "QuantizeLinear"),
    *("BatchNormalization", "Concat", "Constant", "Flatten", "Reshape", "Transpose"),
}


def looks_at_sizes(model: OnnxModel) -> bool:
    """Whether a model has nodes that may become others for other sizes of the same inputs, as
    padding that follows from a size does."""
    return bool(model.functions) or not all(map(_is_same, model.nodes))


def _is_same(node: Any) -> bool:
    own = node.domain in OWN_DOMAIN and node.op_type in _SAME
    return own and not any(
        attribute.name == "auto_pad" and attribute.s not in (b"NOTSET", b"VALID")
        for attribute in node.attribute
    )


def named_shapes(model: OnnxModel) -> dict[str, Template] | None:
    """The shapes of a model's inputs with their named sizes; None if it says no ranges.

    GraphError if what it says makes no sense.
    """
    said = {each.key: each.value for each in model.proto.metadata_props}.get(SIZES_KEY)
    if said is None:
        return None
    try:
        dims = dims_from_json(json.loads(said))
    except (GraphError, ValueError, RecursionError) as error:
        raise GraphError(f"{model.title}: its property {SIZES_KEY!r}: {error}") from error
    by_name = {dim.name: dim for dim in dims}
    found: dict[str, Template] = {}
    for declared in model.inputs:
        shape: list[int | Dim] = []
        for size in declared.sizes if declared.sizes is not None else (None,):
            if not isinstance(size, int) and size not in by_name:
                raise GraphError(
                    f"{model.title}: its property {SIZES_KEY!r} names {list(by_name)}, and input "
                    f"{declared.name!r} has the size {size!r}; valid are these, or no property"
                )
            shape.append(size if isinstance(size, int) else by_name[str(size)])
        found[declared.name] = tuple(shape)
    return found
