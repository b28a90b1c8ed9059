"""Contractions' algorithms and schemes by measuring; ``tune=True``."""

from .tune import Build, Measured, Tuning, tuned_tasks

__all__ = ["Build", "Measured", "Tuning", "tuned_tasks"]
