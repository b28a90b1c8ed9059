"""Windows in kernels that know no sizes of planes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...graph.expression import linearize
from ...graph.window import Window
from .code import Code
from .dialect import Dialect
from .taps import TapLoop, TapPrinter, print_count


def print_window(
    code: Code,
    dialect: Dialect,
    uniform: str,
    window: Window,
    extent: tuple[str, str],
    place: tuple[str, str],
    read: Callable[[], Sequence[str]],
    own: Sequence[str],
) -> str:
    """Joins the taps of one output, each by itself, and finishes it; the result's name.

    Args:
        uniform: what stands in front of a type whose numbers all lanes share.
        extent: how the plane's rows and columns are read.
        place: how those of the output are.
        read: the elements under the window at ``sy`` and ``sx``.
        own: the elements at the output's place.
    """
    tap = linearize(window.tap)

    def declare(name: str, text: str) -> None:
        code.line(f"float {name} = {text};")

    def assign(name: str, text: str) -> None:
        code.line(f"{name} = {text};")

    def one(number: str) -> str:
        given = [*read(), *own, f"((float)({number}))"]
        lines, name = dialect.print_code(tap, given, code.fresh)
        code.lines(lines)
        return name

    loop = TapLoop(code, f"{uniform}int", declare, assign, str, dialect, window.joins)
    joined = TapPrinter(loop, window, extent, lambda: None, one).print(*place)
    if window.is_finished:
        return joined
    whole = zip(window.whole, place, extent, strict=True)
    counts = [print_count(window, axis, at, size) for axis, at, size in whole]
    if window.divisor is not None:
        counts = [str(window.divisor), "1"]
    count = f"({uniform}float)({counts[0]} * {counts[1]})"
    lines, result = dialect.print_code(linearize(window.finish), [joined, count], code.fresh)
    code.lines(lines)
    return result
