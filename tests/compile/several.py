"""A network with several results, for what is saved and loaded."""

from __future__ import annotations

from minidnn import layers as L


class Several(L.Layer):
    """Results by name: one that kernels write, one that is an input, one given twice."""

    def __init__(self) -> None:
        self.body = L.Sequential(
            *(L.Conv2d(3, 32, 3, padding=1), L.BatchNorm2d(32), L.ReLU(), L.MaxPool2d(2)),
            *(L.Conv2d(32, 32, 3, padding=1), L.ReLU(), L.AdaptiveAvgPool2d(1), L.Flatten()),
            L.Linear(32, 5),
        )

    def forward(self, x):  # type: ignore[no-untyped-def]
        y = self.body(x)
        return {"scores": y, "given": x, "again": y}
