"""The table of supported versions is that of setup.cfg, and its ends are tested."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest

from minidnn._versions import PYTHON, SUPPORTED, Supported, numbers
from minidnn.frontends.torch.frontend import BEYOND, OLDEST
from tools.versions.environments import ENVIRONMENTS, pins_of

#: They have no versions that come in an order, and no range; or are what a package forgets to name.
WITHOUT_RANGE = {"ml-dtypes", "ncnn", "pnnx"}
#: Extras that only work on minidnn itself needs; what others bring, too, is in the table.
OF_DEVELOPERS = {"test", "docs"}


@pytest.fixture(scope="module")
def ranges(root: Path) -> dict[str, set[str]]:
    """Package -> the ranges that setup.cfg has for it, for users."""
    config = configparser.ConfigParser()
    config.read(root / "setup.cfg", encoding="utf-8")
    extras = {"": config["options"]["install_requires"], **config["options.extras_require"]}
    found: dict[str, set[str]] = {}
    table = {each.name for each in SUPPORTED}
    for extra, text in extras.items():
        for line in text.strip().splitlines():
            part = re.fullmatch(r"([\w-]+)(?:\[[\w,]+\])?\s*(.*)", line.strip())
            if part is None or line.startswith("#") or part[1] == "minidnn":
                continue
            if extra not in OF_DEVELOPERS or (part[1] in table and not part[2].startswith("==")):
                found.setdefault(part[1], set()).add(part[2])
    return found


def test_setup_cfg_has_the_ranges_of_the_table(ranges: dict[str, set[str]]) -> None:
    assert {name: found for name, found in ranges.items() if name not in WITHOUT_RANGE} == {
        each.name: {each.range} for each in SUPPORTED
    }
    assert all(ranges[name] == {""} for name in WITHOUT_RANGE)


def test_setup_cfg_has_the_range_of_python(root: Path) -> None:
    text = (root / "setup.cfg").read_text(encoding="utf-8")
    assert f"python_requires = {PYTHON.range}\n" in text
    classified = re.findall(r"Python :: (3\.\d+)$", text, re.MULTILINE)
    assert classified == [".".join(each.split(".")[:2]) for each in PYTHON.cpu]


@pytest.mark.parametrize("each", [PYTHON, *SUPPORTED], ids=lambda each: each.name)
def test_both_ends_of_a_range_are_tested(each: Supported) -> None:
    tested = sorted([*each.cpu, *each.gpu], key=numbers)
    assert list(each.cpu) == sorted(each.cpu, key=numbers)
    assert all(map(each.takes, tested))
    first, beyond = numbers(tested[0]), numbers(each.below)
    length = len(numbers(each.oldest))
    assert first[:length] == numbers(each.oldest), "the oldest version is not tested"
    # The range ends before the minor version after the newest that is tested.
    newest = numbers(tested[-1])[:2]
    assert beyond == (newest[0], newest[1] + 1), "what is newer than what is tested is promised"


def test_environments_have_all_that_is_tested_on_a_cpu() -> None:
    for end in (0, -1):
        assert pins_of(end) == {each.name: each.cpu[end] for each in SUPPORTED if each.cpu}
    made = {(name, v) for e in ENVIRONMENTS for name, v in e.pins().items()}
    assert made == {(each.name, v) for each in SUPPORTED for v in each.cpu}
    assert {e.python for e in ENVIRONMENTS} == {"3.11.2", "3.12", "3.13"}


def test_tests_that_environments_run_are_there(root: Path) -> None:
    for environment in ENVIRONMENTS:
        paths = [each for each in environment.tests if each.startswith("tests/")]
        assert paths and all((root / path).exists() for path in paths)


def test_the_bridge_takes_the_same_versions_of_pytorch() -> None:
    (torch,) = (each for each in SUPPORTED if each.name == "torch")
    assert (numbers(torch.oldest), numbers(torch.below)) == (OLDEST, BEYOND)


def test_pages_say_the_same(root: Path) -> None:
    (torch,) = (each for each in SUPPORTED if each.name == "torch")
    newest = ".".join(torch.cpu[-1].split(".")[:2])
    bridge = (root / "docs/explanation/pytorch-bridge.md").read_text(encoding="utf-8")
    assert f"PyTorch {torch.oldest} to {newest}" in bridge
    beyond = ".".join(PYTHON.cpu[-1].split(".")[:2])
    for page in ("README.md", "docs/how-to/install.md", "CONTRIBUTING.md"):
        text = " ".join((root / page).read_text(encoding="utf-8").split())
        assert f"Python {PYTHON.oldest} to {beyond}" in text, page
