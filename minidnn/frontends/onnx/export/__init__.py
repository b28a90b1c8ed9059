"""Graphs as ONNX models."""

from minidnn.frontends.onnx.export.sized import to_onnx, write_onnx

__all__ = ["to_onnx", "write_onnx"]
