"""What torch.save writes is read as torch.load reads it."""

from __future__ import annotations

import io
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minidnn.errors import WeightsError
from minidnn.weights import load_weights

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip
FORMATS: dict[str, dict[str, Any]] = {
    "zip": {},
    "legacy": {"_use_new_zipfile_serialization": False},
    "zip_protocol_4": {"pickle_protocol": 4},
    "legacy_protocol_4": {"_use_new_zipfile_serialization": False, "pickle_protocol": 4},
}


def check(path: Path, expected: dict[str, torch.Tensor], **options: Any) -> dict[str, Any]:
    """Compares with tensors, and with what torch.load reads from the same file."""
    found = load_weights(path, **options)
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        array = found[name]
        assert array.shape == tuple(tensor.shape), name
        assert not array.flags.writeable or options.get("copy")
        if tensor.dtype == torch.bfloat16:
            assert array.dtype == np.float32
            tensor = tensor.float()
        detached = tensor.detach().numpy()
        assert array.dtype == detached.dtype, name
        assert array.tobytes() == detached.tobytes(), name
    return found


@pytest.fixture(params=FORMATS)
def save(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    def write(content: Any) -> Path:
        path = tmp_path / "file.pth"
        torch.save(content, path, **FORMATS[request.param])
        return path

    return write


def test_all_dtypes(save: Any) -> None:
    torch.manual_seed(0)
    content = {str(dtype): (torch.randn(5, 7) * 50).to(dtype) for dtype in DTYPES}
    check(save(content), content)
    check(save(content), content, copy=True)


def test_special_values(save: Any) -> None:
    bits = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    content = {"half": bits.view(torch.float16), "bfloat16": bits.clone().view(torch.bfloat16)}
    found = load_weights(save(content))
    assert np.array_equal(found["half"].view(np.int16), bits.numpy())
    assert np.array_equal(found["bfloat16"].view(np.int32) >> 16, bits.numpy().astype(np.int32))


def test_shapes_and_strides(save: Any) -> None:
    base = torch.arange(4 * 5 * 6, dtype=torch.float32).reshape(4, 5, 6)
    content = {
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0),
        "empty_3d": torch.zeros(2, 0, 3),
        "transposed": torch.arange(12.0).reshape(3, 4).t(),
        "channels_last": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        "offset": base[2:, 1:, 3],
        "steps": base[::2, ::3, 1::2],
        "permuted": base.permute(2, 0, 1),
        "expanded": torch.arange(3.0)[:, None].expand(3, 200),
        "one": torch.ones(1, 1, 1).expand(1, 1, 1),
        "windows": torch.arange(10.0).unfold(0, 4, 2),
    }
    check(save(content), content)


def test_shared_storages_stay_shared(save: Any) -> None:
    base = torch.arange(100.0)
    content = {"whole": base, "part": base[10:20], "same": base, "other": torch.arange(100.0)}
    found = check(save(content), content)
    assert np.shares_memory(found["whole"], found["part"])
    assert np.shares_memory(found["whole"], found["same"])
    assert not np.shares_memory(found["whole"], found["other"])


def test_shared_converted_storages_are_converted_once(save: Any) -> None:
    base = torch.arange(100.0).bfloat16()
    found = check(save({"a": base, "b": base[5:]}), {"a": base, "b": base[5:]})
    assert np.shares_memory(found["a"], found["b"])


def test_modules_parameters_and_metadata(save: Any) -> None:
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.BatchNorm2d(8), torch.nn.Linear(8, 2)
    )
    state = network.state_dict()
    assert state._metadata  # type: ignore[attr-defined]  # an attribute that the pickle sets
    check(save(state), state)
    parameters = OrderedDict(network.named_parameters())
    parameters["with_state"] = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    check(save(parameters), parameters)
    check(save(OrderedDict()), {})


def test_parameter_with_attributes(save: Any) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.comment = "mine"  # type: ignore[attr-defined]
    check(save({"p": parameter}), {"p": parameter})


def test_arrays_are_views_of_the_file(tmp_path: Path) -> None:
    for name, options in FORMATS.items():
        path = tmp_path / name
        torch.save({"x": torch.ones(1000)}, path, **options)
        found = load_weights(path)["x"]
        assert found.flags.aligned
        if name.startswith("zip"):  # legacy files do not align their data
            assert not found.flags.owndata


def test_nested_state_dict(save: Any) -> None:
    state = {"w": torch.ones(2, 3)}
    content = {"epoch": 3, "state_dict": state, "loss": 0.5, "name": "x", "history": [1, (2, None)]}
    path = save(content)
    check(path, state, key="state_dict")
    with pytest.raises(
        WeightsError,
        match=r"holds a dict with the keys \['epoch', 'state_dict', .*\], where 'epoch' is a int "
        r"and not a tensor; a state dict inside is read with key='state_dict'",
    ):
        load_weights(path)
    with pytest.raises(WeightsError, match=r"has no entry 'model'; it holds a dict with the keys"):
        load_weights(path, key="model")
    with pytest.raises(WeightsError, match="its entry 'history' holds a list, not a state dict"):
        load_weights(path, key="history")
    deep = save({"a": {"b": {"c": state}, "x": 1}})
    check(deep, state, key=["a", "b", "c"])
    with pytest.raises(WeightsError, match=r"read with key=\['a', 'b', 'c'\]$"):
        load_weights(deep, key=("a", "b"))
    with pytest.raises(
        WeightsError, match="its entry 'b' in 'a' has no entry 'd'; it holds a dict"
    ):
        load_weights(deep, key=("a", "b", "d"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (torch.ones(3), "the file holds a Tensor, not a state dict"),
        ([torch.ones(3)], "the file holds a list, not a state dict"),
        ({"x": {"y": torch.ones(3)}}, r"'x' is a dict and not a tensor; .* with key='x'"),
        ({1: torch.ones(3)}, "where 1 names a tensor; valid are texts"),
        (
            torch.nn.Linear(2, 2),
            "the file holds an object of 'torch.nn.modules.linear.Linear', of which nothing is "
            "read or executed, not a state dict",
        ),
        ({"x": {1: {"y": {}}}, "z": {}}, r"read with key='x' or key='z'$"),
    ],
)
def test_other_contents(save: Any, content: Any, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        load_weights(save(content))


def repack(path: Path, edit: Any) -> None:
    """Rewrites the records of a zip file."""
    with zipfile.ZipFile(path) as archive:
        records = {info.filename: archive.read(info) for info in archive.infolist()}
    edit(records)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in records.items():
            archive.writestr(name, data)


def test_big_endian_files(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    torch.manual_seed(0)
    content = {str(dtype): (torch.randn(3, 5) * 50).to(dtype)[:, 1:] for dtype in DTYPES}
    torch.save(content, path)
    widths = [tensor.element_size() for tensor in content.values()]

    def swap(records: dict[str, bytes]) -> None:
        (folder,) = {name.partition("/")[0] for name in records}
        assert records[f"{folder}/byteorder"] == b"little"
        records[f"{folder}/byteorder"] = b"big"
        for key, width in enumerate(widths):
            data = np.frombuffer(records[f"{folder}/data/{key}"], np.uint8)
            records[f"{folder}/data/{key}"] = data.reshape(-1, width)[:, ::-1].tobytes()

    repack(path, swap)
    check(path, content)
    theirs = torch.load(path, weights_only=True)
    assert all(torch.equal(theirs[name], tensor) for name, tensor in content.items())


def test_files_before_there_was_a_byteorder_record(tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    content = {"x": torch.arange(5.0)}
    torch.save(content, path)

    def remove(records: dict[str, bytes]) -> None:
        for name in list(records):
            if not name.endswith(("data.pkl", "data/0", "version")):
                del records[name]

    repack(path, remove)
    check(path, content)


def test_files_without_checksums(tmp_path: Path) -> None:
    content = {"x": torch.arange(5.0)}
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(content, tmp_path / "x.pth")
    finally:
        torch.serialization.set_crc32_options(True)
    check(tmp_path / "x.pth", content)


def test_zip64(tmp_path: Path) -> None:
    """PyTorch switches to zip64 with large files; the standard library does so when asked."""
    torch.save({"x": torch.arange(5.0)}, tmp_path / "small.pth")
    with zipfile.ZipFile(tmp_path / "small.pth") as archive:
        records = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(tmp_path / "x.pth", "w") as archive:
        for name, data in records.items():
            with archive.open(name, "w", force_zip64=True) as file:
                file.write(data)
    check(tmp_path / "x.pth", {"x": torch.arange(5.0)})


def test_python_2_files(write_legacy: Any) -> None:
    """Their texts are byte strings, and an OrderedDict is made from a list of pairs."""
    pickled = (
        b"\x80\x02ccollections\nOrderedDict\nq\x00]q\x01]q\x02(U\x01wq\x03"
        b"ctorch._utils\n_rebuild_tensor\nq\x04((U\x07storageq\x05ctorch\nFloatStorage\nq\x06"
        b"U\x010q\x07U\x03cpuq\x08K\x04NtQK\x01K\x03\x85K\x01\x85tRea\x85Rq\x09."
    )
    data = np.array([1, 2, 3, 4], np.float32)
    found = load_weights(write_legacy(pickled, {"0": (4, data.tobytes())}))
    assert list(found) == ["w"]
    assert found["w"].tolist() == [2, 3, 4]
    found = torch.load(write_legacy(pickled, {"0": (4, data.tobytes())}), weights_only=False)
    assert found["w"].tolist() == [2, 3, 4]


def test_storage_views_of_old_files(write_legacy: Any) -> None:
    pickled = (
        b"\x80\x02}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor\n((X\x07\x00\x00\x00storage"
        b"ctorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x06"
        b"X\x01\x00\x00\x00vK\x02K\x03\x87tQK\x01K\x02\x85K\x01\x85tRs."
    )
    data = np.arange(6, dtype=np.float32).tobytes()
    assert load_weights(write_legacy(pickled, {"0": (6, data)}))["w"].tolist() == [3, 4]
    theirs = torch.load(write_legacy(pickled, {"0": (6, data)}), weights_only=True)
    assert theirs["w"].tolist() == [3, 4]


def test_what_is_read_after_writing_to_memory_and_appending(tmp_path: Path) -> None:
    stream = io.BytesIO()
    torch.save({"x": torch.ones(3)}, stream)
    path = tmp_path / "x"
    path.write_bytes(stream.getvalue() + b"more")
    with pytest.raises(WeightsError, match="is a zip archive with bytes after its end"):
        load_weights(path)


def test_speed_of_a_large_state_dict(tmp_path: Path) -> None:
    """1,000 tensors are more than any of the classic networks has."""
    content = {f"layer.{number}.weight": torch.ones(4) for number in range(1000)}
    torch.save(content, tmp_path / "x.pth")
    check(tmp_path / "x.pth", content)
