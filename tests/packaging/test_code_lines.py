"""What tools.code_lines counts."""

from __future__ import annotations

from pathlib import Path

from tools.code_lines import code_lines, counted, native_lines

PYTHON = '''"""A docstring
of two lines."""

import os  # the first

# A comment.


def long(
    a: int,
) -> str:
    """Another."""
    return f"""
{a}

"""


class Of:
    name: str
    """What it is called."""
'''


def test_docstrings_comments_and_blank_lines_are_no_code() -> None:
    # import; def, a, ): 3; the four lines of the text that is returned; class and its attribute.
    assert code_lines(PYTHON) == 1 + 3 + 4 + 2


def test_native_comments_of_whole_lines_are_no_code() -> None:
    assert native_lines("/* one\n two */\nint a; // three\n\n// four\nint b;\n") == 2


def test_parts_are_the_first_folders(tmp_path: Path) -> None:
    for name, text in {
        "a.py": "x = 1\n",
        "b/c/d.py": "x = 1\ny = 2\n",
        "b/e.cu": "int a;\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    lines, files, native = counted(tmp_path)
    assert (dict(lines), dict(files), native) == ({".": 1, "b": 2}, {".": 1, "b": 1}, 1)
