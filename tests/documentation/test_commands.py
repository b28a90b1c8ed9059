"""Commands in the README and in pages are ones that the parser takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from minidnn.cli.program import _parser

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *PAGES]
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: What blocks may be in; text without a language is what a command or a program prints.
LANGUAGES = {"", "sh", "python", "c", "ini", "dockerfile"}


def blocks(document: str) -> list[tuple[str, str]]:
    """The language and the text of each block."""
    return BLOCK.findall((ROOT / document).read_text(encoding="utf-8"))


def commands(document: str) -> list[list[str]]:
    """The arguments of each call of minidnn, with neither comments nor what follows a pipe."""
    found = []
    for language, text in blocks(document):
        for line in text.replace("\\\n", " ").splitlines():
            if language in ("", "sh") and line.removeprefix("$ ").startswith("minidnn "):
                words = shlex.split(line.removeprefix("$ "), comments=True)[1:]
                ends = [words.index(end) for end in ("|", ">", "&&") if end in words]
                found.append(words[: min(ends, default=len(words))])
    return found


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if commands(name)])
def test_commands_are_taken(document: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = _parser()
    for words in commands(document):
        try:
            parser.parse_args(words)
        except SystemExit:
            pytest.fail(f"{document}: minidnn {shlex.join(words)}\n{capsys.readouterr().err}")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_languages_are_known(document: str) -> None:
    """A block that says no language, or one that no test knows, would not be run."""
    assert {language for language, _ in blocks(document)} <= LANGUAGES
    for language, text in blocks(document):
        is_python = re.match(r"(import|from) \w", text)
        assert language or not is_python, f"{document}: code without a language:\n{text}"
