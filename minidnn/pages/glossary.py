"""Words that pages explain where one points at them, and in a list at the end for touch screens."""

from __future__ import annotations

import re
from html import escape

GLOSSARY = {
    "arena": "the one piece of memory that holds all values between input and output; values that "
    "are not needed at the same time share their place in it",
    "block": "the group of threads that a GPU starts together, as width x height",
    "contraction": "a convolution or a matrix product: many multiply-adds for each result",
    "depth first": "computed patch by patch through several layers, so that what lies between them "
    "stays in a near cache",
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
"""What terms mean, in the singular."""

_TERM = re.compile(rf"\b({'|'.join(sorted(GLOSSARY, key=len, reverse=True))})s?\b", re.IGNORECASE)
_BY_WORD = {term.lower(): term for term in GLOSSARY}
_MARKED = re.compile(r'<abbr title="[^"]*">([^<]*)</abbr>')


def explained(text: str) -> str:
    """Text as HTML, in which the first use of each term says on hover what it means."""
    seen: set[str] = set()

    def mark(found: re.Match[str]) -> str:
        term = _BY_WORD[found[1].lower()]
        if term in seen:
            return found[0]
        seen.add(term)
        return f'<abbr title="{escape(GLOSSARY[term])}">{found[0]}</abbr>'

    return _TERM.sub(mark, escape(text))


def terms_of(html: str) -> dict[str, str]:
    """The terms that :func:`explained` marked in a page, in the order of the alphabet."""
    used = {match[1].lower() for word in _MARKED.findall(html) if (match := _TERM.match(word))}
    return {_BY_WORD[word]: GLOSSARY[_BY_WORD[word]] for word in sorted(used)}
