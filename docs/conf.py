"""Sphinx: the site that "make docs" makes of these pages and of the docstrings."""

from __future__ import annotations

import re
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

project = "minidnn"
author = "the minidnn authors"
version = release = version_of("minidnn")
root_doc = "README"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
myst_heading_anchors = 4
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_member_order = "bysource"
autodoc_typehints = "description"
# Pages link to files of the repository, which are no pages of the site.
suppress_warnings = ["myst.xref_missing"]

html_theme = "furo"
html_title = f"minidnn {version}"
html_copy_source = False

_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_PAGE = re.compile(r"^(?:- |\| )?\[.+?\]\(([\w/-]+)\.md\)", re.MULTILINE)


def with_contents(text: str) -> str:
    """A page that lists others, with the same lists for the site's navigation, by heading."""
    first, *sections = _HEADING.split(text)
    found = [first, contents("Results", first)]
    for heading, section in zip(sections[::2], sections[1::2], strict=True):
        found += [f"## {heading}{section}", contents(heading.split(":")[0], section)]
    return "".join(found)


def contents(caption: str, section: str) -> str:
    """The navigation's entries for the pages that a section lists."""
    pages = "\n".join(dict.fromkeys(_PAGE.findall(section)))
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```\n\n" if pages else ""


def with_docstrings(text: str) -> str:
    """The page of public names, with each module's docstrings in the place of its table."""
    head, *sections = _HEADING.split(text)
    found = [head]
    for name, section in zip(sections[::2], sections[1::2], strict=True):
        purpose = section.split("\n\n|")[0]
        found.append(f"## {name}{purpose}\n\n```{{eval-rst}}\n{directives(name)}\n```\n\n")
    return "".join(found)


def directives(module: str) -> str:
    """What autodoc is asked for: each public name of a module that is not minidnn's own, too."""
    from tools.api_page import module_of, public_names

    whole = {} if module == "minidnn" else public_names(module_of("minidnn"))
    lines = [f".. py:module:: {module}", ""]
    for name, value in public_names(module_of(module)).items():
        if name in whole:
            continue
        kind = "class" if isinstance(value, type) else "function"
        lines.append(f".. auto{kind}:: {module}.{name}")
    return "\n".join(lines)


def read(app: Any, page: str, source: list[str]) -> None:
    if page in ("README", "results/index"):
        source[0] = with_contents(source[0])
    elif page == "reference/python":
        source[0] = with_docstrings(source[0])


def begin_at_the_list(app: Any, error: Exception | None) -> None:
    """The folder itself leads to the page that lists all others."""
    to = f"{root_doc}/"
    page = f'<meta http-equiv="refresh" content="0; url={to}"><a href="{to}">{to}</a>'
    Path(app.outdir, "index.html").write_text(f"<!doctype html>{page}\n", encoding="utf-8")


def setup(app: Any) -> None:
    app.connect("source-read", read)
    app.connect("build-finished", begin_at_the_list)
