"""Reads the pickles of state dicts without executing anything that is in them.

A pickle is a program for a small stack machine.  Python's own machine imports and calls whatever
the program names; this one can do neither.  A global is a name and nothing else.  The globals in a
closed table construct tensors and dicts: "calling" one makes a plain record (:mod:`._records`).
"Calling" any other global gives an :class:`Opaque` object that keeps the global's name alone;
items and attributes that are set on it are dropped.  So a checkpoint may hold any objects besides
its weights.

Supported are protocols 2 to 5, without out-of-band buffers.  Source: Python's ``pickletools``,
which documents every instruction.

Limits: a pickle runs at most :data:`MAX_STEPS` instructions, keeps at most :data:`MAX_BYTES` of
texts and bytes (longer ones are opaque), and never recurses, so time and memory are bounded: its
objects never exceed 256 MiB.
"""

from __future__ import annotations

import dataclasses
import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from ._file import MappedFile, are_sizes, brief, is_size
from ._records import FOREIGN_STORAGES, STORAGE_CODES, Global, Opaque, StorageRecord, TensorRecord

MAX_BYTES = 16 << 20
MAX_STEPS = 1_000_000
#: Bytes of the longest integer that is read; longer ones are opaque.
_MAX_LONG = 32
#: Integers of a smaller magnitude are kept as keys of dicts.
_MAX_KEY = 2**60

#: Characters of the module and of the name of a global that are kept.
_LONGEST_NAME = 100


class PickleMachine:
    """Runs one pickle, which begins at byte ``start`` of a file and ends before byte ``end``.

    Attributes:
        storages: the storages that its tensors refer to, by key.
    """

    def __init__(self, file: MappedFile, start: int, end: int) -> None:
        self._file = file
        self._at = start
        self._end = end
        self._steps = 0
        self._read = 0
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._globals: dict[str, Global] = {}
        self.storages: dict[str, StorageRecord] = {}

    def run(self) -> tuple[Any, int]:
        """Returns the object that the pickle describes, and the offset in the file where it ends.

        Raises:
            WeightsError: the pickle is damaged, too large, or does something that no state dict
                needs.
        """
        data, end = self._file.data, self._end
        while True:
            self._spend(1)
            if self._at >= end:
                raise self._error("is truncated")
            opcode = data[self._at]
            self._at += 1
            if opcode == 0x2E:  # STOP
                return self._pop(), self._at
            instruction = _INSTRUCTIONS.get(opcode)
            if instruction is None:
                raise self._error(
                    f"uses the instruction {bytes([opcode])!r}, which no state dict needs"
                )
            instruction(self)

    # --- helpers ---

    def _error(self, problem: str) -> Exception:
        return self._file.error(f"its pickle at byte {self._at} {problem} (nothing was executed)")

    def _spend(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise self._error(f"needs more than {MAX_STEPS} steps, which no state dict does")

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > self._end:
            raise self._error("is truncated")
        data = self._file.data[self._at : end]
        self._at = end
        return data

    def _content(self, count: int) -> bytes | None:
        """The next ``count`` bytes; None, and skipped, where the total would exceed the limit."""
        if self._read + count > MAX_BYTES and self._at + count <= self._end:
            self._at += count
            return None
        self._read += count
        return self._take(count)

    def _number(self, layout: str) -> Any:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))[0]

    def _line(self) -> str:
        end = self._file.data.find(b"\n", self._at, min(self._at + 256, self._end))
        if end < 0:
            raise self._error("has a name without an end")
        return self._decoded(self._take(end + 1 - self._at), "strict")[:-1]

    def _decoded(self, data: bytes, errors: str) -> str:
        try:
            return data.decode("utf-8", errors)
        except UnicodeDecodeError as error:
            raise self._error("has a text that is not valid UTF-8") from error

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self) -> Any:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise self._error("takes more from its stack than is there")
        return self._stack.pop()

    def _peek(self, kind: type | tuple[type, ...], doing: str) -> Any:
        value = self._pop()
        self._push(value)
        if not isinstance(value, kind):
            raise self._error(f"wants to {doing} a {type(value).__name__}")
        return value

    def _pop_mark(self) -> list[Any]:
        if not self._marks:
            raise self._error("takes more marks from its stack than are there")
        mark = self._marks.pop()
        items = self._stack[mark:]
        del self._stack[mark:]
        return items

    # --- instructions: values ---

    def _protocol(self) -> None:
        version = self._take(1)[0]
        if not 2 <= version <= 5:
            raise self._error(f"has protocol {version}; valid are 2 to 5")

    def _frame(self) -> None:
        self._take(8)  # the frame's size, a hint for readers of streams

    def _long(self, count: int) -> None:
        if count < 0:
            raise self._error(f"has an integer of {count} bytes")
        digits = self._take(count)
        is_kept = count <= _MAX_LONG  # a longer one is no size, and slow to print
        self._push(int.from_bytes(digits, "little", signed=True) if is_kept else Opaque("int"))

    def _text(self, count: int) -> None:
        data = self._content(count)
        text: str | Opaque = Opaque("str")
        if data is not None:
            try:
                text = data.decode("utf-8")
            except UnicodeDecodeError:  # a lone surrogate, which Python allows, stays opaque
                self._decoded(data, "surrogatepass")
        self._push(text)

    def _bytes_as_text(self, count: int) -> None:
        """Reads a Python 2 ``str``, a text or bytes; the texts of state dicts are ASCII."""
        self._bytes(count)
        if isinstance(self._stack[-1], bytes) and self._stack[-1].isascii():
            self._push(self._pop().decode("ascii"))

    def _bytes(self, count: int) -> None:
        data = self._content(count)
        self._push(Opaque("bytes") if data is None else data)

    def _tuple(self, count: int) -> None:
        items = [self._pop() for _ in range(count)]
        self._push(tuple(reversed(items)))

    def _mark(self) -> None:
        self._marks.append(len(self._stack))

    def _drop(self) -> None:
        if self._marks and self._marks[-1] == len(self._stack):
            self._marks.pop()
        else:
            self._pop()

    # --- instructions: containers and memo ---

    def _extend(self, items: list[Any]) -> None:
        target = self._peek((list, Opaque), "append to")
        if isinstance(target, list):
            target.extend(items)

    def _opaque(self, name: str) -> None:
        self._push(Opaque(name))

    def _frozen_set(self) -> None:
        self._pop_mark()
        self._opaque("frozenset")

    def _forget_items(self) -> None:
        self._pop_mark()

    def _set_item(self) -> None:
        value = self._pop()
        key = self._pop()
        self._fill(self._peek((dict, Opaque), "set an item of"), [key, value])

    def _set_items(self) -> None:
        items = self._pop_mark()
        self._fill(self._peek((dict, Opaque), "set items of"), items)

    def _fill(self, target: dict[Any, Any] | Opaque, items: list[Any]) -> None:
        if len(items) % 2:
            raise self._error("sets a key without a value")
        if isinstance(target, Opaque):
            return
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Other keys are never looked up, and hashing nested ones would recurse.
            simple = isinstance(key, str) or (type(key) is int and abs(key) < _MAX_KEY)
            target[key if simple else _opaque_key(key)] = value

    def _get(self, index: int) -> None:
        if index not in self._memo:
            raise self._error(f"recalls the value {index}, which it has not remembered")
        self._push(self._memo[index])

    def _put(self, index: int) -> None:
        self._memo[index] = self._peek(object, "remember")

    # --- instructions: what would run code in Python's own machine ---

    def _global(self) -> None:
        self._push_global(self._line(), self._line())

    def _stack_global(self) -> None:
        name, module = self._pop(), self._pop()
        if not (isinstance(module, str) and isinstance(name, str)):
            raise self._error(f"names the global {brief(module)} {brief(name)}")
        self._push_global(module, name)

    def _push_global(self, module: str, name: str) -> None:
        full = f"{module[:_LONGEST_NAME]}.{name[:_LONGEST_NAME]}"
        self._push(self._globals.setdefault(full, Global(full)))

    def _reduce(self) -> None:
        arguments, called = self._pop(), self._pop()
        self._push(self._called(called, arguments))

    def _called(self, called: Any, arguments: Any) -> Any:
        """Returns a record of the object that a call would create; nothing is called."""
        if not isinstance(called, (Global, Opaque)) or not isinstance(arguments, tuple):
            raise self._error(f"wants to call {brief(called)}")
        constructor = _CONSTRUCTORS.get(called.name) if isinstance(called, Global) else None
        return Opaque(called.name) if constructor is None else constructor(self, arguments)

    def _new_object(self, keywords: bool) -> None:
        if keywords:
            self._pop()
        self._reduce()

    def _old_object(self) -> None:
        kind, *_ = self._pop_mark() or [None]
        self._push(self._called(kind, ()))

    def _build(self) -> None:
        """Drops attributes, such as the ``_metadata`` of a state dict."""
        self._pop()
        self._peek((OrderedDict, Opaque, TensorRecord), "set attributes of")

    def _persistent(self) -> None:
        identity = self._pop()
        if isinstance(identity, tuple) and len(identity) == 4 and identity[0] == "module":
            self._push(identity[1])  # a class; old files include its source
            return
        if not (isinstance(identity, tuple) and len(identity) in (5, 6)):
            raise self._error(f"has the persistent id {brief(identity)}, which is no storage")
        tag, kind, key, _, numel = identity[:5]
        code = STORAGE_CODES.get(kind.name) if isinstance(kind, Global) else None
        if tag != "storage" or code is None or not isinstance(key, str) or not is_size(numel):
            raise self._error(f"has the persistent id {brief(identity)}, which is no storage")
        view = identity[5] if len(identity) == 6 else None
        base, length = 0, numel
        if view is not None:
            if not (isinstance(view, tuple) and len(view) == 3 and are_sizes(view[1:])):
                raise self._error(f"has the storage view {brief(view)}")
            _, base, length = view
            if base + length > numel:
                raise self._error(f"has the storage view {brief(view)} of {numel} elements")
        storage = StorageRecord(code, key, numel, base, length)
        first = self.storages.setdefault(key, storage)
        if (first.code, first.numel) != (code, numel):
            raise self._error(
                f"says that storage {brief(key)} has {first.numel} elements of {first.code}, and "
                f"then {numel} of {code}"
            )
        self._push(storage)

    # --- constructors, which may be "called" ---

    def make_ordered_dict(self, arguments: tuple[Any, ...]) -> OrderedDict[Any, Any]:
        """``OrderedDict()``, or Python 2's ``OrderedDict([[key, value], ...])``."""
        result: OrderedDict[Any, Any] = OrderedDict()
        if not arguments:
            return result
        pairs = arguments[0]
        if len(arguments) > 1 or not isinstance(pairs, list):
            raise self._error(f"makes an OrderedDict from {brief(arguments)}")
        self._spend(4 * len(pairs))  # copying one list repeatedly is slow
        for pair in pairs:
            if not isinstance(pair, (list, tuple)) or len(pair) != 2:
                raise self._error(f"makes an OrderedDict from the pair {brief(pair)}")
            self._fill(result, list(pair))
        return result

    def make_size(self, arguments: tuple[Any, ...]) -> tuple[int, ...]:
        """``torch.Size((3, 4))``."""
        if len(arguments) != 1 or not are_sizes(arguments[0]):
            raise self._error(f"makes a torch.Size from {brief(arguments)}")
        return tuple(arguments[0])

    def make_tensor(self, arguments: tuple[Any, ...]) -> TensorRecord:
        """``_rebuild_tensor_v2(storage, offset, size, stride, grad, hooks[, metadata])``."""
        return self._tensor(arguments, (4, 6, 7), arguments[6:7])

    def make_typed_tensor(self, arguments: tuple[Any, ...]) -> TensorRecord:
        """``_rebuild_tensor_v3(storage, offset, size, stride, grad, hooks, dtype[, metadata])``,
        for dtypes that have no typed storage."""
        if len(arguments) not in (7, 8) or not isinstance(arguments[6], Global):
            raise self._error(f"makes a tensor from {brief(arguments)}")
        tensor = self._tensor(arguments, (7, 8), arguments[7:8])
        return dataclasses.replace(tensor, foreign=arguments[6].name.removeprefix("torch."))

    def _tensor(
        self, arguments: tuple[Any, ...], counts: tuple[int, ...], metadata: tuple[Any, ...]
    ) -> TensorRecord:
        if len(arguments) not in counts or not isinstance(arguments[0], StorageRecord):
            raise self._error(f"makes a tensor from {brief(arguments)}")
        storage, offset, shape, strides = arguments[:4]
        if not (
            is_size(offset)
            and are_sizes(shape)
            and are_sizes(strides)
            and len(shape) == len(strides)
        ):
            raise self._error(
                f"makes a tensor with offset {brief(offset)}, shape {brief(shape)} and strides "
                f"{brief(strides)}; valid are integers >= 0, as many strides as sizes"
            )
        foreign = "conjugated or negated numbers" if any(metadata) else None
        if storage.code in FOREIGN_STORAGES:
            foreign = storage.code.removesuffix("Storage").lower()
        return TensorRecord(storage, offset, tuple(shape), tuple(strides), foreign)

    def make_parameter(self, arguments: tuple[Any, ...]) -> TensorRecord | Opaque:
        """``_rebuild_parameter(tensor, requires_grad, hooks[, state])``."""
        if len(arguments) not in (3, 4) or not isinstance(arguments[0], (TensorRecord, Opaque)):
            raise self._error(f"makes a parameter from {brief(arguments)}")
        return arguments[0]

    def make_with_attributes(self, arguments: tuple[Any, ...]) -> Any:
        """``_rebuild_from_type_v2(function, class, arguments, attributes)``."""
        names = [each.name for each in arguments[:2] if isinstance(each, Global)]
        if len(arguments) != 4 or len(names) != 2 or "_rebuild_from_type" in names[0]:
            raise self._error(f"makes a tensor from {brief(arguments)}")
        if names[1] not in ("torch.Tensor", "torch.nn.parameter.Parameter"):
            return Opaque(f"torch._tensor._rebuild_from_type_v2 of a {names[1]}")
        return self._called(arguments[0], arguments[2])

    def make_default_dict(self, arguments: tuple[Any, ...]) -> OrderedDict[Any, Any]:
        """``defaultdict(factory)``; its items are set by later instructions."""
        return OrderedDict()


def _opaque_key(key: Any) -> Opaque:
    """Returns an object in place of a key.  It shows the content of short keys alone, as one long
    key may be used many times."""
    short = isinstance(key, (int, float, bytes, type(None)))
    return Opaque(brief(key) if short else type(key).__name__)


_CONSTRUCTORS: dict[str, Callable[[PickleMachine, tuple[Any, ...]], Any]] = {
    "collections.OrderedDict": PickleMachine.make_ordered_dict,
    "collections.defaultdict": PickleMachine.make_default_dict,
    "torch.Size": PickleMachine.make_size,
    "torch._utils._rebuild_tensor": PickleMachine.make_tensor,
    "torch._utils._rebuild_tensor_v2": PickleMachine.make_tensor,
    "torch._utils._rebuild_tensor_v3": PickleMachine.make_typed_tensor,
    "torch._utils._rebuild_parameter": PickleMachine.make_parameter,
    "torch._utils._rebuild_parameter_with_state": PickleMachine.make_parameter,
    "torch._tensor._rebuild_from_type_v2": PickleMachine.make_with_attributes,
}

_INSTRUCTIONS: dict[int, Callable[[PickleMachine], None]] = {
    0x80: PickleMachine._protocol,
    0x95: PickleMachine._frame,
    ord("N"): lambda m: m._push(None),
    0x88: lambda m: m._push(True),
    0x89: lambda m: m._push(False),
    ord("J"): lambda m: m._push(m._number("<i")),
    ord("K"): lambda m: m._push(m._number("<B")),
    ord("M"): lambda m: m._push(m._number("<H")),
    0x8A: lambda m: m._long(m._number("<B")),
    0x8B: lambda m: m._long(m._number("<i")),
    ord("G"): lambda m: m._push(m._number(">d")),
    ord("X"): lambda m: m._text(m._number("<I")),
    0x8C: lambda m: m._text(m._number("<B")),
    0x8D: lambda m: m._text(m._number("<Q")),
    ord("U"): lambda m: m._bytes_as_text(m._number("<B")),
    ord("T"): lambda m: m._bytes_as_text(m._number("<I")),
    ord("C"): lambda m: m._bytes(m._number("<B")),
    ord("B"): lambda m: m._bytes(m._number("<I")),
    0x8E: lambda m: m._bytes(m._number("<Q")),
    0x96: lambda m: m._bytes(m._number("<Q")),
    0x82: lambda m: m._opaque(f"extension {m._number('<B')}"),
    0x83: lambda m: m._opaque(f"extension {m._number('<H')}"),
    0x84: lambda m: m._opaque(f"extension {m._number('<I')}"),
    0x8F: lambda m: m._opaque("set"),
    0x90: lambda m: m._extend(m._pop_mark()),
    0x91: PickleMachine._frozen_set,
    ord("0"): PickleMachine._drop,
    ord("1"): PickleMachine._forget_items,
    ord("2"): lambda m: m._push(m._peek(object, "repeat")),
    ord(")"): lambda m: m._push(()),
    ord("]"): lambda m: m._push([]),
    ord("}"): lambda m: m._push({}),
    ord("("): PickleMachine._mark,
    ord("t"): lambda m: m._push(tuple(m._pop_mark())),
    0x85: lambda m: m._tuple(1),
    0x86: lambda m: m._tuple(2),
    0x87: lambda m: m._tuple(3),
    ord("a"): lambda m: m._extend([m._pop()]),
    ord("e"): lambda m: m._extend(m._pop_mark()),
    ord("s"): PickleMachine._set_item,
    ord("u"): PickleMachine._set_items,
    ord("h"): lambda m: m._get(m._number("<B")),
    ord("j"): lambda m: m._get(m._number("<I")),
    ord("q"): lambda m: m._put(m._number("<B")),
    ord("r"): lambda m: m._put(m._number("<I")),
    0x94: lambda m: m._put(len(m._memo)),
    ord("c"): PickleMachine._global,
    0x93: PickleMachine._stack_global,
    ord("R"): PickleMachine._reduce,
    0x81: lambda m: m._new_object(False),
    0x92: lambda m: m._new_object(True),
    ord("o"): PickleMachine._old_object,
    ord("b"): PickleMachine._build,
    ord("Q"): PickleMachine._persistent,
}
