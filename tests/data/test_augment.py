"""Every step beside torchvision's, Pillow's or a plain loop's result with the same numbers."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from minidnn.data import (
    Affine,
    ColorJitter,
    Cutout,
    DataError,
    Draws,
    Flip,
    Normalize,
    RandomCrop,
    ResizedCrop,
    VerticalFlip,
)

N, ROWS, COLUMNS = 6, 23, 30


def draws() -> Draws:
    return Draws(3, 1, np.arange(N))


@pytest.fixture
def x() -> np.ndarray:
    random = np.random.default_rng(0)
    x = random.random((N, 3, ROWS, COLUMNS), np.float32)
    x[0, :, :8] = x[0, :1, :8]  # grey
    x[1, 1, :8] = x[1, 0, :8]  # two channels share the maximum, or the minimum
    x[2, :, :4] = 0
    return x


@pytest.fixture(scope="module")
def torchvision() -> Any:
    import tests.oracles.torchvision_models  # noqa: F401 (lets torchvision load)

    return pytest.importorskip("torchvision.transforms.functional")


def tensor(x: np.ndarray) -> Any:
    return pytest.importorskip("torch").from_numpy(x.copy())


def test_normalize(x: np.ndarray, torchvision: Any) -> None:
    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    expected = torchvision.normalize(tensor(x), mean, std).numpy()
    np.testing.assert_array_equal(Normalize(mean, std)(x, draws()), expected)


def test_flip(x: np.ndarray) -> None:
    flipped = draws().uniform() < 0.5
    assert 0 < flipped.sum() < N
    expected = [np.flip(one, 2) if flip else one for one, flip in zip(x, flipped, strict=True)]
    np.testing.assert_array_equal(Flip()(x.copy(), draws()), expected)
    np.testing.assert_array_equal(Flip(1)(x.copy(), draws()), x[..., ::-1])
    np.testing.assert_array_equal(Flip(0)(x.copy(), draws()), x)


@pytest.mark.parametrize(("size", "padding"), [(16, 0), (23, 4), (12, 1), (31, 4)])
def test_random_crop(x: np.ndarray, size: int, padding: int, torchvision: Any) -> None:
    random = draws()
    tops = random.integers(ROWS + 2 * padding - size + 1)
    lefts = random.integers(COLUMNS + 2 * padding - size + 1)
    expected = [
        torchvision.crop(torchvision.pad(tensor(one), padding), top, left, size, size).numpy()
        for one, top, left in zip(x, tops, lefts, strict=True)
    ]
    np.testing.assert_array_equal(RandomCrop(size, padding)(x, draws()), expected)


def test_random_crops_reach_every_place() -> None:
    x = np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4).repeat(200, 0)
    cut = RandomCrop(2)(x, Draws(0, 0, np.arange(200)))
    assert set(cut[:, 0, 0, 0]) == {0, 1, 2, 4, 5, 6}


@pytest.mark.parametrize("size", [7, 23, 40])
@pytest.mark.parametrize("scale", [(0.08, 1.0), (1.0, 1.0)])
def test_resized_crop(
    x: np.ndarray, size: int, scale: tuple[float, float], torchvision: Any
) -> None:
    step = ResizedCrop(size, scale)
    boxes = [step.box(ROWS, COLUMNS, numbers) for numbers in draws().uniform(step.NUMBERS)]
    expected = [
        torchvision.resized_crop(tensor(one), *box, [size, size], antialias=True).numpy()
        for one, box in zip(x, boxes, strict=True)
    ]
    np.testing.assert_allclose(step(x, draws()), expected, rtol=0, atol=4e-6)


def test_boxes_are_spread_as_torchvisions(torchvision: Any) -> None:
    torch = pytest.importorskip("torch")
    transforms = pytest.importorskip("torchvision.transforms")
    count, size = 1500, (60, 90)
    step = ResizedCrop(8)
    numbers = Draws(0, 0, np.arange(count)).uniform(step.NUMBERS)
    mine = np.array([step.box(*size, each) for each in numbers])
    torch.manual_seed(0)
    empty, get = torch.empty(3, *size), transforms.RandomResizedCrop.get_params
    theirs = np.array([get(empty, step.scale, step.ratio) for _ in range(count)])
    np.testing.assert_allclose(mine.mean(0), theirs.mean(0), atol=2)
    np.testing.assert_allclose(mine.std(0), theirs.std(0), atol=2)
    assert (mine[:, :2] >= 0).all() and (mine[:, :2] + mine[:, 2:] <= size).all()


@pytest.mark.parametrize("size", [(10, 200), (200, 9), (30, 30)])
def test_a_picture_that_no_box_fits_gives_its_middle(size: tuple[int, int]) -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    empty = pytest.importorskip("torch").empty(3, *size)
    step = ResizedCrop(8, scale=(1.5, 2))
    expected = transforms.RandomResizedCrop.get_params(empty, step.scale, step.ratio)
    assert step.box(*size, np.full(step.NUMBERS, 0.5)) == expected


JITTERS = {"brightness": 0.4, "contrast": 0.9, "saturation": 0.7, "hue": 0.5}


@pytest.mark.parametrize("name", JITTERS)
def test_each_colour_change(x: np.ndarray, name: str, torchvision: Any) -> None:
    step = ColorJitter(**{name: JITTERS[name]})
    factors = step.factors(draws())[:, list(JITTERS).index(name)]
    adjust = getattr(torchvision, f"adjust_{name}")
    expected = [adjust(tensor(one), float(f)).numpy() for one, f in zip(x, factors, strict=True)]
    np.testing.assert_allclose(step(x, draws()), expected, rtol=0, atol=2e-6)


def test_colour_changes_follow_each_other(x: np.ndarray, torchvision: Any) -> None:
    step = ColorJitter(**JITTERS)
    factors = step.factors(draws())
    low, high = np.array([0.6, 0.1, 0.3, -0.5]), np.array([1.4, 1.9, 1.7, 0.5])
    assert (factors >= low.astype(np.float32)).all() and (factors <= high).all()
    for one, found, each in zip(x, step(x, draws()), factors, strict=True):
        y = tensor(one)
        for name, factor in zip(JITTERS, each, strict=True):
            y = getattr(torchvision, f"adjust_{name}")(y, float(factor))
        np.testing.assert_allclose(found, y.numpy(), rtol=0, atol=1e-5)


def test_grey_pictures_have_brightness_and_contrast(x: np.ndarray, torchvision: Any) -> None:
    grey = x[:, :1]
    step = ColorJitter(0.4, 0.4)
    for one, found, f in zip(grey, step(grey, draws()), step.factors(draws()), strict=True):
        y = torchvision.adjust_brightness(tensor(one), float(f[0]))
        y = torchvision.adjust_contrast(y, float(f[1]))
        np.testing.assert_allclose(found, y.numpy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [1, 6, 7, 100])
def test_cutout(x: np.ndarray, size: int) -> None:
    random = draws()
    shown = random.uniform(1, 1, 1).ravel() < 0.7
    rows, columns = random.integers(ROWS, 1, 1, 1), random.integers(COLUMNS, 1, 1, 1)
    expected = x.copy()
    for i in np.flatnonzero(shown):
        for row in range(ROWS):
            for column in range(COLUMNS):
                down = row - rows.flat[i] + size // 2
                across = column - columns.flat[i] + size // 2
                if 0 <= down < size and 0 <= across < size:
                    expected[i, :, row, column] = (0.1, 0.2, 0.3)
    assert 0 < shown.sum() < N
    np.testing.assert_array_equal(Cutout(size, (0.1, 0.2, 0.3), 0.7)(x, draws()), expected)


def test_affine(x: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    step = Affine(degrees=25, shift=0.2, scale=0.3, shear=0.2)
    u = draws().uniform(6, low=-1.0)
    angle, shear = np.radians(25) * u[:, 0], 0.2 * u[:, 1]
    across, down = 1 + 0.3 * u[:, 2], 1 + 0.3 * u[:, 3]
    cos, sin = np.cos(angle), np.sin(angle)
    # In PyTorch's coordinates, -1 to 1 along each side.
    long = COLUMNS / ROWS
    theta = [
        [cos * across, (shear * cos - sin) * down / long, 0.4 * u[:, 5]],
        [sin * across * long, (shear * sin + cos) * down, 0.4 * u[:, 4]],
    ]
    size = list(x.shape)
    grid = torch.nn.functional.affine_grid(
        torch.from_numpy(np.array(theta).transpose(2, 0, 1)), size, align_corners=False
    )
    expected = torch.nn.functional.grid_sample(
        torch.from_numpy(x.astype(np.float64)), grid, align_corners=False
    )
    np.testing.assert_allclose(step(x, draws()), expected, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(Affine()(x, draws()), x)


@pytest.mark.parametrize(
    "step",
    [
        *(Normalize(), Flip(), RandomCrop(9, 2), ResizedCrop(9), Cutout(5)),
        Affine(15, 0.1, 0.15, 0.15),
        ColorJitter(0.4, 0.4, 0.4, 0.1),
    ],
    ids=lambda step: type(step).__name__,
)
def test_a_sample_becomes_the_same_in_any_batch(step: Any, x: np.ndarray) -> None:
    whole = step(x.copy(), draws())
    for i in range(N):
        alone = step(x[i : i + 1].copy(), Draws(3, 1, np.array([i])))
        np.testing.assert_array_equal(alone[0], whole[i])
    assert whole.dtype == np.float32


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Flip(50), "Flip: probability=50; valid is a number from 0 to 1"),
        (lambda: VerticalFlip(-1), "VerticalFlip: probability=-1; valid is a number from 0"),
        (lambda: RandomCrop(0), "RandomCrop: size=0; valid is a number of at least 1"),
        (lambda: RandomCrop(4, -1), "RandomCrop: padding=-1; valid is a number of at least 0"),
        (lambda: Affine(scale=2), "Affine: scale=2; valid is a number from 0 to 1"),
        (lambda: ResizedCrop(8, (1, 0.5)), "scale=(1, 0.5); valid are two numbers above 0, in or"),
        (lambda: ResizedCrop(8, ratio=(0, 1)), "ratio=(0, 1); valid are two numbers above 0"),
        (lambda: ColorJitter(hue=0.7), "ColorJitter: hue=0.7; valid is a number from 0 to 0.5"),
        (lambda: ColorJitter(-0.1), "ColorJitter: brightness=-0.1; valid is a number of at least"),
        (lambda: Cutout(-1), "Cutout: size=-1; valid is a number of at least 0"),
        (lambda: Cutout(2, probability="x"), "Cutout: probability='x'; valid is a number from 0"),  # type: ignore[arg-type]
        (lambda: Normalize(std=(1, 0, 1)), "Normalize: std=(1, 0, 1); valid are numbers above 0"),
    ],
)
def test_an_argument_without_a_meaning_is_refused(make: Any, text: str) -> None:
    with pytest.raises(DataError, match=re.escape(text)):
        make()


@pytest.mark.parametrize(
    ("step", "shape", "text"),
    [
        (Flip(), (N, 8), "samples have shape (8,); valid is (C, H, W)"),
        (RandomCrop(9), (N, 3, 8, 20), "pictures have 8x20 pixels, which is too few"),
        (Normalize(), (N, 1, 8, 8), "mean has 3 numbers for 1 channels"),
        (ColorJitter(hue=0.1), (N, 1, 8, 8), "pictures have 1 channels; valid are 3, or 1"),
    ],
)
def test_what_does_not_fit_is_refused(step: Any, shape: tuple[int, ...], text: str) -> None:
    with pytest.raises(DataError, match=re.escape(text)):
        step(np.zeros(shape, np.float32), draws())
