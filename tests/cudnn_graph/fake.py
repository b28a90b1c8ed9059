"""A stand-in for libcudnn's backend functions, for machines without a GPU.

It keeps a book of descriptors: which live, what is set in them, in which state.  Wrong use (a
descriptor that was destroyed, changed after it was finalized, used before) raises at once.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from minidnn.cudnn.graph.attributes import Attribute as A
from minidnn.cudnn.graph.enums import DescriptorType as D
from minidnn.cudnn.graph.enums import HeuristicMode

NOT_SUPPORTED = 3000
_TEXT = b"plan of engine "


@dataclass(frozen=True)
class FakeEngine:
    """``lists``: the heuristics that propose it, each with these knobs."""

    workspace: int = 0
    numerical: tuple[int, ...] = ()
    behavior: tuple[int, ...] = ()
    lists: tuple[str, ...] = ("A",)
    knobs: tuple[tuple[int, int], ...] = ()
    builds: bool = True


@dataclass
class Record:
    """One descriptor."""

    kind: D
    values: dict[A, list[Any]] = field(default_factory=dict)
    final: bool = False


class FakeLibrary:
    """Takes the same arguments as the C functions behind ctypes."""

    version = 91900

    def __init__(self, engines: list[FakeEngine]) -> None:
        self.engines = engines
        self.alive: dict[int, Record] = {}
        self.created = 0
        self.executed: list[tuple[int, list[int], int]] = []
        self.asked: list[str] = []
        self.built: list[int] = []
        self.restored: list[int] = []
        self.refuse_graphs = False
        self.execute_status = 0
        self.message = ""

    def record(self, descriptor: Any) -> Record:
        address = getattr(descriptor, "value", descriptor)
        assert address in self.alive, f"descriptor {address} does not exist or was destroyed"
        return self.alive[address]

    def cudnnBackendCreateDescriptor(self, kind: int, out: Any) -> int:
        self.created += 1
        address = 0x1000 + 16 * self.created
        self.alive[address] = Record(D(kind))
        out._obj.value = address
        return 0

    def cudnnBackendDestroyDescriptor(self, descriptor: int) -> int:
        self.record(descriptor)
        del self.alive[descriptor]
        return 0

    def cudnnBackendSetAttribute(
        self, descriptor: int, name: int, kind: int, count: int, array: Any
    ) -> int:
        record = self.record(descriptor)
        assert not record.final, f"{record.kind.name} is finalized and cannot be changed"
        values = list(array[:count])
        if kind == 15:
            for value in values:
                assert self.record(value).final, "an attribute that is not finalized"
        record.values[A(name)] = values
        return 0

    def cudnnBackendFinalize(self, descriptor: int) -> int:
        record = self.record(descriptor)
        assert not record.final
        if record.kind == D.CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR and self.refuse_graphs:
            self.message = "no such pattern"
            return NOT_SUPPORTED
        if record.kind == D.CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
            text = record.values.get(A.CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION)
            if text is not None and not bytes(text).startswith(_TEXT):
                return NOT_SUPPORTED
            if not self._engine(record).builds:
                return NOT_SUPPORTED
            (self.built if text is None else self.restored).append(self._index(record))
        record.final = True
        return 0

    def _index(self, plan: Record) -> int:
        text = plan.values.get(A.CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION)
        if text is not None:
            return int(bytes(text).removeprefix(_TEXT))
        config = self.record(plan.values[A.CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG][0])
        engine = self.record(config.values[A.CUDNN_ATTR_ENGINECFG_ENGINE][0])
        return int(engine.values[A.CUDNN_ATTR_ENGINE_GLOBAL_INDEX][0])

    def _engine(self, plan: Record) -> FakeEngine:
        return self.engines[self._index(plan)]

    def cudnnBackendGetAttribute(
        self, descriptor: int, name: int, kind: int, limit: int, count: Any, array: Any
    ) -> int:
        record = self.record(descriptor)
        if name == A.CUDNN_ATTR_ENGINEHEUR_RESULTS:
            mode = HeuristicMode(record.values[A.CUDNN_ATTR_ENGINEHEUR_MODE][0])
            short = mode.name.removeprefix("CUDNN_HEUR_MODE_").replace("FALLBACK", "fallback")
            found = [i for i, engine in enumerate(self.engines) if short in engine.lists]
            if limit:
                self.asked.append(short)
            for slot, index in zip(array or (), found, strict=False):
                self.alive[slot].values[A.CUDNN_ATTR_ENGINECFG_ENGINE] = [index]
            values: list[Any] = []
            count._obj.value = len(found)
        elif name == A.CUDNN_ATTR_ENGINECFG_ENGINE:
            chosen = record.values[A.CUDNN_ATTR_ENGINECFG_ENGINE]
            self.alive[array[0]].values[A.CUDNN_ATTR_ENGINE_GLOBAL_INDEX] = chosen
            values, count._obj.value = [], 1
        elif name == A.CUDNN_ATTR_ENGINECFG_KNOB_CHOICES:
            knobs = self.engines[record.values[A.CUDNN_ATTR_ENGINECFG_ENGINE][0]].knobs
            for slot, (knob, value) in zip(array or (), knobs, strict=False):
                self.alive[slot].values[A.CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE] = [knob]
                self.alive[slot].values[A.CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE] = [value]
            values, count._obj.value = [], min(len(knobs), limit)
        elif name == A.CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION:
            text = _TEXT + str(self._index(record)).encode()
            if limit:
                array.value = text
            values, count._obj.value = [], len(text) + 1
        else:
            values = self._values(record, A(name))
            count._obj.value = len(values)
        for position, value in enumerate(values[:limit]):
            array[position] = value
        return 0

    def _values(self, record: Record, name: A) -> list[Any]:
        if name == A.CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
            return [self._engine(record).workspace]
        if name == A.CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT:
            return [len(self.engines)]
        if record.kind == D.CUDNN_BACKEND_ENGINE_DESCRIPTOR:
            engine = self.engines[record.values[A.CUDNN_ATTR_ENGINE_GLOBAL_INDEX][0]]
            if name == A.CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
                return list(engine.numerical)
            if name == A.CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE:
                return list(engine.behavior)
        return record.values[name]

    def cudnnBackendExecute(self, handle: int, plan: int, pack: int) -> int:
        content = self.record(pack).values
        pointers = [int(p or 0) for p in content[A.CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS]]
        (workspace,) = content[A.CUDNN_ATTR_VARIANT_PACK_WORKSPACE]
        self.executed.append((self._index(self.record(plan)), pointers, int(workspace or 0)))
        return self.execute_status

    def cudnnGetCudartVersion(self) -> int:
        return 13000

    def cudnnGetLastErrorString(self, buffer: Any, size: int) -> None:
        buffer.value = self.message.encode()[: size - 1]


class FakeArray:
    """What a CuPy array shows: shape, dtype, strides in bytes, address, device."""

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: str = "float32",
        strides: tuple[int, ...] | None = None,
        pointer: int = 0x10000,
        device: int = 0,
    ) -> None:
        sizes = {"float16": 2, "float32": 4, "float64": 8}
        self.shape = shape
        self.itemsize = sizes[dtype]
        self.dtype = SimpleNamespace(name=dtype, itemsize=self.itemsize)
        if strides is None:
            steps, step = [], self.itemsize
            for length in reversed(shape):
                steps.append(step)
                step *= length
            strides = tuple(reversed(steps))
        self.strides = strides
        self.data = SimpleNamespace(ptr=pointer)
        self.device = SimpleNamespace(id=device)
        self.nbytes = ctypes.sizeof(ctypes.c_char) * self.itemsize
        for size in shape:
            self.nbytes *= size


class FakeMemory:
    """Memory of an allocator that counts, at made-up addresses."""

    def __init__(self, pointer: int, size: int) -> None:
        self.ptr = pointer
        self.mem = SimpleNamespace(ptr=pointer, size=size)
        self.device_id = 0
