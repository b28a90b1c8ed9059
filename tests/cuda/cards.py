"""Tests on described GPUs, none of which is here."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

from minidnn.backends.cuda.machine import Machine
from minidnn.lab.api import A100, H100, H200, RTX_3090, RTX_4090

__all__ = ["A100", "H100", "H200", "RTX_3090", "RTX_4090", "on_each"]


def some(names: Iterable[str], sample: Collection[str]) -> list[Any]:
    """All of these as parameters, of which those beyond a sample are long variants."""
    full = pytest.mark.full
    return [name if name in sample else pytest.param(name, marks=full) for name in names]


def on_each(*machines: Machine, full: Machine | None = None) -> pytest.MarkDecorator:
    """Gives a test one of these as ``machine``; in full also that one."""
    given = [pytest.param(each, id=each.arch) for each in machines]
    if full is not None:
        given.append(pytest.param(full, id=full.arch, marks=pytest.mark.full))
    return pytest.mark.parametrize("machine", given)
