"""Callbacks: code that runs after a step or an epoch of :meth:`Trainer.fit`."""

from minidnn.training.callbacks.callback import Callback, EarlyStopping
from minidnn.training.callbacks.checkpoint import Checkpoint, RayReport
from minidnn.training.callbacks.logs import CSV, JSONLines, ProgressBar, TensorBoard

__all__ = [
    "CSV",
    "Callback",
    "Checkpoint",
    "EarlyStopping",
    "JSONLines",
    "ProgressBar",
    "RayReport",
    "TensorBoard",
]
