"""What was found out about a graph, in memory and on disk: ranked engines, or "unsupported"."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from typing import Any

from minidnn.cache import CacheStore, digest
from minidnn.cudnn import machine
from minidnn.cudnn.graph.engines import EngineConfig
from minidnn.cudnn.graph.spec import Constraints, GraphSpec

FORMAT = 2
KEPT = 8
"""How many of the best engines are remembered, for when memory is short."""


@dataclass(frozen=True)
class Ranked:
    """One engine that works: its time in milliseconds and its workspace in bytes."""

    config: EngineConfig
    milliseconds: float
    workspace: int


@dataclass(frozen=True)
class Finding:
    """Engines from fast to slow; none, with the reason, when the graph is unsupported."""

    ranked: tuple[Ranked, ...]
    reason: str = ""


_found: dict[str, Finding] = {}
_lock = threading.Lock()
_store = CacheStore("cudnn_graph", ".json", 64 << 20)


def key(spec: GraphSpec, constraints: Constraints, device: str) -> str:
    """The name of an entry: everything that the choice depends on."""
    return digest("cudnn graph", FORMAT, spec, constraints, device, machine.library_name())


def recall(name: str) -> Finding | None:
    """What is remembered under that key, or None."""
    with _lock:
        if name in _found:
            return _found[name]
    data = _store.read(name)
    finding = None if data is None else _decode(data)
    if finding is not None:
        with _lock:
            _found[name] = finding
    return finding


def remember(name: str, finding: Finding, **shown: Any) -> None:
    """Keeps a finding in memory and on disk; ``shown`` goes into the file for its readers."""
    with _lock:
        _found[name] = finding
    ranked = [
        {
            "engine": item.config.engine,
            "knobs": [list(knob) for knob in item.config.knobs],
            "milliseconds": item.milliseconds,
            "workspace": item.workspace,
        }
        for item in finding.ranked[:KEPT]
    ]
    entry = {"format": FORMAT, **shown, "unsupported": finding.reason, "ranked": ranked}
    _store.put(name, json.dumps(entry, indent=1).encode(), label="plan")


def forget() -> None:
    """Empties the memory of this process, not the disk."""
    with _lock:
        _found.clear()


def _decode(data: bytes) -> Finding | None:
    """None for an entry of another shape than ours; the caller then measures again."""
    try:
        entry = json.loads(data)
        ranked = tuple(
            Ranked(
                EngineConfig(int(i["engine"]), tuple((int(k), int(v)) for k, v in i["knobs"])),
                float(i["milliseconds"]),
                int(i["workspace"]),
            )
            for i in entry["ranked"]
        )
        reason = str(entry["unsupported"])
    except (ValueError, KeyError, TypeError):
        return None
    return Finding(ranked, reason) if ranked or reason else None
