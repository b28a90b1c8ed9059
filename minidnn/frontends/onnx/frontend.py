"""The front end object by which ``minidnn.compile`` and others find and read ONNX models."""

from __future__ import annotations

from typing import Any

from minidnn.frontends.onnx.model import OnnxModel, is_model, read_model
from minidnn.graph.ir import Graph


class OnnxFrontEnd:
    """Models in ONNX's format: a :class:`minidnn.frontends.frontend.FrontEnd` and all its kinds."""

    name = "onnx"
    takes = "paths that end in .onnx, the bytes of such files, onnx.ModelProto"

    def accepts(self, network: object) -> bool:
        return is_model(network) or isinstance(network, OnnxModel)

    def open(self, network: Any) -> OnnxModel:
        return network if isinstance(network, OnnxModel) else read_model(network)

    def looks_at_sizes(self, network: Any) -> bool:
        from minidnn.frontends.onnx.shapes import looks_at_sizes

        return looks_at_sizes(self.open(network))

    def own_sizes(self, network: Any) -> tuple[Any, Any]:
        from minidnn.frontends.onnx.shapes import named_shapes

        model = self.open(network)
        return model, named_shapes(model)

    def to_graph(self, network: Any, shape: Any) -> Graph:
        from minidnn.frontends.onnx.convert import load_model

        return load_model(self.open(network), shape)[0]
