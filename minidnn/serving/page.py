"""The page at ``/``: models, their latency, and their queues."""

from __future__ import annotations

import math
import time

from minidnn.pages.charts import Bar, Chart, Dot, Scale, bars, chart_figure
from minidnn.pages.page import page, paragraph, table
from minidnn.serving.metrics import Meter
from minidnn.serving.repository import Repository, ServedVersion

_HEAD = ("model", "state", "p50 ms", "p99 ms", "queue", "rows a batch", "requests", "refused")
_SECONDS = 60
_DOTS = 300
_AXES = (Scale("seconds ago"), Scale("latency in ms", log=True))
_SEE = "A point is a request; the newest are on the left. A rising cloud is a queue that grows."


def page_of(repository: Repository) -> str:
    """The page; everything in it is of the last minute but the counts."""
    entries = list(repository)
    meters = {
        _title(entry): repository.metrics.meter(entry.source.name, entry.source.version)
        for entry in entries
    }
    parts = [
        paragraph(_told(repository), "soft"),
        table(_HEAD, [_row(entry, meters[_title(entry)]) for entry in entries]),
    ]
    for entry in entries:
        if entry.state != "READY" and entry.reason:
            parts.append(paragraph(f"{_title(entry)}: {entry.reason}"))
    limit = repository.settings.max_queue
    queues = [Bar(name, meter.queue, f"{meter.queue} rows") for name, meter in meters.items()]
    parts += ["<h2>Queues</h2>", bars(queues, {f"the limit of {limit} rows": limit})]
    charts = [
        chart_figure(Chart(name, _SEE, {name: dots}, *_AXES))
        for name, meter in meters.items()
        if (dots := _dots(meter))
    ]
    if charts:
        told = "Requests of the last minute, or a part of them."
        parts += ["<h2>Latency</h2>", paragraph(told), '<div class="charts">', *charts, "</div>"]
    return page("minidnn serve", parts)


def _told(repository: Repository) -> str:
    settings = repository.settings
    ready = "ready" if repository.is_ready else "not ready"
    return (
        f"The server is {ready}. Batches of at most {settings.max_batch} rows; a row waits "
        f"{1000 * settings.max_delay:g} ms for others. Figures are at /metrics."
    )


def _title(entry: ServedVersion) -> str:
    return f"{entry.source.name} {entry.source.version}"


def _row(entry: ServedVersion, meter: Meter) -> list[str]:
    done = meter.counts.get("ok", 0)
    batches = list(meter.recent_rows)
    mean = sum(batches) / len(batches) if batches else math.nan
    return [
        _title(entry),
        entry.state.lower(),
        *(_number(1000 * each) for each in meter.quantiles(0.5, 0.99, within=_SECONDS)),
        str(meter.queue),
        _number(mean),
        f"{done:,}",
        f"{sum(meter.counts.values()) - done:,}",
    ]


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _dots(meter: Meter) -> list[Dot]:
    now = time.monotonic()
    found = [(now - when, 1000 * each) for when, each in meter.recent if now - when <= _SECONDS]
    every = -(-len(found) // _DOTS) or 1
    return [Dot(ago, latency, f"{latency:.3g} ms") for ago, latency in found[::every]]
