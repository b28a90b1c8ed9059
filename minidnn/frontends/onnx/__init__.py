"""The ONNX front end: imports ONNX models as graphs, and exports graphs as ONNX models.

Importing this needs no optional dependency; ``onnx`` is imported when a model is read or written.
"""
