"""Which files a pattern means: as :mod:`glob` has it, each once, in an order that stays."""

from __future__ import annotations

import glob
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minidnn.batch.files import FilePart, Found, files_of, parts_of, write_list
from minidnn.errors import GraphError


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    names = ("a.png", "b.jpg", "c.txt", ".hidden.png", "aa.PNG", "x[1].png")
    for folder in (".", "a", "a/b", "a/b/a", ".dark", "b", "b/.dark", "c.png", "c.png/a"):
        (root / folder).mkdir(exist_ok=True)
        for name in names:
            (root / folder / name).write_bytes(b"")
    return root


PARTS = st.sampled_from(
    ["**", "*", "a", "?", "[ab]", "*.png", "b", ".dark", "*a*", "c.png", "[!a]"]
)
LAST = st.sampled_from(["*.png", "a.png", "?.*", "*[[]1].png", ".*", "c.txt", "[!.]*.txt"])


@given(parts=st.lists(PARTS, max_size=4), last=LAST)
def test_files_are_those_of_glob(tree: Path, parts: list[str], last: str) -> None:
    pattern = os.path.join(tree, *parts, last)
    # It has folders, too, and what it finds in two ways twice.
    expected = set(filter(os.path.isfile, glob.glob(pattern, recursive=True)))
    try:
        found = list(Found(pattern))
    except GraphError:  # without wildcards before it, a folder must be there
        assert not expected
        return
    assert len(found) == len(set(found))
    assert {os.path.normpath(each) for each in found} == {os.path.normpath(e) for e in expected}
    assert found == list(Found(pattern))


@pytest.mark.parametrize("ending", ["", "/", "/**", "/**/*"])
def test_a_folder_means_its_pictures(tree: Path, ending: str) -> None:
    found = Found(f"{tree}{ending}")
    names = {os.path.relpath(each, tree) for each in found}
    folders = ("", "a/", "a/b/", "a/b/a/", "b/", "c.png/", "c.png/a/")
    pictures = ("a.png", "b.jpg", "aa.PNG", "x[1].png")
    assert names == {f"{folder}{name}" for folder in folders for name in pictures}
    assert found.left == 2 * len(folders)


def test_a_file_means_itself(tree: Path) -> None:
    assert list(Found(f"{tree}/a/x[1].png")) == [f"{tree}/a/x[1].png"]
    assert list(Found(f"{tree}/c.txt")) == [f"{tree}/c.txt"]


def test_links(tmp_path: Path) -> None:
    """A link to a file is one, a broken one too, which cannot be read later; a folder that leads in
    a circle is not entered."""
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "link.png").symlink_to("a.png")
    (tmp_path / "broken.png").symlink_to("nowhere.png")
    (tmp_path / "circle").symlink_to(tmp_path)
    names = [os.path.basename(each) for each in Found(str(tmp_path))]
    assert names == ["a.png", "broken.png", "link.png"]


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"--input .*/nothing: there is no such file or folder;"):
        list(Found(f"{tmp_path}/nothing"))
    with pytest.raises(GraphError, match=r"--input: folder .*/nothing cannot be read: No such"):
        list(Found(f"{tmp_path}/nothing/*.png"))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 100])
def test_parts_are_the_list(tmp_path: Path, size: int) -> None:
    """Names with any letters, and bytes that are no text, come back."""
    names = ["a b", "c\nd", 'e"f', "ä", "\udcff", "", "\\", "\u2028g"]
    path = tmp_path / "list"
    with path.open("wb") as file:
        listed = write_list(names, file)
    parts, sha256 = parts_of(path, size)
    assert listed == (len(names), sha256)
    assert [part.number for part in parts] == list(range(len(parts)))
    found = [files_of(path, part) for part in parts]
    assert [name for each in found for name in each] == names
    assert all(len(each) == size for each in found[:-1])


def test_an_empty_list_has_no_parts(tmp_path: Path) -> None:
    (tmp_path / "list").write_bytes(b"")
    assert parts_of(tmp_path / "list", 3)[0] == []
    assert files_of(tmp_path / "list", FilePart(0, 0, 0)) == []
