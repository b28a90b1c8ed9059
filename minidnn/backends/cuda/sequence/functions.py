"""Steps as functions: those of equal text are printed, and compiled, once.

What differs between equal steps (where their planes lie, their vectors, what the patch has of
them) are arguments.  A function that is called once is inlined.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...codegen.code import Code
from .view import Bound, Span


@dataclass
class Function:
    """A function being printed, with the arguments of one call."""

    body: Code = field(default_factory=Code)
    formals: list[str] = field(default_factory=list)
    actuals: list[str] = field(default_factory=list)
    known: dict[tuple[str, str], str] = field(default_factory=dict)

    def take(self, type: str, actual: str, role: str = "") -> str:
        """The name of an argument; the same for equal ``actual`` and ``role``.

        The name stands behind ``type``, or where that says ``{}``.
        """
        key = (role or actual, type)
        if key not in self.known:
            name = f"a{len(self.formals)}"
            self.known[key] = name
            self.formals.append(type.format(name) if "{}" in type else f"{type} {name}")
            self.actuals.append(actual)
        return self.known[key]

    def span(self, span: Span) -> Span:
        """The span as the function sees it: numbers stay numbers."""

        def bound(value: Bound) -> Bound:
            return value if isinstance(value, int) else self.take("const int", value)

        return Span(bound(span.begin), bound(span.end), span.length)


@dataclass
class Functions:
    """All functions of a kernel, by their text.  ``inline``: even those called more than once."""

    inline: bool = False
    counts: dict[str, int] = field(default_factory=dict)

    def call(self, function: Function) -> str:
        """A call; ``$`` stands for the kernel's name."""
        text = f"({', '.join(function.formals)}) {{\n{function.body}}}\n"
        self.counts[text] = self.counts.get(text, 0) + 1
        number = list(self.counts).index(text)
        return f"$_{number}({', '.join(function.actuals)});"

    def __str__(self) -> str:
        parts = []
        for number, (text, count) in enumerate(self.counts.items()):
            inline = "__forceinline__" if self.inline or count == 1 else "__noinline__"
            parts.append(f"static __device__ {inline} void $_{number}{text}")
        return "".join(parts)
