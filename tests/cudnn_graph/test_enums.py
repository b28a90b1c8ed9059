"""Every enumeration has cuDNN's names and values, all of them or those that are used."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path

import pytest

from minidnn.cudnn.enums import ConvolutionMode, ReduceTensorOp
from minidnn.cudnn.graph import enums
from minidnn.cudnn.graph.attributes import Attribute

NAMES: dict[str, type[IntEnum]] = {
    "cudnnBackendDescriptorType_t": enums.DescriptorType,
    "cudnnBackendAttributeType_t": enums.AttributeType,
    "cudnnBackendAttributeName_t": Attribute,
    "cudnnPointwiseMode_t": enums.PointwiseMode,
    "cudnnResampleMode_t": enums.ResampleMode,
    "cudnnPaddingMode_t": enums.PaddingMode,
    "cudnnGenStatsMode_t": enums.GenStatsMode,
    "cudnnConvolutionMode_t": ConvolutionMode,
    "cudnnReduceTensorOp_t": ReduceTensorOp,
    "cudnnBackendHeurMode_t": enums.HeuristicMode,
    "cudnnBackendNumericalNote_t": enums.NumericalNote,
    "cudnnBackendBehaviorNote_t": enums.BehaviorNote,
}
USED_ONLY = (enums.DescriptorType, enums.AttributeType, Attribute)


def header() -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    text = (Path(__file__).parent / "header_snapshot.txt").read_text()
    for line in text.splitlines():
        if not line.startswith("#"):
            enumeration, name, value = line.split()
            found.setdefault(enumeration, {})[name] = int(value)
    return found


def test_all_enumerations_of_the_snapshot_are_compared() -> None:
    assert sorted(header()) == sorted(NAMES)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_names_and_values(name: str) -> None:
    ours = {key: int(value) for key, value in NAMES[name].__members__.items()}
    theirs = header()[name]
    if NAMES[name] in USED_ONLY:
        assert ours.items() <= theirs.items()
    else:
        assert ours == theirs
