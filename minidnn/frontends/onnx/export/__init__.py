"""Graphs as ONNX models."""

from minidnn.frontends.onnx.export.save import save_onnx, to_onnx

__all__ = ["save_onnx", "to_onnx"]
