"""The program around the commands: help, errors, messages, speed."""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import minidnn
from minidnn.backends.cpu.backend import CpuBackend
from minidnn.backends.cuda.backend import CudaBackend
from minidnn.backends.reference import ReferenceBackend
from minidnn.cli import doctor, main
from minidnn.cli.export import COMPILED, GRAPH, ONNX
from minidnn.cli.program import _parser
from minidnn.errors import MiniDNNError, MiniDNNWarning
from minidnn.fusion.collapse import STRATEGIES
from minidnn.lab.api import LADDERS
from tools.command_line_page import page

COMMANDS = ("classify", "train", "explain", "bench", "bisect", "compare", "doctor", "cache")


def python(root: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=root,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_help_imports_nothing_of_the_core(root: Path) -> None:
    code = (
        "import sys\nsys.argv[1:] = ['--help']\n"
        "from minidnn.cli import main\n"
        "try:\n    main()\nexcept SystemExit as e:\n    assert e.code == 0, e.code\n"
        "heavy = [m for m in ('numpy', 'PIL', 'torch', 'minidnn.graph') if m in sys.modules]\n"
        "assert not heavy, heavy"
    )
    done = python(root, "-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(f"\n    {command} " in done.stdout for command in COMMANDS)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("command", ["classify", "train", "explain", "bisect", "compare"])
def test_help_names_what_is_valid(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It is written down there, for it must not import backends to ask them."""
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for backend in (ReferenceBackend(), CpuBackend(), CudaBackend()):
        assert f"{backend.name}: {', '.join(backend.precisions())}" in text
    if command in ("explain", "bisect"):
        assert all(strategy in text for strategy in STRATEGIES)


def parsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """All parsers within this one, by the words that choose them."""
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, inner in action.choices.items():
                found |= {word: inner} | {f"{word} {k}": p for k, p in parsers(inner).items()}
    return found


def test_list_says_what_every_command_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    commands = [words for words in parsers(_parser()) if " " not in words]
    assert [*document["commands"]] == [command for command in commands if command != "list"]
    assert ", ".join(LADDERS) in document["commands"]["lab"]
    for ending in (ONNX, GRAPH, COMPILED):
        assert ending in document["commands"]["export"]
        assert ending in document["files"]["networks written"]
    assert COMPILED in document["commands"]["classify"]


def test_the_module_is_the_program(root: Path, tmp_path: Path) -> None:
    done = python(root, "-m", "minidnn", "explain", "digits", "--device", "reference")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Digits on reference in float32")
    failed = python(root, "-m", "minidnn", "explain", "digit")
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr.startswith("minidnn explain: name='digit': no such network; did you mean")
    assert len(failed.stderr.splitlines()) == 1


def test_who_stops_reading_is_no_error(root: Path) -> None:
    command = (
        f"'{sys.executable}' -m minidnn explain resnet18 --device reference --passes | head -1"
    )
    done = subprocess.run(
        ["sh", "-c", command], cwd=root, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


def test_output_may_be_closed(root: Path) -> None:
    command = f"'{sys.executable}' -m minidnn explain digits --device reference >&-"
    done = subprocess.run(
        ["sh", "-c", command], cwd=root, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("buffered", [False, True])
def test_output_that_cannot_be_written_is_no_traceback(root: Path, buffered: bool) -> None:
    command = f"'{sys.executable}' -m minidnn explain digits --device reference > /dev/full"
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=root,
        env={**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (2, "minidnn explain: No space left on device\n")


def test_every_command_has_help() -> None:
    found = parsers(_parser())
    assert len(found) > 20 and {"quantize", "lab run"} <= set(found)
    for words, parser in found.items():
        out = parser.format_help()
        assert out.startswith(f"usage: minidnn {words} ") and ("--debug" in out or " " in words)
        assert all(len(line) <= 100 for line in out.splitlines())


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"minidnn {minidnn.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["brew"], "invalid choice: 'brew'"),
        (["classify"], "the following arguments are required: IMAGE"),
        (["classify", "a", "--batch", "0"], "'0' is not an integer of at least 1"),
        (["classify", "a", "--top", "٣"], "is not an integer of at least 1"),
        (["explain", "digits", "--fuel", "-1"], "'-1' is not an integer of at least 0"),
        (["explain", "digits", "--batch", "9" * 99], "is not an integer of at least 1"),
        (["explain", "digits", "--size", "9" * 99], "is no size; valid are 224 and 192x256"),
        (["bisect", "digits", "--size", "8x"], "'8x' is no size; valid are 224 and 192x256"),
        (["bisect", "digits", "--tolerance", "nan"], "'nan' is not a number above 0"),
        (["cache", "burn"], "invalid choice: 'burn'"),
    ],
)
def test_wrong_arguments_end_with_2(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert error in capsys.readouterr().err.splitlines()[-1]


def raising(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, command: str = "examine"
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(f"minidnn.report.doctor.{command}", fail)


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (MiniDNNError("no good"), 2, "no good"),
        (OSError(28, "No space left on device", "/x"), 2, "doctor: /x: No space left on device"),
        (OSError(28, "No space left on device"), 2, "doctor: No space left on device"),
        (MemoryError(), 2, "not enough memory"),
        (MemoryError("for 9 TB"), 2, "not enough memory: for 9 TB"),
        (KeyError("x"), 2, "internal error: KeyError: 'x' (--debug prints where, for a bug report"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_what_fails_is_one_line(
    error: BaseException,
    code: int,
    line: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    raising(monkeypatch, error)
    assert main(["doctor"]) == code
    printed = capsys.readouterr()
    assert printed.out == "" and len(printed.err.splitlines()) == 1
    assert printed.err.startswith("minidnn doctor: ") and line in printed.err
    assert "Traceback" not in printed.err


def test_debug_prints_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, MiniDNNError("\n".join(f"line {i}" for i in range(40))))
    assert main(["doctor"]) == 2
    short = capsys.readouterr().err.splitlines()
    assert short[11:] == ["line 11", "  ... and 28 lines more (--debug prints them)"]
    assert main(["doctor", "--debug"]) == 2
    long = capsys.readouterr().err.splitlines()
    assert long[0] == "Traceback (most recent call last):" and long[-1] == "line 39"


def test_messages_are_lines_and_come_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = logging.getLogger("minidnn.anything")

    def speak(*arguments: object) -> int:
        log.warning("the cache is %s", "full")
        warnings.warn("the cache is full", MiniDNNWarning, stacklevel=2)
        log.info("some detail")
        log.debug("more detail")
        return 0

    monkeypatch.setattr(doctor, "run", speak)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        for flags, lines in (([], 1), (["-v"], 2), (["-vv"], 3)):
            assert main(["doctor", *flags]) == 0
            err = capsys.readouterr().err.splitlines()
            assert err[0] == "minidnn doctor: the cache is full" and len(err) == lines
    assert logging.getLogger("minidnn").handlers == []


def test_the_page_of_options_is_that_of_the_parsers(root: Path) -> None:
    found = (root / "docs/reference/command-line-options.md").read_text(encoding="utf-8")
    assert found == page(), "python -m tools.command_line_page prints it"
