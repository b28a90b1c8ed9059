"""The predictor by itself: beside the classifier and the network, in other processes, bad input."""

from __future__ import annotations

import errno
import multiprocessing
import pickle
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minidnn as md
from minidnn import layers as L
from minidnn.batch import Predictor
from minidnn.batch import predictor as predictor_module
from minidnn.dynamic.executable import DynamicExecutable
from minidnn.errors import GraphError
from minidnn.pictures import PictureError, Preparation, read_picture
from tests.batch.pictures import Pictures, make_pictures

SIZE, CLASSES = 16, 5
PREPARATION = Preparation(20, SIZE)


def network(bias: float = 0.0) -> md.Layer:
    net = md.Sequential(
        L.Conv2d(3, 4, 3, padding=1),
        L.ReLU(),
        L.AdaptiveAvgPool2d(2),
        L.Flatten(),
        L.Linear(16, CLASSES),
    )
    random = np.random.default_rng(3)
    state = {name: random.standard_normal(a.shape) for name, a in net.state_dict().items()}
    state["4.bias"] += bias
    net.load_state_dict({name: a.astype(np.float32) for name, a in state.items()})
    return net


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Pictures:
    return make_pictures(tmp_path_factory.mktemp("pictures"), 23, 4)


@pytest.fixture
def files(pictures: Pictures) -> list[str]:
    return sorted(pictures.good | pictures.bad)


def made(**more: Any) -> Predictor:
    given: dict[str, Any] = {"batch": 4, "device": "reference", "threads": 2, **more}
    return Predictor(given.pop("network", network()), PREPARATION, **given)


def scores_of(file: str) -> np.ndarray:
    """What the network says of a file alone."""
    exe = md.compile(network(), (1, 3, SIZE, SIZE), device="reference")
    return np.asarray(exe(read_picture(file, PREPARATION)))[0]


@pytest.mark.parametrize("batch", [1, 4, 64])
def test_scores_are_the_networks(pictures: Pictures, files: list[str], batch: int) -> None:
    """Whatever else is in the batch, bad files among it."""
    found = list(made(top=None, batch=batch).predict(files))
    assert [each.file for each in found] == files
    assert {each.file for each in found if each.values is None} == pictures.bad
    for each in found:
        assert (each.values is None) == bool(each.error)
        if each.values is None:
            assert each.error.startswith(f"picture {each.file} cannot be read: ")
        else:
            np.testing.assert_allclose(each.values["scores"], scores_of(each.file), rtol=1e-5)


def test_classes_are_by_probability(files: list[str], pictures: Pictures) -> None:
    labels = [f"class {i}" for i in range(CLASSES)]
    for each in made(top=3, labels=labels).predict(files):
        if each.values is None:
            continue
        scores = scores_of(each.file).astype(np.float64)
        shares = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        order = list(np.argsort(-scores, kind="stable")[:3])
        assert each.values["classes"] == order
        assert each.values["labels"] == [labels[i] for i in order]
        np.testing.assert_allclose(each.values["probabilities"], shares[order], rtol=1e-4)


def test_probabilities_stay_as_they_are(files: list[str]) -> None:
    ends_in_softmax = md.Sequential(network(), L.Softmax(1))
    plain, told = made(top=2), made(network=ends_in_softmax, top=2, are_probabilities=True)
    for one, other in zip(plain.predict(files), told.predict(files), strict=True):
        if one.values is not None and other.values is not None:
            assert one.values["classes"] == other.values["classes"]
            np.testing.assert_allclose(
                one.values["probabilities"], other.values["probabilities"], rtol=1e-5
            )


def test_what_is_not_finite_is_an_error(files: list[str], pictures: Pictures) -> None:
    found = list(made(network=network(bias=float("nan"))).predict(files))
    assert all(each.values is None for each in found)
    for each in found:
        if each.file in pictures.good:
            assert each.error == f"picture {each.file}: 5 of the network's 5 outputs are not finite"


def opened(batch: int) -> Any:
    return md.compile(network(), (batch, 3, SIZE, SIZE), device="reference")


def test_copies_in_other_processes_say_the_same(files: list[str]) -> None:
    """Spawned, as Spark's and Dask's workers are; a function that opens the network there, too."""
    here = made(top=None)
    expected = here({"file": files})
    assert pickle.loads(pickle.dumps(here))._executable is None
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as pool:
        for predictor in (here, made(network=partial(opened), top=None)):
            assert pool.submit(predictor, {"file": files}).result(60) == expected


def test_a_data_frame_gives_one(files: list[str], pictures: Pictures) -> None:
    pandas = pytest.importorskip("pandas")
    table = made(top=2)(pandas.DataFrame({"other": range(len(files)), "file": files}))
    assert list(table.columns) == ["file", "error", "classes", "probabilities"]
    assert set(table["file"][table["error"] != ""]) == pictures.bad
    assert all(len(each) == 2 for each in table["classes"] if each is not None)


def test_no_files_are_no_predictions() -> None:
    assert list(made().predict([])) == []


@pytest.mark.parametrize(("code", "reads"), [(errno.EIO, 3), (errno.EACCES, 1)])
def test_what_may_pass_is_tried_again(
    code: int, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def fail(*_: Any) -> Any:
        tried.append(code)
        raise PictureError("cannot be read") from OSError(code, "it says")

    monkeypatch.setattr(predictor_module, "decode", fail)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    (found,) = made().predict(["a.png"])
    assert (found.error, len(tried)) == ("cannot be read", reads)


def test_what_passed_is_read(pictures: Pictures, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([OSError(errno.ESTALE, "stale"), None])
    right = predictor_module.decode

    def once(*arguments: Any) -> Any:
        if (error := next(answers)) is not None:
            raise PictureError("cannot be read") from error
        return right(*arguments)

    monkeypatch.setattr(predictor_module, "decode", once)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    (found,) = made(threads=1).predict([min(pictures.good)])
    assert found.error == "" and found.values is not None


def wrong() -> Iterator[tuple[dict[str, Any], str]]:
    yield {"top": 0}, r"top=0; valid is an integer of at least 1, or None"
    yield {"batch": None}, r"batch=None; valid is an integer of at least 1$"
    yield {"threads": 1.5}, r"threads=1.5; valid is an integer"


@pytest.mark.parametrize(("arguments", "message"), list(wrong()))
def test_arguments_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        made(**arguments)


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(GraphError, match=r"preparation=224; valid is a minidnn.Preparation"):
        Predictor(network(), 224)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="labels has 2 names; valid are 5, one for each output"):
        list(made(labels=["a", "b"]).predict(["a.png"]))
    with pytest.raises(GraphError, match=r"labels=\['a'\] with top=None; valid is top, or no lab"):
        made(labels=["a"], top=None)
    compiled = md.compile(network(), (4, 3, SIZE, SIZE), device="reference")
    for name, wanted, own in (("device", "cpu", "reference"), ("precision", "float64", "float32")):
        text = f"{name}='{wanted}' with an executable of {name} '{own}'; valid is the same, or None"
        options: Any = {"device": "reference", name: wanted}
        with pytest.raises(GraphError, match=text):
            list(made(network=compiled, **options).predict(["a.png"]))
    other = Preparation(32, 32)
    fixed = partial(opened)
    with pytest.raises(GraphError, match=r"has inputs \[\(4, 3, 16, 16\)\] and outputs \[\(4, 5\)"):
        list(Predictor(fixed, other, batch=4, device="reference").predict(["a.png"]))


@pytest.mark.parametrize(
    ("least", "multiple", "rows"), [(1, 1, [6, 6, 4]), (2, 2, [6, 6, 4]), (5, 1, [6, 6, 5])]
)
def test_the_last_pictures_are_no_whole_batch(
    pictures: Pictures,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    least: int,
    multiple: int,
    rows: list[int],
) -> None:
    """Of a file for a range; no row is filled up but to the least batch."""
    last = 60 // multiple * multiple
    shape: Any = (md.Dim("n", least, last, multiple), 3, SIZE, SIZE)
    md.save_graph(network(), tmp_path / "net.safetensors", shape)
    graph = pickle.loads(pickle.dumps(md.load_graph(tmp_path / "net.safetensors")))
    called: list[int] = []
    compute = DynamicExecutable.__call__

    def recorded(self: DynamicExecutable, x: np.ndarray) -> Any:
        called.append(len(x))
        return compute(self, x)

    monkeypatch.setattr(DynamicExecutable, "__call__", recorded)
    files = sorted(pictures.good)[:16]
    for each in made(network=graph, batch=6, top=None).predict(files):
        assert each.values is not None
        np.testing.assert_allclose(each.values["scores"], scores_of(each.file), rtol=1e-5)
    assert called == rows
