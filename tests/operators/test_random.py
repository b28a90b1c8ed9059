"""Which numbers RandomDrop takes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from minidnn.errors import GraphError
from minidnn.graph.operators import RandomDrop


@pytest.mark.parametrize("stream", [-1, 1 << 32, 1.0, True])
def test_streams_have_32_bits(stream: Any) -> None:
    """Those of more would draw what others draw, on some devices."""
    message = re.escape(f"stream={stream!r}; valid is an int from 0 to 2**32 - 1")
    with pytest.raises(GraphError, match=message):
        RandomDrop(0.5, stream)
    assert RandomDrop(0.5, (1 << 32) - 1).stream == (1 << 32) - 1
