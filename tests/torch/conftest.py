"""What tests of the PyTorch front end share."""

from __future__ import annotations

import pytest


@pytest.fixture
def unpriced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are taken whatever they gain: small networks are enough for what is tested."""
    from minidnn.acceleration.engine import Engine

    monkeypatch.setattr(Engine, "is_priced", False)
