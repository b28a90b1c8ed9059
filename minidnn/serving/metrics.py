"""Counters and timers of a server, for Prometheus and for the server's page."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

#: Bounds of the histograms' buckets, in seconds and in rows.
_SECONDS = tuple(digit * 10.0**power for power in range(-4, 2) for digit in (1, 2, 5))
_ROWS = tuple(float(1 << power) for power in range(11))
_LABELS = ("model", "version")
#: The number of requests, and of batches, that a meter remembers for the page.
_RECENT = 2048


class Metrics:
    """The Prometheus metrics of a server, labelled by model and version."""

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
        """The meter of a version of a model, which is kept when the model is loaded again."""
        return self._meters.setdefault((name, version), Meter(self, name, version))

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class Meter:
    """Records the metrics of a version of a model, and remembers its last requests."""

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
        #: The numbers of rows of the last batches.
        self.recent_rows: deque[int] = deque(maxlen=_RECENT)
        self.counts: dict[str, int] = {}

    def waiting(self, rows: int) -> None:
        """Sets the number of rows that wait."""
        self.queue = rows
        self._queue_rows.set(rows)

    def waited(self, seconds: float) -> None:
        """Records how long a request waited for its batch to begin."""
        self._queue_seconds.observe(seconds)

    def batch(self, rows: int, seconds: float) -> None:
        """Counts a batch that was computed."""
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
        """Quantiles of the latency of requests answered in the last ``within`` seconds; NaN for
        none."""
        since = time.monotonic() - within
        seconds = [each for when, each in self.recent if when >= since]
        return [float(each) for each in np.quantile(seconds or [np.nan], parts)]
