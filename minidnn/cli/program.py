"""The program ``minidnn``: parses the command line, runs a command, and reports errors in one line.

Commands import their dependencies when they run, so that ``minidnn --help`` loads neither NumPy nor
the core.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import minidnn
from minidnn.cli import (
    batch,
    bench,
    bisect,
    cache,
    classify,
    compare,
    doctor,
    explain,
    export,
    lab,
    launch,
    listing,
    quantize,
    report,
    serve,
    train,
)
from minidnn.errors import MiniDNNError, MiniDNNWarning

#: Exit codes. Besides these and 0, commands return 1 if they find something, or fail in part.
FAILED = 2
INTERRUPTED = 130
_MOST_LINES = 12

_EPILOG = "minidnn COMMAND --help describes a command; docs/reference/command-line.md has examples."


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code.

    An error is one line on standard error (of a long list, its beginning), and 2; with
    ``--debug`` its traceback comes first.  Wrong arguments end the process with 2, as argparse
    does it; ``--help`` and ``--version`` with 0.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # A file's name may have letters that the terminal's encoding lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    options = _parser().parse_args(arguments)
    prefix = f"minidnn {options.command_name}"
    with _messages(prefix, options.verbose):
        try:
            code: int = options.command(options)
            if sys.stdout is not None:  # closed by whoever started us
                sys.stdout.flush()
            return code
        except BrokenPipeError:
            _drop_output()  # the reader has closed the pipe
            return FAILED
        except KeyboardInterrupt:
            _print(f"{prefix}: interrupted")
            return INTERRUPTED
        except Exception as error:
            if options.debug:
                traceback.print_exc()
            if isinstance(error, OSError):
                _drop_output()
            _print(f"{prefix}: {_text(error, options.debug)}")
            return FAILED


def _drop_output() -> None:
    """Discards buffered output that cannot be written, which Python would flush again at exit."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="minidnn",
        description="Define, fuse and run convolutional networks.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"minidnn {minidnn.__version__}")
    common = argparse.ArgumentParser(add_help=False)
    group = common.add_argument_group("messages")
    group.add_argument("--debug", action="store_true", help="print the traceback of an error")
    group.add_argument(
        "-v", "--verbose", action="count", default=0, help="say what is done; twice: in detail"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND", title="commands")
    modules = (
        classify,
        train,
        launch,
        explain,
        report,
        export,
        quantize,
        serve,
        batch,
        bench,
        bisect,
        compare,
        lab,
        listing,
        doctor,
        cache,
    )
    for module in modules:
        name = getattr(module, "NAME", module.__name__.rpartition(".")[2])
        sub = commands.add_parser(
            name,
            parents=[common],
            help=module.HELP,
            description=module.DESCRIPTION,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(command=module.run, command_name=name)
        module.add_arguments(sub)
    return parser


def _text(error: Exception, everything: bool) -> str:
    text = str(error).strip()
    if isinstance(error, MemoryError) and not isinstance(error, MiniDNNError):
        return f"not enough memory{': ' if text else ''}{text}"
    if isinstance(error, OSError) and error.strerror and not isinstance(error, MiniDNNError):
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if not isinstance(error, (MiniDNNError, OSError)):
        kind = type(error).__name__
        return f"internal error: {kind}: {text} (--debug prints where, for a bug report)"
    lines = text.splitlines() or [type(error).__name__]
    if len(lines) > _MOST_LINES and not everything:
        more = len(lines) - _MOST_LINES
        lines = [*lines[:_MOST_LINES], f"  ... and {more} lines more (--debug prints them)"]
    return "\n".join(lines)


@contextmanager
def _messages(prefix: str, verbose: int) -> Iterator[None]:
    """A context in which log records and minidnn's warnings are printed as lines on standard error,
    each text once."""
    seen: dict[str, None] = {}

    def say(text: str) -> None:
        if text not in seen:
            seen[text] = None
            _print(f"{prefix}: {text}")

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say(record.getMessage())

    showwarning = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *rest: Any, **named: Any) -> None:
        if issubclass(category, MiniDNNWarning):
            say(f"{message}")
        else:
            showwarning(message, category, *rest, **named)

    logger, handler = logging.getLogger("minidnn"), Handler()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel((logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)])
    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = showwarning
        logger.setLevel(before)
        logger.removeHandler(handler)


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
