"""Trains a network of the zoo, as ``minidnn train``: ``python -m minidnn.models.train --help``."""

import sys

from minidnn.cli import main

if __name__ == "__main__":
    sys.exit(main(["train", *sys.argv[1:]]))
