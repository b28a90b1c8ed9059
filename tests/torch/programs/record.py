"""Runs programs in all ways, prints how many are right, and writes those that are not to known.py.

python -m tests.torch.programs.record [--device reference] [--ways optimize compile aot_eager]
    [--only NAME ...] [--write]
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections import Counter
from pathlib import Path

from tests.torch.programs import themes  # noqa: F401 (fills PROGRAMS)
from tests.torch.programs.harness import PROGRAMS, Program, faults, run
from tests.torch.programs.known import KNOWN
from tests.torch.programs.ways import COMPILE, EAGER, OPTIMIZE

HEAD = '''"""Programs that are known to fail, and how.

Written by python -m tests.torch.programs.record."""

'''
#: Of a way, from the name of a program to the kind of its first fault.
Kinds = dict[str, dict[str, str]]


def recorded(programs: list[Program], ways: list[str], device: str) -> tuple[Kinds, list[str]]:
    """The kinds of what differs, and a line for each run that does."""
    kinds: Kinds = {way: {} for way in ways}
    lines = []
    for program in programs:
        expected = run(program, EAGER, device)
        for way in ways:
            begin = time.process_time()
            found = faults(program, run(program, way, device), expected)
            seconds = time.process_time() - begin
            if found:
                kinds[way][program.name] = found[0].kind
            text = f"{found[0]!s:.400}" if found else "right"
            lines.append(f"{way} {program.theme}.{program.name} {seconds:.2f} s: {text}")
            print(lines[-1], flush=True)
    return kinds, lines


def table(kinds: Kinds, chosen: list[Program]) -> str:
    """Of each theme and way, how many programs are right, and the kinds of the others."""
    lines = []
    sizes = Counter(program.theme for program in chosen)
    for theme, count in sizes.items():
        for way, found in kinds.items():
            wrong = Counter(k for n, k in found.items() if PROGRAMS[n].theme == theme)
            said = ", ".join(f"{each} {kind}" for kind, each in wrong.most_common())
            lines.append(f"{theme:12} {way:10} {count - wrong.total():3} of {count:3}  {said}")
    return "\n".join(lines)


def source(kinds: Kinds) -> str:
    """The text of known.py."""
    lines = ["KNOWN: dict[str, dict[str, str]] = {"]
    for way in (COMPILE, OPTIMIZE):
        lines.append(f'    "{way}": {{')
        lines += [f'        "{name}": "{kind}",' for name, kind in sorted(kinds[way].items())]
        lines.append("    },")
    return HEAD + "\n".join([*lines, "}"]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--device", default="reference")
    parser.add_argument("--ways", nargs="+", default=[OPTIMIZE, COMPILE])
    parser.add_argument("--only", nargs="+", help="names of programs or themes")
    parser.add_argument("--write", action="store_true", help="write known.py")
    parser.add_argument("--json", type=Path, help="where the kinds are written")
    given = parser.parse_args()
    logging.getLogger("torch").setLevel(logging.ERROR)
    only = given.only
    chosen = [p for p in PROGRAMS.values() if only is None or p.name in only or p.theme in only]
    kinds, _ = recorded(chosen, given.ways, given.device)
    print(table(kinds, chosen))
    if given.json is not None:
        given.json.write_text(json.dumps(kinds, indent=1), encoding="utf-8")
    if given.write:
        names = {program.name for program in chosen}
        for way in (OPTIMIZE, COMPILE):
            others = {name: kind for name, kind in KNOWN[way].items() if name not in names}
            kinds[way] = others | kinds.get(way, {})
        Path(__file__).with_name("known.py").write_text(source(kinds), encoding="utf-8")


if __name__ == "__main__":
    main()
