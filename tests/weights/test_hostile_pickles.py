"""Pickles that want to run code or to exhaust the machine: nothing runs, an error says what."""

from __future__ import annotations

import io
import os
import pickle
import struct
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minidnn.errors import WeightsError
from minidnn.weights import load_weights
from minidnn.weights._pickle import MAX_BYTES

Write = Callable[..., Path]


class Call:
    """Pickles as a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function = function
        self.arguments = arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.arguments


class Items(Call):
    """Pickles as a call whose result gets a state, items of a list and items of a dict."""

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.arguments, {"x": 1}, iter([1, 2]), iter([("a", 1)])


class Stateful(Call):
    """Pickles as a call and a state that is set afterwards."""

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.arguments, {"x": 1}


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file that hostile code would make."""
    return tmp_path / "hostile_code_ran"


@pytest.fixture(params=["zip", "legacy"])
def write(request: pytest.FixtureRequest, write_zip: Write, write_legacy: Write) -> Write:
    return {"zip": write_zip, "legacy": write_legacy}[request.param]


def hostile(marker: Path) -> dict[str, Any]:
    touch = f"touch {marker}"
    python = f"open({str(marker)!r}, 'w')"
    return {
        "posix.system": Call(os.system, touch),
        "builtins.eval": Call(eval, python),
        "builtins.exec": Call(exec, python),
        "builtins.open": Call(open, str(marker), "w"),
        "builtins.__import__": Call(__import__, "antigravity"),
        "builtins.getattr": Call(getattr, Path, "unlink"),
        "subprocess.check_output": Call(subprocess.check_output, [b"touch", os.fsencode(marker)]),
        "pickle.loads": Call(pickle.loads, pickle.dumps(Call(os.system, touch))),
        "torch.load": Call(torch.load, str(marker)),
        "builtins.bytearray": Call(bytearray, 10**12),
    }


@pytest.mark.sampled(3)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("name", hostile(Path()))
def test_calls_are_refused_by_name(write: Write, marker: Path, name: str, protocol: int) -> None:
    content = {"weight": hostile(marker)[name]}
    path = write(pickle.dumps(content, protocol))
    pattern = (
        r"where 'weight' is an object of '[\w.]+', of which nothing is read or executed, and not"
    )
    with pytest.raises(WeightsError, match=pattern) as caught:
        load_weights(path)
    shown = {"builtins.eval": "eval", "builtins.exec": "exec", "builtins.open": "open"}
    assert shown.get(name, name.rpartition(".")[2]) in str(caught.value)
    assert not marker.exists()


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_calls_beside_what_is_asked_for(
    tmp_path: Path, marker: Path, protocol: int, options: dict[str, Any]
) -> None:
    """In values, keys and arguments, of functions that other calls give, before and after it."""
    bad = list(hostile(marker).values())
    touch = f"touch {marker}"
    odd: list[Any] = [
        {Call(os.system, touch): 1, (1, Call(os.system, touch)): 2},
        Stateful(os.system, touch),
        Call(print, Call(os.system, touch)),
        Items(os.system, touch),
    ]
    state = {"w": torch.arange(3.0)}
    content = {"before": [*bad, *odd], "state_dict": state, "after": {"x": [*odd, *bad]}}
    torch.save(content, tmp_path / "x.pth", pickle_protocol=protocol, **options)
    found = load_weights(tmp_path / "x.pth", key="state_dict")
    assert {name: array.tolist() for name, array in found.items()} == {"w": [0, 1, 2]}
    assert not marker.exists()


def test_calls_where_they_are_not_expected(write: Write, marker: Path) -> None:
    call = Call(os.system, f"touch {marker}")
    for content in (
        call,
        [call],
        (1, (2, call)),
        {"a": {"b": call}},
        Stateful(os.system, f"touch {marker}"),
        Call(print, call),
    ):
        for key in (None, "a", ["a", "b"]):
            with pytest.raises(WeightsError, match="holds a"):
                load_weights(write(pickle.dumps(content, 2)), key=key)
    assert not marker.exists()


def test_calls_in_every_pickle_of_a_legacy_file(tmp_path: Path, marker: Path) -> None:
    good = io.BytesIO()
    torch.save({"x": torch.ones(2)}, good, _use_new_zipfile_serialization=False)
    data = good.getvalue()
    bad = pickle.dumps(Call(os.system, f"touch {marker}"), 2)
    starts, at = [], 0
    for _ in range(5):
        starts.append(at)
        at = data.index(b".", at) + 1 if not starts[1:] else _end_of_pickle(data, at)
    path = tmp_path / "x.pth"
    for start in starts[1:]:
        path.write_bytes(data[:start] + bad + data[start:])
        with pytest.raises(
            WeightsError, match=r"has the protocol version|holds|lists the storages"
        ):
            load_weights(path)
    assert not marker.exists()


def _end_of_pickle(data: bytes, start: int) -> int:
    import pickletools

    for opcode, _, position in pickletools.genops(data[start:]):
        if opcode.name == "STOP":
            return start + (position or 0) + 1
    raise AssertionError("no end")


GLOBAL = b"ccollections\nOrderedDict\n"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            b"cos\nsystem\nX\x02\x00\x00\x00ls\x85R",
            "the file holds an object of 'os.system', of which",
        ),
        (b"\x8c\x02os\x8c\x06system\x93)R", "the file holds an object of 'os.system'"),
        (b"K\x01K\x02\x93", "names the global 1 2"),
        (b"(S'ls'\nios\nsystem\n", r"uses the instruction b'S', which no state dict needs"),
        (b"(X\x02\x00\x00\x00lsios\nsystem\n", r"uses the instruction b'i'"),
        (b"\x82\x01", "the file holds an object of 'extension 1'"),  # an extension registry's code
        (b"cos\nx\n)\x81", "the file holds an object of 'os.x'"),  # NEWOBJ
        (b"cos\nx\n)}\x92", "the file holds an object of 'os.x'"),  # NEWOBJ_EX
        (b"(cos\nx\nK\x01o", "the file holds an object of 'os.x'"),  # OBJ
        (b"(o", "wants to call None"),
        (b"cos\nx\n)R)R", "the file holds an object of 'os.x'"),
        (b"K\x05)\x81", "wants to call 5"),
        (b"ctorch\nFloatStorage\n)R", "the file holds an object of 'torch.FloatStorage'"),
        (b"K\x05)R", "wants to call 5"),
        (GLOBAL + b"]R", "wants to call <Global>"),
        (b"X\x02\x00\x00\x00os)R", "wants to call 'os'"),
        (GLOBAL + b"K\x05\x85R", "makes an OrderedDict from .5,"),
        (GLOBAL + b"]K\x05a\x85R", "makes an OrderedDict from the pair 5"),
        (b"}}b", "wants to set attributes of a dict"),
        (b"K\x01Q", "has the persistent id 1, which is no storage"),
        (b"(X\x06\x00\x00\x00modulectorch\nSize\nNNNtQ", "which is no storage"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n)R", r"makes a tensor from \(\)"),
        (b"ctorch._utils\n_rebuild_parameter\nK\x01NN\x87R", "makes a parameter from"),
        (b"ctorch\nSize\nK\x05\x85\x85R", "the file holds a tuple"),
        (b"ctorch\nSize\nJ\xff\xff\xff\xff\x85\x85R", r"makes a torch.Size from"),
        (b"\x8b\xff\xff\xff\x7f", "is truncated"),  # LONG4
        (b"\x8b\xff\xff\xff\xff", "has an integer of -1 bytes"),
        (b"\x8a\xff" + b"\xff" * 255, "the file holds an object of 'int'"),
        (b"L" + b"9" * 100_000 + b"L\n", "uses the instruction b'L'"),
        (b"X\xff\xff\xff\xff", "is truncated"),
        (b"\x8d" + b"\xff" * 8, "is truncated"),
        (b"B\xff\xff\xff\xff", "is truncated"),
        (b"X\x01\x00\x00\x00\xff", "not valid UTF-8"),
        (b"X\x03\x00\x00\x00\xed\xa0\x80", "the file holds an object of 'str'"),  # \ud800
        (b"U\x01\xff", "the file holds a bytes"),
        (b"c" + b"a" * 300, "a name without an end"),
        (b"a", "takes more from its stack than is there"),
        (b"(K\x01(a", "takes more from its stack than is there"),
        (b"}t", "takes more marks"),
        (b"}K\x01a", "wants to append to a dict"),
        (b"K\x01K\x02e", "takes more marks"),
        (b"](K\x01u", "wants to set items of a list"),
        (b"}(K\x01u", "sets a key without a value"),
        (b"}]K\x01s", r"keys \['<list>'\], where the key <list> is a int and not a tensor"),
        (b"})K\x01s", "where the key <tuple> is a int"),
        (b"}\x8a\x20" + b"\x7f" * 32 + b"K\x01s", "where the key <[0-9.]+> is a int"),
        (b"h\x05", "recalls the value 5, which it has not remembered"),
        (b"j\xff\xff\xff\xff", "recalls the value 4294967295"),
        (b"q\x01", "takes more from its stack"),
        (b"0", "takes more from its stack"),
        (b"1", "takes more marks"),
        (b"(01", "takes more marks"),
        (b"2", "takes more from its stack"),
        (b"\x80\x07", "has protocol 7; valid are 2 to 5"),
        (b"\x8f", "the file holds an object of 'set'"),
        (b"\x90", "takes more marks"),
        (b"\x91", "takes more marks"),
        (b"\x8f(K\x01\x90", "the file holds an object of 'set'"),
        (b"K\x05(K\x01\x90", "wants to append to a int"),
        (b"\x97", r"uses the instruction b'\\x97'"),  # NEXT_BUFFER,
        (b"", "takes more from its stack than is there"),
    ],
)
def test_broken_programs(write_zip: Write, body: bytes, message: str) -> None:
    path = write_zip(b"\x80\x02" + body + b".")
    with pytest.raises(WeightsError, match=message) as caught:
        load_weights(path)
    assert len(str(caught.value)) < 1200


def tensor(offset: bytes, shape: bytes, strides: bytes, numel: bytes = b"K\x04") -> bytes:
    """The program of {"w": tensor} on the storage "0" of float32."""
    return (
        b"\x80\x02}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n"
        b"((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu"
        + numel + b"tQ" + offset + shape + strides + b"\x89" + GLOBAL + b")RtRs."
    )  # fmt: skip


def big(value: int) -> bytes:
    return b"\x8a\x10" + value.to_bytes(16, "little", signed=True)


def sizes(*values: int) -> bytes:
    return b"(" + b"".join(big(value) for value in values) + b"t"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (tensor(big(1), sizes(4), sizes(1)), "'w' with offset 1, .* reaches element 4 of a .* 4"),
        (tensor(big(4), sizes(1), sizes(1)), "reaches element 4"),
        (tensor(big(0), sizes(2, 2), sizes(3, 1)), "reaches element 4"),
        (tensor(big(2**62), sizes(1), sizes(1)), "reaches element 4611686018427387904"),
        (tensor(big(0), sizes(2), sizes(2**62)), "reaches element 4611686018427387904"),
        (tensor(big(-1), sizes(1), sizes(1)), "offset -1, .*; valid are integers >= 0"),
        (tensor(big(0), sizes(-1), sizes(1)), r"shape \(-1,\)"),
        (tensor(big(3), sizes(4), sizes(-1)), r"strides \(-1,\)"),
        (tensor(big(2**100), sizes(1), sizes(1)), "offset 1267650600228229401496703205376"),
        (tensor(big(0), sizes(2, 2), sizes(1)), "as many strides as sizes"),
        (tensor(big(0), b"K\x04", sizes(1)), "shape 4"),
        (tensor(big(0), b"\x88\x85", sizes(1)), r"shape \(True,\)"),
        (tensor(big(0), b"G" + bytes(8), sizes(1)), "shape 0.0"),
        (tensor(big(0), sizes(*[1] * 33), sizes(*[1] * 33)), "has 33 dimensions; valid are 32"),
        (tensor(big(0), sizes(0, 2**62, 2**62), sizes(1, 1, 1)), "too large for this machine"),
        (tensor(big(0), sizes(2**40), sizes(0)), "is larger than the whole file"),
        (tensor(big(0), sizes(2**20, 2**20), sizes(0, 0)), "is larger than the whole file"),
        (tensor(big(0), sizes(4), sizes(1), big(5)), "storage '0' has 16 bytes, but 5 elements"),
        (tensor(big(0), sizes(4), sizes(1), big(2**62)), "storage '0' has 16 bytes, but 461168"),
        (tensor(big(0), sizes(4), sizes(1), big(-4)), "which is no storage"),
    ],
)
def test_lying_tensors(write_zip: Write, program: bytes, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        load_weights(write_zip(program, {"0": bytes(16)}))


def test_the_programs_above_are_right_but_for_the_lie(write_zip: Write) -> None:
    data = struct.pack("<4f", 0, 1, 2, 3)
    path = write_zip(tensor(big(1), sizes(2), sizes(2)), {"0": data})
    assert load_weights(path)["w"].tolist() == [1, 3]


@pytest.mark.parametrize("key", ["../../secret", "/etc/passwd", "1", ""])
def test_storages_are_looked_up_in_the_archive_only(write_zip: Write, key: str) -> None:
    text = b"X" + struct.pack("<I", len(key)) + key.encode()
    program = tensor(big(0), sizes(4), sizes(1)).replace(b"X\x01\x00\x00\x000", text)
    with pytest.raises(WeightsError, match="has no record"):
        load_weights(write_zip(program, {"0": bytes(16)}))


def test_one_storage_of_two_types(write_zip: Write) -> None:
    one = tensor(big(0), sizes(4), sizes(1))
    item = one[3:].replace(b"FloatStorage", b"DoubleStorage").replace(b"w", b"v", 1)
    program = one[:-1] + item
    with pytest.raises(WeightsError, match="has 4 elements of F32, and then 4 of F64"):
        load_weights(write_zip(program, {"0": bytes(32)}))


# --- archives ---


def test_archives_of_other_kinds(write_zip: Write, tmp_path: Path) -> None:
    path = write_zip(b"\x80\x02}.", extra={"archive/constants.pkl": b""})
    with pytest.raises(WeightsError, match="is a TorchScript archive, which holds code"):
        load_weights(path)
    path = write_zip(b"\x80\x02}.", extra={"other/data.pkl": b""})
    with pytest.raises(WeightsError, match=r"with 2 records named \*/data.pkl; valid is one"):
        load_weights(path)
    path = write_zip(b"\x80\x02}.", extra={"archive/byteorder": b"middle"})
    with pytest.raises(WeightsError, match="its byte order is b'middle'; valid are"):
        load_weights(path)
    path = write_zip(b"\x80\x02}.", extra={"archive/byteorder": b"x" * 100})
    with pytest.raises(WeightsError, match="'archive/byteorder' has 100 bytes; at most 16"):
        load_weights(path)
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(WeightsError, match=r"with 0 records named \*/data.pkl"):
        load_weights(tmp_path / "x.zip")
    with zipfile.ZipFile(tmp_path / "x.zip", "w"):
        pass
    with pytest.raises(WeightsError, match=r"with 0 records"):
        load_weights(tmp_path / "x.zip")


def test_compressed_archives_are_refused_before_anything_is_unpacked(write_zip: Write) -> None:
    zeros = bytes(64 << 20)
    path = write_zip(b"\x80\x02}.", {"0": zeros}, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(WeightsError, match=r"is compressed or encrypted \(method 8"):
        load_weights(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_duplicate_records(write_zip: Write) -> None:
    path = write_zip(b"\x80\x02}.", {"0": b"a"}, extra={"archive/data/0": b"b"})
    with pytest.raises(WeightsError, match="has two records named 'archive/data/0'"):
        load_weights(path)


def patched(path: Path, signature: bytes, offset: int, layout: str, value: int) -> Path:
    """Overwrites a field of the last header with a signature."""
    data = bytearray(path.read_bytes())
    struct.pack_into(layout, data, data.rindex(signature) + offset, value)
    path.write_bytes(data)
    return path


LOCAL, CENTRAL, END = b"PK\3\4", b"PK\1\2", b"PK\5\6"


@pytest.mark.parametrize(
    ("signature", "offset", "layout", "value", "message"),
    [
        (CENTRAL, 20, "<I", 17, "compressed or encrypted"),
        (CENTRAL, 24, "<I", 17, "compressed or encrypted"),
        (CENTRAL, 24, "<I", 0xFFFFFFFF, "lacks its zip64 sizes"),
        (CENTRAL, 8, "<H", 1, "compressed or encrypted"),
        (CENTRAL, 10, "<H", 8, "compressed or encrypted"),
        (CENTRAL, 42, "<I", 0, "has another header than the directory says"),
        (CENTRAL, 42, "<I", 1, "is not at 1, where it should be"),
        (CENTRAL, 42, "<I", 2**31, "is not at 2147483648, where it should be"),
        (CENTRAL, 28, "<H", 5000, "goes beyond the directory"),
        (CENTRAL, 16, "<I", 1, "is damaged: its CRC-32 is [0-9a-f]{8}, not 00000001"),
        (CENTRAL, 0, "<I", 0, "has no directory entry at"),
        (LOCAL, 18, "<I", 17, "has another header"),
        (LOCAL, 8, "<H", 8, "has another header"),
        (LOCAL, 26, "<H", 60000, "16 bytes at .* truncated or damaged"),
        (LOCAL, 28, "<H", 60000, "16 bytes at .* truncated or damaged"),
        (LOCAL, 30, "<B", 65, "has another header"),
        (END, 10, "<H", 1, "has more than the 1 records that it announces"),
        (END, 10, "<H", 9, "has no directory entry at"),
        (END, 12, "<I", 0, "should end at"),
        (END, 16, "<I", 0, "should end at"),
        (END, 16, "<I", 2**32 - 1, "should end at"),
        (END, 12, "<I", 2**32 - 1, "bytes of directory; at most"),
        (END, 10, "<H", 2**16 - 1, "has no directory entry at"),
        (END, 20, "<H", 3, "with bytes after its end"),
        (END, 4, "<H", 1, "is one of several parts"),
        (END, 0, "<I", 0, "without an end: it is truncated"),
    ],
)
def test_lying_archives(
    write_zip: Write, signature: bytes, offset: int, layout: str, value: int, message: str
) -> None:
    path = write_zip(tensor(big(0), sizes(4), sizes(1)), {"0": bytes(range(16))})
    assert load_weights(path)["w"].shape == (4,)
    with pytest.raises(WeightsError, match=message):
        load_weights(patched(path, signature, offset, layout, value))


def test_overlapping_records(write_zip: Write) -> None:
    """The quoted overlap of zip bombs: one record contains the next one's header."""
    path = write_zip(b"\x80\x02}.", {"0": b"a" * 100})
    data = bytearray(path.read_bytes())
    first, second = data.index(LOCAL), data.rindex(LOCAL)
    size = second + 50 - (first + 30 + len("archive/data.pkl"))
    struct.pack_into("<2I", data, first + 18, size, size)
    struct.pack_into("<2I", data, data.index(CENTRAL) + 20, size, size)
    path.write_bytes(data)
    with pytest.raises(WeightsError, match=r"records 'archive/data.pkl' and .*0' overlap"):
        load_weights(path)


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}])
def test_every_truncation(tmp_path: Path, options: dict[str, Any]) -> None:
    torch.save(
        {"x": torch.arange(5.0), "y": torch.ones(3, dtype=torch.bool)}, tmp_path / "x", **options
    )
    whole = (tmp_path / "x").read_bytes()
    for size in [*range(0, len(whole), 7), *range(len(whole) - 50, len(whole))]:
        (tmp_path / "x").write_bytes(whole[:size])
        with pytest.raises(WeightsError):
            load_weights(tmp_path / "x")


def test_legacy_storages_that_lie(write_legacy: Write) -> None:
    program = tensor(big(0), sizes(4), sizes(1))
    assert load_weights(write_legacy(program, {"0": (4, bytes(16))}))["w"].shape == (4,)
    for storages, message in [
        ({"0": (5, bytes(20))}, "storage '0' has 5 elements, but its tensors say 4"),
        ({"0": (-1, bytes(16))}, "storage '0' has -1 elements"),
        ({"0": (4, bytes(15))}, r"storage '0' ends at byte \d+, but the file has \d+: it is trunc"),
        ({}, "has no data for storage '0'"),
        ({"1": (4, bytes(16))}, r"lists the storages \['1'\]; valid is each"),
        ({"0": (4, bytes(16)), "1": (4, bytes(16))}, "lists the storages"),
    ]:
        with pytest.raises(WeightsError, match=message):
            load_weights(write_legacy(program, storages))


def test_the_limits_hold_what_state_dicts_need() -> None:
    """densenet201, the network with the most tensors, needs a small part of the limits."""
    names = [f"features.denseblock4.denselayer{n}.norm1.num_batches_tracked" for n in range(1006)]
    stream = io.BytesIO()
    torch.save({name: torch.zeros(1) for name in names}, stream)
    with zipfile.ZipFile(stream) as archive:
        assert archive.getinfo("archive/data.pkl").file_size < MAX_BYTES / 50
