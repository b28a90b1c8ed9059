"""The ONNX exporter: writes graphs as ONNX models."""

from minidnn.frontends.onnx.export.model import to_onnx, write_onnx

__all__ = ["to_onnx", "write_onnx"]
