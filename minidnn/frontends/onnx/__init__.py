"""The ONNX front end: models in ONNX's format as graphs, and graphs as such models.

Importing this needs no optional dependency; ``onnx`` is imported when a model is read or written.
"""
