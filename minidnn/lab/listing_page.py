"""Ladders and their metrics, and what tuning a step found, as HTML pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict

from ..pages.charts import chart_figure
from ..pages.page import details, page, paragraph, table
from .graphs import configuration
from .metrics import METRICS
from .page import prediction
from .step import Ladder
from .table import model_error
from .tuner import StepTuning


def listing_page(ladders: Iterable[Ladder]) -> str:
    """All ladders with their steps, and the metrics."""
    return page("The laboratory", _listing(ladders))


def _listing(ladders: Iterable[Ladder]) -> Iterator[str]:
    for ladder in ladders:
        shape = ", ".join(f"{name} {number}" for name, number in asdict(ladder.shape).items())
        rows = [[step.name, step.title, step.idea, step.expectation] for step in ladder.steps]
        steps = table(["step", "title", "idea", "expect"], rows, ("title", "idea", "expect"))
        yield details(f"{ladder.name}: {ladder.title}", [paragraph(shape, "soft"), steps])
    metrics = [[one.name, one.unit or "-", one.formula, one.counter or "-"] for one in METRICS]
    head = ["metric", "unit", "formula", "counter"]
    yield details("Metrics", [table(head, metrics, ("formula", "counter"))], True)


def tuning_page(tuning: StepTuning, ladder: Ladder) -> str:
    """The points that were tried, from fast to slow, and the model's view of them."""
    return page(f"{ladder.name}: {tuning.step}, tuned", _tuning(tuning))


def _tuning(tuning: StepTuning) -> Iterator[str]:
    loss = f"takes {tuning.loss:.2f} times as long as the best" if tuning.loss else "is not right"
    yield paragraph(
        f"{len(tuning.tried)} points were tried, {tuning.refused} more cannot run. The model's own "
        f"choice {loss}."
    )
    timed = [{"step": tuning.step, **cell} for cell in tuning.tried if "measured_seconds" in cell]
    timed.sort(key=lambda cell: float(cell["measured_seconds"]))
    rows = [
        [
            configuration(cell),
            f"{1e3 * cell['measured_seconds']:.4f}",
            f"{1e3 * cell['predicted_seconds']:.4f}",
            f"{model_error(cell):.2f}",
        ]
        for cell in timed
    ]
    yield table(["block, parameters", "ms", "model ms", "error"], rows)
    if timed:
        yield '<div class="charts">' + chart_figure(prediction(timed)) + "</div>"
    for cell in tuning.tried:
        if "failed" in cell:
            yield paragraph(f"{configuration(cell)} failed: {cell['failed']}", "soft")
