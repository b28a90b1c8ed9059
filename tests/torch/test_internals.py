"""What PyTorch does not document is asked for in one module, which says what is missing."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import torch

from minidnn import _torch_internals
from minidnn.errors import DeviceError
from minidnn.frontends.torch.frontend import require_torch
from tests.torch.names import (
    defined_names,
    dotted_names,
    found_in_torch,
    private_attributes,
    private_texts,
    sources_of,
)

INTERNALS = "minidnn/_torch_internals.py"
STREAMS = "minidnn/_torch_streams.py"
#: Modules of PyTorch's without underscore that are not documented either.
UNDOCUMENTED = ("torch.fx.config",)


@pytest.fixture(scope="module")
def sources(root: Path) -> dict[str, str]:
    return sources_of(root)


@pytest.fixture(scope="module")
def trees(sources: dict[str, str]) -> dict[str, ast.AST]:
    """The modules that have to do with PyTorch."""
    return {path: ast.parse(text) for path, text in sources.items() if "torch" in text}


def is_documented(name: str) -> bool:
    private = any(part[0] == "_" and part[:2] != "__" for part in name.split("."))
    return not private and not name.startswith(UNDOCUMENTED)


def test_one_module_names_what_is_not_documented(trees: dict[str, ast.AST]) -> None:
    wrong = [
        f"{path}:{line} names {name}"
        for path, tree in trees.items()
        if path not in (INTERNALS, STREAMS)
        for name, line in dotted_names(tree).items()
        if not is_documented(name)
    ]
    assert wrong == [], f"ask for it in {INTERNALS}"


def test_attributes_without_a_promise_are_listed(
    sources: dict[str, str], trees: dict[str, ast.AST]
) -> None:
    own = set().union(*map(defined_names, sources.values()))
    listed = {name for _, names in _torch_internals.ATTRIBUTES for name in names}
    theirs = {name for owner, _ in _torch_internals.ATTRIBUTES for name in dir(owner)}
    wrong = [
        f"{path}:{line} reads {name}"
        for path, tree in trees.items()
        if path.startswith(("minidnn/acceleration", "minidnn/frontends/torch"))
        for name, line in (
            *(each for each in private_attributes(tree) if each[0] not in own),
            *(each for each in private_texts(tree) if each[0] in theirs),
        )
        if name not in listed
    ]
    assert wrong == [], f"list it in ATTRIBUTES of {INTERNALS}"


def test_all_that_is_named_is_there(trees: dict[str, ast.AST]) -> None:
    """Documented names, too: in every version that these tests run with."""
    named = {name for tree in trees.values() for name in dotted_names(tree)}
    own = {name for name in named if name.startswith("torch.ops.minidnn")}
    missing = sorted(name for name in named - own if not found_in_torch(name))
    assert missing == []
    assert len(named) > 100


@pytest.mark.parametrize("name", _torch_internals.DEFERRED)
def test_what_benchmarks_ask_for_is_there(name: str) -> None:
    assert _torch_internals.deferred(name) is not None


def imported_anew() -> ModuleType:
    """The module as it is when PyTorch is as it is now."""
    spec = spec_from_file_location("anew", _torch_internals.__file__)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_all_that_is_missing_is_said_when_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_is_tracing")
    monkeypatch.delattr(torch.compiler, "_is_exporting_flag")
    monkeypatch.delattr(torch.nn.Module, "_compiled_call_impl")
    with pytest.raises(DeviceError) as caught:
        imported_anew()
    assert str(caught.value) == (
        f"PyTorch {torch.__version__} lacks torch._C._is_tracing, torch.compiler._is_exporting_flag"
        ", Module._compiled_call_impl, which minidnn needs; install a version that minidnn is "
        "tested with: pip install 'minidnn[torch]'"
    )


def test_it_is_imported_before_anything_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "minidnn._torch_internals")
    require_torch()
    assert "minidnn._torch_internals" in sys.modules


def test_younger_names_are_missed_in_versions_that_should_have_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = imported_anew()
    for version, missing in (("2.11.0+cu130", []), ("2.12.0", ["torch.fx.nothing_such"])):
        monkeypatch.setattr(torch, "__version__", version)
        monkeypatch.setattr(module, "VERSION", module._version())
        assert module._ask("torch.fx.nothing_such", since=(2, 12)) is None
        assert module._missing == missing


def test_what_is_missing_for_benchmarks_is_said_when_it_is_asked_for() -> None:
    with pytest.raises(DeviceError, match=r"lacks torch\.nn\.Nothing, which minidnn needs"):
        _torch_internals.deferred("torch.nn.Nothing")


ELSEWHERE = """
import threading
from minidnn.frontends.torch.frontend import require_torch

require_torch()
from torch._subclasses.fake_tensor import FakeTensorMode

def capture():
    with FakeTensorMode():
        pass

for _ in range(2):
    thread = threading.Thread(target=capture)
    thread.start()
    thread.join()
print("captured")
"""


@pytest.mark.skipif(torch.__version__ >= "2.12", reason="PyTorch 2.12 captures in any thread")
def test_captures_in_threads_that_end_do_not_crash_later_ones(root: Path) -> None:
    command = [sys.executable, "-c", ELSEWHERE]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "captured\n"), done.stderr
