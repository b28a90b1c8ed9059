"""CIFAR's files in both forms, damaged and hostile ones; samplers; CutMix."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minidnn.data import (
    CIFAR10_CLASSES,
    Arrays,
    DataError,
    Loader,
    WeightedSampler,
    cifar10,
    cifar100,
)

random = np.random.default_rng(0)
PIXELS = random.integers(0, 256, (6, 3072)).astype(np.uint8)
LABELS = [3, 9, 0, 1, 5, 5]


def of_python_2(pixels: np.ndarray, labels: list[int]) -> bytes:
    """A batch as the archive has it: pickled by Python 2, with numpy.core's names."""
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K" + bytes([len(pixels)]) + b"M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
        b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + struct.pack("<I", pixels.nbytes)
        + pixels.tobytes()
        + b"tb"
    )
    numbers = b"".join(b"K" + bytes([each]) for each in labels)
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels](" + numbers + b"eu."


@pytest.mark.parametrize("form", ["python", "binary"])
def test_cifar10(form: str, tmp_path: Path) -> None:
    base = tmp_path / ("cifar-10-batches-py" if form == "python" else "cifar-10-batches-bin")
    base.mkdir()
    rows = np.column_stack([np.array(LABELS, np.uint8), PIXELS])
    for i in range(1, 6):
        part = PIXELS if i == 1 else PIXELS[::-1]
        if form == "python":
            (base / f"data_batch_{i}").write_bytes(of_python_2(part, LABELS))
        else:
            (base / f"data_batch_{i}.bin").write_bytes((rows if i == 1 else rows[::-1]).tobytes())
    name = "test_batch" if form == "python" else "test_batch.bin"
    (base / name).write_bytes(
        pickle.dumps({b"data": PIXELS[:2], b"labels": LABELS[:2]}, protocol=2)
        if form == "python"
        else rows[:2].tobytes()
    )
    for root in (tmp_path, base):
        train = cifar10(root, train=True)
        assert len(train) == 30 and train.classes == CIFAR10_CLASSES
        np.testing.assert_array_equal(train.x[:6].reshape(6, -1), PIXELS)
        assert train.y[:6].tolist() == LABELS
        assert cifar10(root, train=False).y.tolist() == LABELS[:2]
    x, _ = train.batch(np.arange(2), 0, 0)
    np.testing.assert_array_equal(x, PIXELS[:2].reshape(2, 3, 32, 32) / np.float32(255))


@pytest.mark.parametrize("form", ["python", "binary"])
def test_cifar100(form: str, tmp_path: Path) -> None:
    fine, coarse = [3, 99, 0, 1, 5, 5], [19, 0, 1, 2, 3, 4]
    base = tmp_path / f"cifar-100-{form}"
    base.mkdir()
    names = {kind: [f"{kind}{i}" for i in range(n)] for kind, n in (("fine", 100), ("coarse", 20))}
    if form == "python":
        given = {b"data": PIXELS, b"fine_labels": fine, b"coarse_labels": coarse}
        (base / "test").write_bytes(pickle.dumps(given, protocol=2))
        meta = {f"{k}_label_names".encode(): [n.encode() for n in v] for k, v in names.items()}
        (base / "meta").write_bytes(pickle.dumps(meta, protocol=2))
    else:
        rows = np.column_stack([np.array(coarse, np.uint8), np.array(fine, np.uint8), PIXELS])
        (base / "test.bin").write_bytes(rows.tobytes())
        for kind, each in names.items():
            (base / f"{kind}_label_names.txt").write_text("\n".join(each) + "\n")
    data = cifar100(tmp_path, train=False)
    assert data.y.tolist() == fine and data.classes[99] == "fine99"
    groups = cifar100(tmp_path, train=False, coarse=True)
    assert groups.y.tolist() == coarse and len(groups.classes) == 20
    np.testing.assert_array_equal(groups.x.reshape(6, -1), PIXELS)


class Hostile:
    def __reduce__(self) -> Any:
        return (print, ("this must not run",))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(Hostile()), r"is damaged or no file of CIFAR: it names builtins.print"),
        (pickle.dumps({b"data": 3}), "has no pictures with labels"),
        (of_python_2(PIXELS, LABELS)[:-900], "is damaged or no file of CIFAR"),
        (of_python_2(PIXELS, LABELS[:3]), "has no pictures with labels"),
        (of_python_2(PIXELS, [*LABELS[:5], 10]), "labels from 0 to 10; valid are 0 to 9"),
        (b"", "is damaged or no file of CIFAR"),
    ],
)
def test_damaged_files(content: bytes, message: str, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "test_batch").write_bytes(content)
    with pytest.raises(DataError, match=message):
        cifar10(tmp_path, train=False)
    assert capsys.readouterr().out == ""


def test_missing_and_short_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is none of .*valid is a folder into which an arch"):
        cifar10(tmp_path, train=True)
    (tmp_path / "test.bin").write_bytes(bytes(3000))
    with pytest.raises(DataError, match="has 3000 bytes; valid is a multiple of 3074"):
        cifar100(tmp_path, train=False)


def numbered(count: int) -> Arrays:
    return Arrays(np.arange(count, dtype=np.float32)[:, None], np.arange(count))


def test_samples_are_drawn_by_their_weights() -> None:
    weights = np.array([0.0, 1.0, 3.0, 0.0, 6.0])
    loader = Loader(numbered(5), 50, sampler=WeightedSampler(weights, 4000), seed=2)
    assert len(loader) == 80
    drawn = np.concatenate([y for _, y in loader])
    np.testing.assert_allclose(np.bincount(drawn) / 4000, weights / 10, atol=0.03)
    second = np.concatenate([y for _, y in loader])
    assert not np.array_equal(drawn, second), "each epoch draws others"
    again = Loader(numbered(5), 50, sampler=WeightedSampler(weights, 4000), seed=2, workers=2)
    np.testing.assert_array_equal(np.concatenate([y for _, y in again]), drawn)
    once = Loader(numbered(5), 3, sampler=WeightedSampler(weights, 3, replacement=False))
    assert sorted(next(iter(once))[1].tolist()) == [1, 2, 4]
    balanced = WeightedSampler.balanced([0, 0, 0, 0, 1])
    np.testing.assert_allclose(balanced.weights, [0.25] * 4 + [1.0])


def test_a_loader_with_a_sampler_goes_on_where_it_was() -> None:
    sampler = WeightedSampler(np.arange(1, 9))
    loader = Loader(numbered(8), 2, sampler=sampler)
    batches = iter(loader)
    next(batches)
    state = loader.state()
    rest = [y.tolist() for _, y in batches]
    other = Loader(numbered(8), 2, sampler=sampler)
    other.restore(state)
    assert [y.tolist() for _, y in other] == rest
    wrong = Loader(numbered(8), 2, sampler=WeightedSampler(np.ones(8)))
    with pytest.raises(DataError, match="the state has sampler="):
        wrong.restore(state)
    with pytest.raises(DataError, match="the state has sampler=None"):
        other.restore(Loader(numbered(8), 2).state())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WeightedSampler([1, -1]), "valid is a number of at least 0 for each sample"),
        (lambda: WeightedSampler([0, 0]), "not all 0"),
        (lambda: WeightedSampler([1, np.nan]), "valid is a number of at least 0"),
        (lambda: WeightedSampler([1, 0, 1], 3, False), "valid is an int from 1 to 2, the samples"),
        (lambda: WeightedSampler.balanced(np.array([0.5])), "labels=array.*valid are ints"),
        (
            lambda: Loader(numbered(4), 2, sampler=WeightedSampler([1, 1])),
            "sampler has 2 weights; valid is one for each of the 4 samples",
        ),
        (
            lambda: Loader(numbered(2), 2, sampler=WeightedSampler([1, 1]), shuffle=True),
            "which shuffles itself, with shuffle=False",
        ),
        (lambda: Loader(numbered(2), 2, cutmix=-1), "cutmix=-1; valid are numbers from 0"),
        (lambda: next(iter(Loader(numbered(2), 2, cutmix=1))), "cutmix: samples have shape .1,."),
    ],
)
def test_bad_arguments(make: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make()


def test_cutmix_mixes_targets_by_areas() -> None:
    x = np.arange(8.0)[:, None, None, None] * np.ones((8, 3, 16, 20))
    data = Arrays(x, np.arange(8))
    boxes = set()
    for epoch in range(3):
        for batch, target in Loader(data, 4, cutmix=1.0, seed=epoch):
            for i in range(4):
                shares = {int(k): float((batch[i] == k).mean()) for k in np.unique(batch[i])}
                assert len(shares) <= 2
                for k in range(8):
                    assert target[i, k] == pytest.approx(shares.get(k, 0.0), abs=1e-6)
                assert sum(target[i]) == pytest.approx(1, abs=1e-6)
                boxes.add(round(max(shares.values()), 3))
    assert len(boxes) > 3


def test_with_mixup_and_cutmix_each_batch_has_one_of_them() -> None:
    x = np.arange(2.0)[:, None, None, None] * np.ones((2, 1, 16, 16))
    kinds = set()
    for seed in range(20):
        for batch, _ in Loader(Arrays(x, np.arange(2)), 2, mixup=0.4, cutmix=1.0, seed=seed):
            kinds.add(set(np.unique(batch)) <= {0.0, 1.0})
    assert kinds == {True, False}
