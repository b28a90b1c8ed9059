"""What is taken of ONNX, as the table in docs/onnx.md: python -m this module prints it."""

from __future__ import annotations

from minidnn.frontends.onnx.operators import CONVERTERS


def table() -> str:
    """A Markdown table of all operators that are taken, by family, and of what is not of each."""
    lines = ["| family | operators | |", "|---|---|---|"]
    families: dict[str, dict[str, list[str]]] = {}
    for name, converter in CONVERTERS.items():
        notes = families.setdefault(converter.family, {})
        notes.setdefault(converter.note, []).append(f"`{name}`")
    for family, notes in sorted(families.items()):
        for note, names in sorted(notes.items()):
            lines.append(f"| {family} | {', '.join(names)} | {note} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
