"""Tables of what ``training_step.py``, ``step_memory.py``, ``distributed_step.py``,
``chain_step.py``, ``fusion_step.py`` and ``steps_per_launch.py`` measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log
from typing import Any

from benchmarks.figures import markdown
from benchmarks.report import Page, Section
from benchmarks.report_tables import known, paper

Row = Mapping[str, Any]

_PEERS = ("eager planar", "eager", "compiled default", "compiled reduce-overhead")


def steps(rows: Sequence[Row]) -> str:
    """Milliseconds of steps, a precision a table, and the geometric mean of its ratios."""
    lines: list[str] = []
    for precision in dict.fromkeys(row["precision"] for row in rows):
        of = [row for row in rows if row["precision"] == precision]
        sides = ["minidnn", *(peer for peer in _PEERS if any(peer in row for row in of))]
        titles = ["network", *(f"{side}, ms" for side in sides), "ratio"]
        found = []
        for row in of:
            times = (f"{row[side]:.4g}" if side in row else "" for side in sides)
            found.append([row["network"], *times, f"{row['ratio']:.3f}"])
        mean = exp(sum(log(row["ratio"]) for row in of) / len(of))
        found.append(["geometric mean", *[""] * len(sides), f"{mean:.3f}"])
        lines += [f"{precision}:", "", markdown(titles, found), ""]
    return "\n".join(lines)


def memory(rows: Sequence[Row]) -> str:
    """Megabytes of steps at their peak."""
    titles = ["network", "batch", "precision", "limit", "minidnn, MB", "PyTorch, MB", "part"]
    found = []
    for row in rows:
        ours, theirs = row["minidnn"]["peak"], row["torch"]["peak"]
        limit = f"{row['limit'] / 1e6:.0f} MB" if row.get("limit") else ""
        figures = (f"{ours / 1e6:.0f}", f"{theirs / 1e6:.0f}", f"{ours / theirs:.2f}")
        found.append([row["network"], row["batch"], row["precision"], limit, *figures])
    return markdown(titles, found)


def ranks(rows: Sequence[Row]) -> str:
    """Images a second of several GPUs."""
    titles = ["network", "precision", "ranks", "batch of each", "alone", "together", "part"]
    found = []
    for row in rows:
        alone, both = row["images_per_second_alone"], row["images_per_second_together"]
        figures = (f"{alone:.0f}", f"{both:.0f}", f"{row['efficiency']:.3f}")
        found.append([row["network"], row["precision"], row["ranks"], row["batch"], *figures])
    return markdown(titles, found)


def chains(rows: Sequence[Row]) -> str:
    """Milliseconds and megabytes of steps of the paper's chain."""
    titles = ("statistics", "blocks", "eager, ms", "torch.compile, ms", "minidnn, ms", "ratio")
    found = []
    for row in rows:
        eager, best, ours = row["sides"].values()
        times = (f"{side['ms']:.3f}" for side in (eager, best, ours))
        ratio = f"{best['ms'] / ours['ms']:.2f}"
        bytes = (f"{side['MB']:.0f}" for side in (best, ours))
        found.append([row["statistics"], row["blocks"], *times, ratio, *bytes])
    return markdown([*titles, "torch.compile, MB", "minidnn, MB"], found)


def launches(rows: Sequence[Row]) -> str:
    """Milliseconds of a small network's step, by how many are taken in a launch."""
    counts = sorted({int(n.split()[1]) for row in rows for n in row["ms"] if n.startswith("fit")})
    titles = ["network", "precision", "batch", "the GPU alone, ms", "losses unread, ms"]
    titles += [f"{count} a launch, ms" for count in counts]
    found = []
    for row in rows:
        ms = row["ms"]
        fits = [ms[f"fit {count}"] for count in counts]
        times = (f"{time:.3f}" for time in (row["device ms"], ms["unread"], *fits))
        gain = f"{fits[0] / fits[-1]:.2f}"
        same = "yes" if row["same losses"] else "**no**"
        found.append([row["network"], row["precision"], row["batch"], *times, gain, same])
    return markdown([*titles, f"gain of {counts[-1]}", "same losses"], found)


def fusion(rows: Sequence[Row]) -> str:
    """What fusion gains in steps, a precision a table, beside what it gains in the paper."""
    theirs = {known(row["network"]): row for row in paper("brainslug_table2.csv")}
    titles = ["network", "batch", "layers, ms", "cuDNN's, ms", "depth-first, ms"]
    titles += ["gain over layers", "gain over cuDNN's", "optimizable before, ms", "after, ms"]
    titles += ["gain", "time saved", "paper, inference: gain of optimizable", "time saved"]
    lines: list[str] = []
    for precision in dict.fromkeys(row["precision"] for row in rows):
        found = []
        gains: dict[str, list[float]] = {"layers": [], "cudnn": []}
        for row in (row for row in rows if row["precision"] == precision and "failed" not in row):
            seconds = {name: one["value"] for name, one in row["seconds"].items()}
            cells = ["", ""]
            for i, (name, some) in enumerate(gains.items()):
                if name in seconds:
                    some.append(seconds[name] / seconds["model"])
                    cells[i] = f"{some[-1]:.2f}"
            before, after = (row["regions"][s]["other"] for s in ("layers", "model"))
            of_paper = theirs[row["network"]]
            found.append(
                [
                    *(row["network"], row["batch"]),
                    *(
                        f"{1e3 * seconds[s]:.2f}" if s in seconds else ""
                        for s in ("layers", "cudnn", "model")
                    ),
                    *(*cells, f"{before:.2f}", f"{after:.2f}"),
                    f"{100 * (before / after - 1):.0f}%",
                    f"{100 * (1 - seconds['model'] / seconds['layers']):.1f}%",
                    *(f"{of_paper['opt_speedup_gpu']}%", f"{of_paper['total_speedup_gpu']}%"),
                ]
            )
        means = [
            f"{exp(sum(map(log, some)) / len(some)):.2f}" if some else "" for some in gains.values()
        ]
        found.append(["geometric mean", *[""] * 4, *means, *[""] * 6])
        lines += [f"{precision}:", "", markdown(titles, found), ""]
    return "\n".join(lines)


def statistics(rows: Sequence[Row]) -> str:
    """Microseconds of convolutions with mean and variance of their results, and milliseconds of
    all 1x1 ones of a step."""
    ways = ("alone", "sweep", "added", "cudnn")
    titles = ["convolution", "precision", "times", *(f"{way}, us" for way in ways)]
    found = []
    totals: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        times = ("" if row[way] is None else f"{1e3 * row[way]:.1f}" for way in ways)
        found.append([row["convolution"], row["precision"], row["count"], *times])
        sums = totals.setdefault((row["network"], row["precision"]), [0.0, 0.0])
        sums[0] += row["count"] * row["sweep"]
        sums[1] += row["count"] * min(row["sweep"], row["added"] or row["sweep"])
    lines = [markdown(titles, found)]
    for (name, precision), (swept, chosen) in totals.items():
        text = f"{swept:.2f} ms with sweeps, {chosen:.2f} ms by the faster way."
        lines += ["", f"All of these in a step of {name}, {precision}: {text}"]
    return "\n".join(lines)


PAGE = Page(
    "training",
    "Training on a GPU",
    "Steps of training, forward, backward and update, beside PyTorch's in its best modes, with "
    "channels last, autocast and a fused optimizer. The ratio is the fastest of these by "
    "minidnn's time.",
    (
        Section(
            "Steps",
            "training_step_h100.jsonl",
            "python -m benchmarks.training_step NETWORK --batch 128 --precision bfloat16 "
            "--compiled reduce-overhead",
            steps,
        ),
        Section(
            "Memory",
            "step_memory_h100.jsonl",
            "python -m benchmarks.step_memory NETWORK --batch 128 --precision bfloat16 "
            "--compiled default",
            memory,
            "The peak of a step. PyTorch is eager at batch 32 and compiled at batch 128.",
        ),
        Section(
            "Sums behind 1x1 convolutions and their gradients",
            "fused_statistics_h100.jsonl",
            "python -m benchmarks.fused_statistics FILE resnet50 --pointwise; and --gradients",
            statistics,
            "The fastest convolution by itself; with a sweep of its result; by a kernel of "
            "ours that adds up what it writes; by cuDNN's fused engines, float16 only.",
        ),
        Section(
            "Fusion by itself",
            "training_fusion_h100.jsonl",
            "python -m benchmarks.fusion_step results.jsonl --gpus 0 1 2 3",
            fusion,
            "Steps of the networks of BrainSlug's table 2 layer by layer, by cuDNN's functions "
            "for layers, which normalize in float32 and NCHW, and depth first. Optimizable are "
            "regions without a convolution or product, forwards and backwards, timed one by "
            "one. The paper's figures are of inference: it has none of training.",
        ),
        Section(
            "The paper's chain, trained",
            "chain_step_h100.jsonl",
            "python -m benchmarks.chain_step --blocks 1,5,20 --strategies model --json",
            chains,
            "Forward and backward, float32, 128x64x56x56; PyTorch's tensors are channels last, "
            "in which it is faster. Statistics are frozen, or those of the batch.",
        ),
        Section(
            "Several steps in a launch",
            "steps_per_launch_h100.jsonl",
            "python -m benchmarks.steps_per_launch --launches 1 4 16 --precision bfloat16",
            launches,
            "Milliseconds of a step. `Trainer.fit` reads the loss of every step; where none is "
            "read, the host runs ahead.",
        ),
        Section(
            "Two GPUs",
            "distributed_2_h100.jsonl",
            "minidnn launch --processes 2 benchmarks/distributed_step.py resnet50 --precision "
            "bfloat16 --batch 128",
            ranks,
            "Images a second.",
        ),
    ),
)
