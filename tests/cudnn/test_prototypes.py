"""The table of prototypes and the enumerations say what cuDNN's headers say."""

from __future__ import annotations

import ctypes
import importlib.util
import json
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest

from minidnn.cudnn import constants, enums
from minidnn.cudnn.library import PROTOTYPES, RESULTS

HERE = Path(__file__).parent
SNAPSHOT: dict[str, Any] = json.loads((HERE / "declarations.json").read_text())
KINDS = {
    ctypes.c_void_p: "pointer",
    ctypes.c_int: "int",
    ctypes.c_uint: "unsigned",
    ctypes.c_int64: "int64",
    ctypes.c_size_t: "size",
    ctypes.c_float: "float",
    ctypes.c_double: "double",
    ctypes.c_ulonglong: "unsigned long long",
}


def _number(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def include_folder() -> Path | None:
    """The headers of an installed cuDNN wheel."""
    try:
        spec = importlib.util.find_spec("nvidia.cudnn")
    except ModuleNotFoundError:
        return None
    places = [Path(p) / "include" for p in (spec.submodule_search_locations or [])] if spec else []
    return next((place for place in places if (place / "cudnn_graph_v9.h").exists()), None)


def extract(folder: Path) -> dict[str, Any]:
    place = HERE / "extract_declarations.py"
    spec = importlib.util.spec_from_file_location("extract_declarations", place)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: dict[str, Any] = module.declarations(folder)
    return found


@pytest.fixture(params=["snapshot", "installed headers"])
def declared(request: pytest.FixtureRequest) -> dict[str, Any]:
    if request.param == "snapshot":
        return SNAPSHOT
    folder = include_folder()
    if folder is None:
        pytest.skip("the wheel nvidia-cudnn-cu13, which has the headers, is not installed")
    return extract(folder)


def same(kind: str, declared: str) -> bool:
    # On all platforms of cuDNN an enumeration is an int; long long is 64 bits, as is size_t.
    wide = {"int64", "size", "unsigned long long"}
    return kind == declared or (declared, kind) == ("enum", "int") or {kind, declared} <= wide


def test_each_prototype_matches_its_declaration(declared: dict[str, Any]) -> None:
    wrong = []
    for name, types in PROTOTYPES.items():
        theirs = declared["functions"].get(name)
        ours = [KINDS[kind] for kind in types]
        if theirs is None or len(ours) != len(theirs) or not all(map(same, ours, theirs)):
            wrong.append(f"{name}: ours {ours}, declared {theirs}")
    assert not wrong, "\n".join(wrong)


def test_results_are_those_that_are_no_status() -> None:
    assert set(RESULTS) <= set(PROTOTYPES)
    assert RESULTS["cudnnGetVersion"] is ctypes.c_size_t
    assert RESULTS["cudnnGetLastErrorString"] is None


def test_each_enumeration_matches(declared: dict[str, Any]) -> None:
    wrong = []
    for name, kind in vars(enums).items():
        if not (isinstance(kind, type) and issubclass(kind, IntEnum)) or kind is IntEnum:
            continue
        theirs = declared["enums"][f"cudnn{name}_t"]
        for member, value in kind.__members__.items():
            # Headers older than ours lack the newest members.
            if theirs.get(member, value) != value:
                wrong.append(f"{member} is {int(value)}, declared {theirs.get(member)}")
        for member, number in theirs.items():
            known = member in kind.__members__ or hasattr(constants, member)
            # Installed headers may be newer than this binding, the snapshot never is.
            newer = _number(declared["version"]) > _number(SNAPSHOT["version"])
            if not known and not newer and not member.endswith("_COUNT"):
                wrong.append(f"{member} = {number} is missing in {name}")
    assert not wrong, "\n".join(wrong)


def test_the_comparison_can_fail(declared: dict[str, Any]) -> None:
    theirs = declared["functions"]["cudnnConvolutionForward"]
    assert not same(KINDS[ctypes.c_float], theirs[0])
    assert len(theirs) == 13


def test_constants_have_cupys_names() -> None:
    assert constants.CUDNN_TENSOR_NHWC == 1
    assert constants.CUDNN_POOLING_MAX_DETERMINISTIC == 3
    assert constants.CUDNN_RNN_PADDED_IO_ENABLED == 1
    assert constants.CUDNN_STATUS_ALLOC_FAILED == 4003
    assert constants.CUDNN_BATCHNORM_SPATIAL_PERSISTENT == 2
    with pytest.raises(AttributeError, match="CUDNN_NONE_SUCH"):
        _ = constants.CUDNN_NONE_SUCH
