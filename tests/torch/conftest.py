"""What tests of the PyTorch front end share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def unpriced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are taken whatever they gain: small networks are enough for what is tested."""
    from minidnn.acceleration.engine import Engine

    monkeypatch.setattr(Engine, "is_priced", False)


@pytest.fixture(scope="session", autouse=True)
def unlogged() -> Iterator[None]:
    """PyTorch notes what it compiles if anyone listens, as pytest does to loggers that do not
    propagate; and measures guards for that, each time with all caches flushed.  Together that is a
    fifth of what these tests take."""
    from torch._dynamo import guards

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger("torch.__trace"), "propagate", True)
        patch.setattr(guards, "profile_guard_manager", lambda *given: 0.0, raising=False)
        yield
