"""The same batches for any workers and from any place on; mixing, limits, and bad arguments."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import numpy as np
import pytest

from minidnn.data import (
    Arrays,
    ColorJitter,
    Cutout,
    DataError,
    Draws,
    Flip,
    Loader,
    Normalize,
    RandomCrop,
    ResizedCrop,
    Samples,
    WeightedSampler,
)

STEPS: list[Any] = [
    *(ResizedCrop(10), RandomCrop(8, 1), Flip(), ColorJitter(0.4, 0.4, 0.4, 0.1)),
    *(Normalize(), Cutout(3)),
]
X = np.random.default_rng(0).random((23, 3, 12, 14), np.float32)
Y = np.arange(23) % 5


def loader(workers: int = 0, **more: Any) -> Loader:
    return Loader(Arrays(X, Y, STEPS), 5, **{"shuffle": True, "workers": workers, **more})


def epochs(loader: Loader, count: int = 2) -> list[tuple[bytes, bytes]]:
    return [(x.tobytes(), y.tobytes()) for _ in range(count) for x, y in loader]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mixup", [0.0, 0.2])
def test_batches_are_the_same_for_any_number_of_workers(mixup: float) -> None:
    expected = epochs(loader(mixup=mixup))
    assert len(set(expected)) == 10
    for workers in (1, 3):
        assert epochs(loader(workers, mixup=mixup)) == expected
        assert epochs(loader(workers, ahead=1, mixup=mixup)) == expected


def test_batches_of_processes_are_the_same() -> None:
    many = loader(2, processes=True, mixup=0.2)
    assert epochs(many) == epochs(loader(mixup=0.2))
    many.close()
    many.close()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("workers", [0, 3])
def test_resuming_at_every_place_gives_the_same_bits(workers: int) -> None:
    whole = loader(workers)
    states, batches = [whole.state()], []
    for _ in range(2):
        for x, y in whole:
            batches.append((x.tobytes(), y.tobytes()))
            states.append(whole.state())
    for place, state in enumerate(states):
        other = loader(workers)
        other.restore(json.loads(json.dumps(state)))
        assert epochs(other, 2 - state["epoch"]) == batches[place:]
        assert other.state() == whole.state()


def test_every_sample_comes_once_an_epoch() -> None:
    plain = Loader(Arrays(np.arange(23.0), np.arange(23)), 5, shuffle=True)
    first, second = ([*np.concatenate([y for _, y in plain])] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(23))
    assert first != second and first != sorted(first)
    assert [len(y) for _, y in plain] == [5, 5, 5, 5, 3] and len(plain) == 5
    whole = Loader(plain.dataset, 5, drop_last=True)
    assert np.concatenate([y for _, y in whole]).tolist() == list(range(20)) and len(whole) == 4


def test_seeds_and_epochs_differ() -> None:
    seeds = [epochs(loader(seed=seed)) for seed in (0, 1)]
    assert not {*seeds[0]} & {*seeds[1]}


def test_a_sample_is_augmented_alike_in_any_order_and_batch() -> None:
    dataset = Arrays(X, np.arange(23), STEPS)
    found: dict[int, set[bytes]] = {}
    for batch, shuffle in ((5, True), (23, False), (1, False)):
        for x, y in Loader(dataset, batch, shuffle=shuffle):
            for one, number in zip(x, y, strict=True):
                found.setdefault(int(number), set()).add(one.tobytes())
    assert len(found) == 23 and all(len(each) == 1 for each in found.values())


def test_a_loop_that_is_left_starts_anew() -> None:
    one = loader()
    first = next(iter(one))
    assert one.state()["position"] == 1
    np.testing.assert_array_equal(next(iter(one))[0], first[0])
    assert len(list(one)) == 5 and one.state()["epoch"] == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_two_iterations_at_once_are_refused(workers: int) -> None:
    one = loader(workers)
    first = iter(one)
    next(first)
    next(iter(one))
    with pytest.raises(DataError, match="another iteration of this loader has begun"):
        next(first)


def test_a_finished_iteration_leaves_a_restored_place_alone() -> None:
    one = loader()
    iteration = iter(one)
    batches = [next(iteration) for _ in range(5)]
    one.restore({**one.state(), "position": 2})
    with pytest.raises(DataError, match="its state was restored"):
        next(iteration)
    np.testing.assert_array_equal(next(iter(one))[0], batches[2][0])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"batch": 4}, "the state has batch=4, and the loader has 5; valid is the state of a"),
        ({"samples": 22}, "the state has samples=22, and the loader has 23"),
        ({"seed": 1}, "the state has seed=1, and the loader has 0"),
        ({"shuffle": False}, "the state has shuffle=False"),
        ({"mixup": 0.1}, "the state has mixup=0.1"),
        ({"position": -1}, "the state has position=-1; valid are integers from 0"),
        ({"epoch": "a"}, "the state has epoch='a'"),
        ({"epoch": None}, "the state has epoch=None"),
    ],
)
def test_states_of_other_loaders_are_refused(change: dict[str, Any], text: str) -> None:
    one = loader()
    with pytest.raises(DataError, match=re.escape(text)):
        one.restore({**one.state(), **change})
    with pytest.raises(DataError, match="the state has seed=None"):
        one.restore({})


@pytest.mark.parametrize("option", [{"cutmix": 0.5}, {"sampler": WeightedSampler(np.ones(len(X)))}])
def test_states_of_loaders_with_another_option_are_refused(option: dict[str, Any]) -> None:
    plain, other = Loader(Arrays(X, Y), 5), Loader(Arrays(X, Y), 5, **option)
    (name,) = option
    for one, state in ((plain, other.state()), (other, plain.state())):
        with pytest.raises(DataError, match=f"the state has {name}=.*, and the loader has "):
            one.restore(state)
    assert name not in plain.state()


def test_mixup_is_that_of_its_paper() -> None:
    """One share a batch, its own neighbours as partners."""
    plain, mixed = (Loader(Arrays(X, Y), 5, mixup=mixup) for mixup in (0.0, 0.7))
    shares = []
    for (x, y), (found, targets) in zip(plain, mixed, strict=True):
        soft, place = np.eye(5)[y], int(np.argmax(y != np.roll(y, 1)))
        share = targets[place, y[place]]
        for i in range(len(x)):
            np.testing.assert_allclose(found[i], share * x[i] + (1 - share) * x[i - 1], atol=1e-6)
            expected = share * soft[i] + (1 - share) * soft[i - 1]
            np.testing.assert_allclose(targets[i], expected, atol=1e-6)
        assert found.dtype == targets.dtype == np.float32
        shares.append(share)
    assert len(set(shares)) == 5 and min(shares) >= 0 and max(shares) <= 1


def test_shares_are_distributed_as_beta() -> None:
    many = Loader(Arrays(np.arange(2000) % 2, np.zeros(2000)), 2, mixup=0.7)
    shares = np.array([x[1] for x, _ in many])
    assert abs(shares.mean() - 0.5) < 0.03 and abs(shares.var() - 0.25 / 2.4) < 0.01


def test_mixup_keeps_probabilities_and_refuses_what_is_no_class() -> None:
    soft = np.eye(5, dtype=np.float32)[Y]
    for (_, a), (_, b) in zip(
        *(Loader(Arrays(X, y), 5, mixup=0.2) for y in (Y, soft)), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(DataError, match=r"mixup: targets go from 0 to 4, and .* classes=3; valid"):
        list(Loader(Arrays(X, Y, classes=3), 5, mixup=0.2))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("workers", [0, 2])
def test_nan_is_refused_by_name_or_let_pass(value: float, workers: int) -> None:
    x = X.copy()
    x[13, 1, 2, 3] = value
    with pytest.raises(DataError, match="sample 13 has NaN or infinities; finite=False lets them"):
        list(Loader(Arrays(x, Y), 5, workers=workers))
    assert len(list(Loader(Arrays(x, Y), 5, workers=workers, finite=False))) == 5


def test_no_more_is_made_ahead_than_was_asked_for() -> None:
    made = []
    enough = threading.Semaphore(0)

    def note(x: np.ndarray, draws: Draws) -> np.ndarray:
        made.append(len(x))
        enough.release()
        return x

    many = Loader(Arrays(np.zeros(100), np.zeros(100), [note]), 1, workers=2, ahead=3)
    for got, _ in enumerate(many, 1):
        assert enough.acquire(timeout=10)
        assert got <= len(made) <= got + 3
        if got == 20:
            break


def test_workers_serve_one_loop_after_another() -> None:
    many = loader(2)
    for _ in range(3):
        next(iter(many))
    count = sum(thread.name == "minidnn-data" for thread in threading.enumerate())
    list(many)
    workers = many._workers
    list(many)
    assert many._workers is workers is not None
    many.close()
    assert count >= 2
    assert epochs(many, 1) == epochs(loader(), 3)[10:]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"batch": 0}, "batch=0; valid are ints from 1"),
        ({"batch": 5, "workers": -1}, "workers=-1; valid are ints from 0"),
        ({"batch": 5, "workers": 1, "ahead": 0}, "ahead=0; valid are ints from 1"),
        ({"batch": 5, "seed": -1}, "seed=-1; valid are ints from 0"),
        ({"batch": 5, "seed": 2**64}, "valid are ints from 0 to 2**64 - 1"),
        ({"batch": 2.5}, "batch=2.5; valid are ints from 1"),
        ({"batch": 5, "cutmix": "a"}, "cutmix='a'; valid are numbers from 0"),
        ({"batch": 5, "processes": True}, "processes=True with workers=0; valid is workers of"),
        ({"batch": 5, "mixup": -1}, "mixup=-1; valid are numbers from 0"),
        ({"batch": 24, "drop_last": True}, "batch=24 is more than the 23 samples, and drop_last"),
    ],
)
def test_arguments_that_cannot_be(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(DataError, match=re.escape(text)):
        Loader(Arrays(X, Y), **arguments)


def test_what_is_no_dataset() -> None:
    with pytest.raises(DataError, match=r"dataset is a list; valid are .*: Samples\(\.\.\.\)"):
        Loader([(1, 2)], 1)  # type: ignore[arg-type]
    ((x, _),) = Loader(Samples([(np.zeros(3), 1)]), 1)
    assert x.shape == (1, 3)


@pytest.mark.parametrize("count", [1, 7, 12, 13])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("drop_last", [False, True])
def test_shards_are_all_samples(count: int, ranks: int, drop_last: bool) -> None:
    """Each once, but for the few that are left out or taken twice, so that all have as many."""
    if drop_last and count // ranks < 1:
        return
    pictures = Arrays(np.zeros((count, 1, 1, 1)), np.arange(count))
    batch = 1 if drop_last else 2
    loaders = [
        Loader(pictures, batch, shuffle=True, seed=3, drop_last=drop_last, shard=(rank, ranks))
        for rank in range(ranks)
    ]
    for _ in range(2):
        taken = [np.concatenate([target for _, target in each]) for each in loaders]
        sizes = {len(each) for each in taken}
        assert sizes == {count // ranks if drop_last else -(-count // ranks)}
        assert len({len(each) for each in loaders}) == 1
        times = np.bincount(np.concatenate(taken), minlength=count)
        spare = ranks * sizes.pop() - count
        assert times.sum() == count + spare
        if drop_last:
            assert set(times) <= {0, 1}
        else:
            assert times.min() >= 1 and times.max() - times.min() <= 1


def test_one_shard_is_the_whole_order() -> None:
    pictures = Arrays(np.zeros((9, 1, 1, 1)), np.arange(9))
    plain = [target.tolist() for _, target in Loader(pictures, 2, shuffle=True, seed=3)]
    parts = [Loader(pictures, 1, shuffle=True, seed=3, shard=(rank, 3)) for rank in range(3)]
    mixed = [target.item() for each in zip(*parts, strict=True) for _, target in each]
    assert mixed == [number for batch in plain for number in batch]


def test_shards_are_checked() -> None:
    pictures = Arrays(np.zeros((4, 1, 1, 1)), np.arange(4))
    with pytest.raises(DataError, match=r"shard=\(2, 2\); valid is a rank from 0, and a larger"):
        Loader(pictures, 1, shard=(2, 2))
    with pytest.raises(DataError, match="more than the 2 samples that each of 2 ranks has"):
        Loader(pictures, 3, drop_last=True, shard=(0, 2))
    state = Loader(pictures, 1, shard=(0, 2)).state()
    with pytest.raises(DataError, match="the state has ranks=2, and the loader has 1"):
        Loader(pictures, 1).restore(state)
