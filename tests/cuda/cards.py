"""Tests on described GPUs, none of which is here."""

from __future__ import annotations

import pytest

from minidnn.backends.cuda.machine import Machine
from minidnn.lab.cards import A100, H100, H200, RTX_3090, RTX_4090

__all__ = ["A100", "H100", "H200", "RTX_3090", "RTX_4090", "on_each"]


def on_each(*machines: Machine) -> pytest.MarkDecorator:
    """Gives a test one of these as ``machine``."""
    return pytest.mark.parametrize("machine", machines, ids=[each.arch for each in machines])
