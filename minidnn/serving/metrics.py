"""What is counted and timed, for Prometheus and for the page."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

_SECONDS = tuple(digit * 10.0**power for power in range(-4, 2) for digit in (1, 2, 5))
_ROWS = tuple(float(1 << power) for power in range(11))
_LABELS = ("model", "version")
_RECENT = 2048


class Metrics:
    """The metrics of a server."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._meters: dict[tuple[str, int], Meter] = {}

        def made(kind: Any, name: str, text: str, *labels: str, **more: Any) -> Any:
            return kind(f"minidnn_{name}", text, labels, registry=self.registry, **more)

        self.requests = made(
            Counter, "requests", "Requests by protocol and status", *_LABELS, "protocol", "status"
        )
        self.rows = made(Counter, "rows", "Rows that were computed", *_LABELS)
        self.seconds = made(
            Histogram, "request_seconds", "From request to answer", *_LABELS, buckets=_SECONDS
        )
        self.queue_seconds = made(
            Histogram, "queue_seconds", "Waiting for a batch to begin", *_LABELS, buckets=_SECONDS
        )
        self.batch_seconds = made(
            Histogram, "batch_seconds", "Computing a batch", *_LABELS, buckets=_SECONDS
        )
        self.batch_rows = made(Histogram, "batch_rows", "Rows of a batch", *_LABELS, buckets=_ROWS)
        self.queue_rows = made(Gauge, "queue_rows", "Rows that wait", *_LABELS)

    def meter(self, name: str, version: int) -> Meter:
        """The metrics of a version of a model, which stay when it is loaded again."""
        return self._meters.setdefault((name, version), Meter(self, name, version))

    def text(self) -> bytes:
        """All, in Prometheus' format."""
        return generate_latest(self.registry)


class Meter:
    """The metrics of a version of a model, and its last requests."""

    def __init__(self, metrics: Metrics, name: str, version: int) -> None:
        labels = (name, str(version))
        self._labels, self._requests = labels, metrics.requests
        self._rows = metrics.rows.labels(*labels)
        self._seconds = metrics.seconds.labels(*labels)
        self._queue_seconds = metrics.queue_seconds.labels(*labels)
        self._batch_seconds = metrics.batch_seconds.labels(*labels)
        self._batch_rows = metrics.batch_rows.labels(*labels)
        self._queue_rows = metrics.queue_rows.labels(*labels)
        self.queue = 0
        #: When each of the last requests was answered, and after how many seconds.
        self.recent: deque[tuple[float, float]] = deque(maxlen=_RECENT)
        #: How many rows the last batches had.
        self.recent_rows: deque[int] = deque(maxlen=_RECENT)
        self.counts: dict[str, int] = {}

    def waiting(self, rows: int) -> None:
        self.queue = rows
        self._queue_rows.set(rows)

    def waited(self, seconds: float) -> None:
        self._queue_seconds.observe(seconds)

    def batch(self, rows: int, seconds: float) -> None:
        self._rows.inc(rows)
        self._batch_rows.observe(rows)
        self._batch_seconds.observe(seconds)
        self.recent_rows.append(rows)

    def request(self, protocol: str, status: str, seconds: float) -> None:
        """Counts a request: ``status`` is "ok", or the kind of its fault."""
        self._requests.labels(*self._labels, protocol, status).inc()
        self.counts[status] = self.counts.get(status, 0) + 1
        if status == "ok":
            self._seconds.observe(seconds)
            self.recent.append((time.monotonic(), seconds))

    def quantiles(self, *parts: float, within: float = 60.0) -> list[float]:
        """Of the seconds of requests that were answered lately; NaN if there were none."""
        since = time.monotonic() - within
        seconds = [each for when, each in self.recent if when >= since]
        return [float(each) for each in np.quantile(seconds or [np.nan], parts)]
