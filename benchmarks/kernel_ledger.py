"""What each family of contraction kernels is worth: where it wins, and what is lost without it.

    python -m benchmarks.kernel_ledger race cells.jsonl resnet50 mobilenet_v2 --batch 1 32
        [--precision float16 float32] [--train]
    python -m benchmarks.kernel_ledger table cells.jsonl [--without halo tile]

``race`` compiles each network with an empty cache in a process of its own, for inference or for a
training step, and writes for each cell what every candidate of each contraction problem was
measured at.  ``table`` prints for each family its lines, the problems that it was measured for and
that it wins, the cells in which it wins one, and the contraction time without it as a part of that
with it: the geometric mean over all cells, and the cell that would lose most.  ``--without`` takes
several families away at once.  Then it says how right a family's own order of its choices is: how
often the first is within 3 % of the fastest of them, and what the first, and the first three, lose
in the geometric mean.  A problem counts once in a cell, however many layers have it.
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

Times = Mapping[str, Sequence[float]]
"""Of one problem the milliseconds of each family's candidates, in its own order of them."""
CUDNN = "cuDNN"
_FOLDER = Path(__file__).resolve().parent.parent / "minidnn/backends/cuda/contraction"


def raced(name: str, batch: int, precision: str, train: bool) -> dict[str, Any]:
    """A cell: what was measured while one network was compiled in this process."""
    import minidnn as md
    from minidnn import models
    from minidnn.backends.cuda.contraction import tune
    from minidnn.backends.cuda.contraction.problem import ContractionProblem
    from minidnn.backends.cuda.contraction.tune import ContractionExecutable, Tuning

    problems: dict[str, dict[str, dict[int, float]]] = {}
    inner = tune._raced

    def watched(
        problem: ContractionProblem, found: Sequence[ContractionExecutable], tuning: Tuning
    ) -> list[ContractionExecutable]:
        ranked = inner(problem, found, tuning)
        families = problems.setdefault(problem.describe(), {})
        for one in ranked:
            algorithm, kernel = one.config.algorithm, one.config.algorithm.kernel
            family, place = CUDNN, 0
            if kernel is not None:
                order = kernel.choices(algorithm.of_core(problem), tuning.machine)
                family, place = kernel.name, order.index(one.config.engine)
            times = families.setdefault(family, {})
            times[place] = min(one.config.milliseconds or inf, times.get(place, inf))
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
    return cell | {
        "problems": [
            {family: [ms for _, ms in sorted(times.items())] for family, times in families.items()}
            for families in problems.values()
        ]
    }


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
    best = left = 0.0
    for times in cell:
        fastest = {family: min(some) for family, some in times.items()}
        others = [ms for family, ms in fastest.items() if family not in families]
        best += min(fastest.values())
        left += min(others or fastest.values())
    return left / best


def order(problems: Sequence[Times], family: str) -> str:
    """Cells of a row: of how many problems a family raced several candidates, which part of its
    first ones is near the fastest, and what the first, and the first three, lose."""
    races = [times[family] for times in problems if len(times.get(family, ())) > 1]
    if not races:
        return "| 0 | | | "
    lost = [[min(times[:count]) / min(times) for times in races] for count in (1, 3)]
    near = sum(ratio <= 1.03 for ratio in lost[0]) / len(races)
    first, three = (exp(sum(map(log, some)) / len(races)) for some in lost)
    return f"| {len(races)} | {100 * near:.0f} % | {first:.3f} | {three:.3f} "


def table(cells: Sequence[Mapping[str, Any]], together: Sequence[str]) -> Iterator[str]:
    """The rows, those that lose least first."""
    problems = [cell["problems"] for cell in cells]
    every = [times for cell in problems for times in cell]
    lines = _lines()
    groups = [(family,) for family in {family for times in every for family in times} - {CUDNN}]
    rows = []
    for group in (*groups, *([tuple(together)] if together else [])):
        seen = [times for times in every if not times.keys().isdisjoint(group)]
        wins = sum(_winner(times) in group for times in seen)
        parts = [without(cell, group) for cell in problems]
        worst = max(range(len(cells)), key=parts.__getitem__)
        mean = exp(sum(map(log, parts)) / len(parts))
        where = "{network} {batch} {precision}".format_map(cells[worst])
        count = sum(lines.get(family, 0) for family in group)
        chosen = sum(any(_winner(times) in group for times in cell) for cell in problems)
        text = f"| {', '.join(group)} | {count} | {len(seen)} | {wins} | {chosen}/{len(cells)} "
        text += f"| {mean:.4f} | {parts[worst]:.3f} ({where}) "
        rows.append((mean, text + (order(every, *group) if len(group) == 1 else "| | | | ") + "|"))
    yield (
        "| family | lines | problems | wins | cells | without it | at most | races | "
        "first within 3 % | first loses | first three |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    yield from (row for _, row in sorted(rows))


def _winner(times: Times) -> str:
    """The family of the fastest candidate."""
    return min(times, key=lambda family: min(times[family]))


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
