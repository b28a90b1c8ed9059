"""What the machine says about itself, and measured rates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minidnn.backends.cpu import isa, machine
from minidnn.backends.cpu.machine import Machine, Rates, describe_machine, measured_rates
from minidnn.errors import DeviceError

RATES = Rates(8, (("avx2", 100.0),), (("avx2", 20.0),), 1.0, 2.0, 3.0)


def test_this_machine() -> None:
    here = describe_machine()
    assert here.cores >= 1 and here.isas
    assert 8 << 10 <= here.caches.l1 <= here.caches.l2
    assert here.processor in here.line() and "KiB a core" in here.line()
    assert describe_machine() == here


def test_peak_scales_up_to_all_threads() -> None:
    assert [RATES.peak("avx2", n) for n in (1, 3, 5, 7, 8, 99, None)] == [
        20,
        60,
        100,
        100,
        100,
        100,
        100,
    ]


def test_processor_and_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index, (level, kind, size) in enumerate(
        [
            (1, "Data", "48K"),
            (1, "Instruction", "32K"),
            (2, "Unified", "1024K"),
            (3, "Unified", "3M"),
        ]
    ):
        folder = tmp_path / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        (folder / "level").write_text(f"{level}\n")
        (folder / "type").write_text(f"{kind}\n")
        (folder / "size").write_text(f"{size}\n")
    monkeypatch.setattr(machine, "SYSTEM_CPU", tmp_path)
    assert describe_machine().caches == machine.CacheSizes(48 << 10, 1 << 20, 3 << 20)
    monkeypatch.setattr(machine, "SYSTEM_CPU", tmp_path / "none")
    assert describe_machine().caches == machine.CacheSizes(0, 0, 0)


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (isa.AVX2.flags, ["avx2"]),
        (isa.AVX2.flags + isa.AVX512.flags, ["avx512", "avx2"]),
        (isa.AVX2.flags[:-1], []),
        ((), []),
    ],
)
def test_isas(flags: tuple[str, ...], names: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isa, "processor_flags", lambda: frozenset(flags))
    assert [found.name for found in isa.usable_isas()] == names
    if names:
        assert isa.best_isa().name == names[0]
    else:
        with pytest.raises(DeviceError, match=r"needs an x86-64 processor with AVX2 .*reference"):
            isa.best_isa()
    for known in isa.ISAS.values():
        if known.name in names:
            assert isa.usable_isa(known.name) is known
        else:
            lacks = f"isa='{known.name}': this processor lacks .*{known.flags[-1]}.*; valid here: "
            valid = "', '".join(names) if names else "none"
            with pytest.raises(DeviceError, match=f"{lacks}'?{valid}'?$"):
                isa.usable_isa(known.name)


def test_rates_are_kept(cold_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def measure(described: Machine, threads: int) -> Rates:
        calls.append((described, threads))
        return RATES

    monkeypatch.setattr(machine, "measure", measure)
    assert measured_rates(8) == RATES and measured_rates(8) == RATES
    machine._measured.clear()  # as in another process
    assert measured_rates(8) == RATES
    assert calls == [(describe_machine(), 8)]
    machine._measured.clear()
    assert measured_rates(7) == RATES and len(calls) == 2
    machine._measured.clear()


def test_disturbed_rates_are_not_kept(cold_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    poor = replace(RATES, disturbed=True)
    monkeypatch.setattr(machine, "measure", lambda *_: poor)
    assert measured_rates(8) == poor
    machine._measured.clear()
    monkeypatch.setattr(machine, "measure", lambda *_: RATES)
    assert measured_rates(8) == RATES
    machine._measured.clear()


def test_rates_survive_json() -> None:
    import dataclasses

    assert machine._from_json(json.loads(json.dumps(dataclasses.asdict(RATES)))) == RATES


def test_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only that it works and is not absurd: the machine may be busy."""
    monkeypatch.setattr(machine, "BUDGET_SECONDS", 0.05)
    here = describe_machine()
    found = machine.measure(here, 2)
    assert [name for name, _ in found.flops] == list(here.isas)
    for name in here.isas:
        assert 1e9 < found.peak(name, 1) < 1e12
    assert 5e8 < found.read < 1e12 and 5e8 < found.copy < 1e12
    assert found.l2 > 0.5 * found.read
