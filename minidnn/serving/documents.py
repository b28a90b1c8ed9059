"""Documents that a server makes about itself: an OpenAPI description of REST, and a status page.

The description is ``/openapi.json``.  The page at ``/`` shows the models, their latency, and their
queues.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

import minidnn
from minidnn.pages.charts import Bar, Chart, Dot, Scale, bars, chart_figure
from minidnn.pages.page import page, paragraph, table
from minidnn.serving.metrics import Meter
from minidnn.serving.model import ServedModel
from minidnn.serving.protocol import REFUSED_PARAMETERS
from minidnn.serving.repository import Repository, ServedVersion
from minidnn.serving.rest_infer import LENGTH
from minidnn.serving.settings import Refusal
from minidnn.serving.tensors import DATATYPES, ENCODED, Spec

_TEXT = {"type": "string"}
_FREE = {"type": "object", "additionalProperties": True}


def _object(required: Sequence[str], **properties: Any) -> dict[str, Any]:
    """The schema of an object with these properties."""
    return {"type": "object", "required": list(required), "properties": properties}


def _ref(name: str) -> dict[str, str]:
    """A reference to a schema in ``_SCHEMAS``."""
    return {"$ref": f"#/components/schemas/{name}"}


def _list(of: Any, **more: Any) -> dict[str, Any]:
    """The schema of an array."""
    return {"type": "array", "items": of, **more}


_SIZES = _list({"type": "integer", "minimum": 0, "maximum": (1 << 40) - 1}, maxItems=16)
_DATATYPE = {"type": "string", "enum": sorted(DATATYPES.values())}


def _parameters(**known: Any) -> dict[str, Any]:
    """The schema of parameters, without those that are refused."""
    refused = {"not": {"anyOf": [{"required": [name]} for name in REFUSED_PARAMETERS]}}
    return {"type": "object", "properties": known, "additionalProperties": True, **refused}


_COUNT = {"type": "integer", "minimum": 1}
_SCHEMAS = {
    "Error": _object(["error"], error=_TEXT),
    "Live": _object(["live"], live={"type": "boolean"}),
    "Ready": _object(["ready"], ready={"type": "boolean"}),
    "ModelReady": _object(["name", "ready"], name=_TEXT, ready={"type": "boolean"}),
    "Server": _object(
        ["name", "version", "extensions"], name=_TEXT, version=_TEXT, extensions=_list(_TEXT)
    ),
    "TensorMetadata": _object(
        ["name", "datatype", "shape"],
        name=_TEXT,
        datatype=_DATATYPE,
        shape=_list({"type": "integer", "minimum": -1}),
    ),
    "Model": _object(
        ["name", "versions", "platform", "inputs", "outputs", "parameters"],
        name=_TEXT,
        versions=_list(_TEXT),
        platform=_TEXT,
        inputs=_list(_ref("TensorMetadata")),
        outputs=_list(_ref("TensorMetadata")),
        parameters=_object(
            [],
            min_rows=_COUNT,
            max_rows=_COUNT,
            multiple_of_rows=_COUNT,
            preparation=_ref("Preparation"),
        ),
    ),
    "Preparation": _object(
        ["resize", "crop", "channels", "mean", "std", "classes"],
        resize=_COUNT,
        crop=_COUNT,
        channels={"enum": [1, 3]},
        mean=_list({"type": "number"}),
        std=_list({"type": "number"}),
        classes={"type": ["array", "null"], "items": _TEXT},
    ),
    "Output": _object(
        ["name", "datatype", "shape", "data"],
        name=_TEXT,
        datatype=_DATATYPE,
        shape=_SIZES,
        data=_list(
            {
                "description": "numbers or booleans; NaN, Infinity and -Infinity stand as such, "
                "which some parsers refuse: they are asked for in binary"
            }
        ),
    ),
    "InferAnswer": _object(
        ["model_name", "model_version", "outputs"],
        model_name=_TEXT,
        model_version=_TEXT,
        id=_TEXT,
        outputs=_list(_ref("Output")),
    ),
    "IndexRequest": {"type": "object", "properties": {"ready": {"type": "boolean"}}},
    "Index": _list(
        _object(
            ["name", "version", "state", "reason"],
            name=_TEXT,
            version=_TEXT,
            state={"type": "string", "enum": ["READY", "LOADING", "UNAVAILABLE"]},
            reason=_TEXT,
        )
    ),
    "ChangeRequest": {
        "type": "object",
        "properties": {
            "parameters": {
                "type": "object",
                "properties": {"unload_dependents": {}},
                "additionalProperties": False,
            }
        },
    },
}


def document(versions: Iterable[ServedVersion], has_token: bool) -> dict[str, Any]:
    """The OpenAPI document of a server of these models; only ready ones have inference."""
    paths: dict[str, Any] = {
        "/": {"get": _answers("The page", 200, "text/html", {"type": "string"})},
        "/metrics": {"get": _answers("For Prometheus", 200, "text/plain", {"type": "string"})},
        "/openapi.json": {"get": _answers("This document", 200, "application/json", _FREE)},
        "/v2": {"get": _json("The server", "Server")},
        "/v2/health/live": {"get": _json("Whether it lives", "Live")},
        "/v2/health/ready": {"get": _json("Whether all models are ready", "Ready")},
        "/v2/repository/index": {"post": _json("All models", "Index", _ref("IndexRequest"))},
    }
    for entry in versions:
        name, version = entry.source.name, entry.source.version
        for change, summary in (("load", "Load a model anew"), ("unload", "Take no more for it")):
            operation = _json(summary, None, _ref("ChangeRequest"))
            paths[f"/v2/repository/models/{name}/{change}"] = {"post": operation}
        for path in (f"/v2/models/{name}", f"/v2/models/{name}/versions/{version}"):
            paths[path] = {"get": _json("Inputs and outputs", "Model")}
            paths[f"{path}/ready"] = {"get": _json("Whether it is ready", "ModelReady")}
            if entry.batcher is not None:
                paths[f"{path}/infer"] = {"post": _infer(entry.batcher.model)}
    schemes = {"token": {"type": "http", "scheme": "bearer"}} if has_token else {}
    return {
        "openapi": "3.1.0",
        "info": {"title": "minidnn serve", "version": minidnn.__version__},
        "paths": paths,
        "components": {"schemas": _SCHEMAS, "securitySchemes": schemes},
        **({"security": [{"token": []}]} if has_token else {}),
    }


def _answers(summary: str, status: int, media: str, schema: Any) -> dict[str, Any]:
    """An operation: the schema of its answer, and those of all refusals."""
    refused = {
        str(kind.status): {
            "description": kind.name.lower(),
            "content": {"application/json": {"schema": _ref("Error")}},
        }
        for kind in Refusal
    }
    answer = {"description": summary, "content": {media: {"schema": schema}}}
    return {"summary": summary, "responses": {**refused, str(status): answer}}


def _json(summary: str, schema: str | None, body: Any = None) -> dict[str, Any]:
    """An operation with a JSON answer of a named schema and, if given, a JSON body."""
    operation = _answers(summary, 200, "application/json", _ref(schema) if schema else _FREE)
    if schema in ("Ready", "ModelReady"):
        content = operation["responses"]["503"]["content"]
        content["application/json"] = {"schema": {"anyOf": [_ref(schema), _ref("Error")]}}
    if body:
        operation["requestBody"] = {"content": {"application/json": {"schema": body}}}
    return operation


def _infer(model: ServedModel) -> dict[str, Any]:
    """The operation that runs a model, with a request of the fewest valid rows."""
    inputs = [_input(spec, model.batch.least) for spec in model.inputs]
    count = len(inputs)
    output = _object(
        ["name"],
        name={"enum": [spec.name for spec in model.outputs]},
        parameters=_parameters(binary_data={"type": "boolean"}),
    )
    body = _object(
        ["inputs"],
        id=_TEXT,
        inputs={"type": "array", "prefixItems": inputs, "minItems": count, "maxItems": count},
        outputs=_list(output),
        parameters=_parameters(binary_data_output={"type": "boolean"}),
    )
    operation = _json("Outputs for inputs, here of the fewest rows", "InferAnswer", body)
    operation["description"] = (
        f"The first axis of shapes that metadata tell with -1 is from {model.batch.valid}. "
        f"Instead of data, the parameter binary_data_size of an input says how many bytes of it "
        f"stand behind the JSON, whose length the header {LENGTH} says then. The body may be "
        "packed (Content-Encoding: gzip, deflate), and so is the answer if "
        "Accept-Encoding has one of them."
    )
    if model.preparation is not None:
        operation["description"] += (
            f" An input of the shape [N] and the datatype {ENCODED} has encoded pictures, such as "
            "PNG, which are prepared as the model's metadata say; it is binary."
        )
    operation["requestBody"]["required"] = True
    operation["responses"]["200"]["content"]["application/octet-stream"] = {"schema": {}}
    return operation


def _input(spec: Spec, rows: int) -> dict[str, Any]:
    """The schema of an input with ``rows`` rows."""
    shape = [rows, *spec.shape] if spec.batched else list(spec.shape)
    number: dict[str, Any] = {"type": "boolean"}
    if spec.dtype.kind == "f":
        most = float(np.finfo(spec.dtype).max)
        number = {"type": "number", "minimum": -most, "maximum": most}
    elif spec.dtype.kind != "b":
        bounds = np.iinfo(spec.dtype)
        number = {"type": "integer", "minimum": int(bounds.min), "maximum": int(bounds.max)}
    size = prod(shape)
    return _object(
        ["name", "datatype", "shape", "data"],
        name={"const": spec.name},
        datatype={"const": spec.datatype},
        shape={"const": shape},
        data=_list(number, minItems=size, maxItems=size),
    )


_HEAD = ("model", "state", "p50 ms", "p99 ms", "queue", "rows a batch", "requests", "refused")
#: The period that the page shows, in seconds, and the points of a chart.
_SECONDS = 60
_DOTS = 300
_AXES = (Scale("seconds ago"), Scale("latency in ms", log=True))
_SEE = "A point is a request; the newest are on the left. A rising cloud is a queue that grows."


def page_of(repository: Repository) -> str:
    """The status page; everything in it is of the last minute, apart from the counts."""
    entries = list(repository)
    meters = {
        _title(entry): repository.metrics.meter(entry.source.name, entry.source.version)
        for entry in entries
    }
    parts = [
        paragraph(_told(repository), "soft"),
        table(_HEAD, [_row(entry, meters[_title(entry)]) for entry in entries]),
    ]
    for entry in entries:
        if entry.state != "READY" and entry.reason:
            parts.append(paragraph(f"{_title(entry)}: {entry.reason}"))
    limit = repository.settings.max_queue
    queues = [Bar(name, meter.queue, f"{meter.queue} rows") for name, meter in meters.items()]
    parts += ["<h2>Queues</h2>", bars(queues, {f"the limit of {limit} rows": limit})]
    charts = [
        chart_figure(Chart(name, _SEE, {name: dots}, *_AXES))
        for name, meter in meters.items()
        if (dots := _dots(meter))
    ]
    if charts:
        caption = "Requests of the last minute, or a part of them."
        parts += ["<h2>Latency</h2>", paragraph(caption), '<div class="charts">', *charts, "</div>"]
    return page("minidnn serve", parts)


def _told(repository: Repository) -> str:
    """The sentence about the state and the settings of the server."""
    settings = repository.settings
    ready = "ready" if repository.is_ready else "not ready"
    return (
        f"The server is {ready}. Batches of at most {settings.max_batch} rows; a row waits "
        f"{1000 * settings.max_delay:g} ms for others. Figures are at /metrics."
    )


def _title(entry: ServedVersion) -> str:
    return f"{entry.source.name} {entry.source.version}"


def _row(entry: ServedVersion, meter: Meter) -> list[str]:
    """The cells of a version's row in the table."""
    done = meter.counts.get("ok", 0)
    batches = list(meter.recent_rows)
    mean = sum(batches) / len(batches) if batches else math.nan
    return [
        _title(entry),
        entry.state.lower(),
        *(_number(1000 * each) for each in meter.quantiles(0.5, 0.99, within=_SECONDS)),
        str(meter.queue),
        _number(mean),
        f"{done:,}",
        f"{sum(meter.counts.values()) - done:,}",
    ]


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _dots(meter: Meter) -> list[Dot]:
    """The points of the latency chart: at most about ``_DOTS`` requests of the last minute."""
    now = time.monotonic()
    requests = [(now - when, 1000 * each) for when, each in meter.recent if now - when <= _SECONDS]
    every = -(-len(requests) // _DOTS) or 1
    return [Dot(ago, latency, f"{latency:.3g} ms") for ago, latency in requests[::every]]
