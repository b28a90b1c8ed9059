"""Predictions for folders of pictures, of any number: offline inference.

``minidnn batch`` is the command.  :class:`Predictor` is what it runs in every worker, and what
Spark, Dask or Ray Data can run by themselves.
"""

from minidnn.batch.manifest import BatchError
from minidnn.batch.predictor import Predictor

__all__ = ["BatchError", "Predictor"]
