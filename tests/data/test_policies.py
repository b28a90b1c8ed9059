"""Rotation, erasing and policies beside torchvision's functions with the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from minidnn.data import (
    DataError,
    Draws,
    RandAugment,
    RandomErasing,
    Rotation,
    TrivialAugment,
    VerticalFlip,
)
from minidnn.data.moves import inverse_matrix, warped
from minidnn.data.policies import _NAMES
from minidnn.frontends.torch.torchvision import make_importable

make_importable()
F = pytest.importorskip("torchvision.transforms.functional")
transforms = pytest.importorskip("torchvision.transforms")

N, ROWS, COLUMNS = 6, 23, 30


def draws(count: int = N) -> Draws:
    return Draws(3, 1, np.arange(count))


@pytest.fixture
def x() -> np.ndarray:
    """Colours that bytes have."""
    random = np.random.default_rng(0)
    return (random.integers(0, 256, (N, 3, ROWS, COLUMNS)) / 255).astype(np.float32)


def nearly(found: np.ndarray, wanted: np.ndarray, most: float = 0.0, atol: float = 3e-5) -> None:
    """Equal but for a share of pixels: places are rounded from float32 in torchvision."""
    assert (abs(found - wanted) > atol).mean() <= most


MODES = {"nearest": F.InterpolationMode.NEAREST, "bilinear": F.InterpolationMode.BILINEAR}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fill", [0.0, (0.1, 0.2, 0.3)])
def test_rotation(x: np.ndarray, mode: Any, fill: Any) -> None:
    angles = draws().uniform(low=-40, high=70)
    filled = [0.0] if fill == 0.0 else list(fill)
    wanted = [
        F.rotate(torch.from_numpy(one), float(angle), MODES[mode], fill=filled).numpy()
        for one, angle in zip(x, angles, strict=True)
    ]
    found = Rotation((-40, 70), mode, fill)(x.copy(), draws())
    nearly(found, np.array(wanted), 0.003)


def test_affine_maps_with_all_that_they_take(x: np.ndarray) -> None:
    given: dict[str, Any] = {
        "angle": 25.0,
        "translate": [3, -2],
        "scale": 1.3,
        "shear": [12.0, -7.0],
    }
    wanted = F.affine(torch.from_numpy(x), **given, interpolation=MODES["bilinear"]).numpy()
    found = warped(x, np.stack([inverse_matrix(**given)] * N), bilinear=True)
    nearly(found, wanted)


def test_vertical_flip(x: np.ndarray) -> None:
    flipped = draws().uniform() < 0.5
    wanted = np.where(flipped[:, None, None, None], x[:, :, ::-1], x)
    np.testing.assert_array_equal(VerticalFlip()(x.copy(), draws()), wanted)


@pytest.mark.parametrize("value", [0.5, (0.1, 0.2, 0.3), "random"])
def test_erasing(x: np.ndarray, value: Any) -> None:
    step = RandomErasing(0.7, value=value)
    random = draws()
    changed, numbers = random.uniform() < 0.7, random.uniform(step.TRIES * 4)
    noise = random.normal(3, ROWS, COLUMNS)
    wanted = x.copy()
    for i in np.flatnonzero(changed):
        found = step.box(ROWS, COLUMNS, numbers[i])
        assert found is not None
        top, left, rows, columns = found
        v = noise[i][:, :rows, :columns] if value == "random" else np.zeros((3, 1, 1))
        v = v if value == "random" else np.broadcast_to(np.reshape(value, (-1, 1, 1)), (3, 1, 1))
        if value == "random":
            v = noise[i][:, top : top + rows, left : left + columns]
        v = torch.from_numpy(np.array(v, np.float32))
        wanted[i] = F.erase(torch.from_numpy(wanted[i]), top, left, rows, columns, v).numpy()
    assert 0 < changed.sum() < N
    np.testing.assert_array_equal(step(x.copy(), draws()), wanted)


def test_erased_boxes_are_spread_as_torchvisions() -> None:
    count, size = 1500, (60, 90)
    step = RandomErasing()
    boxes = [step.box(*size, each) for each in Draws(0, 0, np.arange(count)).uniform(40)]
    mine = np.array(boxes)
    torch.manual_seed(0)
    empty, get = torch.empty(3, *size), transforms.RandomErasing.get_params
    theirs = np.array([get(empty, step.scale, step.ratio, [0.0])[:4] for _ in range(count)])
    np.testing.assert_allclose(mine.mean(0), theirs.mean(0), atol=2)
    np.testing.assert_allclose(mine.std(0), theirs.std(0), atol=2)


#: Of these torchvision has two forms: bytes are rounded after each operation.
ON_BYTES = ("Posterize", "Equalize")


def by_torchvision(policy: Any, x: np.ndarray, name: str, place: int, negative: bool) -> np.ndarray:
    """An operation of torchvision's policy with the strength of a place in its table."""
    try:
        space = policy._augmentation_space(31, x.shape[1:])
    except TypeError:
        space = policy._augmentation_space(31)
    sizes, signed = space[name]
    size = float(sizes[place].item()) if sizes.ndim else 0.0
    size = -size if signed and negative else size
    from torchvision.transforms.autoaugment import _apply_op

    if name in ON_BYTES:
        given = torch.from_numpy(np.rint(x * 255).astype(np.uint8))
        return _apply_op(given, name, size, MODES["nearest"], None).numpy() / np.float32(255)
    size = size / 255 if name == "Solarize" else size
    return np.asarray(_apply_op(torch.from_numpy(x), name, size, MODES["nearest"], None).numpy())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize("kind", ["rand", "trivial"])
def test_each_operation(x: np.ndarray, name: str, kind: str, monkeypatch: Any) -> None:
    index = _NAMES.index(name)
    for place, negative in ((9, False), (30, True), (17, True)):
        ours: Any = RandAugment(1, place) if kind == "rand" else TrivialAugment()
        drawn = [(np.full(N, index), np.full(N, place / 30), np.full(N, int(negative)))]
        monkeypatch.setattr(type(ours), "_drawn", lambda self, draws, drawn=drawn: drawn)
        theirs = transforms.RandAugment() if kind == "rand" else transforms.TrivialAugmentWide()
        wanted = np.array([by_torchvision(theirs, one, name, place, negative) for one in x])
        nearly(ours(x.copy(), draws()), wanted, 0.004)


def test_operations_are_drawn_for_each_picture_alike() -> None:
    for policy, rounds in ((RandAugment(3), 3), (TrivialAugment(), 1)):
        found = policy._drawn(draws(2000))  # type: ignore[attr-defined]
        assert len(found) == rounds
        names, parts, signs = found[0]
        assert abs(np.bincount(names) / 2000 - 1 / 14).max() < 0.02
        assert abs(signs.mean() - 0.5) < 0.05
        assert len(set(parts)) == (1 if rounds == 3 else 31)


@pytest.mark.parametrize(
    "step",
    [
        VerticalFlip(),
        Rotation(30),
        RandomErasing(0.8, value="random"),
        RandAugment(),
        TrivialAugment(),
    ],
    ids=lambda step: type(step).__name__,
)
def test_a_sample_becomes_the_same_in_any_batch(step: Any, x: np.ndarray) -> None:
    whole = step(x.copy(), draws())
    for i in range(N):
        alone = step(x[i : i + 1].copy(), Draws(3, 1, np.array([i])))
        np.testing.assert_array_equal(alone[0], whole[i])
    assert whole.dtype == np.float32
    assert whole.min() >= 0.0 or isinstance(step, RandomErasing)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rotation(-3), "degrees=-3; valid is a number of at least 0, or two in order"),
        (lambda: Rotation(3, "cubic"), "interpolation='cubic'; valid are 'nearest' and"),  # type: ignore[arg-type]
        (lambda: RandomErasing(2.0), "RandomErasing: p=2.0; valid is a number from 0 to 1"),
        (lambda: RandomErasing(scale=(0.5, 0.2)), "valid are two numbers from 0 to 1, in order"),
        (lambda: RandomErasing(value="noise"), "value='noise'; valid are a number"),  # type: ignore[arg-type]
        (lambda: RandAugment(magnitude=31), "magnitude=31; valid is less than num_magnitude_bin"),
        (lambda: TrivialAugment(1), "num_magnitude_bins=1; valid is an int of at least 2"),
        (lambda: RandAugment()(np.zeros((1, 4, 8, 8), np.float32), draws(1)), "4 channels; valid"),
    ],
)
def test_what_is_refused(make: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make()
