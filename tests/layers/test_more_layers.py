"""Layers beside PyTorch's: gradients, special values, training, modules of PyTorch, ONNX."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import minidnn as md
from minidnn import layers as L
from minidnn.errors import GraphError
from minidnn.layers.build import to_graph

from .test_torch_layers import Gallery, pair
from .torch_cases import ACTIVATIONS, POOLING, REARRANGING, SCALING, TRANSFORMERS, case

CASES = [*ACTIVATIONS, *POOLING, *REARRANGING, *SCALING, *TRANSFORMERS]


class Squares(Gallery):
    """The sum of the squares of all that a gallery gives."""

    def forward(self, *inputs: Any) -> Any:
        first, *rest = ((x * x).sum() for x in super().forward(*inputs))
        return sum(rest, start=first)


@pytest.mark.parametrize("part", [0, *(pytest.param(i, marks=pytest.mark.full) for i in (1, 2))])
def test_gradients(part: int) -> None:
    cases = CASES[part::3]
    made = [pair(each, seed) for seed, each in enumerate(cases)]
    inputs = [array for _, arrays, _ in made for array in arrays]
    net = Squares([ours for ours, _, _ in made], cases)
    graph = to_graph(net, [array.shape for array in inputs])
    names = [value.name for value in graph.inputs]
    graph = md.gradient(graph, graph.outputs[0], of=names)
    exe = md.compile(graph, device="reference", precision="float64")
    found = iter(list(exe(*inputs))[1:])
    for each, (ours, arrays, _) in zip(cases, made, strict=True):
        theirs = each.theirs()
        state = {n: torch.from_numpy(a.astype(np.float64)) for n, a in ours.state_dict().items()}
        theirs.load_state_dict(state)
        given = [torch.from_numpy(array).double().requires_grad_() for array in arrays]
        called = {
            name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            for name, value in each.call.items()
        }
        total = (theirs(*given, **called) ** 2).sum()
        for slope in torch.autograd.grad(total, given):
            np.testing.assert_allclose(
                next(found), slope.numpy(), rtol=1e-7, atol=1e-9, err_msg=str(each)
            )


ROW = (1, 1, 12)
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e38, -1e38, 30.0, -30.0, 1.0, -1.0, 0.5])


@pytest.mark.parametrize(
    "each",
    [
        *(e for e in ACTIVATIONS if e.name not in ("GLU", "PReLU", "Softmin", "Softmax2d")),
        case("MaxPool1d", 2, x=ROW),
        case("AdaptiveMaxPool1d", 5, x=ROW),
    ],
    ids=str,
)
def test_special_values(each: Any) -> None:
    x = SPECIAL.astype(np.float32).reshape(ROW)
    with torch.no_grad():
        wanted = each.theirs().float()(torch.from_numpy(x)).numpy()
    found = md.compile(each.ours(), x.shape, device="reference")(x)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.full
@pytest.mark.parametrize(
    "each",
    [c for c in CASES if not c.call and "Dropout" not in c.name and "Fold" not in c.name],
    ids=str,
)
def test_modules_of_pytorch_and_files_of_onnx(each: Any, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    ours, inputs, expected = pair(each, 3)
    theirs = each.theirs().float().eval()
    theirs.load_state_dict({n: torch.from_numpy(a) for n, a in ours.state_dict().items()})
    shapes = [array.shape for array in inputs]
    found = md.compile(theirs, shapes, device="reference")(*inputs)
    np.testing.assert_allclose(found, expected[0], rtol=1e-4, atol=1e-5)
    md.save_onnx(ours, tmp_path / "net.onnx", shapes)
    session = runtime.InferenceSession(str(tmp_path / "net.onnx"))
    named = {i.name: array for i, array in zip(session.get_inputs(), inputs, strict=True)}
    np.testing.assert_allclose(session.run(None, named)[0], expected[0], rtol=1e-4, atol=1e-5)


def test_embedding_trains_as_pytorch_s() -> None:
    numbers = torch.tensor([[0, 1, 2, 3, 9], [8, 7, 4, 5, 3]])
    target = np.random.default_rng(0).standard_normal((2, 5, 2))
    theirs = torch.nn.Sequential(torch.nn.Embedding(10, 4, padding_idx=-7), torch.nn.Linear(4, 2))
    net = md.Sequential(L.Embedding(10, 4, padding_idx=3), L.Linear(4, 2))
    assert not net.state_dict()["0.weight"][3].any()
    net.load_state_dict({n: a.numpy() for n, a in theirs.state_dict().items()})
    trainer = md.Trainer(
        net, (2, 5), md.losses.MSE(), md.optim.SGD(0.5), device="reference", precision="float64"
    )
    theirs.double()
    optimizer = torch.optim.SGD(theirs.parameters(), 0.5)
    for _ in range(3):
        trainer.step(numbers.numpy(), target)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(theirs(numbers), torch.from_numpy(target)).backward()
        optimizer.step()
    for name, array in theirs.state_dict().items():
        np.testing.assert_allclose(trainer.state_dict()[name], array.numpy(), atol=1e-7)


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_a_padding_row_is_given_as_it_is(device: str) -> None:
    """It has no gradient, by an expression that must not round it."""
    row = [-0.0, 1e-45, -1e-40, 3e-20, -1e-13, 0.1, -12345.678, 16777215, -3e8, 3e38]
    row += [-np.inf, np.nan]
    net = L.Embedding(2, len(row), padding_idx=1)
    net.load_state_dict({"weight": np.array([[1.0] * len(row), row], np.float32)})
    result = md.compile(net, (2,), device=device)(np.array([1, 0]))[0]
    np.testing.assert_array_equal(result, np.array(row, np.float32))
    np.testing.assert_array_equal(np.signbit(result[:11]), np.signbit(row[:11]))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_numbers_beyond_a_table_give_nan(device: str) -> None:
    net = L.Embedding(3, 2)
    found = md.compile(net, (5,), device=device)(np.array([0, 2, 3, -1, 1 << 40]))
    weight = net.state_dict()["weight"]
    np.testing.assert_array_equal(found[:2], weight[[0, 2]])
    assert np.isnan(found[2:]).all()


def test_an_embedding_of_pytorch() -> None:
    module = torch.nn.Sequential(torch.nn.Embedding(6, 4), torch.nn.Linear(4, 2)).eval()
    numbers = torch.tensor([[0, 5, 2], [1, 1, 3]])
    with torch.no_grad():
        fast = md.optimize(module, numbers, device="reference")
        torch.testing.assert_close(fast(numbers), module(numbers))
        assert "left" not in fast.explain()


def run(net: L.Layer, x: np.ndarray) -> Any:
    graph = to_graph(net, x.shape, mode="train")
    return md.compile(graph, device="reference", store=md.Store())(x)


def test_drop_path() -> None:
    x = np.random.default_rng(0).standard_normal((400, 3, 2, 2)).astype(np.float32)
    for layer, kept in (
        (L.DropPath(0.3), 1 / 0.7),
        (L.DropPath(0.3, scale_by_keep=False), 1.0),
        (L.StochasticDepth(0.3, "row"), 1 / 0.7),
    ):
        ratio = run(layer, x) / x
        assert (ratio == ratio[:, :1, :1, :1]).all() or np.ptp(ratio, axis=(1, 2, 3)).max() < 1e-6
        dropped = ratio[:, 0, 0, 0] == 0
        assert 0.2 < dropped.mean() < 0.4
        np.testing.assert_allclose(ratio[~dropped], kept, rtol=1e-6)
        assert (md.compile(layer, x.shape, device="reference")(x) == x).all()
    assert not run(L.DropPath(1.0), x).any()
    whole = run(L.Sequential(*(L.StochasticDepth(0.5, "batch") for _ in range(1))), x)
    assert not whole.any() or np.allclose(whole, 2 * x)


@pytest.mark.parametrize("kind", [L.AlphaDropout, L.FeatureAlphaDropout])
def test_alpha_dropout_keeps_mean_and_variance(kind: Any) -> None:
    x = np.random.default_rng(0).standard_normal((200, 50, 3)).astype(np.float32)
    found = run(kind(0.2), x)
    assert abs(found.mean()) < 0.05
    assert abs(found.std() - 1) < 0.05
    least, count = np.unique(found, return_counts=True)
    share = count.max() / found.size
    assert 0.17 < share < 0.23
    a = ((1 - 0.2) * (1 + 0.2 * 1.7580993408473766**2)) ** -0.5  # PyTorch's
    assert least[count.argmax()] == pytest.approx(a * (-1.7580993408473766 * 0.8), rel=1e-5)
    places = found == least[count.argmax()]
    assert (places == places[:, :, :1]).all() == (kind is L.FeatureAlphaDropout)


def test_module_dict_and_list() -> None:
    both = L.ModuleDict({"a": L.ReLU(), "b": L.Linear(3, 2)})
    both["c"] = L.Tanh()
    assert list(both) == list(both.keys()) == ["a", "b", "c"]
    assert ("b" in both, "d" in both, len(both)) == (True, False, 3)
    assert [name for name, _ in both.items()] == ["a", "b", "c"]
    assert list(both.state_dict()) == ["b.weight", "b.bias"]
    del both["c"]
    assert [type(each) for each in both.values()] == [L.ReLU, L.Linear]
    with pytest.raises(GraphError, match="ModuleDict: no layer 'c'; valid are a, b"):
        both["c"]
    with pytest.raises(GraphError, match="ModuleDict: name 'keys'; valid is a non-empty name"):
        L.ModuleDict({"keys": L.ReLU()})
    with pytest.raises(GraphError, match=r"ModuleDict: entry 'x' is 3 .int.; valid are layers"):
        both["x"] = 3  # type: ignore[assignment]
    several = L.ModuleList([L.Linear(3, 2)]).extend([L.ReLU()])
    assert list(several.state_dict()) == ["0.weight", "0.bias"]
    with pytest.raises(GraphError, match=r"ModuleList: modules=ReLU.*; valid is a list of layers"):
        L.ModuleList(L.ReLU())  # type: ignore[arg-type]


def test_an_encoder_of_several_layers_has_pytorch_s_names() -> None:
    torch.manual_seed(0)
    theirs = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), 2, torch.nn.LayerNorm(8)
    ).eval()
    layer = L.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    net = L.TransformerEncoder(layer, 2, L.LayerNorm(8))
    state = {name: array.numpy() for name, array in theirs.state_dict().items()}
    assert list(net.state_dict()) == list(state)
    net.load_state_dict(state)
    x = torch.randn(3, 5, 8)
    found = md.compile(net, (3, 5, 8), device="reference")(x.numpy())
    np.testing.assert_allclose(found, theirs(x).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_a_decoder_of_several_layers_gives_what_pytorch_s_gives() -> None:
    torch.manual_seed(0)
    theirs = torch.nn.TransformerDecoder(
        torch.nn.TransformerDecoderLayer(8, 2, 12, batch_first=True), 2, torch.nn.LayerNorm(8)
    ).eval()
    net = L.TransformerDecoder(
        L.TransformerDecoderLayer(8, 2, 12, batch_first=True), 2, L.LayerNorm(8)
    )
    state = {name: array.numpy() for name, array in theirs.state_dict().items()}
    assert list(net.state_dict()) == list(state)
    net.load_state_dict(state)
    x, memory = torch.randn(3, 5, 8), torch.randn(3, 7, 8)
    found = md.compile(net, [(3, 5, 8), (3, 7, 8)], device="reference")(x.numpy(), memory.numpy())
    np.testing.assert_allclose(found, theirs(x, memory).detach().numpy(), rtol=1e-4, atol=1e-5)


def shaped(layer: L.Layer, *shape: int) -> Callable[[], Any]:
    return lambda: to_graph(layer, shape)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: L.Softplus(beta=0), "Softplus: beta=0; valid is a number above 0"),
        (lambda: L.Hardtanh(1, -1), "Hardtanh: max_val=-1; valid is a number above 1"),
        (lambda: L.CELU("1"), "CELU: alpha='1'; valid is a number above 0"),  # type: ignore[arg-type]
        (lambda: L.Softshrink(-1), "Softshrink: lambd=-1; valid is a number of at least 0"),
        (shaped(L.GLU(1), 2, 3, 4), r"GLU: input has shape \(2, 3, 4\); valid is an e"),
        (shaped(L.GLU(5), 2, 3), "valid is one with an axis 5"),
        (shaped(L.PixelShuffle(2), 1, 6, 2, 2), r"6 channels; valid is a multiple of upscale_f"),
        (shaped(L.PixelUnshuffle(2), 1, 6, 3, 2), "valid are rows and columns that are multiples"),
        (shaped(L.ChannelShuffle(4), 1, 6, 3, 2), "valid is a multiple of groups = 4"),
        (lambda: L.Unflatten(1, (-1, -1)), "sizes of which at most one is -1"),
        (shaped(L.Unflatten(1, (2, 2)), 1, 6), "6 elements along axis 1, which unflattened_size="),
        (shaped(L.Unfold(4), 1, 2, 3, 9), "which is less than a block"),
        (lambda: L.Fold((2, 2), 3), r"Fold: output_size=\(2, 2\) is less than a block"),
        (shaped(L.Fold((4, 4), 2), 1, 8, 8), r"valid are \(N, C \* 4, 9\), as 3 \* 3 blocks"),
        (shaped(L.MaxPool1d(2), 1, 2, 3, 4), "MaxPool1d: input has shape .* valid is rank 3"),
        (lambda: L.MaxPool1d((2, 2)), r"MaxPool1d: kernel_size=\(2, 2\); valid is an int of at"),  # type: ignore[arg-type]
        (lambda: L.AdaptiveMaxPool2d(2, True), "return_indices=True; valid is False"),
        (lambda: L.LPPool2d(0, 2), "LPPool2d: norm_type=0; valid is a number above 0"),
        (lambda: L.LocalResponseNorm(0), "size=0; valid is an int of at least 1"),
        (shaped(L.LocalResponseNorm(3), 2, 3), "valid is rank 3 or more"),
        (shaped(L.RMSNorm(3), 2, 4), r"valid are last axes of \(3,\)"),
        (lambda: L.Embedding(3, 2, padding_idx=3), "padding_idx=3; valid is an int from -3 to 2"),
        (lambda: L.Embedding(3, 2, max_norm=1.0), "max_norm=1.0; valid is None"),
        (lambda: L.DropPath(1.5), "DropPath: drop_prob=1.5; valid is a number from 0 to 1"),
        (lambda: L.StochasticDepth(0.1, "all"), "mode='all'; valid are 'row' and 'batch'"),
        (lambda: L.AlphaDropout(1), "AlphaDropout: p=1; valid is a number below 1"),
        (
            lambda: L.TransformerEncoderLayer(8, 2, activation="tanh"),
            "activation='tanh'; valid are 'relu', 'gelu', and a function or layer",
        ),
        (lambda: L.TransformerEncoder(L.ReLU, 2), "valid are layers"),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        make()


def test_an_embedding_of_fractions() -> None:
    x = md.Input((3,))
    with pytest.raises(GraphError, match=r"Embedding: input is float32.*valid are integers"):
        L.Embedding(3, 2)(x)
