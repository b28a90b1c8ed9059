"""The command line: ``minidnn``, one file for each of its commands."""

from minidnn.cli.program import main

__all__ = ["main"]
