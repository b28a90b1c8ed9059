"""What is taken of PyTorch, as the table in docs/pytorch.md: python -m this module prints it."""

from __future__ import annotations

from minidnn.frontends.torch import aten
from minidnn.frontends.torch.aten.call import known


def table() -> str:
    """A Markdown table of all ATen operations that are taken, by family."""
    lines = ["| family | operations | taken when |", "|---|---|---|"]
    for family in aten.__all__:
        found: dict[str, list[str]] = {}
        for name, entry in known().items():
            if entry.converter.__module__.endswith(f".{family}"):
                found.setdefault(entry.condition, []).append(f"`{name.removesuffix('.default')}`")
        for condition, names in sorted(found.items()):
            lines.append(f"| {family} | {', '.join(names)} | {condition or 'always'} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
