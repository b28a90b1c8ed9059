"""HTML pages and their elements.  A page is self-contained: no script, font or network access."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from ..errors import UnsupportedError

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1d21; --soft: #5d6475; --rule: #d9dce2;
  --fill: #f3f4f7; --accent: #2b7bba; --mark: #d55e00; --behind: #ccd1d9; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181c; --ink: #e4e6ea; --soft: #a3a9b5;
  --rule: #3a3f48; --fill: #20242a; --accent: #4a9bd9; --mark: #ff8c4a; --behind: #474d57; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 76rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
h3 { font-size: 1rem; margin: 1.2rem 0 .3rem; }
p, li, dl { max-width: 50rem; } .soft { color: var(--soft); }
abbr { text-decoration: underline dotted var(--soft); text-underline-offset: .2em; cursor: help; }
.guide { background: var(--fill); border-left: 4px solid var(--accent); padding: .1rem 1rem;
  margin: 1rem 0; max-width: 54rem; } .guide h2 { margin-top: .8rem; }
dt { font-weight: 600; } dd { margin: 0 0 .5rem 1rem; }
pre { background: var(--fill); padding: .7rem; overflow-x: auto; font-size: 12px;
  line-height: 1.4; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid var(--rule);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
td.text, th.text { text-align: left; white-space: normal; min-width: 18rem; }
details { border-top: 1px solid var(--rule); padding: .4rem 0; }
summary { cursor: pointer; font-weight: 600; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr));
  gap: 1.5rem 1rem; }
figure { margin: 0 0 1rem; }
figure > p { font-size: 13px; } .charts > .broad { grid-column: 1 / -1; }
figcaption { font-size: 13px; max-width: 50rem; margin-bottom: .4rem; }
figcaption b { display: block; font-size: 14px; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); gap: .7rem; }
.panels > div { display: flex; flex-direction: column; justify-content: flex-end; }
.legend { display: flex; flex-wrap: wrap; gap: 0 .8rem; font-size: 12px; line-height: 1.4;
  margin-bottom: .3rem; }
.legend i { display: inline-block; width: .6rem; height: .6rem; border-radius: 50%;
  margin-right: .3rem; }
.legend i.line { height: 0; width: 1.2rem; border-radius: 0; border-top: 2px dashed var(--ink);
  vertical-align: middle; }
svg { display: block; width: 100%; height: auto; font: 11px system-ui, sans-serif;
  fill: var(--ink); }
svg .axis { stroke: var(--soft); fill: none; } svg .rule { stroke: var(--rule); fill: none; }
svg .roof { stroke: var(--ink); fill: none; stroke-width: 1.2; stroke-dasharray: 5 3; }
.behind { stroke: var(--behind); fill: none; stroke-width: 4; stroke-linecap: round; }
.strip { display: flex; height: 2.4rem; gap: 1px; margin: .3rem 0; }
.strip > i { min-width: 0; flex-basis: 0; }
.bars { display: grid; grid-template-columns: minmax(4rem, max-content) minmax(6rem, 1fr)
  max-content; gap: .2rem .6rem; font-size: 13px; align-items: center;
  font-variant-numeric: tabular-nums; }
.bars > div:nth-child(3n) { text-align: right; }
.bar { position: relative; background: var(--fill); height: 1.2rem; }
.bar > i { position: absolute; top: 0; bottom: 0; }
.bar > b { position: absolute; top: 0; bottom: 0; width: 0; border-left: 2px dashed var(--mark); }
@media (max-width: 40rem) { .bars { grid-template-columns: 1fr max-content; }
  .bars > .label { grid-column: 1 / -1; margin-top: .3rem; line-height: 1.2; }
  td.text, th.text { min-width: 34rem; } }
.add { color: #2a7d2a; } .cut { color: #b3362c; }
@media (prefers-color-scheme: dark) { .add { color: #7bd07b; } .cut { color: #ff8f85; } }
"""
GLOSSARY = {
    "arena": "the one piece of memory that holds all values between input and output; values that "
    "are not needed at the same time share their place in it",
    "block": "the group of threads that a GPU starts together, as width x height",
    "contraction": "a convolution or a matrix product: many multiply-adds for each result",
    "depth first": "computed patch by patch through several layers, so that values between them "
    "stay in a near cache",
    "floor": "the least time that the measured rates of the machine allow for the same work",
    "fused": "computed by the same kernel, so that nothing between the layers goes to memory",
    "kernel": "a program that a device runs in one go; each region takes one",
    "ladder": "a row of kernels that compute the same, each with one idea more than the one before",
    "launch": "what it costs to start a kernel, whatever it computes",
    "Mop": "million scalar operations; a multiply-add counts as two",
    "movement": "a kernel that computes nothing and copies values to another place or order",
    "occupancy": "the part of the warps that a GPU could keep at hand which it does keep",
    "region": "the part of a network that one kernel computes: a layer and what is fused to it",
    "rewrite": "one change that a pass made to the network, which computes the same after it",
    "roofline": "the rate that a machine allows for so many operations a byte: memory limits it on "
    "the slope, arithmetic on the flat part",
    "stack": "neighbouring layers that can be computed depth first",
    "step": "in a ladder one kernel; in a region one layer of a patch that is computed depth first",
    "strategy": "how stacks are cut into kernels, as --strategy says",
    "tile": "the part of a result that a thread or a block computes",
    "warp": "32 threads of a GPU that do the same at the same time",
    "wave": "the blocks that a GPU runs at the same time",
}
"""Definitions of terms, in the singular."""

_TERM = re.compile(rf"\b({'|'.join(sorted(GLOSSARY, key=len, reverse=True))})s?\b", re.IGNORECASE)
_BY_WORD = {term.lower(): term for term in GLOSSARY}
_MARKED = re.compile(r'<abbr title="[^"]*">([^<]*)</abbr>')


def page(title: str, parts: Iterable[str]) -> str:
    """Returns a whole document, with a list of the terms that its parts explain on hover."""
    parts = list(parts)
    if terms := terms_of("".join(parts)):
        told = (f"<dt>{escape(term)}</dt><dd>{escape(terms[term])}</dd>" for term in terms)
        parts.append(details("Words of this page", [f"<dl>{''.join(told)}</dl>"]))
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
    """A paragraph, of a CSS class if ``kind`` names one."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def guide(title: str, texts: Iterable[str], explains: bool = True) -> str:
    """A box of paragraphs for what a reader needs first; terms are explained if ``explains``."""
    make = explained if explains else escape
    told = "\n".join(f"<p>{make(text)}</p>" for text in texts)
    return f'<section class="guide"><h2>{escape(title)}</h2>{told}</section>'


def lead(text: str) -> str:
    """The first paragraph of a part, in a soft colour; terms are explained."""
    return f'<p class="soft">{explained(text)}</p>'


def heading(text: str) -> str:
    """The heading of a part; terms are explained."""
    return f"<h2>{explained(text)}</h2>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], text: Sequence[str] = ()) -> str:
    """A table, which scrolls on a narrow screen.  Columns that ``text`` names are prose; terms in
    the head are explained."""

    def cells(kind: str, row: Sequence[str]) -> str:
        found = []
        for name, cell in zip(head, row, strict=True):
            mark = ' class="text"' if name in text else ""
            told = explained(cell) if kind == "th" else escape(cell)
            found.append(f"<{kind}{mark}>{told}</{kind}>")
        return f"<tr>{''.join(found)}</tr>"

    body = [cells("td", row) for row in rows]
    return "\n".join(['<div class="wide"><table>', cells("th", head), *body, "</table></div>"])


def details(summary: str, parts: Iterable[str], is_open: bool = False) -> str:
    """Parts that are folded under a summary until they are opened."""
    mark = " open" if is_open else ""
    head = f"<details{mark}><summary>{escape(summary)}</summary>"
    return "\n".join([head, *parts, "</details>"])


def code(text: str) -> str:
    """Preformatted text."""
    return f"<pre>{escape(text.rstrip())}</pre>"


def difference(lines: Iterable[str]) -> str:
    """The lines of a unified diff, in colours."""
    kinds = {"+": "add", "-": "cut"}
    told = [
        f'<span class="{kinds[line[:1]]}">{escape(line)}</span>'
        if line[:1] in kinds
        else escape(line)
        for line in lines
    ]
    return "<pre>" + "\n".join(told) + "</pre>"


def explained(text: str) -> str:
    """Text as HTML, in which the first use of each term shows its definition on hover."""
    seen: set[str] = set()

    def mark(found: re.Match[str]) -> str:
        term = _BY_WORD[found[1].lower()]
        if term in seen:
            return found[0]
        seen.add(term)
        return f'<abbr title="{escape(GLOSSARY[term])}">{found[0]}</abbr>'

    return _TERM.sub(mark, escape(text))


def terms_of(html: str) -> dict[str, str]:
    """The terms that :func:`explained` marked in a page, with definitions, sorted by term."""
    used = {match[1].lower() for word in _MARKED.findall(html) if (match := _TERM.match(word))}
    return {_BY_WORD[word]: GLOSSARY[_BY_WORD[word]] for word in sorted(used)}
