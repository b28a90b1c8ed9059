"""Masks and boxes go where pictures go: beside the steps' own pictures and torchvision's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import minidnn as md
from minidnn.data import (
    Affine,
    Boxes,
    ColorJitter,
    DataError,
    Draws,
    Flip,
    Masks,
    Normalize,
    RandAugment,
    RandomCrop,
    RandomErasing,
    ResizedCrop,
    Rotation,
    Subset,
    TrivialAugment,
    VerticalFlip,
    moved,
)
from minidnn.frontends.torch.torchvision import make_importable

N, ROWS, COLUMNS = 40, 24, 30


def draws() -> Draws:
    return Draws(5, 2, np.arange(N))


MOVING = [
    *(Flip(), VerticalFlip(), RandomCrop(16, 3), Rotation(30), Rotation((20, 30), "bilinear")),
    *(ResizedCrop(20), ResizedCrop(33, (0.3, 0.9)), Affine(20, 0.1, 0.1, 0.1)),
    *(RandAugment(), TrivialAugment()),
]
STILL = [ColorJitter(0.4, 0.4), Normalize(), RandomErasing(1.0)]


@pytest.mark.parametrize("step", MOVING, ids=lambda step: type(step).__name__)
def test_masks_go_where_pixels_go(step: Any) -> None:
    """A picture of one large bright area and a mask of that area are alike afterwards."""
    masks = np.zeros((N, ROWS, COLUMNS), np.int64)
    masks[:, 6:20, 4:17] = 1
    pictures = np.repeat(masks[:, None], 3, 1).astype(np.float32)
    x, found, _ = moved([step], pictures.copy(), draws(), masks)
    assert found is not None and found.shape == (N, *x.shape[2:]) and found.dtype == np.int64
    assert set(np.unique(found)) == {0, 1}
    policy = isinstance(step, RandAugment | TrivialAugment)
    if policy:  # whose other operations change colours
        still = [i for i in range(N) if set(np.unique(np.rint(x[i] * 8))) == {0, 8}]
        assert len(still) > 5
        x, found = x[still], found[still]
    # Of a window that is resized torchvision takes other pixels for masks than for pictures.
    most = 0.06 if policy or isinstance(step, ResizedCrop) else 0.005
    assert (abs(x[:, 0] - found) > 0.55).mean() < most
    assert masks[:, 6:20, 4:17].all(), "what was given stays"
    np.testing.assert_array_equal(
        step(pictures.copy(), draws())[:5], moved([step], pictures, draws())[0][:5]
    )


@pytest.mark.parametrize("step", MOVING, ids=lambda step: type(step).__name__)
def test_boxes_enclose_what_they_enclosed(step: Any) -> None:
    boxes = np.tile(np.array([[4.0, 6.0, 17.0, 20.0]]), (N, 1, 1))
    masks = np.zeros((N, ROWS, COLUMNS), np.int64)
    masks[:, 6:20, 4:17] = 1
    x = np.zeros((N, 3, ROWS, COLUMNS), np.float32)
    x, found_masks, found = moved([step], x, draws(), masks, boxes)
    assert found is not None and found_masks is not None
    for mask, (left, top, right, bottom) in zip(found_masks, found[:, 0], strict=True):
        rows, columns = np.nonzero(mask.any(1))[0], np.nonzero(mask.any(0))[0]
        if not rows.size:
            assert (right - left) * (bottom - top) < 60
            continue
        corners = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
        # Windows are resized to more pixels than they have, or turned.
        np.testing.assert_allclose([left, top, right, bottom], corners, atol=3.1)


def test_boxes_as_torchvision_moves_them() -> None:
    make_importable()
    v2 = pytest.importorskip("torchvision.transforms.v2.functional")
    tv = pytest.importorskip("torchvision.tv_tensors")
    random = np.random.default_rng(0)
    corners = np.sort(random.uniform(0, 24, (N, 3, 2, 2)), 2).reshape(N, 3, 4)
    x = np.zeros((N, 1, ROWS, COLUMNS), np.float32)
    angles = draws().uniform(low=-30, high=30)
    flipped = draws().uniform() < 0.5
    for step, one in (
        (Rotation(30), lambda b, i: v2.rotate(b, float(angles[i]))),
        (Flip(), lambda b, i: v2.horizontal_flip(b) if flipped[i] else b),
        (VerticalFlip(), lambda b, i: v2.vertical_flip(b) if flipped[i] else b),
    ):
        _, _, found = moved([step], x.copy(), draws(), boxes=corners)
        for i in range(N):
            given = tv.BoundingBoxes(
                torch.from_numpy(corners[i]), format="XYXY", canvas_size=(ROWS, COLUMNS)
            )
            wanted = v2.clamp_bounding_boxes(one(given, i)).numpy()
            assert found is not None
            np.testing.assert_allclose(found[i], wanted, atol=1e-4)


def test_masks_as_torchvision_moves_them() -> None:
    make_importable()
    v2 = pytest.importorskip("torchvision.transforms.v2.functional")
    tv = pytest.importorskip("torchvision.tv_tensors")
    masks = np.random.default_rng(0).integers(0, 9, (N, ROWS, COLUMNS))
    x = np.zeros((N, 1, ROWS, COLUMNS), np.float32)
    crop = ResizedCrop(20)
    cuts = [crop.box(ROWS, COLUMNS, each) for each in draws().uniform(crop.NUMBERS)]
    angles = draws().uniform(low=-30, high=30)
    for step, one in (
        (crop, lambda m, i: v2.resized_crop(m, *cuts[i], [20, 20])),
        (Rotation(30, "bilinear"), lambda m, i: v2.rotate(m, float(angles[i]))),
    ):
        _, found, _ = moved([step], x.copy(), draws(), masks)
        wanted = [one(tv.Mask(torch.from_numpy(m)), i).numpy() for i, m in enumerate(masks)]
        assert found is not None and (found != np.array(wanted)).mean() < 0.001


def test_what_comes_from_outside_is_filled() -> None:
    masks = np.ones((N, 8, 8), np.uint8)
    data = Masks(np.zeros((N, 1, 8, 8)), masks, [RandomCrop(8, 4)], classes=2, fill=255)
    x, found = data.batch(np.arange(N), 0, 0)
    assert set(np.unique(found)) == {1, 255}
    assert found.dtype == np.int64 and x.shape == found[:, None].shape


@pytest.mark.parametrize("step", STILL, ids=lambda step: type(step).__name__)
def test_colours_leave_masks_and_boxes(step: Any) -> None:
    masks, boxes = np.ones((N, 8, 8), np.int64), np.ones((N, 2, 4))
    x, found, other = moved([step], np.zeros((N, 3, 8, 8), np.float32), draws(), masks, boxes)
    np.testing.assert_array_equal(found, masks)
    np.testing.assert_array_equal(other, boxes)
    assert x.shape == (N, 3, 8, 8)


def test_a_step_of_ones_own_must_say_where_it_moves() -> None:
    def step(x: np.ndarray, draws: Draws) -> np.ndarray:
        return x[..., ::-1]

    data = Masks(np.zeros((2, 1, 8, 8)), np.zeros((2, 8, 8), int), [step])
    with pytest.raises(
        DataError, match=r"does not say where it moves masks and boxes; valid is on"
    ):
        data.batch(np.arange(2), 0, 0)


def test_datasets_of_masks_and_boxes_in_a_loader_and_in_parts() -> None:
    random = np.random.default_rng(0)
    pictures = random.random((6, 3, 12, 12))
    masks = (pictures[:, 0] > 0.5).astype(np.int64)
    data = Masks(pictures, masks, [Flip(), VerticalFlip()])
    assert data.classes == ("0", "1")
    for x, target in md.data.Loader(data, 3, shuffle=True, seed=1, workers=2):
        np.testing.assert_array_equal(x[:, 0] > 0.5, target)
    x, target = Subset(data, np.array([4, 2])).batch(np.arange(2), 0, 0)
    np.testing.assert_array_equal(x[:, 0] > 0.5, target)
    several = [np.array([[0, 0, 6, 6, 1], [7, 7, 9, 11, 0]]), np.zeros((0, 5))] * 3
    boxed = Boxes(pictures, several, [Flip(1)], least=0.5)
    assert boxed.y.shape == (6, 2, 5)
    _, found = Subset(boxed, np.array([0, 1])).batch(np.arange(2), 0, 0)
    np.testing.assert_array_equal(found[0], [[6, 0, 12, 6, 1], [3, 7, 5, 11, 0]])
    assert (found[1] == -1).all()


def test_boxes_that_are_cut_are_dropped() -> None:
    boxes = np.tile(np.array([[[0, 0, 4, 4, 0], [2, 2, 10, 10, 1]]]), (N, 1, 1))
    for least in (0.0, 0.3, 1.0):
        data = Boxes(np.zeros((N, 1, 12, 12)), boxes, [RandomCrop(8)], least=least)
        _, found = data.batch(np.arange(N), 0, 0)
        there = found[..., 4] >= 0
        sides = found[..., 2:4] - found[..., :2]
        areas = sides.prod(-1)[there]
        whole = np.where(found[..., 4] == 0, 16, 64)[there]
        assert (areas > 0).all() and (areas >= least * whole - 1e-3).all()
        assert not (there[:, 1] & ~there[:, 0]).any(), "those that are left come first"
    assert not there.all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Masks(np.zeros((2, 1, 8, 8)), np.zeros((2, 8, 9), int)), "valid are .N, C, H, W"),
        (
            lambda: Masks(np.zeros((2, 1, 8, 8)), np.zeros((2, 8, 8), int), fill=2.5),  # type: ignore[arg-type]
            "fill=2.5; valid is an int",
        ),
        (lambda: Masks(np.zeros((2, 1, 8, 8)), np.zeros((2, 8, 8))), "y float64 .*integers"),
        (
            lambda: Boxes(np.zeros((1, 1, 8, 8)), [np.array([[5, 0, 3, 4, 1]])]),
            r"such as \[5.0, 0.0, 3.0, 4.0, 1.0\]; valid are .*left, top, right and bottom",
        ),
        (lambda: Boxes(np.zeros((1, 1, 8, 8)), np.zeros((1, 1, 5)), least=2), "least=2; valid is"),
    ],
)
def test_what_is_refused(make: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make()
