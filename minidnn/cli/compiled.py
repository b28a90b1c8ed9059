"""Pictures for a compiled network (.mdx), which has its sizes, its precision and its weights."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from minidnn.errors import MiniDNNError

if TYPE_CHECKING:
    from minidnn.preparation import Preparation
    from minidnn.runtime.interface import Interface


def prepared_for(
    options: argparse.Namespace, interface: Interface, own: Sequence[str]
) -> tuple[Preparation, str]:
    """How pictures are prepared for a compiled network, and what is said of that.

    Args:
        options: of the command; ``network`` is the file.
        interface: the network's.
        own: the options that say what the network has, and are not valid.

    Raises:
        MiniDNNError: one of these was given, or the network takes no pictures.
    """
    from minidnn.cli import preparing
    from minidnn.preparation import Preparation, check_takes

    for name in own:
        if value := getattr(options, name):
            raise MiniDNNError(
                f"--{name} {value}: {options.network!r} is compiled, and has its own"
            )
    shapes = [each.shape for each in (*interface.inputs, *interface.outputs)]
    if len(shapes) != 2 or len(shapes[0]) != 4 or shapes[0][2] != shapes[0][3]:
        raise MiniDNNError(
            f"{options.network!r} has inputs and outputs {shapes}; valid are one input of square "
            "pictures (N, C, S, S) and one output with a row for each"
        )
    _, channels, crop, _ = shapes[0]
    said = preparing.file_says(options.network)
    base = said or Preparation(crop, crop, channels)
    check_takes(base, options.network, shapes[:1])
    preparation = preparing.prepared(options, base, prod(shapes[1][1:]))
    return preparation, preparing.told(options, preparation) if said else ""
