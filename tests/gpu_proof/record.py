"""The record of a green run of all GPU tests: what it says, when it is refused, and its shards."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.gpu_proof.sources import ROOT, digests

PROOF = ROOT / "benchmarks" / "results" / "gpu_proof.json"


class Refused(Exception):
    """Why there is no proof."""


def check_number(proof: Mapping[str, Any]) -> None:
    """Refuses a proof of another number of tests than were to run in its shard."""
    ran, wanted = proof["passed"] + sum(proof["skipped"].values()), proof["tests"]["here"]
    if not proof["passed"]:
        raise Refused("no test has passed")
    if ran != wanted:
        raise Refused(f"{ran:,} tests passed or were skipped, and {wanted:,} were to run")


def merged(proofs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns one proof of those of all shards; refuses what does not belong together."""
    shards, first = sorted(tuple(proof["shard"]) for proof in proofs), proofs[0]
    if shards != [(k, len(proofs)) for k in range(1, len(proofs) + 1)]:
        there = ", ".join(f"{k}/{n}" for k, n in shards)
        raise Refused(f"each shard is wanted once, and there are {there}")
    for proof in proofs:
        check_number(proof)
        if changed := changes(first["sources"], proof["sources"]):
            raise Refused(f"shards ran with different sources: {', '.join(changed)}")
        if any(proof["tests"][key] != first["tests"][key] for key in ("all", "digest")):
            raise Refused("shards collected different tests")
    here = sum(proof["tests"]["here"] for proof in proofs)
    if here != first["tests"]["all"]:
        raise Refused(f"{here:,} tests ran in all shards, and {first['tests']['all']:,} are wanted")
    skipped: Counter[str] = Counter()
    for proof in proofs:
        skipped.update(proof["skipped"])
    return {
        "shard": [1, 1],
        "tests": first["tests"] | {"here": here},
        "passed": sum(proof["passed"] for proof in proofs),
        "skipped": dict(sorted(skipped.items())),
        "files left out": first["files left out"],
        "seconds": round(sum(proof["seconds"] for proof in proofs), 1),
        **one_machine(proofs),
        "sources": first["sources"],
    }


def one_machine(machines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the cards and versions that processes have told."""
    found: dict[str, set[str]] = {}
    for machine in machines:
        for name, version in machine["versions"].items():
            found.setdefault(name, set()).add(version)
    return {
        "cards": sorted({card for machine in machines for card in machine["cards"]}),
        "versions": {name: ", ".join(sorted(each)) for name, each in found.items()},
    }


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


def write(proof: Mapping[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(proof, indent=1) + "\n", encoding="utf-8")


def digest(sources: Mapping[str, str]) -> str:
    """Returns one digest of those of all folders."""
    return hashlib.sha256(json.dumps(dict(sources), sort_keys=True).encode()).hexdigest()[:12]


def told(proof: Mapping[str, Any]) -> str:
    """Returns a proof's numbers, cards and versions in a line."""
    skipped, (k, n) = sum(proof["skipped"].values()), proof["shard"]
    part = f"shard {k} of {n}, " if n > 1 else ""
    numbers = f"{part}{proof['passed']:,} passed and {skipped:,} skipped"
    if files := len(proof["files left out"]):
        numbers += f", {files} files left out"
    versions = ", ".join(f"{name} {version}" for name, version in proof["versions"].items())
    return f"{numbers} on {', '.join(proof['cards'])} with {versions}"


def changes(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Returns the folders whose digests differ."""
    return sorted(area for area in {*then, *now} if then.get(area) != now.get(area))


def state(path: Path = PROOF, root: Path = ROOT) -> str:
    """Returns a line that says whether the tree is the proven one, or which folders changed."""
    if not path.exists():
        return "GPU tests: no whole run of them is on record"
    proof = read(path)
    changed = changes(proof["sources"], digests(root))
    if not changed:
        return f"GPU tests: they ran with these sources: {told(proof)}"
    return f"GPU tests: these folders changed since they ran: {', '.join(changed)}"
