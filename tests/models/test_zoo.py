"""The zoo's names, arguments, random weights and errors."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from minidnn import models
from minidnn.errors import GraphError, WeightsError
from minidnn.layers import Layer
from minidnn.layers.build import to_graph
from minidnn.passes.pipeline import optimize
from minidnn.weights import save_weights
from tests.sampling import every

NETWORKS = [name for name in models.list_models() if name != "digits"]


def drawn(net: Layer) -> list[str]:
    """Names of the parameters whose numbers exist already."""
    return [
        name
        for name, parameter in net.named_parameters()
        if parameter._array is not None and parameter._array._array is not None
    ]


def test_unknown_name_lists_the_valid_ones() -> None:
    with pytest.raises(GraphError) as caught:
        models.get_model("resnet51")
    text = str(caught.value)
    assert text.startswith("name='resnet51': no such network; did you mean 'resnet50' or ")
    assert text.endswith(f"valid are {', '.join(models.list_models())}")


@pytest.mark.parametrize("name", ["", "yolo", "ResNet", 7])
def test_names_without_a_near_one(name: object) -> None:
    with pytest.raises(GraphError, match=r"no such network; (did you mean .*)?valid are digits"):
        models.get_model(name)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", every(3, NETWORKS))
def test_the_function_and_the_name_give_the_same(name: str) -> None:
    by_name = models.get_model(name, num_classes=7)
    by_function = getattr(models, name)(num_classes=7)
    assert repr(by_name) == repr(by_function)
    assert to_graph(by_name, (3, *by_name.input_shape)).outputs[0].shape == (3, 7)


@pytest.mark.parametrize("name", ["vgg19_bn", "densenet201", "resnet152"])
def test_defining_a_network_and_its_graph_draws_nothing(name: str) -> None:
    net = models.get_model(name)
    to_graph(net, (1, *net.input_shape))
    assert drawn(net) == []


@pytest.mark.sampled(3)
@pytest.mark.alone
@pytest.mark.parametrize(("name", "limit"), [("resnet50", 0.2), ("densenet201", 1.0)])
def test_building_and_all_passes_are_quick(name: str, limit: float) -> None:
    """In seconds of the processor, which other processes do not lengthen."""
    times = []
    for _ in range(3):
        begin = time.process_time()
        net = models.get_model(name)
        optimize(to_graph(net, (1, *net.input_shape)))
        times.append(time.process_time() - begin)
    assert min(times) < limit


def test_random_weights_follow_the_seed_alone() -> None:
    first = models.squeezenet1_1(seed=3).state_dict()
    again = models.get_model("squeezenet1_1", seed=3).state_dict()
    other = models.squeezenet1_1(seed=4).state_dict()
    for name, array in first.items():
        np.testing.assert_array_equal(array, again[name])
        assert name.endswith("bias") or (array != other[name]).any(), name


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet18", {}),
        ("squeezenet1_0", {}),
        ("densenet121", {}),
        ("inception_v3", {"init_weights": True, "aux_logits": False}),
        pytest.param("alexnet", {}, marks=pytest.mark.full),
        pytest.param("vgg11", {}, marks=pytest.mark.full),
        *(
            pytest.param(name, {}, marks=pytest.mark.full)
            for name in NETWORKS
            if name not in models.CLASSIC
        ),
    ],
)
def test_random_weights_are_spread_as_torchvisions(name: str, options: dict[str, bool]) -> None:
    """Standard deviation and range of each larger weight, against torchvision's own draw."""
    torch = pytest.importorskip("torch")
    from tests.oracles.torchvision_models import models as torchvision_models

    from .networks import check_spread

    torch.manual_seed(0)
    expected = getattr(torchvision_models, name)(weights=None, **options).state_dict()
    check_spread(models.get_model(name).state_dict(), expected)


def test_vggs_weights_have_the_documented_spread() -> None:
    """As the test above, without drawing 133 million numbers twice."""
    parameters = dict(models.vgg11().named_parameters())

    def array(name: str) -> np.ndarray:
        return parameters[name].bind(name)()

    assert array("features.3.weight").std() == pytest.approx((2 / (128 * 9)) ** 0.5, rel=0.02)
    assert array("classifier.6.weight").std() == pytest.approx(0.01, rel=0.02)
    assert not array("features.3.bias").any() and not array("classifier.6.bias").any()


@pytest.mark.parametrize(
    ("name", "size", "node"),
    [
        ("alexnet", 16, "features.5"),
        ("vgg11", 16, "features.20"),
        ("inception_v3", 64, "Mixed_7a.branch3x3_2.conv"),
        ("squeezenet1_0", 4, "features.0"),
        ("densenet121", 8, "features.transition2.pool"),
    ],
)
def test_images_too_small_name_the_layer(name: str, size: int, node: str) -> None:
    with pytest.raises(GraphError) as caught:
        to_graph(models.get_model(name), (1, 3, size, size))
    assert str(caught.value).startswith(f"node '{node}': ")
    assert "larger than the padded input" in str(caught.value)


@pytest.mark.parametrize("name", ["alexnet", "vgg11", "resnet18", "squeezenet1_1", "densenet121"])
def test_wrong_channels_name_the_layer(name: str) -> None:
    with pytest.raises(GraphError, match=r"node '(features\.)?(0|conv0|conv1)': .* has 1 channels"):
        to_graph(models.get_model(name), (1, 1, 224, 224))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "smallest"),
    [
        ("alexnet", 63),
        ("vgg16", 32),
        ("squeezenet1_0", 21),
        ("squeezenet1_1", 17),
        ("densenet121", 29),
        ("inception_v3", 75),
    ],
)
def test_the_smallest_image_is_the_documented_one(name: str, smallest: int) -> None:
    net = models.get_model(name)
    to_graph(net, (1, 3, smallest, smallest))
    with pytest.raises(GraphError, match="larger than the padded input"):
        to_graph(net, (1, 3, smallest - 1, smallest - 1))
    assert f"{smallest}x{smallest}" in (type(net).__doc__ or "")


def test_weights_from_a_file(tmp_path: Path) -> None:
    state = models.squeezenet1_1(seed=5).state_dict()
    path = tmp_path / "weights.safetensors"
    save_weights(state, path)
    loaded = models.squeezenet1_1(weights=path)
    for name, array in loaded.state_dict().items():
        np.testing.assert_array_equal(array, state[name])
    with pytest.raises(
        WeightsError, match=r"(?s)does not fit SqueezeNet .*wrong shape: classifier"
    ):
        models.squeezenet1_1(weights=str(path), num_classes=3)


def test_versions_mean_those_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(source: object) -> dict[str, np.ndarray]:
        asked.append(source)
        return models.resnet18().state_dict()

    monkeypatch.setattr("minidnn.weights.load_weights", load)
    names = ("DEFAULT", "IMAGENET1K_V1", "resnet18", "ResNet18_Weights.IMAGENET1K_V1", "a.pth")
    for weights in names:
        models.resnet18(weights=weights)
    assert asked == ["resnet18.DEFAULT", "resnet18.IMAGENET1K_V1", *names[2:]]


def test_inception_transforms_its_input_when_weights_are_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = models.inception_v3()
    monkeypatch.setattr("minidnn.weights.load_weights", lambda source: plain.state_dict())

    def transforms(**options: object) -> bool:
        graph = to_graph(models.inception_v3(**options), (1, 3, 75, 75))
        return any(node.source == "transform" and node.inputs[1:] for node in graph.nodes)

    assert not transforms()
    assert transforms(transform_input=True)
    assert transforms(weights="DEFAULT")
    assert not transforms(weights="DEFAULT", transform_input=False)
    assert "transform" not in "".join(models.inception_v3(transform_input=True).state_dict())


def test_importing_the_zoo_imports_no_network() -> None:
    code = (
        "import sys, minidnn.models\n"
        "print([m for m in sys.modules if m.startswith('minidnn.models.') or m == 'numpy'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
