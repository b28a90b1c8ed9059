"""Pickles that want to exhaust time, memory or the C stack."""

from __future__ import annotations

import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from minidnn.errors import WeightsError
from minidnn.weights import load_weights
from minidnn.weights._pickle import MAX_STEPS
from tests.sampling import every

Write = Callable[..., Path]
GLOBAL = b"ccollections\nOrderedDict\n"


def bombs() -> dict[str, tuple[Callable[[], bytes], str]]:
    """What makes each, as they are large, and what is said of it."""
    deep = 60_000
    return {
        "deep tuples": (lambda: b")" + b"\x85" * deep + b".", "holds a tuple"),
        "deep lists": (lambda: b"]" * deep + b"a" * (deep - 1) + b".", "holds a list"),
        "deep keys": (lambda: b"})" + b"\x85" * deep + b"Ns.", "where the key"),
        "a long dict as a key again and again": (
            lambda: b"}("
            + b"".join(b"J" + struct.pack("<i", n) + b"N" for n in range(10_000))
            + b"uq\x00" + b"0}q\x01" + b"h\x00Ns" * 20_000 + b".",
            "where the key <dict>",
        ),
        "laughs as keys": (lambda: b"})q\x00" + b"h\x00\x86q\x00" * 1000 + b"Ns.", "where the key"),
        "deep attributes": (
            lambda: b"ctorch._tensor\n_rebuild_from_type_v2\nq\x00ctorch\nTensor\nq\x01)q\x02"
            + b"0h\x00h\x01h\x02N(tq\x02" * 1 + b"h\x00(h\x00h\x01h\x02NtR.",
            "makes a tensor from",
        ),
        "many names": (
            lambda: b"X\x64\x00\x00\x00" + b"a" * 100
            + b"q\x00" + b"h\x00h\x00\x93" * 40_000 + b".",
            "holds a Global",
        ),
        "many objects": (
            lambda: b"cos\nx\nq\x00" + b"h\x00)R" * 60_000 + b".",
            "an object of 'os.x'",
        ),
        "objects called without an end": (lambda: b"cos\nx\n" + b")R" * 60_000 + b".", "of 'os.x'"),
        "deep dicts": (
            lambda: b"}" + b"X\x01\x00\x00\x00a}" * deep + b"s" * deep + b".",
            "'a' is a dict",
        ),
        "deep OrderedDicts": (
            lambda: GLOBAL + b"q\x00)R" + b"X\x01\x00\x00\x00ah\x00)R" * deep + b"s" * deep + b".",
            "'a' is a OrderedDict",
        ),
        # every level doubles the one before: 2^1000 items for who walks it
        "laughs": (lambda: b")q\x00" + b"h\x00\x86q\x00" * 1000 + b".", "holds a tuple"),
        "laughs in a dict": (
            lambda: b"}X\x01\x00\x00\x00a)q\x00" + b"h\x00\x86q\x00" * 1000 + b"s.",
            "'a' is a tuple",
        ),
        "laughs in a storage id": (
            lambda: b"()q\x00" + b"h\x00\x86q\x00" * 1000 + b"NNNNtQ.",
            "has the persistent id",
        ),
        "laughing OrderedDicts": (
            lambda: GLOBAL + b"q\x01)Rq\x00"
            + b"h\x01)RX\x01\x00\x00\x00ah\x00sX\x01\x00\x00\x00bh\x00sq\x00" * 1000 + b"Q.",
            "has the persistent id <OrderedDict>",
        ),
        "itself": (lambda: b"]q\x00h\x00a.", "holds a list"),
        "itself as an id": (lambda: b"(]q\x00h\x00aNNNNtQ.", "has the persistent id"),
        "many steps": (lambda: b"N" * (MAX_STEPS + 1) + b".", "needs more than 1000000 steps"),
        "many marks": (lambda: b"(" * (MAX_STEPS + 1) + b".", "needs more than"),
        "many memos": (
            lambda: b"N" + b"".join(b"r" + struct.pack("<I", n) for n in range(400_000)) + b".",
            "holds a NoneType",
        ),
        "copies of a list of pairs": (
            lambda: b"](" + b"K\x01N\x86" * 5_000 + b"eq\x00"
            + GLOBAL + b"q\x01" + b"h\x01h\x00\x85R" * 100 + b".",
            "needs more than 1000000 steps",
        ),
        "long text": (
            lambda: b"X" + struct.pack("<I", 17 << 20) + b"a" * (17 << 20) + b".",
            "of 'str'",
        ),
        "many long texts": (
            lambda: b"](" + (b"X" + struct.pack("<I", 1 << 20) + b"a" * (1 << 20)) * 40 + b"e.",
            "holds a list",
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", every(3, bombs()))
def test_bombs(write_zip: Write, name: str) -> None:
    make, message = bombs()[name]
    path = write_zip(b"\x80\x02" + make())
    start = time.process_time()
    tracemalloc.start()
    with pytest.raises(WeightsError, match=message) as caught:
        load_weights(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert time.process_time() - start < 60
    assert peak < 256 << 20
    assert len(str(caught.value)) < 1200


def test_the_stack_of_c_survives_deep_structures(write_zip: Write) -> None:
    """In a process of its own, so that a crash is seen as one."""
    make, _ = bombs()["deep keys"]
    path = write_zip(b"\x80\x02" + make())
    script = f"import minidnn.weights as w; w.load_weights({str(path)!r})"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("minidnn.errors.WeightsError: ")
