"""Inference requests and answers in REST's format: JSON, followed by binary tensors."""

from __future__ import annotations

import json
from io import SEEK_END, BytesIO
from typing import Any

import numpy as np

from minidnn.serving.json_numbers import NumberText, parsed, text_of
from minidnn.serving.protocol import Answer, Request, check_parameters
from minidnn.serving.settings import Fault, Refusal, invalid
from minidnn.serving.tensors import RequestTensor

#: The header with the number of bytes of JSON, if binary tensors follow.
LENGTH = "Inference-Header-Content-Length"
#: The most axes of a shape, and the bits of the extent of an axis.
_MOST_SIZES = 16
_SIZE_BITS = 40


class RestRequest:
    """Parses the body of an inference request, to ``request``.

    Args:
        body: JSON, followed by binary tensors if there is a ``length``.
        length: the header :data:`LENGTH`: the number of bytes of JSON.
        most: the most bytes of JSON.
    """

    def __init__(self, body: bytes | bytearray, length: str | None, most: int) -> None:
        size = len(body)
        if length is not None:
            if not (length.isascii() and length.isdecimal()) or len(length) > 12:
                raise invalid(f"header {LENGTH} is {length!r:.40}; valid is a number of bytes")
            size = int(length)
            if size > len(body):
                raise invalid(f"header {LENGTH} is {size}, and the body has {len(body)} bytes")
        if size > most:
            raise Fault(Refusal.TOO_LARGE, f"the JSON is too long; valid are at most {most} bytes")
        self._binary = memoryview(body)[size:]
        self._has_binary = length is not None
        document = parsed(body if length is None else body[:size])
        parameters = _parameters(document, "the request")
        self._all_binary = _flag(parameters, "binary_data_output", "the request")
        self._outputs: dict[str, bool] = {}
        for entry in _objects(document, "outputs", 0):
            name = _text(entry, "name", "an output")
            given = _parameters(entry, f"output {name!r:.100}")
            self._outputs[name] = (
                _flag(given, "binary_data", f"output {name!r:.100}")
                if "binary_data" in given
                else self._all_binary
            )
        given_inputs = [self._input(entry) for entry in _objects(document, "inputs", 1)]
        if len(self._binary):
            raise invalid(
                f"{len(self._binary)} bytes are left behind the last input; valid are as many as "
                "the inputs' binary_data_size say"
            )
        given_id = document.get("id", "")
        if not isinstance(given_id, str):
            raise invalid(f"id is {given_id!r:.40}; valid is a text")
        self.request = Request(given_inputs, list(self._outputs), given_id)

    def is_binary(self, output: str) -> bool:
        """Whether an output is to be answered in binary."""
        return self._outputs.get(output, self._all_binary)

    def _input(self, entry: dict[str, Any]) -> RequestTensor:
        """Parses an input, and takes its data off the binary tensors if it is binary."""
        name = _text(entry, "name", "an input")
        where = f"input {name!r:.100}"
        datatype = _text(entry, "datatype", where)
        shape = entry.get("shape")
        if (
            not isinstance(shape, list)
            or len(shape) > _MOST_SIZES
            or any(type(size) is not int or not 0 <= size < 1 << _SIZE_BITS for size in shape)
        ):
            raise invalid(
                f"{where} has shape {shape!r:.100}; valid is a list of at most {_MOST_SIZES} "
                f"integers from 0 to 2^{_SIZE_BITS} - 1"
            )
        size = _parameters(entry, where).get("binary_data_size")
        if size is None:
            if not isinstance(entry.get("data"), (list, NumberText)):
                raise invalid(f"{where} has no data; valid is a list, or binary_data_size")
            return RequestTensor(name, datatype, tuple(shape), entry["data"])
        if "data" in entry or not self._has_binary:
            raise invalid(
                f"{where} has binary_data_size; valid is that without data, and with the header "
                f"{LENGTH}"
            )
        if type(size) is not int or not 0 <= size <= len(self._binary):
            raise invalid(
                f"{where} has binary_data_size {size!r:.40}; {len(self._binary)} bytes are there"
            )
        data, self._binary = self._binary[:size], self._binary[size:]
        return RequestTensor(name, datatype, tuple(shape), data)


def written(asked: RestRequest, answer: Answer) -> tuple[bytes, int | None]:
    """The body of an answer, and the number of its bytes of JSON if binary tensors follow."""
    source = answer.model.source
    document = {"model_name": source.name, "model_version": str(source.version)}
    if asked.request.id:
        document["id"] = asked.request.id
    stream, parts = BytesIO(), []
    stream.write(json.dumps(document)[:-1].encode() + b', "outputs": [')
    for i, (spec, array) in enumerate(answer.outputs):
        described: dict[str, Any] = {
            "name": spec.name,
            "datatype": spec.datatype,
            "shape": list(array.shape),
        }
        if asked.is_binary(spec.name):
            part = np.ascontiguousarray(array).tobytes()
            described["parameters"] = {"binary_data_size": len(part)}
            parts.append(part)
        text = json.dumps(described).encode()
        stream.write(b", " + text if i else text)
        if not asked.is_binary(spec.name):
            stream.seek(-1, SEEK_END)
            stream.write(b', "data": ')
            text_of(array, stream.write)
            stream.write(b"}")
    stream.write(b"]}")
    length = stream.tell() if parts else None
    for part in parts:
        stream.write(part)
    return stream.getvalue(), length


def _objects(document: dict[str, Any], name: str, least: int) -> list[dict[str, Any]]:
    """The list of JSON objects under a key; Fault unless it has at least ``least``."""
    given = document.get(name, [])
    if (
        not isinstance(given, list)
        or len(given) < least
        or not all(isinstance(each, dict) for each in given)
    ):
        few = f" of at least {least}" if least else ""
        raise invalid(f"{name} is {given!r:.100}; valid is a list{few} of JSON objects")
    return given


def _text(document: dict[str, Any], name: str, where: str) -> str:
    """The non-empty text under a key; Fault if there is none."""
    given = document.get(name)
    if not isinstance(given, str) or not given:
        raise invalid(f"{where} has {name} {given!r:.40}; valid is a text")
    return given


def _parameters(document: dict[str, Any], where: str) -> dict[str, Any]:
    """The parameters of a request, an input or an output; Fault for one that is refused."""
    given = document.get("parameters", {})
    if not isinstance(given, dict):
        raise invalid(f"{where} has parameters {given!r:.100}; valid is a JSON object")
    check_parameters(where, list(given))
    return given


def _flag(parameters: dict[str, Any], name: str, where: str) -> bool:
    """A parameter that is true or false, by default false."""
    given = parameters.get(name, False)
    if not isinstance(given, bool):
        raise invalid(f"{where} has {name} {given!r:.40}; valid are true and false")
    return given
