"""The frame of a page, and its parts.  A page asks for nothing: no script, no font, no network."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from ..errors import UnsupportedError

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1d21; --soft: #667; --rule: #d9dce2;
  --fill: #f3f4f7; --accent: #0072b2; --mark: #d55e00; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181c; --ink: #e4e6ea; --soft: #9aa0ac;
  --rule: #3a3f48; --fill: #20242a; --accent: #56b4e9; --mark: #ff8c4a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 76rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
p, li { max-width: 50rem; } .soft { color: var(--soft); }
pre { background: var(--fill); padding: .7rem; overflow-x: auto; font-size: 12px;
  line-height: 1.4; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid var(--rule);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
td.text, th.text { text-align: left; white-space: normal; min-width: 26rem; }
details { border-top: 1px solid var(--rule); padding: .4rem 0; }
summary { cursor: pointer; font-weight: 600; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr));
  gap: 1rem; }
figure { margin: 0; } figcaption { font-size: 13px; font-weight: 600; }
svg { width: 100%; height: auto; font: 11px system-ui, sans-serif; fill: var(--ink); }
svg .axis { stroke: var(--soft); fill: none; } svg .rule { stroke: var(--rule); fill: none; }
svg .roof { stroke: var(--mark); fill: none; stroke-width: 1.5; }
.bars { display: grid; grid-template-columns: minmax(5rem, max-content) 1fr; gap: .2rem .6rem;
  font-size: 13px; align-items: center; }
.bar { position: relative; background: var(--fill); height: 1.4rem; }
.bar > i { position: absolute; inset: 0 auto 0 0; background: var(--accent); opacity: .75; }
.bar > b { position: absolute; top: 0; bottom: 0; width: 0; border-left: 2px dashed var(--mark); }
.bar > span { position: absolute; left: .4rem; line-height: 1.4rem; white-space: nowrap; }
.add { color: #2a7d2a; } .cut { color: #b3362c; }
@media (prefers-color-scheme: dark) { .add { color: #7bd07b; } .cut { color: #ff8f85; } }
"""


def page(title: str, parts: Iterable[str]) -> str:
    """A whole document."""
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
            f"<h1>{escape(title)}</h1>",
            *parts,
            "</body></html>",
            "",
        ]
    )


def save_page(path: str | os.PathLike[str], text: str) -> None:
    """Writes a page; UnsupportedError if that cannot be done."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UnsupportedError(f"{os.fspath(path)} cannot be written: {error.strerror}") from error


def paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], text: Sequence[str] = ()) -> str:
    """A table that scrolls by itself on a narrow screen; columns named in ``text`` are prose."""

    def cells(kind: str, row: Sequence[str]) -> str:
        found = []
        for name, cell in zip(head, row, strict=True):
            mark = ' class="text"' if name in text else ""
            found.append(f"<{kind}{mark}>{escape(cell)}</{kind}>")
        return f"<tr>{''.join(found)}</tr>"

    body = [cells("td", row) for row in rows]
    return "\n".join(['<div class="wide"><table>', cells("th", head), *body, "</table></div>"])


def details(summary: str, parts: Iterable[str], is_open: bool = False) -> str:
    """Parts that are shown when one asks for them."""
    mark = " open" if is_open else ""
    head = f"<details{mark}><summary>{escape(summary)}</summary>"
    return "\n".join([head, *parts, "</details>"])


def code(text: str) -> str:
    return f"<pre>{escape(text.rstrip())}</pre>"


def difference(lines: Iterable[str]) -> str:
    """A unified difference."""
    kinds = {"+": "add", "-": "cut"}
    told = [
        f'<span class="{kinds[line[:1]]}">{escape(line)}</span>'
        if line[:1] in kinds
        else escape(line)
        for line in lines
    ]
    return "<pre>" + "\n".join(told) + "</pre>"
