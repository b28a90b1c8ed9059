"""``minidnn classify``, compared with torchvision from the file to the last probability."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minidnn import models
from minidnn.cli import main
from minidnn.cli.imagenet import IMAGENET_LABELS
from minidnn.errors import DownloadError
from minidnn.pictures import Preparation, read_picture
from minidnn.weights import load_weights, save_weights

PIL = pytest.importorskip("PIL.Image")

REFERENCE = ["--device", "reference"]


def picture(path: Path, seed: int, size: tuple[int, int] = (60, 80)) -> Path:
    coarse = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), np.uint8)
    PIL.fromarray(coarse).resize(size[::-1], PIL.Resampling.BICUBIC).save(path)
    return path


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "pictures"
    folder.mkdir()
    return [picture(folder / f"{name}.png", seed) for seed, name in enumerate("bac")]


def classify(
    capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0
) -> tuple[str, list[str]]:
    """What ``minidnn classify`` prints, and its lines on standard error."""
    assert main(["classify", *map(str, arguments), *REFERENCE]) == code
    printed = capsys.readouterr()
    return printed.out, printed.err.splitlines()


def small(weights: Path) -> list[str]:
    return ["--network", "squeezenet1_1", "--weights", str(weights), "--size", "64"]


def test_classes_and_probabilities_are_those_of_torchvision(
    squeezenet: Path, pictures: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    from tests.oracles.torchvision_models import models as torchvision

    presets = pytest.importorskip("torchvision.transforms._presets")
    net = torchvision.squeezenet1_1(weights=None).eval()
    net.load_state_dict({k: torch.tensor(v) for k, v in load_weights(squeezenet).items()})
    prepare = presets.ImageClassification(crop_size=64, resize_size=73)
    x = torch.stack([prepare(PIL.open(path).convert("RGB")) for path in pictures])
    with torch.no_grad():
        expected = torch.softmax(net(x).double(), 1).topk(3)
    out, err = classify(capsys, *pictures, *small(squeezenet), "--json", "--top", 3)
    document = json.loads(out)
    assert err == []
    assert {k: document[k] for k in ("network", "device", "resize", "crop")} == {
        "network": "squeezenet1_1",
        "device": "reference",
        "resize": 73,
        "crop": 64,
    }
    assert document["weights"] == str(squeezenet)
    found = document["pictures"]
    assert [entry["file"] for entry in found] == [str(path) for path in pictures]
    classes = [[c["class"] for c in entry["classes"]] for entry in found]
    assert classes == expected.indices.tolist()
    shares = [[c["probability"] for c in entry["classes"]] for entry in found]
    np.testing.assert_allclose(shares, expected.values.numpy(), rtol=1e-4)
    assert set(found[0]["classes"][0]) == {"class", "probability", "score"}


def test_batches_change_nothing(
    squeezenet: Path, pictures: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The last batch of two holds one picture."""
    one, _ = classify(capsys, *pictures, *small(squeezenet), "--batch", 1)
    two, _ = classify(capsys, *pictures, *small(squeezenet), "--batch", 2)
    assert one == two
    lines = one.splitlines()
    assert lines[0] == str(pictures[0]) and len(lines) == 3 * 6
    rank, share, percent, word, index = lines[1].split()
    assert (rank, percent, word) == ("1.", "%", "class")
    assert 0 < float(share) <= 100 and 0 <= int(index) < 1000


def test_a_folder_is_its_pictures_by_name(
    squeezenet: Path, pictures: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pictures[0].parent
    (folder / "notes.txt").write_text("no picture")
    (folder / "below").mkdir()
    picture(folder / "below" / "d.png", 9)
    out, err = classify(capsys, folder, *small(squeezenet), "--top", 1)
    assert out.splitlines()[::2] == [str(folder / f"{name}.png") for name in "abc"]
    assert err == []
    for path in pictures:
        path.unlink()
    out, err = classify(capsys, folder, *small(squeezenet), code=2)
    assert err == [f"minidnn classify: folder {folder} has no picture files among its 2 entries"]


def test_unreadable_pictures_do_not_lose_the_others(
    squeezenet: Path, pictures: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    alone, _ = classify(capsys, pictures[0], pictures[2], *small(squeezenet))
    data = pictures[1].read_bytes()
    pictures[1].write_bytes(data[: len(data) // 2])
    absent = pictures[0].with_name("absent.png")
    out, err = classify(capsys, *pictures, absent, *small(squeezenet), code=1)
    assert out == alone
    assert err[0].startswith(f"minidnn classify: picture {pictures[1]} cannot be read: ")
    assert err[1] == f"minidnn classify: picture {absent} cannot be read: No such file or directory"
    out, _ = classify(capsys, *pictures, "--json", *small(squeezenet), code=1)
    entries = json.loads(out)["pictures"]
    assert ["error" in entry for entry in entries] == [False, True, False]


def test_names_that_the_terminal_cannot_show(root: Path, tmp_path: Path) -> None:
    image = picture(tmp_path / "\u00fc.png", 1, (8, 8))
    command = ["-m", "minidnn", "classify", str(image), "--network", "digits", *REFERENCE]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=root,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0].endswith("\\xfc.png")


def test_weights_are_not_fetched_for_pictures_that_are_not_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_classifier(options: object) -> None:
        raise AssertionError("asked for weights")

    monkeypatch.setattr("minidnn.cli.classify.make_classifier", make_classifier)
    out, err = classify(capsys, "absent.png", "nor_this.png", code=2)
    assert out == ""
    assert err == ["minidnn classify: IMAGE absent.png nor_this.png: there is no such file"]


def test_random_weights_are_said_plainly(
    pictures: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [pictures[0], "--network", "squeezenet1_1", "--size", 64, "--weights", "random"]
    out, err = classify(capsys, *arguments)
    assert err == ["minidnn classify: the weights are random: these classes mean nothing"]
    assert len(out.splitlines()) == 6
    out, _ = classify(capsys, *arguments, "--json")
    assert json.loads(out)["weights"] == "random"


def test_published_weights_bring_sizes_and_labels(
    squeezenet: Path,
    pictures: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fetched: list[str] = []

    def fetch(url: str, hash_prefix: str, **options: Any) -> Path:
        fetched.append(url)
        return squeezenet

    monkeypatch.setattr("minidnn.weights.download.fetch", fetch)
    name = "squeezenet1_1"
    documents = []
    for weights in ("default", "IMAGENET1K_V1", name, "SqueezeNet1_1_Weights.IMAGENET1K_V1"):
        arguments = [pictures[0], "--network", name, "--weights", weights, "--json"]
        if weights != name:  # full size once, to keep this short
            arguments += ["--size", "64"]
        documents.append(json.loads(classify(capsys, *arguments)[0]))
    assert [d["weights"] for d in documents] == ["SqueezeNet1_1_Weights.IMAGENET1K_V1"] * 4
    assert [(d["resize"], d["crop"]) for d in documents] == [(73, 64)] * 2 + [(256, 224), (73, 64)]
    assert len(fetched) == 4 and fetched[0].endswith("squeezenet1_1-b8a52dc0.pth")
    for found in documents[2]["pictures"][0]["classes"]:
        assert found["label"] == IMAGENET_LABELS[found["class"]]


def test_without_a_network_it_says_what_it_wants_and_what_else_there_is(
    pictures: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def resolve(*arguments: object, **named: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    def sleep(seconds: float) -> None:
        raise AssertionError("waits in vain")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(time, "sleep", sleep)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    out, err = classify(capsys, pictures[0], code=2)
    url = "https://download.pytorch.org/models/resnet50-11ad3fa6.pth"
    assert out == ""
    assert err == [
        "minidnn classify: fetching the weights ResNet50_Weights.IMAGENET1K_V2 (98 MiB) from "
        f"{url}, once",
        f"minidnn classify: cannot download {url}: no connection to download.pytorch.org: "
        "Temporary failure in name resolution",
        "  --weights FILE takes weights that are on this machine, --weights random takes none; "
        "--network digits has weights that came with minidnn",
    ]
    with pytest.raises(DownloadError, match=r"instead of 'resnet18.DEFAULT', the path of a file"):
        models.resnet18(weights="DEFAULT")


def test_what_is_in_the_cache_is_not_announced(
    squeezenet: Path,
    pictures: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def download(url: str, target: Path, hash_prefix: str, **options: Any) -> None:
        target.write_bytes(squeezenet.read_bytes())

    monkeypatch.setattr("minidnn.weights.download.download", download)
    arguments = [pictures[0], "--network", "squeezenet1_1", "--size", 64]
    first, said = classify(capsys, *arguments)
    again, silent = classify(capsys, *arguments)
    assert (first, len(said), silent) == (again, 1, [])


def test_sizes_follow_the_version_of_the_weights() -> None:
    """torchvision's own list is the oracle: V1 and V2 want different sizes."""
    pytest.importorskip("torch")
    from minidnn.cli.preparing import known_of, published, source_of
    from tests.oracles.torchvision_models import models as torchvision

    for network in models.list_models():
        if network == "digits":
            continue
        for entry in torchvision.get_model_weights(network):
            if not entry.name.startswith("IMAGENET1K_V"):  # without a classifier, or larger
                continue
            found = published(network, source_of(network, entry.name), 1, 3)
            made = entry.transforms()
            assert (found.resize, found.crop) == (made.resize_size[0], made.crop_size[0]), entry
            assert (found.mean, found.std) == (tuple(made.mean), tuple(made.std)), entry
        default = torchvision.get_model_weights(network).DEFAULT
        known = known_of(network, source_of(network, "default"))
        assert known is not None and known.name == str(default)


def test_pictures_are_resized_as_the_weights_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from minidnn.cli.classify import add_arguments, make_classifier

    monkeypatch.setattr("minidnn.layers.calibration.calibrate_on_noise", lambda network: network)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    for network, wanted in (("efficientnet_b0", "bicubic"), ("mobilenet_v2", "bilinear")):
        options = parser.parse_args(["a.png", "--network", network, "--weights", "random"])
        assert make_classifier(options).preparation.interpolation == wanted


def test_labels_of_imagenet_are_torchvisions() -> None:
    pytest.importorskip("torch")
    from tests.oracles.torchvision_models import models as torchvision

    assert torchvision.ResNet50_Weights.DEFAULT.meta["categories"] == list(IMAGENET_LABELS)


def test_the_digits_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Grey pictures, weights that came with minidnn, and an accuracy."""
    datasets = pytest.importorskip("sklearn.datasets")
    digits = datasets.load_digits()
    for i, image in enumerate(digits.images[-60:]):
        ink = np.round(image * 255 / 16).astype(np.uint8)
        PIL.fromarray(ink).save(tmp_path / f"{i:02d}.png")
    labels = tmp_path / "labels.txt"
    labels.write_text("".join(f"digit {i}\n" for i in range(10)))
    arguments = ["--network", "digits", "--top", 1, "--json", "--labels", labels]
    out, err = classify(capsys, tmp_path, *arguments)
    document = json.loads(out)
    found = [entry["classes"][0] for entry in document["pictures"]]
    right = [c["class"] == want for c, want in zip(found, digits.target[-60:], strict=True)]
    assert sum(right) >= 58
    assert {c["label"] for c in found} == {f"digit {i}" for i in range(10)}
    assert (document["weights"], err) == ("minidnn's digits", [])


def test_other_numbers_of_classes_come_from_the_file(
    tmp_path: Path, pictures: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    weights = tmp_path / "mine.safetensors"
    save_weights(models.squeezenet1_1(num_classes=3).state_dict(), weights)
    labels = tmp_path / "labels.json"
    labels.write_text(json.dumps({"0": ["n01", "cat"], "1": ["n02", "dog"], "2": ["n03", "öre"]}))
    arguments = [pictures[0], *small(weights), "--labels", labels]
    out, _ = classify(capsys, *arguments)
    assert sorted(line.split()[-1] for line in out.splitlines()[1:]) == ["cat", "dog", "öre"]
    wrong = "minidnn classify: --labels imagenet has 1000 names, but the network has 3 outputs"
    assert classify(capsys, *arguments[:-1], "imagenet", code=2) == ("", [wrong])


def test_checkpoints_have_a_key(
    tmp_path: Path, pictures: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    state = {k: torch.tensor(v) for k, v in models.squeezenet1_1().state_dict().items()}
    path = tmp_path / "checkpoint.pth"
    torch.save({"epoch": 3, "state_dict": state}, path)
    _, (error,) = classify(capsys, pictures[0], *small(path), code=2)
    assert "state_dict" in error
    out, _ = classify(capsys, pictures[0], *small(path), "--key", "state_dict", "--top", 1)
    assert len(out.splitlines()) == 2
    torch.save({f"module.{name}": tensor for name, tensor in state.items()}, path)
    _, lines = classify(capsys, pictures[0], *small(path), code=2)
    assert "52 of 52 parameters fit: load_state_dict(state, prefix='module.')" in lines[1]
    found, _ = classify(capsys, pictures[0], *small(path), "--prefix", "module.", "--top", 1)
    assert found == out


def test_inception_gets_the_input_that_its_weights_want(tmp_path: Path) -> None:
    from minidnn.cli.preparing import load

    path = tmp_path / "inception.safetensors"
    state = models.inception_v3(seed=0).state_dict()
    save_weights(state, path)
    net = load(models.inception_v3(), "inception_v3", str(path), None, print)
    given = models.inception_v3(weights=path)
    assert type(net.transform) is type(given.transform) is not type(models.inception_v3().transform)


def test_outputs_that_are_not_finite_are_an_error(
    tmp_path: Path, pictures: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    state = dict(models.squeezenet1_1(num_classes=4).state_dict())
    bias = state["classifier.1.bias"].copy()
    bias[:2] = np.inf
    path = tmp_path / "inf.safetensors"
    save_weights({**state, "classifier.1.bias": bias}, path)
    out, (error,) = classify(capsys, pictures[0], *small(path), code=1)
    assert out == "" and "2 of the network's 4 outputs are not finite" in error


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--network", "resnet51"], "name='resnet51': no such network; did you mean 'resnet50'"),
        (
            ["--network", "resnet18", "--weights", "resnet50"],
            "--weights resnet50 are those of resnet50, not of --network resnet18",
        ),
        (["--weights", "/nowhere.pth"], "/nowhere.pth"),
        (["--network", "vgg11", "--weights", "nothing"], "weights 'nothing' are not known"),
        (
            ["--weights", "random", "--network", "squeezenet1_1", "--resize", "100"],
            "--resize 100 is less than the 224 pixels that are cut out",
        ),
        (
            ["--weights", "random", "--network", "squeezenet1_1", "--labels", "/nowhere"],
            "--labels /nowhere cannot be read: No such file or directory",
        ),
        (
            ["--weights", "random", "--network", "squeezenet1_1", "--precision", "float7"],
            "precision='float7' on device 'reference'; valid are 'float32', 'float64'",
        ),
    ],
)
def test_errors_are_one_line(
    arguments: list[str],
    error: str,
    pictures: list[Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, lines = classify(capsys, pictures[0], *arguments, code=2)
    lines = [line for line in lines if "random" not in line]
    assert out == "" and len(lines) == 1
    assert lines[0].startswith("minidnn classify: ") and error in lines[0]


def test_weights_of_another_network_are_an_error_of_a_few_lines(
    squeezenet: Path, pictures: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [pictures[0], "--network", "resnet50", "--weights", squeezenet]
    _, lines = classify(capsys, *arguments, code=2)
    assert lines[0].startswith("minidnn classify: the state dict does not fit ResNet")
    assert len(lines) == 13 and lines[-1].endswith("lines more (--debug prints them)")


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("a.txt", b"one\ntwo\n", "has 2 names, but the network has 1000 outputs"),
        ("a.txt", b"\xff\xfe\x00", "is not UTF-8 text: "),
        ("a.json", b"[1, 2", "is not valid JSON: "),
        ("a.json", b"[" * 100_000, "is not valid JSON: "),
        ("a.json", b'"one"', "valid is a list of names, or an object of them"),
        ("a.json", b'["one", 2]', "entry 1 is 2, which is no name"),
        ("a.json", b'{"0": "one", "2": "two"}', "has no key '1'; valid are the keys '0', '1'"),
    ],
)
def test_labels_that_are_none(
    name: str,
    content: bytes,
    error: str,
    tmp_path: Path,
) -> None:
    from minidnn.cli.preparing import load_labels
    from minidnn.errors import MiniDNNError

    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(MiniDNNError) as caught:
        load_labels(str(path), 1000)
    assert str(caught.value).startswith(f"--labels {path}") and error in str(caught.value)


def test_labels_from_text(tmp_path: Path) -> None:
    from minidnn.cli.preparing import load_labels

    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffcat, domestic\r\n dog \r\nöre\r\n\r\n".encode())
    assert load_labels(str(path), 3) == ["cat, domestic", "dog", "öre"]


def test_without_pillow(
    pictures: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    arguments = [pictures[0], "--network", "digits"]
    _, (error,) = classify(capsys, *arguments, code=2)
    assert error.endswith("Pillow is not installed (pip install 'minidnn[images]')")


def test_one_picture_is_what_the_network_says(
    squeezenet: Path, pictures: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without PyTorch: the reference of the graph, by hand."""
    from minidnn.graph.evaluate import evaluate
    from minidnn.layers.build import to_graph

    net = models.squeezenet1_1(weights=squeezenet)
    x = read_picture(pictures[0], Preparation(73, 64))
    (scores,) = evaluate(to_graph(net, x.shape), [x])
    out, _ = classify(capsys, pictures[0], *small(squeezenet), "--json", "--top", 1000)
    (entry,) = json.loads(out)["pictures"]
    assert [c["class"] for c in entry["classes"]] == np.argsort(-scores[0], kind="stable").tolist()
    assert sum(c["probability"] for c in entry["classes"]) == pytest.approx(1)
