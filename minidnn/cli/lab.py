"""``minidnn lab``: shows, models, measures and tunes the steps of the laboratory's ladders."""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from minidnn.cli.arguments import count, size
from minidnn.errors import UnsupportedError

if TYPE_CHECKING:
    from minidnn.lab.step import Block, Ladder, LadderStep

HELP = "kernels of one idea each: what changes from step to step, and what it should cost"
DESCRIPTION = """\
The laboratory. A ladder is a row of small kernels that compute the same, each a step with one idea
beyond the one before: in CUDA, or in ISPC for a CPU.

    minidnn lab list                         the ladders, their steps, and the metrics
    minidnn lab show conv tiled              a step: idea, source, difference, prediction
    minidnn lab model conv --block 8x8,32x8  what each step should cost with each block
    minidnn lab run conv                     each step on this GPU, beside cuDNN
    minidnn lab run conv-cpu                 the same on the CPU
    minidnn lab sweep conv --step tiled      one step with several blocks
    minidnn lab run conv --network resnet18  on the layers of a network
    minidnn lab tune conv-cpu --step tile    the parameters with which a step is fastest
    minidnn lab run product --counters       with hardware counters, if permitted
    minidnn lab replay FILE                  a study that --save wrote
    minidnn lab demo                         one of an H100

For list, show and model nothing is run: registers come from CUDA's compiler, which needs no GPU,
and the rest is calculated for the GPU that --gpu names."""

_WIDTH = 100
#: The names of all ladders, for help, which must not import them.
LADDERS = (
    "conv, input-gradient, weight-gradient, product, memory, reverse, transpose, conv-cpu, "
    "memory-cpu"
)
_BLOCK = "16x16"
_BLOCKS = "8x8,16x8,16x16,32x4,32x8,32x16"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="ACTION", dest="action")
    listing = commands.add_parser("list", help="ladders, steps and metrics")
    show = commands.add_parser("show", help="a step of a ladder")
    show.add_argument("ladder", help=LADDERS)
    show.add_argument("step", help="a step's name")
    model = commands.add_parser("model", help="what each step should cost")
    run = commands.add_parser("run", help="what each step costs on this machine's GPU or CPU")
    sweep = commands.add_parser("sweep", help="what a step costs there with several blocks")
    tune = commands.add_parser("tune", help="with which block and parameters a step is fastest")
    tune.add_argument("ladder", help=LADDERS)
    tune.add_argument("--step", required=True, help="the step")
    tune.add_argument(
        "--method", default="guided", help="guided by the model (default), random, or exhaustive"
    )
    tune.add_argument("--most", type=count, default=16, help="points that are measured (16)")
    for one in (model, run, sweep):
        one.add_argument("ladder", help=LADDERS)
        one.add_argument(
            "--step", required=one is sweep, help="these steps only, with commas between them"
        )
    for one in (show, model):
        one.add_argument("--gpu", help="A100, RTX3090, RTX4090, H100 (default), H200")
    for one in (run, sweep, tune):
        if one is not tune:
            one.add_argument(
                "--counters",
                action="store_true",
                help="read hardware counters, too, by Nsight Compute (ncu)",
            )
        one.add_argument(
            "--limit", type=float, default=60.0, help="seconds that one measurement may take (60)"
        )
    for one in (show, model, run, sweep, tune):
        blocks = _BLOCKS if one is sweep else _BLOCK
        one.add_argument(
            "--block",
            default=(),
            type=_blocks,
            help=f"threads of a block, across and down, with commas between several ({blocks})",
        )
        one.add_argument(
            "--shape",
            action="append",
            metavar="SHAPE",
            help="sizes other than the ladder's own, such as batch=1,channels=3; the name of one "
            "of its shapes; or all, for all of these; may be given several times",
        )
        one.add_argument(
            "--parameters",
            default={},
            type=_choices,
            metavar="NAME=N,...",
            help="numbers that steps are compiled with, such as GROUP=4,POSITIONS=2; several are "
            "tried with colons between them: GROUP=4:8",
        )
    for one in (model, run, sweep, tune):
        one.add_argument(
            "--network", metavar="NET", help="shapes of a network's layers: of the zoo, or a file"
        )
        one.add_argument("--batch", type=count, help="images of the network (1)")
        one.add_argument("--size", type=size, help="their size, 224 or 192x256 (its own)")
    for one in (model, run, sweep):
        one.add_argument("--save", metavar="FILE", help="write the study to a file, too")
    replay = commands.add_parser("replay", help="a study in a file")
    replay.add_argument("file", help="what --save wrote")
    demo = commands.add_parser("demo", help="a recorded study of an H100, or of a CPU")
    demo.add_argument(
        "ladder",
        nargs="?",
        default="conv",
        help="conv (default), or another ladder that was recorded: all but memory-cpu",
    )
    for one in (listing, show, model, run, sweep, tune, replay, demo):
        one.add_argument("--json", action="store_true", help="print JSON")
        one.add_argument("--html", metavar="FILE", help="write it as a page, too")
        if one not in (listing, show, tune):
            one.add_argument(
                "--plot", metavar="FILE", help="draw the study as a picture, too: .svg or .png"
            )
        # Options of the command, which are also accepted after the action.
        off = argparse.SUPPRESS
        one.add_argument("--debug", action="store_true", default=off, help=off)
        one.add_argument("-v", "--verbose", action="count", default=off, help=off)


def run(options: argparse.Namespace) -> int:
    actions = {"list": _list, "show": _show, "model": _model, "run": _run, "sweep": _run}
    actions |= {"tune": _tune, "replay": _replay, "demo": _replay}
    document, text = actions[options.action](options)
    if getattr(options, "save", None):
        from minidnn.lab.studies import save_study

        save_study(options.save, document)
    if options.html:
        from minidnn.pages.page import save_page

        save_page(options.html, _page(options, document))
    if getattr(options, "plot", None):
        from minidnn import lab

        lab.save_plot(options.plot, document, lab.ladder_of(document["ladder"]))
    print(json.dumps(document, indent=1) if options.json else text)
    return 0


def _page(options: argparse.Namespace, document: Any) -> str:
    """The HTML page of the document that was printed."""
    from minidnn import lab
    from minidnn.lab.api import LADDERS
    from minidnn.lab.page import listing_page, tuning_page

    if options.action == "list":
        return listing_page(LADDERS.values())
    if options.action == "tune":
        fields = ("step", "tried", "refused", "remembered")
        tuning = lab.StepTuning(**{name: document[name] for name in fields})
        return tuning_page(tuning, lab.ladder_of(options.ladder))
    return lab.study_page(document, lab.ladder_of(document["ladder"]))


def _list(options: argparse.Namespace) -> tuple[Any, str]:
    from minidnn.lab.api import LADDERS
    from minidnn.lab.counters import METRICS

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
    from minidnn import lab

    ladder = lab.ladder_of(options.ladder)
    step = ladder.step(options.step)
    before = ladder.before(step)
    difference = _difference(before, step) if before else []
    study = _modelled(options, ladder, [step.name])
    document = {**study, "step": _about(step), "source": step.text, "difference": difference}
    lines = [step.text.rstrip(), ""]
    if before:
        lines += [f"difference to {before.name}", *difference, ""]
    lines += [f"on {study['machine']['name']}", *lab.table(study)]
    return document, "\n".join(lines)


def _difference(before: LadderStep, step: LadderStep) -> list[str]:
    lines = (before.text.splitlines(), step.text.splitlines())
    return list(difflib.unified_diff(*lines, before.name, step.name, lineterm="", n=1))


def _model(options: argparse.Namespace) -> tuple[Any, str]:
    from minidnn import lab

    ladder = lab.ladder_of(options.ladder)
    return _told(_modelled(options, ladder, _steps(options)))


def _modelled(options: argparse.Namespace, ladder: Ladder, steps: Sequence[str]) -> dict[str, Any]:
    from minidnn import lab

    return lab.model(
        ladder,
        steps,
        blocks=options.block,
        shapes=_shapes(ladder, options),
        parameters=options.parameters,
        gpu=options.gpu,
    )


def _run(options: argparse.Namespace) -> tuple[Any, str]:
    from minidnn import lab

    ladder = lab.ladder_of(options.ladder)
    study = lab.run(
        ladder,
        _steps(options),
        blocks=_chosen_blocks(options, ladder),
        shapes=_shapes(ladder, options),
        parameters=options.parameters,
        limit=options.limit,
        counters=options.counters,
        tell=lambda line: print(line, file=sys.stderr, flush=True),
    )
    return _told(study)


def _tune(options: argparse.Namespace) -> tuple[Any, str]:
    from minidnn import lab

    ladder = lab.ladder_of(options.ladder)
    shapes = _shapes(ladder, options)
    if len(shapes) > 1:
        raise UnsupportedError(f"--shape, --network: {len(shapes)} shapes; valid is one")
    tuning = lab.tune(
        ladder,
        options.step,
        blocks=options.block,
        shape=shapes[0] if shapes else None,
        parameters=options.parameters or None,
        method=options.method,
        most=options.most,
        limit=options.limit,
    )
    document = asdict(tuning) | {"best": tuning.best, "loss": tuning.loss}
    again = ", as was measured earlier" if tuning.remembered else ""
    lines = [f"{len(tuning.tried)} tried, {tuning.refused} cannot run{again}"]
    for cell in sorted(tuning.tried, key=lambda one: one.get("measured_seconds", 1e9)):
        block = "x".join(map(str, cell["block"]))
        parameters = " ".join(f"{name}={number}" for name, number in cell["parameters"].items())
        measured = cell.get("measured_seconds")
        told = f"failed: {cell['failed']}" if measured is None else f"{1e3 * measured:9.4f} ms"
        lines.append(
            f"  {block:<6} {parameters:<34} {told}, model {1e3 * cell['predicted_seconds']:.4f}"
        )
    choice = f"{tuning.loss:.2f} times as long" if tuning.loss else "not right"
    lines.append(f"the model's own choice is {choice}")
    return document, "\n".join(lines)


def _replay(options: argparse.Namespace) -> tuple[Any, str]:
    from minidnn import lab

    if options.action == "replay":
        return _told(lab.load_study(options.file))
    recorded = lab.recorded_studies()
    if options.ladder not in recorded:
        raise UnsupportedError(f"no study of {options.ladder!r} is recorded; {list(recorded)} are")
    return _told(lab.load_study(recorded[options.ladder]))


def _told(study: dict[str, Any]) -> tuple[Any, str]:
    """A study and its table, as text."""
    from minidnn import lab

    ladder = lab.ladder_of(study["ladder"])
    lines = [f"{ladder.title}, on {study['machine']['name']}", "", *lab.table(study, ladder)]
    return study, "\n".join(lines)


def _chosen_blocks(options: argparse.Namespace, ladder: Ladder) -> Sequence[Block]:
    if options.action == "sweep" and ladder.device == "cuda":
        return options.block or _blocks(_BLOCKS)
    return tuple(options.block)


def _steps(options: argparse.Namespace) -> Sequence[str]:
    return options.step.split(",") if options.step else ()


def _shapes(ladder: Ladder, options: argparse.Namespace) -> list[Any]:
    """The shapes of ``--shape`` and ``--network``, as :func:`minidnn.lab.model` takes them."""
    shapes: list[Any] = []
    if (network := getattr(options, "network", None)) is not None:
        from minidnn import lab
        from minidnn.cli.networks import graph_of

        sizes = {"batch": options.batch, "size": options.size, "shape": None}
        graph = graph_of(argparse.Namespace(network=network, **sizes))
        shapes += lab.network_shapes(ladder, graph)
    for text in options.shape or ():
        if text == "all":
            shapes += ladder.shapes or [ladder.shape]
        elif text in ladder.shapes:
            shapes.append(text)
        else:
            shapes.append(_given_sizes(ladder, text))
    return shapes


def _given_sizes(ladder: Ladder, text: str) -> dict[str, int]:
    names = [field.name for field in fields(ladder.shape)]
    if not re.fullmatch(r"\w+=\d{1,9}(,\w+=\d{1,9})*", text, re.ASCII):
        known = f"; shapes of {ladder.name} are {', '.join(ladder.shapes)}" * bool(ladder.shapes)
        raise UnsupportedError(
            f"--shape: {text!r} is no list of sizes such as batch=1,channels=3{known}"
        )
    pairs = (part.split("=") for part in text.split(","))
    sizes = {name: int(number) for name, number in pairs}
    for name in sizes:
        if name not in names:
            raise UnsupportedError(f"--shape: {name!r} is no size; valid are {', '.join(names)}")
    return sizes


def _sizes(shape: Any) -> str:
    return ", ".join(f"{name} {number}" for name, number in asdict(shape).items())


def _blocks(text: str) -> list[Block]:
    matches = [re.fullmatch(r"(\d{1,4})x(\d{1,4})", part, re.ASCII) for part in text.split(",")]
    blocks = [(int(match[1]), int(match[2])) for match in matches if match]
    if len(blocks) < len(matches):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of blocks such as 8x8,32x8")
    return list(dict.fromkeys(blocks))


def _choices(text: str) -> dict[str, list[int]]:
    numbers = r"\d{1,9}(:\d{1,9})*"
    if not re.fullmatch(rf"\w+={numbers}(,\w+={numbers})*", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers such as GROUP=4:8")
    pairs = (part.split("=") for part in text.split(","))
    return {name: [int(number) for number in several.split(":")] for name, several in pairs}


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="    ")
