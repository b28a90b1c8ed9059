"""The formats that are tested with damage: what is changed, and how it is read and run."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

import minidnn as md
from minidnn import layers as L
from minidnn.compiled_file import CompiledFile
from minidnn.errors import MiniDNNError, WeightsError
from minidnn.graph.checker import check
from minidnn.graph.ir import Graph
from minidnn.sizes.sized_graph import SizedGraph
from minidnn.storage import METADATA_KEY
from minidnn.training import checkpoint
from tests.damage.batch import BATCH
from tests.damage.format import Format, run_graph
from tests.damage.mutations import Region, as_text, mutated, mutated_document


class Compiled(Format):
    """Compiled networks for the CPU: damage is found, or was where nothing is read."""

    name = "mdx"
    accepted = (0.001, 0.5)
    shape = (2, 3, 12, 12)

    def make(self, folder: Path) -> None:
        resized = md.Sequential(L.Conv2d(3, 8, 3), L.Upsample(scale_factor=1.5), L.Conv2d(8, 4, 1))
        pooled = md.Sequential(L.Conv2d(3, 8, 3, padding=1), L.ReLU(), L.AdaptiveAvgPool2d((5, 7)))
        given = np.random.default_rng(0).standard_normal((4, *self.shape), np.float32)
        rows: Any = (md.Dim("rows", 1, 4), *self.shape[1:])
        networks: dict[str, tuple[Any, Any, dict[str, Any]]] = {
            "batches": (resized, rows, {}),
            "resized": (resized, self.shape, {}),
            "any_size": (pooled, self.shape, {"any_size": True}),
            "quantized": (md.quantize(pooled, list(given), device="reference"), None, {}),
        }
        for name, (network, shape, options) in networks.items():
            executable = md.compile(network, shape, device="cpu", threads=1, **options)
            executable.save(folder / f"{name}.mdx")

    def open(self, folder: Path) -> None:
        super().open(folder)
        self._regions: dict[str, list[Region]] = {}
        self._expected: dict[str, np.ndarray] = {}
        self._x = np.random.default_rng(1).standard_normal(self.shape, np.float32)
        for name in self.samples:
            file = CompiledFile(folder / name)
            parts = [[file._base + at, size] for at, size, _ in file.header["parts"].values()]
            self._regions[name] = [(0, file._base), *((at, at + size) for at, size in parts)]
            self._expected[name] = md.load(folder / name)(self._x)

    def mutate(self, draw: random.Random) -> dict[str, bytes]:
        self._name, data = self.sample(draw)
        self._check = draw.random() < 0.7
        return {"net.mdx": mutated(draw, data, self._regions[self._name])}

    def read(self, folder: Path) -> Any:
        return md.load(folder / "net.mdx", check=self._check)

    def run(self, found: Any) -> None:
        result = found(self._x)
        if self._check:
            np.testing.assert_array_equal(result, self._expected[self._name])


class Onnx(Format):
    """ONNX models, and beside them a file with weights."""

    name = "onnx"

    def make(self, folder: Path) -> None:
        from tests.onnx.mutate import whole_models

        for number, data in enumerate(whole_models(folder)):
            (folder / f"{number:03d}.onnx").write_bytes(data)

    def open(self, folder: Path) -> None:
        from minidnn.frontends.onnx.convert import load_onnx

        super().open(folder)
        self._weights = self.samples.pop("weights.bin", b"")
        load_onnx(folder / "001.onnx")  # imports what it needs

    def mutate(self, draw: random.Random) -> dict[str, bytes]:
        from tests.onnx.mutate import mutated_structure

        _, data = self.sample(draw)
        for _ in range(draw.randint(1, 2)):
            data = mutated_structure(draw, data) if draw.random() < 0.8 else mutated(draw, data)
        return {"model.onnx": data, "weights.bin": self._weights}

    def read(self, folder: Path) -> Graph:
        from minidnn.frontends.onnx.convert import load_onnx

        if not (folder / "link").exists():
            (folder / "link").symlink_to("/etc")
        data = (folder / "model.onnx").read_bytes()
        shape = (1, 2, 6, 7) if b"starts" in data else (1, 3, 16, 16)
        is_open = b"times" in data or b"w1" in data
        return load_onnx(folder / "model.onnx", {"x": shape} if is_open else None)

    def run(self, found: Graph) -> None:
        run_graph(found)


class Graphs(Format):
    """Graphs as ``save_graph`` writes them: their bytes, and their documents."""

    name = "graphs"

    def make(self, folder: Path) -> None:
        from tests.storage.sample import nested, net

        for name, graph in {"net": net(), "nested": nested()}.items():
            md.save_graph(graph, folder / name)
        pooled = md.Sequential(L.Conv2d(3, 4, 3, padding=1), L.ReLU(), L.Flatten(), L.Linear(36, 5))
        shape: Any = (md.Dim("rows", 1, 4), 3, 3, 3)
        md.save_graph(pooled.initialize(0), folder / "sized", shape)

    def open(self, folder: Path) -> None:
        import tests.storage.sample  # noqa: F401  an operator that is registered there

        super().open(folder)
        self._folder = folder

    def mutate(self, draw: random.Random) -> dict[str, bytes]:
        name, data = self.sample(draw)
        if draw.random() < 0.3:
            return {"net": mutated(draw, data, _header_and_data(data))}
        metadata, arrays = _opened(self._folder / name)
        key = draw.choice([METADATA_KEY, *metadata])
        text = as_text(mutated_document(draw, json.loads(metadata[key])))
        return {"net": _written(arrays, metadata | {key: text})}

    def read(self, folder: Path) -> Graph:
        try:
            graph = md.load_graph(folder / "net")
        except MiniDNNError as error:
            assert str(folder / "net") in str(error)
            raise
        if isinstance(graph, SizedGraph):
            md.save_graph(graph, folder / "again")
            assert repr(md.load_graph(folder / "again")) == repr(graph)
            graph = graph.at({dim.name: dim.halfway for dim in graph.dims})
        check(graph)
        md.save_graph(graph, folder / "again")
        assert str(md.load_graph(folder / "again")) == str(graph)
        return graph

    def run(self, found: Graph) -> None:
        run_graph(found)


class Quantized(Graphs):
    """Quantized networks, as graphs and as ONNX models."""

    name = "quantized"

    def make(self, folder: Path) -> None:
        net = md.Sequential(
            L.Conv2d(3, 8, 3, padding=1), L.BatchNorm2d(8), L.ReLU(), L.MaxPool2d(2),
            L.Conv2d(8, 8, 3, groups=2), L.ReLU(), L.Flatten(), L.Linear(32, 5),
        )  # fmt: skip
        data = list(np.random.default_rng(0).standard_normal((4, 1, 3, 8, 8), np.float32))
        quantized = md.quantize(net, data, device="reference")
        md.save_graph(quantized, folder / "net.graph")
        md.save_onnx(quantized, folder / "net.onnx")

    def mutate(self, draw: random.Random) -> dict[str, bytes]:
        from tests.onnx.mutate import mutated_structure

        self._is_onnx = draw.random() < 0.5
        if not self._is_onnx:
            self.samples, samples = {"net.graph": self.samples["net.graph"]}, self.samples
            found = super().mutate(draw)
            self.samples = samples
            return found
        data = self.samples["net.onnx"]
        for _ in range(draw.randint(1, 2)):
            data = mutated_structure(draw, data) if draw.random() < 0.7 else mutated(draw, data)
        return {"net": data}

    def read(self, folder: Path) -> Graph:
        if self._is_onnx:
            from minidnn.frontends.onnx.convert import load_onnx

            return load_onnx((folder / "net").rename(folder / "net.onnx"))
        return super().read(folder)


class Checkpoints(Format):
    """Checkpoints of a trainer: bytes, and header and arrays with the right checksum."""

    name = "checkpoints"

    def make(self, folder: Path) -> None:
        trainer = self._trainer()
        trainer.fit(self._batches(), 1)
        trainer.save(folder / "checkpoint")

    def open(self, folder: Path) -> None:
        super().open(folder)
        self._path = folder / "checkpoint"
        self._one = self._trainer()
        self._one.restore(self._path)
        self._state = self._known()

    def mutate(self, draw: random.Random) -> dict[str, bytes]:
        data = self.samples["checkpoint"]
        if draw.random() < 0.4:
            return {"checkpoint": mutated(draw, data, _header_and_data(data))}
        metadata, arrays = _opened(self._path)
        known = json.loads(metadata[checkpoint.KEY])
        if draw.random() < 0.8:
            known = mutated_document(draw, known)
        else:
            name = draw.choice(list(arrays))
            array = np.ascontiguousarray(arrays[name])
            changes = (
                np.zeros(3),
                array.astype(np.float16),
                array * np.float32("nan"),
                array[None],
            )
            arrays[draw.choice((name, f"{name}x"))] = draw.choice(changes)
        if draw.random() < 0.9 and isinstance(known, dict):
            known.pop("sha256", None)
            known["sha256"] = checkpoint._digest(known, arrays)
        return {"checkpoint": _written(arrays, {checkpoint.KEY: as_text(known)})}

    def read(self, folder: Path) -> None:
        try:
            self._one.restore(folder / "checkpoint")
        except MiniDNNError:
            assert self._known() == self._state, "what was refused has changed the trainer"
            raise

    def run(self, found: None) -> None:
        try:
            self._one.fit(self._batches(), self._one.progress.epoch + 1)
        finally:
            self._one.restore(self._path)

    def _known(self) -> Any:
        arrays = {name: array.tobytes() for name, array in self._one.store.items()}
        return arrays, repr(self._one.progress), repr(self._one.history), self._one.loader_state

    def _trainer(self) -> md.Trainer:
        net = md.Sequential(L.Linear(6, 4), L.ReLU(), L.Linear(4, 3))
        net.initialize(0)
        loss, optimizer = md.losses.CrossEntropy(), md.optim.Adam(0.01)
        return md.Trainer(net, (4, 6), loss, optimizer, device="reference")

    def _batches(self) -> list[tuple[np.ndarray, np.ndarray]]:
        draw = np.random.default_rng(0)
        return [(draw.standard_normal((4, 6), np.float32), np.arange(4) % 3) for _ in range(2)]


class Weights(Format):
    """Weight files: safetensors, and both formats of ``torch.save``."""

    name = "weights"

    def make(self, folder: Path) -> None:
        import torch

        state = self._net().state_dict()
        md.save_weights(state, folder / "safetensors")
        tensors: dict[str, Any] = {k: torch.from_numpy(v.copy()) for k, v in state.items()}
        tensors["view"] = tensors["0.weight"][:, ::2]
        tensors["halves"] = torch.ones(3, dtype=torch.bfloat16)
        for is_zip in (True, False):
            name = "zip" if is_zip else "legacy"
            torch.save(tensors, folder / name, _use_new_zipfile_serialization=is_zip)

    def mutate(self, draw: random.Random) -> dict[str, bytes]:
        name, data = self.sample(draw)
        if name == "zip" and draw.random() < 0.5:
            return {"weights": _repacked(draw, data)}
        return {"weights": mutated(draw, data)}

    def read(self, folder: Path) -> Any:
        found = md.load_weights(folder / "weights")
        for array in found.values():
            np.asarray(array).tobytes()  # all of it is there
        return found

    def run(self, found: Any) -> None:
        self._net().load_state_dict(found)

    def _net(self) -> L.Sequential:
        return md.Sequential(L.Conv2d(3, 4, 3), L.BatchNorm2d(4), L.Linear(4, 2))


def _repacked(draw: random.Random, data: bytes) -> bytes:
    """A zip file with other content under right checksums."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(target, "w") as made:
        entries = source.namelist()
        chosen = draw.choice([name for name in entries if name.endswith(".pkl")] * 3 + entries)
        for name in entries:
            content = source.read(name)
            packing = draw.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
            made.writestr(name, mutated(draw, content) if name == chosen else content, packing)
    return target.getvalue()


def _header_and_data(data: bytes) -> list[Region]:
    """Of a safetensors file; its header is where damage does most."""
    end = 8 + struct.unpack_from("<Q", data)[0]
    return [(0, 8), (8, end), (8, end), (end, len(data))]


def _opened(path: Path) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    from minidnn.weights._file import MappedFile
    from minidnn.weights.safetensors import read_metadata, read_safetensors

    file = MappedFile(path)
    arrays = {name: np.asarray(each) for name, each in read_safetensors(file).items()}
    return read_metadata(file), arrays


def _written(arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> bytes:
    """A safetensors file."""
    header: dict[str, Any] = {"__metadata__": metadata}
    data = b""
    for name, array in arrays.items():
        code = {"float32": "F32", "float16": "F16", "float64": "F64", "int64": "I64"}
        code |= {"int32": "I32", "int8": "I8", "uint8": "U8", "bool": "BOOL"}
        span = [len(data), len(data) + array.nbytes]
        header[name] = {
            "dtype": code[str(array.dtype)], "shape": array.shape, "data_offsets": span
        }  # fmt: skip
        data += np.ascontiguousarray(array).tobytes()
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + data


class Faulty(Format):
    """What the harness must notice; not a format."""

    name = "faulty"
    accepted = (0.0, 1.0)

    def make(self, folder: Path) -> None:
        pass

    def mutate(self, draw: random.Random) -> dict[str, bytes]:
        return {}

    def read(self, folder: Path) -> None:
        match self.seed:
            case 1:
                raise KeyError("it is not there")
            case 2:
                try:
                    np.zeros(1 << 40)
                except MemoryError as error:
                    raise WeightsError("it is too large") from error
            case 3:
                os.kill(os.getpid(), signal.SIGSEGV)
            case 4:
                while True:
                    pass


FORMATS: dict[str, Format] = {
    each.name: each
    for each in (
        *(Compiled(), Onnx(), Graphs(), Quantized(), Checkpoints(), Weights()),
        *(BATCH, Faulty()),
    )
}
