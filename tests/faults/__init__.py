"""Injected faults: small changes that make minidnn wrong, of which each must fail a default test.

They say whether tests may go, move or be sampled: what noticed a fault before has to notice it
after.  ``make test-faults`` runs, for each fault, the tests that are named with it on a copy of the
tree that has the fault.
"""

from __future__ import annotations

from . import around, bridge, core, kernels
from .fault import Fault

__all__ = ["FAULTS", "Fault"]

FAULTS: tuple[Fault, ...] = (*core.FAULTS, *kernels.FAULTS, *around.FAULTS, *bridge.FAULTS)
