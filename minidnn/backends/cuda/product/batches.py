"""C that finds the matrices of one place in a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def unravel(index: str, sizes: Sequence[int], pointers: Mapping[str, Sequence[int]]) -> str:
    """Moves pointers, of each of which so many elements lie between neighbours along each axis of a
    batch, to the matrices of a number."""
    lines = [f"unsigned int rest = {index};"]
    for axis in reversed(range(len(sizes))):
        place = f"rest % {sizes[axis]}u" if axis else "rest"
        for name, steps in pointers.items():
            if steps[axis] != 0:
                lines.append(f"{name} += ({place}) * {steps[axis]}ll;")
        if axis:
            lines.append(f"rest /= {sizes[axis]}u;")
    return "\n  ".join(lines)
