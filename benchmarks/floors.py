"""How far networks are from their floors on the CPU, and in which regions the time goes.

    python benchmarks/floors.py resnet50 densenet121 --batch 1 16

The floor of a region is what the machine's measured rates allow at least: operations over the peak
or bytes (each input, weight and output once) over the bandwidth, whichever takes longer; of a
network, the sum.  Operations are those of the algorithm that was chosen, without its transforms.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from typing import Any

import numpy as np

import minidnn as md
from minidnn import models
from minidnn.backends.cpu.cores import usable_cores
from minidnn.backends.cpu.machine import describe_machine
from minidnn.report.profile import Profile, RegionTime


def profile(name: str, batch: int, runs: int, options: dict[str, Any]) -> Profile:
    network = models.get_model(name)
    shape = (batch, *network.input_shape)
    exe = md.compile(network, shape, device="cpu", **options)
    found = exe.profile(np.random.default_rng(0).standard_normal(shape, np.float32), runs=runs)
    assert isinstance(found, Profile)
    return found


def row(name: str, batch: int, found: Profile) -> str:
    floor = sum(region.bound_seconds for region in found.regions)
    by_kind: defaultdict[str, float] = defaultdict(float)
    for region in found.regions:
        by_kind[region.kind] += region.seconds
    parts = sorted(by_kind.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{kind} {100 * seconds / found.seconds:.0f} %" for kind, seconds in parts)
    cells = (
        name,
        str(batch),
        f"{1e3 * found.seconds:.2f}",
        f"{1e3 * floor:.2f}",
        f"{floor / found.seconds:.2f}",
        shares,
    )
    return f"| {' | '.join(cells)} |"


def far(regions: list[tuple[str, RegionTime]], count: int) -> list[str]:
    """The regions that lose most time against their floors."""
    worst = sorted(regions, key=lambda pair: pair[1].bound_seconds - pair[1].seconds)[:count]
    return [
        f"| {case} | {region.name} | {region.kind} | {1e6 * region.seconds:.0f} | "
        f"{1e6 * region.bound_seconds:.0f} |"
        for case, region in worst
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--batch", type=int, nargs="+", default=[1])
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--isa", help="avx512 or avx2 (the best that the machine has)")
    parser.add_argument("--far", type=int, default=10, help="regions to name (10)")
    options = parser.parse_args()
    print(f"{describe_machine().line()}; {options.threads} threads\n")
    print("| network | batch | regions, ms | floor, ms | floor / ms | where |")
    print("|---|---|---|---|---|---|")
    regions = []
    settings = {"threads": options.threads, "isa": options.isa}
    for name in options.networks:
        for batch in options.batch:
            found = profile(name, batch, options.runs, settings)
            print(row(name, batch, found), flush=True)
            regions += [(f"{name}, {batch}", region) for region in found.regions]
    print("\n| case | region | kind | us | floor, us |\n|---|---|---|---|---|")
    print("\n".join(far(regions, options.far)))


if __name__ == "__main__":
    main()
