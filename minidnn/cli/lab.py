"""``minidnn lab``: ladders of kernels, what each step is about, and what it should cost."""

from __future__ import annotations

import argparse
import difflib
import json
import re
import textwrap
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

from minidnn.errors import UnsupportedError

if TYPE_CHECKING:
    from minidnn.backends.cuda.machine import Machine
    from minidnn.lab.step import Block, Ladder, LadderStep

HELP = "kernels of one idea each: what changes from step to step, and what it should cost"
DESCRIPTION = """\
The laboratory. A ladder is a row of small CUDA kernels that compute the same, each a step with
one idea beyond the one before.

    minidnn lab list                         the ladders, their steps, and the metrics
    minidnn lab show conv tiled              a step: idea, source, difference, resources, prediction
    minidnn lab model conv --block 8x8,32x8  what each step should cost with each block

Nothing is run: registers come from CUDA's compiler, which needs no GPU, and the rest is
calculated for the GPU that --gpu names."""

_WIDTH = 100
_BLOCK = "16x16"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="ACTION", dest="action")
    listing = commands.add_parser("list", help="ladders, steps and metrics")
    show = commands.add_parser("show", help="a step of a ladder")
    show.add_argument("ladder", help="conv, product")
    show.add_argument("step", help="a step's name")
    model = commands.add_parser("model", help="what each step should cost")
    model.add_argument("ladder", help="conv, product")
    model.add_argument("--step", help="these steps only, with commas between them")
    for one in (show, model):
        one.add_argument(
            "--gpu", default="H100", help="A100, RTX3090, RTX4090, H100 (default), H200"
        )
        one.add_argument(
            "--block",
            default=_BLOCK,
            type=_blocks,
            help=f"threads of a block, across and down, with commas between several ({_BLOCK})",
        )
        one.add_argument(
            "--shape",
            default={},
            type=_numbers,
            metavar="NAME=N,...",
            help="sizes other than the ladder's own, such as batch=1,channels=3",
        )
        one.add_argument(
            "--parameters",
            default={},
            type=_numbers,
            metavar="NAME=N,...",
            help="numbers that steps are compiled with, such as GROUP=4,POSITIONS=2",
        )
    for one in (listing, show, model):
        one.add_argument("--json", action="store_true", help="print JSON")
        # The command's own, which may stand behind the action, too.
        off = argparse.SUPPRESS
        one.add_argument("--debug", action="store_true", default=off, help=off)
        one.add_argument("-v", "--verbose", action="count", default=off, help=off)


def run(options: argparse.Namespace) -> int:
    document, text = {"list": _list, "show": _show, "model": _model}[options.action](options)
    print(json.dumps(document, indent=1) if options.json else text)
    return 0


def _list(options: argparse.Namespace) -> tuple[Any, str]:
    from minidnn.lab.ladders import LADDERS
    from minidnn.lab.metrics import METRICS

    lines = []
    for ladder in LADDERS.values():
        lines += [f"{ladder.name}: {ladder.title}", *_wrapped(_sizes(ladder.shape))]
        lines += [f"  {step.name:<15} {step.title}" for step in ladder.steps]
        lines.append("")
    lines.append("metrics")
    for metric in METRICS:
        unit = f" [{metric.unit}]" if metric.unit else ""
        lines += _wrapped(f"{metric.name}{unit}: {metric.formula}")
    document = {
        "ladders": [
            {
                "name": ladder.name,
                "title": ladder.title,
                "shape": asdict(ladder.shape),
                "steps": [_about(step) for step in ladder.steps],
            }
            for ladder in LADDERS.values()
        ],
        "metrics": [asdict(metric) for metric in METRICS],
    }
    return document, "\n".join(lines)


def _about(step: LadderStep) -> dict[str, Any]:
    names = ("name", "title", "idea", "expectation")
    return {name: getattr(step, name) for name in names} | {"parameters": dict(step.parameters)}


def _show(options: argparse.Namespace) -> tuple[Any, str]:
    from minidnn.lab.study import study

    ladder, shape, machine = _asked(options)
    step = ladder.step(options.step)
    before = ladder.before(step)
    difference = _difference(before, step) if before else []
    written = study(ladder, [step], options.block, shape, machine, options.parameters)
    document = {**written, "step": _about(step), "source": step.text, "difference": difference}
    lines = [step.text.rstrip(), ""]
    if before:
        lines += [f"difference to {before.name}", *difference, ""]
    lines += [f"on {machine.name}, {_sizes(shape)}"]
    lines += _table(written["cells"])
    return document, "\n".join(lines)


def _difference(before: LadderStep, step: LadderStep) -> list[str]:
    lines = (before.text.splitlines(), step.text.splitlines())
    return list(difflib.unified_diff(*lines, before.name, step.name, lineterm="", n=1))


def _model(options: argparse.Namespace) -> tuple[Any, str]:
    from minidnn.lab.study import study

    ladder, shape, machine = _asked(options)
    steps = ladder.steps
    if options.step:
        steps = tuple(ladder.step(name) for name in options.step.split(","))
    written = study(ladder, steps, options.block, shape, machine, options.parameters)
    lines = [f"{ladder.title}, on {machine.name}", *_wrapped(_sizes(shape)), ""]
    return written, "\n".join([*lines, *_table(written["cells"])])


_TITLES = (
    "step",
    "block",
    "regs",
    "shared",
    "occupancy",
    "waves",
    "coalesced",
    "conflicts",
    "L2 MB",
    "ms",
    "TFLOP/s",
    "limit",
)


def _table(cells: list[dict[str, Any]]) -> list[str]:
    """Cells as lines; the reason stands where there is nothing to say of one."""
    rows = [_TITLES, *(_row(cell) for cell in cells)]
    full = [row for row in rows if len(row) == len(_TITLES)]
    widths = [max(len(row[i]) for row in full) for i in range(len(_TITLES))]
    names = max(len(row[0]) for row in rows)
    lines = []
    for row in rows:
        first = f"{row[0]:<{names}}  {row[1]:<6}"
        if len(row) == len(_TITLES):
            rest = "  ".join(part.rjust(w) for part, w in zip(row[2:-1], widths[2:-1], strict=True))
            lines.append(f"  {first}  {rest}  {row[-1]}")
        else:
            lines.append(f"  {first}  {row[2]}")
    return lines


def _row(cell: dict[str, Any]) -> tuple[str, ...]:
    head = (cell["step"], "x".join(map(str, cell["block"])))
    if "why_not" in cell:
        return (*head, f"no: {cell['why_not']}")
    seconds = cell["predicted_seconds"]
    return (
        *head,
        str(cell["registers"]),
        str(cell["shared_bytes"]),
        f"{100 * cell['occupancy']:.0f}% {cell['occupancy_limit']}",
        f"{cell['waves']:.1f}",
        f"{cell['coalescing']:.2f}",
        f"{cell['bank_conflicts']:.2f}",
        f"{cell['bytes']['L2'] / 1e6:.0f}",
        f"{1e3 * seconds:.3f}",
        f"{cell['operations'] / seconds / 1e12:.1f}",
        cell["predicted_limit"],
    )


def _asked(options: argparse.Namespace) -> tuple[Ladder, Any, Machine]:
    """The ladder, the shape and the GPU that the options name."""
    from minidnn.lab.cards import CARDS
    from minidnn.lab.ladders import ladder_of

    ladder = ladder_of(options.ladder)
    names = [field.name for field in fields(ladder.shape)]
    for name in options.shape:
        if name not in names:
            raise UnsupportedError(f"--shape: {name!r} is no size; valid are {', '.join(names)}")
    own = sorted({name for step in ladder.steps for name in step.parameters})
    for name, number in options.parameters.items():
        if name not in own or number < 1:
            told = f"--parameters: {name}={number}; valid are numbers from 1 on of {', '.join(own)}"
            raise UnsupportedError(told)
    if options.gpu not in CARDS:
        raise UnsupportedError(f"--gpu: {options.gpu!r} is not described; {', '.join(CARDS)} are")
    return ladder, replace(ladder.shape, **options.shape), CARDS[options.gpu]


def _sizes(shape: Any) -> str:
    return ", ".join(f"{name} {number}" for name, number in asdict(shape).items())


def _blocks(text: str) -> list[Block]:
    matches = [re.fullmatch(r"(\d{1,4})x(\d{1,4})", part, re.ASCII) for part in text.split(",")]
    blocks = [(int(match[1]), int(match[2])) for match in matches if match]
    if len(blocks) < len(matches):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of blocks such as 8x8,32x8")
    return list(dict.fromkeys(blocks))


def _numbers(text: str) -> dict[str, int]:
    if not re.fullmatch(r"\w+=\d{1,9}(,\w+=\d{1,9})*", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of sizes such as batch=1,channels=3")
    pairs = (part.split("=") for part in text.split(","))
    return {name: int(number) for name, number in pairs}


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="    ")
