"""The zoo as a whole: ``python -m minidnn.models list`` and ``python -m minidnn.models stacks``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from . import get_model, list_models
from ._script import run


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; ends the process with status 1 for a network that does not exist,
    with 2 for wrong arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m minidnn.models", description="The networks of the zoo."
    )
    commands = parser.add_subparsers(required=True, metavar="{list,stacks}")
    text = "print the networks, their images and numbers of parameters"
    listing = commands.add_parser("list", help=text, description=f"{text.capitalize()}.")
    listing.set_defaults(command=_list)
    text = "print how many stacks each network has"
    stacks = commands.add_parser("stacks", help=text, description=f"{text.capitalize()}.")
    stacks.set_defaults(command=_stacks)
    stacks.add_argument("network", nargs="*", help="networks (all of torchvision's)")
    run(parser, arguments)


def _list(options: argparse.Namespace) -> None:
    for name in list_models():
        network = get_model(name)
        shape = "x".join(map(str, network.input_shape))
        count = sum(p.type.size for _, p in network.trainable_parameters())
        print(f"{name:18s} {shape:>10s} {count:12,d} parameters")


def _stacks(options: argparse.Namespace) -> None:
    from ._stacks import table

    names = options.network or [name for name in list_models() if name != "digits"]
    print(table(names), end="")


if __name__ == "__main__":
    main()
