"""Folders of pictures beside torchvision's ImageFolder; what cannot be read is named."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minidnn.data import DataError, Draws, Flip, Folder, Loader, Normalize, ResizedCrop
from minidnn.errors import MiniDNNWarning, UnsupportedError
from minidnn.pictures import PictureError

PIL = pytest.importorskip("PIL.Image")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two classes, one with a folder within and with files that are no pictures."""
    random = np.random.default_rng(0)
    names = ("cat/b.png", "cat/a.jpg", "cat/deep/c.PNG", "ant/z.png", "ant/grey.png")
    for i, name in enumerate(names):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (40 + 3 * i, 64 - 5 * i, 3), np.uint8)
        PIL.fromarray(pixels[:, :, 0] if "grey" in name else pixels).save(path)
    (tmp_path / "cat" / "labels.txt").write_text("no picture")
    (tmp_path / "cat" / ".hidden.png").write_text("no picture")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "readme.md").write_text("no class")
    return tmp_path


def whole(folder: Folder) -> tuple[np.ndarray, np.ndarray]:
    return folder.batch(np.arange(len(folder)), 0, 0)


def with_torchvision(root: Path, *steps: Any) -> tuple[np.ndarray, list[int], list[str]]:
    datasets = pytest.importorskip("torchvision.datasets")
    transforms = pytest.importorskip("torchvision.transforms")
    shutil.rmtree(root / ".hidden")  # which it takes for a class
    (root / "cat" / ".hidden.png").unlink()
    oracle = datasets.ImageFolder(root, transforms.Compose([*steps, transforms.ToTensor()]))
    pairs = list(oracle)
    return np.stack([x.numpy() for x, _ in pairs]), [y for _, y in pairs], oracle.classes


def test_pictures_are_read_as_by_torchvision(root: Path) -> None:
    # It lets torchvision load beside a PyTorch that it was not built for.
    pytest.importorskip("tests.oracles.torchvision_models", exc_type=ModuleNotFoundError)
    transforms = pytest.importorskip("torchvision.transforms")
    folder = Folder(root, 24, resize=32)
    x, target = whole(folder)
    expected, labels, classes = with_torchvision(
        root, transforms.Resize(32), transforms.CenterCrop(24)
    )
    np.testing.assert_array_equal(x, expected)
    assert target.tolist() == labels == [0, 0, 1, 1, 1]
    assert list(folder.classes) == classes == ["ant", "cat"]
    assert x.flags.c_contiguous and target.dtype == np.int64


def test_resized_crops_are_pillows(root: Path) -> None:
    step = ResizedCrop(20)
    folder = Folder(root, 20, [step, Flip(1), Normalize()])
    x, _ = whole(folder)
    numbers = Draws(0, 0, np.arange(len(folder))).uniform(step.NUMBERS)
    for file, found, each in zip(folder.files, x, numbers, strict=True):
        picture = PIL.open(file).convert("RGB")
        top, left, height, width = step.box(picture.height, picture.width, each)
        cut = picture.crop((left, top, left + width, top + height))
        pixels = np.asarray(cut.resize((20, 20), PIL.Resampling.BILINEAR))[:, ::-1] / 255
        expected = ((pixels - Normalize().mean) / Normalize().std).transpose(2, 0, 1)
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_grey_pictures(root: Path) -> None:
    x, _ = whole(Folder(root, 8, channels=1))
    assert x.shape == (5, 1, 8, 8)


def test_classes_may_be_links(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("linked")
    for name in ("cat", "ant"):
        (other / name).symlink_to(root / name)
    np.testing.assert_array_equal(whole(Folder(other, 8))[0], whole(Folder(root, 8))[0])


def damage(root: Path) -> Path:
    path = root / "cat" / "b.png"
    path.write_bytes(path.read_bytes()[:900])
    return path


@pytest.mark.parametrize("workers", [0, 2])
def test_a_corrupt_picture_is_refused_by_name(root: Path, workers: int) -> None:
    path = damage(root)
    loader = Loader(Folder(root, 8), 2, workers=workers)
    batches = iter(loader)
    next(batches)
    with pytest.raises(DataError, match=rf"sample 3 \({path}\) cannot be read: picture") as caught:
        list(batches)
    assert isinstance(caught.value.__cause__, PictureError)
    assert loader.state()["position"] == 1  # where it can be resumed once the file is mended


def test_corrupt_pictures_are_skipped_by_name(root: Path) -> None:
    path = damage(root)
    (root / "ant" / "text.png").write_text("no picture")
    with pytest.warns(MiniDNNWarning) as notes:
        folder = Folder(root, 8, corrupt="skip")
    assert [str(note.message).split()[1] for note in notes] == [
        str(root / "ant" / "text.png"),
        str(path),
    ]
    assert notes[0].filename == __file__
    x, target = whole(folder)
    assert len(folder) == len(x) == 4 and target.tolist() == [0, 0, 1, 1]


def test_a_class_without_pictures(root: Path) -> None:
    (root / "empty").mkdir()
    (root / "empty" / "notes.txt").touch()
    with pytest.raises(DataError, match=rf"folder {root}/empty has no picture file; valid is at"):
        Folder(root, 8)
    (root / "empty" / "a.png").touch()
    with (
        pytest.warns(MiniDNNWarning, match=r"empty/a\.png cannot be read"),
        pytest.raises(DataError, match=rf"folder {root}/empty has no readable picture"),
    ):
        Folder(root, 8, corrupt="skip")


def test_folders_that_are_none(root: Path) -> None:
    with pytest.raises(DataError, match=rf"folder {root}/ant has no folders; valid is a folder of"):
        Folder(root / "ant", 8)
    with pytest.raises(DataError, match=rf"folder {root}/absent cannot be read: No such file"):
        Folder(root / "absent", 8)
    with pytest.raises(DataError, match=r"readme\.md cannot be read: Not a directory"):
        Folder(root / "readme.md", 8)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_folders_that_may_not_be_read(root: Path) -> None:
    (root / "cat" / "deep").chmod(0)
    try:
        with pytest.raises(DataError, match=r"cat/deep cannot be read: Permission denied"):
            Folder(root, 8)
    finally:
        (root / "cat" / "deep").chmod(0o700)


def test_a_picture_that_is_gone(root: Path) -> None:
    folder = Folder(root, 8)
    os.unlink(folder.files[0])
    with pytest.raises(DataError, match=r"sample 0 .*grey\.png.*: No such file"):
        whole(folder)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"corrupt": "ignore"}, "corrupt='ignore'; valid are 'raise' and 'skip'"),
        ({"augment": [ResizedCrop(9)]}, "size=8 and ResizedCrop(size=9"),
        ({"resize": 7}, "resize=7; valid is an int of at least size=8, or None"),
        ({"size": 0}, "size=0; valid is an int of at least 1"),
        ({"channels": 4}, "channels=4; valid are 3"),
    ],
)
def test_arguments_that_do_not_fit(root: Path, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises((DataError, PictureError), match=re.escape(text)):
        Folder(root, **{"size": 8, **arguments})


def test_without_pillow(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'minidnn\[images\]'"):
        Folder(root, 8)
