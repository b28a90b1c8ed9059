"""Kernels are grouped into files, and found again in whatever file they were compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minidnn.backends.codegen.kernel import KernelSource, shared_function
from minidnn.backends.cpu.compilers.kernels import _key, compile_kernels, group, prelude
from minidnn.backends.cpu.isa import AVX2, AVX512
from minidnn.cache import forbid_builds
from minidnn.errors import CompileError

from .conftest import ROOT, MakeFake


def kernel(number: int, length: int = 0) -> KernelSource:
    name = f"k{number}"
    text = f"MD_KERNEL({name}) {{ MD_OUT(float, 0)[{number}] = {number}; }}\n" + "// \n" * length
    return KernelSource(name, text)


@pytest.fixture
def starts(make_fake: MakeFake, tmp_path: Path, real_ispc: str):
    """How many times ISPC was started to compile something."""
    log = tmp_path / "log"
    make_fake(f'echo x >> {log}\nexec {real_ispc} "$@"\n')
    return lambda: log.read_text().count("x") if log.exists() else 0


def test_key_covers_what_matters() -> None:
    """Of all that decides what a compiler makes of a kernel."""
    source = KernelSource("k", "text")
    others = [
        (KernelSource("k2", "text"), "head", AVX2, "ispc"),
        (KernelSource("k", "text2"), "head", AVX2, "ispc"),
        (KernelSource("k", "text", beside=("c",)), "head", AVX2, "ispc"),
        (KernelSource("k", "text", shared=("f",)), "head", AVX2, "ispc"),
        (source, "head2", AVX2, "ispc"),
        (source, "head", AVX512, "ispc"),
        (source, "head", AVX2, "another ispc"),
    ]
    keys = {_key(source, "head", AVX2, "ispc"), *(_key(*other) for other in others)}
    assert len(keys) == 1 + len(others)


def test_only_new_kernels_are_compiled(starts, cold_cache: Path) -> None:
    first = compile_kernels([kernel(i) for i in range(9)], AVX2, jobs=2)
    assert [k.name for k in first] == [f"k{i}" for i in range(9)]
    assert len({k.address for k in first}) == 9 and starts() == 2
    with forbid_builds():
        again = compile_kernels([kernel(3), kernel(0), kernel(3)], AVX2)
    assert again == [first[3], first[0], first[3]]
    mixed = compile_kernels([kernel(1), kernel(100), kernel(2)], AVX2)
    assert starts() == 3 and mixed[0] == first[1] and mixed[2] == first[2]
    with (
        forbid_builds(),
        pytest.raises(CompileError, match=r"lacks 1 kernel for avx512 \(k1\), and"),
    ):
        compile_kernels([kernel(1)], AVX512)


def test_evicted_file_is_compiled_again(starts, cold_cache: Path) -> None:
    (first,) = compile_kernels([kernel(1)], AVX2)
    first.library.unlink()
    (second,) = compile_kernels([kernel(1)], AVX2)
    assert starts() == 2 and second.name == "k1"


def test_same_name_with_other_text() -> None:
    with pytest.raises(ValueError, match="two kernels named k1 differ"):
        compile_kernels([kernel(1), KernelSource("k1", "other")], AVX2)


def test_nothing_to_compile() -> None:
    assert compile_kernels([], AVX2) == []


def test_groups_have_equal_lengths() -> None:
    sources = [kernel(i, 40 * (i % 5)) for i in range(40)]
    files = group(sources, prelude(AVX2), AVX2, 5)
    assert len(files) == 5
    assert sorted(s.name for _, part in files for s in part) == sorted(s.name for s in sources)
    lengths = [len(unit.source) for unit, _ in files]
    assert max(lengths) < 1.2 * min(lengths)


def test_what_kernels_share_stands_in_a_file_once() -> None:
    """Functions of one text that are called with other constants are two."""
    text = "static void <name>() {}\n" + "// \n" * 500
    shared = [shared_function("step", text, constant) for constant in ("0", "1")]
    sources = [
        KernelSource(f"k{i}", f"MD_KERNEL(k{i}) {{ {name}(); }}\n", shared=(function,))
        for i, (name, function) in enumerate(shared * 4)
    ]
    files = group(sources, "", AVX2, 2)
    assert len(files) == 2 and shared[0] != shared[1]
    for unit, members in files:
        assert [unit.source.count(function) for _, function in shared] == [
            any(source.shared == (function,) for source in members) for _, function in shared
        ]
        assert unit.source.index(members[0].shared[0]) < unit.source.index("MD_KERNEL")


@pytest.mark.parametrize(
    ("kernels", "jobs", "files"), [(1, 16, 1), (4, 16, 2), (28, 2, 2), (93, 2, 6), (93, 16, 16)]
)
def test_number_of_files(kernels: int, jobs: int, files: int) -> None:
    assert len(group([kernel(i) for i in range(kernels)], "", AVX2, jobs)) == files


def test_groups_are_the_same_in_every_process() -> None:
    code = """
from minidnn.backends.cpu.isa import AVX2
from minidnn.backends.codegen.kernel import KernelSource
from minidnn.backends.cpu.compilers.kernels import group
files = group([KernelSource(f"k{i}", "x" * (i * 7 % 11)) for i in range(30)], "head", AVX2, 4)
print([(unit.name, [s.name for s in part]) for unit, part in files])
"""
    outs = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(outs) == 1
