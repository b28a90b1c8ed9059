"""The ranges of a model's open sizes, which ``save_onnx`` writes into its properties."""

from __future__ import annotations

import json

from minidnn.dynamic.dim import Dim, Template
from minidnn.errors import GraphError
from minidnn.frontends.onnx.model import SIZES_KEY, OnnxModel
from minidnn.sizes.sized_graph import dims_from_json


def named_shapes(model: OnnxModel) -> dict[str, Template] | None:
    """The shapes of a model's inputs with their named sizes; None if it says no ranges.

    GraphError if what it says makes no sense.
    """
    said = {each.key: each.value for each in model.proto.metadata_props}.get(SIZES_KEY)
    if said is None:
        return None
    try:
        dims = dims_from_json(json.loads(said))
    except (GraphError, ValueError, RecursionError) as error:
        raise GraphError(f"{model.title}: its property {SIZES_KEY!r}: {error}") from error
    by_name = {dim.name: dim for dim in dims}
    found: dict[str, Template] = {}
    for declared in model.inputs:
        shape: list[int | Dim] = []
        for size in declared.sizes if declared.sizes is not None else (None,):
            if not isinstance(size, int) and size not in by_name:
                raise GraphError(
                    f"{model.title}: its property {SIZES_KEY!r} names {list(by_name)}, and input "
                    f"{declared.name!r} has the size {size!r}; valid are these, or no property"
                )
            shape.append(size if isinstance(size, int) else by_name[str(size)])
        found[declared.name] = tuple(shape)
    return found
