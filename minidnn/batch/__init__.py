"""Offline inference: predictions for any number of picture files.

``minidnn batch`` is the command.  It runs a :class:`Predictor` in every worker process; Spark, Dask
or Ray Data can run one by themselves.
"""

from minidnn.batch.manifest import BatchError
from minidnn.batch.predictor import Predictor

__all__ = ["BatchError", "Predictor"]
