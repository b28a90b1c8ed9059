"""Whether what is made of a model may depend on its inputs' sizes beyond what two of them show."""

from __future__ import annotations

from typing import Any

from minidnn.frontends.onnx.model import OWN_DOMAIN, OnnxModel
from minidnn.frontends.onnx.operators import activations, elementwise

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
