"""The Open Inference Protocol's messages for gRPC, built from a table.

The fields are those of the protocol's .proto file and of Triton's extension for repositories, in
their order, which their numbers follow.  They are built here rather than by ``protoc``: generated
files demand one range of protobuf's versions, and register their names in a pool that the whole
process shares, where a client's generated files register the same names.

Large requests are split before they are parsed.  A message of 32 MB may mean two gigabytes of
objects, since an empty message within a message takes two bytes.  Raw tensors are therefore cut out
as views, and the rest is parsed only if it is no longer than a request may be without them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from minidnn.serving.json_numbers import MOST_HEAD_BYTES
from minidnn.serving.settings import Fault, Refusal, invalid

_INPUTS, _RAW = 5, 7  # field numbers of ModelInferRequest
_WIRE_CONTENTS = 5  # a field number of InferInputTensor
MOST_FIELDS = 1 << 13  # the most fields of a message and its inputs, which bounds the scan
_LENGTHS = {1: 8, 5: 4}  # wire type -> bytes of a value of fixed length


def raw_tensors(data: bytes, most: int) -> tuple[bytes, list[memoryview]]:
    """Splits a ModelInferRequest: the message without raw_input_contents, and these.

    Fault if the message is damaged, if it has more than ``most`` bytes besides the raw tensors, or
    more than a request's head may have besides these and the inputs' contents.
    """
    view, parts, raw = memoryview(data), [], []
    head = rest = count = 0
    for field, begin, value, end in _fields(view, 0, len(view)):
        count = _counted(count)
        if field == _RAW and value >= 0:
            raw.append(view[value:end])
            continue
        contents = 0
        if field == _INPUTS and value >= 0:
            for each, _, at, last in _fields(view, value, end):
                contents += last - at if each == _WIRE_CONTENTS and at > 0 else 0
                count = _counted(count)
        parts.append(view[begin:end])
        head += end - begin - contents
        rest += end - begin
        if head > MOST_HEAD_BYTES or rest > most:
            raise Fault(
                Refusal.TOO_LARGE,
                f"the message is too long; valid are at most {most} bytes besides "
                f"raw_input_contents, and {MOST_HEAD_BYTES} besides contents, too",
            )
    return b"".join(parts), raw


def _counted(fields: int) -> int:
    """The number of fields with one more; Fault if these are too many."""
    if fields >= MOST_FIELDS:
        raise Fault(
            Refusal.TOO_LARGE,
            f"the message and its inputs have more than {MOST_FIELDS} fields; valid are fewer",
        )
    return fields + 1


def _fields(view: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields each field of a message: its number, and the offsets of its beginning, of its value,
    and of its end.

    The offset of the value is -1 unless it is a string, bytes or a message.
    """
    while at < end:
        begin = at
        key, at = _varint(view, at, end)
        value, kind = -1, key & 7
        if kind == 0:
            _, at = _varint(view, at, end)
        elif kind == 2:
            length, at = _varint(view, at, end)
            value, at = at, at + length
        elif kind in _LENGTHS:
            at += _LENGTHS[kind]
        else:
            raise invalid(f"the message is no ModelInferRequest: a field has wire type {kind}")
        if at > end:
            raise invalid("the message is no ModelInferRequest: it is cut off")
        yield key >> 3, begin, value, at


def _varint(view: memoryview, at: int, end: int) -> tuple[int, int]:
    """Decodes a varint; returns the number and the offset after it."""
    number = shift = 0
    while at < end and shift < 70:
        byte = view[at]
        at, number, shift = at + 1, number | (byte & 127) << shift, shift + 7
        if byte < 128:
            return number, at
    raise invalid("the message is no ModelInferRequest: a number has no end")


PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"

_TENSOR = ("string name", "string datatype", "repeated int64 shape")
_PARAMETERS = "map InferParameter parameters"
_REPOSITORY = (
    "string repository_name",
    "string model_name",
    "map ModelRepositoryParameter parameters",
)
_MODEL = ("string name", "string version")
_RESULT = ("string model_name", "string model_version", "string id", _PARAMETERS)
_CONTENTS = "InferTensorContents contents"

#: Messages by name, with fields as "rule type name".  A name with a dot is that of a nested
#: message; the keys of a "map" are strings.
FIELDS: dict[str, tuple[str, ...]] = {
    "ServerLiveRequest": (),
    "ServerLiveResponse": ("bool live",),
    "ServerReadyRequest": (),
    "ServerReadyResponse": ("bool ready",),
    "ModelReadyRequest": _MODEL,
    "ModelReadyResponse": ("bool ready",),
    "ServerMetadataRequest": (),
    "ServerMetadataResponse": ("string name", "string version", "repeated string extensions"),
    "ModelMetadataRequest": _MODEL,
    "ModelMetadataResponse": (
        "string name",
        "repeated string versions",
        "string platform",
        "repeated ModelMetadataResponse.TensorMetadata inputs",
        "repeated ModelMetadataResponse.TensorMetadata outputs",
    ),
    "ModelMetadataResponse.TensorMetadata": _TENSOR,
    "InferParameter": (
        "oneof bool bool_param",
        "oneof int64 int64_param",
        "oneof string string_param",
        "oneof double double_param",
        "oneof uint64 uint64_param",
    ),
    "InferTensorContents": (
        "repeated bool bool_contents",
        "repeated int32 int_contents",
        "repeated int64 int64_contents",
        "repeated uint32 uint_contents",
        "repeated uint64 uint64_contents",
        "repeated float fp32_contents",
        "repeated double fp64_contents",
        "repeated bytes bytes_contents",
    ),
    "ModelInferRequest": (
        *_RESULT,
        "repeated ModelInferRequest.InferInputTensor inputs",
        "repeated ModelInferRequest.InferRequestedOutputTensor outputs",
        "repeated bytes raw_input_contents",
    ),
    "ModelInferRequest.InferInputTensor": (*_TENSOR, _PARAMETERS, _CONTENTS),
    "ModelInferRequest.InferRequestedOutputTensor": ("string name", _PARAMETERS),
    "ModelInferResponse": (
        *_RESULT,
        "repeated ModelInferResponse.InferOutputTensor outputs",
        "repeated bytes raw_output_contents",
    ),
    "ModelInferResponse.InferOutputTensor": (*_TENSOR, _PARAMETERS, _CONTENTS),
    "ModelRepositoryParameter": (
        "oneof bool bool_param",
        "oneof int64 int64_param",
        "oneof string string_param",
        "oneof bytes bytes_param",
    ),
    "RepositoryIndexRequest": ("string repository_name", "bool ready"),
    "RepositoryIndexResponse": ("repeated RepositoryIndexResponse.ModelIndex models",),
    "RepositoryIndexResponse.ModelIndex": (*_MODEL, "string state", "string reason"),
    "RepositoryModelLoadRequest": _REPOSITORY,
    "RepositoryModelLoadResponse": (),
    "RepositoryModelUnloadRequest": _REPOSITORY,
    "RepositoryModelUnloadResponse": (),
}

_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = ("bool", "int32", "int64", "uint32", "uint64", "float", "double", "string", "bytes")


def _file() -> descriptor_pb2.FileDescriptorProto:
    """The descriptor of a .proto file with all messages."""
    file = descriptor_pb2.FileDescriptorProto(
        name="minidnn/open_inference.proto", package=PACKAGE, syntax="proto3"
    )
    built: dict[str, Any] = {}
    for name, fields in FIELDS.items():
        outer, _, inner = name.rpartition(".")
        built[name] = (built[outer].nested_type if outer else file.message_type).add(name=inner)
        for number, text in enumerate(fields, 1):
            _add(built[name], name, number, text.split())
    return file


def _add(message: Any, path: str, number: int, words: list[str]) -> None:
    """Adds a field, given as the words of its text, to the descriptor of a message."""
    *rule, kind, name = words
    field = message.field.add(name=name, number=number, label=_FIELD.LABEL_OPTIONAL)
    if "map" in rule:
        entry = message.nested_type.add(name="ParametersEntry")
        entry.options.map_entry = True
        _add(entry, path, 1, ["string", "key"])
        _add(entry, path, 2, [kind, "value"])
        kind = f"{path}.ParametersEntry"
    if "repeated" in rule or "map" in rule:
        field.label = _FIELD.LABEL_REPEATED
    if "oneof" in rule:
        if not message.oneof_decl:
            message.oneof_decl.add(name="parameter_choice")
        field.oneof_index = 0
    if kind in _SCALARS:
        field.type = getattr(_FIELD, f"TYPE_{kind.upper()}")
    else:
        field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{PACKAGE}.{kind}"


_pool = descriptor_pool.DescriptorPool()
_pool.Add(_file())


def message(name: str) -> Any:
    """The class of a message."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
