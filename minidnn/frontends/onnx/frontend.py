"""The front end that ``minidnn.compile`` finds for ONNX models."""

from __future__ import annotations

from typing import Any

from minidnn.frontends.onnx.model import is_model
from minidnn.graph.ir import Graph


class OnnxFrontEnd:
    """Models in ONNX's format."""

    name = "onnx"
    takes = "paths that end in .onnx, the bytes of such files, onnx.ModelProto"

    def accepts(self, network: object) -> bool:
        return is_model(network)

    def to_graph(self, network: Any, shape: Any) -> Graph:
        from minidnn.frontends.onnx.convert import load_onnx

        return load_onnx(network, shape)
