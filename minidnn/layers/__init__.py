"""Layers, with PyTorch's names and arguments.  The ``__all__`` of each module lists its layers."""

from typing import TYPE_CHECKING

from minidnn.layers.activation_formulas import *
from minidnn.layers.activations import *
from minidnn.layers.containers import *
from minidnn.layers.contraction import *
from minidnn.layers.dropout import *
from minidnn.layers.functional import *
from minidnn.layers.images import *
from minidnn.layers.layer import *
from minidnn.layers.normalization import *
from minidnn.layers.padding import *
from minidnn.layers.parameter import *
from minidnn.layers.pooling import *
from minidnn.layers.rearranging import *
from minidnn.layers.symbol import *
from minidnn.layers.transformer import *

if not TYPE_CHECKING:  # a type checker that saw this would accept any name

    def __getattr__(name: str) -> object:
        """Raises AttributeError, with the name that was probably meant."""
        from minidnn._habits import LAYERS, TRAINING, AbsentError
        from minidnn.errors import did_you_mean

        if name in LAYERS or name.endswith("Loss"):
            raise AbsentError(f"minidnn.layers has no {name}: {LAYERS.get(name, TRAINING)}")
        offered = [each for each, value in globals().items() if isinstance(value, type)]
        hint = did_you_mean(name, offered)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
