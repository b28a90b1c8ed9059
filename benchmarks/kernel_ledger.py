"""What each family of contraction kernels is worth: where it wins, and what is lost without it.

    python -m benchmarks.kernel_ledger race cells.jsonl resnet50 mobilenet_v2 --batch 1 32
        [--precision float16 float32] [--train]
    python -m benchmarks.kernel_ledger table cells.jsonl [--without halo tile]

``race`` compiles each network with an empty cache in a process of its own, for inference or for a
training step, and writes for each cell what every candidate of each contraction problem was
measured at.  ``table`` prints for each family its lines, the problems that it was measured for and
that it wins, the cells in which it wins one, and the contraction time without it as a part of that
with it: the geometric mean over all cells, and the cell that would lose most.  ``--without`` takes
several families away at once.  A problem counts once in a cell, however many layers have it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from math import exp, inf, log
from pathlib import Path
from typing import Any

Times = Mapping[str, float]
"""Of one problem the milliseconds of the fastest candidate of each family."""
CUDNN = "cuDNN"
_FOLDER = Path(__file__).resolve().parent.parent / "minidnn/backends/cuda/contraction"


def raced(name: str, batch: int, precision: str, train: bool) -> dict[str, Any]:
    """A cell: what was measured while one network was compiled in this process."""
    import minidnn as md
    from minidnn import models
    from minidnn.backends.cuda.contraction import tune
    from minidnn.backends.cuda.contraction.problem import ContractionProblem
    from minidnn.backends.cuda.contraction.tune import Built, Tuning

    problems: dict[str, dict[str, float]] = {}
    inner = tune._raced

    def watched(problem: ContractionProblem, found: Sequence[Built], tuning: Tuning) -> list[Built]:
        ranked = inner(problem, found, tuning)
        times = problems.setdefault(problem.describe(), {})
        for one in ranked:
            kernel = one.recipe.form.kernel
            family = CUDNN if kernel is None else kernel.name
            times[family] = min(one.recipe.milliseconds or inf, times.get(family, inf))
        return ranked

    tune._raced = watched
    net = models.get_model(name)
    size = 299 if name == "inception_v3" else 224
    shape = (batch, 3, size, size)
    if train:
        import torch

        loss, optimizer = md.losses.CrossEntropy(), md.optim.SGD(0.1, momentum=0.9)
        trainer = md.Trainer(net, shape, loss, optimizer, device="cuda", precision=precision)
        trainer.step(torch.randn(shape), torch.zeros(batch, dtype=torch.int64))
    else:
        md.compile(net, shape, device="cuda", precision=precision)
    cell = {"network": name, "batch": batch, "precision": precision, "train": train}
    return cell | {"problems": list(problems.values())}


def race(given: argparse.Namespace) -> None:
    for name, batch, precision in product(given.networks, given.batch, given.precision):
        told = [name, str(batch), precision, str(int(given.train))]
        with tempfile.TemporaryDirectory() as cache:
            found = subprocess.run(
                [sys.executable, "-m", "benchmarks.kernel_ledger", "cell", *told],
                env={**os.environ, "MINIDNN_CACHE": cache},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
        with given.file.open("a", encoding="utf-8") as file:
            file.write(found.stdout)


def without(cell: Sequence[Times], families: Collection[str]) -> float:
    """The time of a cell without some families as a part of that with all; a problem that nothing
    else computes keeps its time."""
    best = sum(min(times.values()) for times in cell)
    left = 0.0
    for times in cell:
        others = [ms for family, ms in times.items() if family not in families]
        left += min(others or times.values())
    return left / best


def table(cells: Sequence[Mapping[str, Any]], together: Sequence[str]) -> Iterator[str]:
    """The rows, those that lose least first."""
    problems = [cell["problems"] for cell in cells]
    every = [times for cell in problems for times in cell]
    lines = _lines()
    groups = [(family,) for family in {family for times in every for family in times} - {CUDNN}]
    rows = []
    for group in (*groups, *([tuple(together)] if together else [])):
        seen = [times for times in every if not times.keys().isdisjoint(group)]
        wins = sum(min(times, key=times.__getitem__) in group for times in seen)
        parts = [without(cell, group) for cell in problems]
        worst = max(range(len(cells)), key=parts.__getitem__)
        mean = exp(sum(map(log, parts)) / len(parts))
        where = "{network} {batch} {precision}".format_map(cells[worst])
        count = sum(lines.get(family, 0) for family in group)
        chosen = sum(
            any(min(times, key=times.__getitem__) in group for times in cell) for cell in problems
        )
        text = f"| {', '.join(group)} | {count} | {len(seen)} | {wins} | {chosen}/{len(cells)} "
        rows.append((mean, f"{text}| {mean:.4f} | {parts[worst]:.3f} ({where}) |"))
    yield "| family | lines | problems | wins | cells | without it | at most |"
    yield "|---|---|---|---|---|---|---|"
    yield from (row for _, row in sorted(rows))


def _lines() -> dict[str, int]:
    """Lines of the module and the templates that bear a family's name."""
    found: dict[str, int] = {}
    for path in _FOLDER.iterdir():
        if path.suffix in (".py", ".cu"):
            family = path.stem.replace("_", " ")
            count = len(path.read_text(encoding="utf-8").splitlines())
            found[family] = found.get(family, 0) + count
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True, dest="command")
    racing = commands.add_parser("race")
    racing.add_argument("file", type=Path)
    racing.add_argument("networks", nargs="+")
    racing.add_argument("--batch", type=int, nargs="+", default=[32])
    racing.add_argument("--precision", nargs="+", default=["float16"])
    racing.add_argument("--train", action="store_true")
    showing = commands.add_parser("table")
    showing.add_argument("file", type=Path)
    showing.add_argument("--without", nargs="+", default=[])
    one = commands.add_parser("cell")
    one.add_argument("told", nargs=4)
    given = parser.parse_args()
    if given.command == "race":
        race(given)
    elif given.command == "cell":
        name, batch, precision, train = given.told
        print(json.dumps(raced(name, int(batch), precision, bool(int(train)))))
    else:
        cells = map(json.loads, given.file.read_text(encoding="utf-8").splitlines())
        print("\n".join(table(list(cells), given.without)))


if __name__ == "__main__":
    main()
