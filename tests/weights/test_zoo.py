from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from minidnn.errors import WeightsError
from minidnn.models import list_models
from minidnn.weights import KNOWN_WEIGHTS, find_known, load_weights, save_weights
from minidnn.weights.load import rename_old
from tests.oracles.torchvision_models import models


def test_the_table_is_torchvisions() -> None:
    expected = {}
    networks = list_models()[1:]
    for network in networks:
        enum = models.get_model_weights(network)
        for weights in enum:
            if not weights.name.startswith("IMAGENET1K_V"):
                continue  # has no classifier, or is for larger images
            transforms = weights.transforms()
            expected[str(weights)] = (
                network,
                weights.url,
                transforms.resize_size[0],
                transforms.crop_size[0],
                weights.meta["_file_size"],
                transforms.interpolation.value,
                weights is enum.DEFAULT,
            )
    found = {
        known.name: (
            known.network,
            known.url,
            known.resize,
            known.crop,
            known.megabytes,
            known.interpolation,
            known is find_known(known.network),
        )
        for known in KNOWN_WEIGHTS
    }
    assert found == expected
    assert {known.network for known in KNOWN_WEIGHTS} == set(networks)


def test_hash_prefixes() -> None:
    for known in KNOWN_WEIGHTS:
        assert len(known.hash_prefix) in (8, 10)
        int(known.hash_prefix, 16)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("resnet50", "ResNet50_Weights.IMAGENET1K_V2"),
        ("resnet18", "ResNet18_Weights.IMAGENET1K_V1"),
        ("resnet50.IMAGENET1K_V1", "ResNet50_Weights.IMAGENET1K_V1"),
        ("ResNet50_Weights.IMAGENET1K_V1", "ResNet50_Weights.IMAGENET1K_V1"),
        ("ResNet50_Weights.DEFAULT", "ResNet50_Weights.IMAGENET1K_V2"),
        ("ResNet50_Weights", "ResNet50_Weights.IMAGENET1K_V2"),
        ("inception_v3", "Inception_V3_Weights.IMAGENET1K_V1"),
        ("squeezenet1_1", "SqueezeNet1_1_Weights.IMAGENET1K_V1"),
    ],
)
def test_names(name: str, found: str) -> None:
    known = find_known(name)
    assert known is not None
    assert known.name == found


@pytest.mark.parametrize("name", ["./resnet50", "resnet50.pth", "a/b", "x.safetensors", "w-1", ""])
def test_paths_are_not_names(name: str) -> None:
    assert find_known(name) is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet5O", "weights 'resnet5O' are not known; did you mean 'resnet50'?"),
        ("Resnet50", "did you mean 'resnet50'?"),
        ("Densenet201_Weights.DEFAULT", "did you mean 'densenet201'?"),
        ("qqqq", r"'qqqq' are not known; valid are a path with a folder or an extension, alexnet"),
        ("resnet18.IMAGENET1K_V2", "not known; versions of resnet18: IMAGENET1K_V1"),
        ("VGG16_Weights.IMAGENET1K_FEATURES", "versions of VGG16_Weights: IMAGENET1K_V1"),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        load_weights(name)


def test_what_is_no_name() -> None:
    with pytest.raises(WeightsError, match="source=5 is a int; valid are a path and a name of pub"):
        load_weights(5)  # type: ignore[arg-type]


def test_densenet_keys_are_renamed_as_in_torchvision(tmp_path: Path) -> None:
    with torch.device("meta"):
        new = list(models.densenet121().state_dict())
    old = [
        name.replace("norm1", "norm.1").replace("norm2", "norm.2")
        .replace("conv1", "conv.1").replace("conv2", "conv.2")
        for name in new
        if not name.endswith("num_batches_tracked")  # younger than the published files
    ]  # fmt: skip
    assert any("norm.1" in name for name in old)
    save_weights({name: np.zeros(1) for name in old}, tmp_path / "old.safetensors")
    found = list(load_weights(tmp_path / "old.safetensors"))
    assert found == [name for name in new if not name.endswith("num_batches_tracked")]


def test_transformers_keys_are_renamed_as_in_torchvision(tmp_path: Path) -> None:
    with torch.device("meta"):
        new = list(models.vit_b_16().state_dict())
    old = [
        name.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2.") for name in new
    ]
    assert sum("linear_" in name for name in old) == 48
    save_weights({name: np.zeros(1) for name in old}, tmp_path / "old.safetensors")
    assert list(load_weights(tmp_path / "old.safetensors")) == new


def test_renaming_touches_nothing_else() -> None:
    one = np.zeros(1)
    kept = ["features.norm.1.weight", "denselayer.norm.1.weight", "denselayer1.norm.3.weight"]
    assert list(rename_old({name: one for name in kept})) == kept
    with pytest.raises(WeightsError, match=r"both 'denselayer1.norm.1.weight' and its newer name"):
        rename_old({"denselayer1.norm.1.weight": one, "denselayer1.norm1.weight": one})


# --- what kind of file it is ---


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; valid are safetensors files and what torch.save writes"),
        (b"<!DOCTYPE html><html>404", "is an HTML or XML page"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
        (b"\x89HDF\r\n\x1a\n", "is an HDF5 file"),
        (pickle.dumps({"x": 1}), "is a pickle that torch.save did not write"),
        (b"x" * 257 + b"ustar" + b"x" * 300, "is a tar archive of PyTorch before 0.1.10"),
        (b"hello world", "begins with b'hello wo', which is no format that is known"),
        (b"\x00" * 100, "begins with"),
    ],
)
def test_other_files(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "x.pth").write_bytes(content)
    with pytest.raises(WeightsError, match=message) as caught:
        load_weights(tmp_path / "x.pth")
    assert str(tmp_path / "x.pth") in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"missing.pth': cannot be read: .*No such file"):
        load_weights(tmp_path / "missing.pth")
    with pytest.raises(WeightsError, match="is not a regular file"):
        load_weights(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(WeightsError, match="is not a regular file"):
        load_weights(tmp_path / "pipe")
    with pytest.raises(WeightsError, match=r"cannot be read: (stat: )?embedded null"):
        load_weights("./a\0b.pth")


def test_the_extension_does_not_matter(tmp_path: Path) -> None:
    save_weights({"w": np.ones(2)}, tmp_path / "x.pth")
    torch.save({"w": torch.ones(2)}, tmp_path / "x.safetensors")
    assert load_weights(tmp_path / "x.pth")["w"].tolist() == [1, 1]
    assert load_weights(str(tmp_path / "x.safetensors"))["w"].tolist() == [1, 1]
    with pytest.raises(WeightsError, match="is a safetensors file, which has no entry key='a'"):
        load_weights(tmp_path / "x.pth", key="a")
