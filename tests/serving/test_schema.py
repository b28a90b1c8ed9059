"""What REST takes and gives is what its OpenAPI document says: schemathesis looks for more."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import given, settings

from .conftest import Running

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import schemathesis
    from schemathesis import GenerationMode

pytestmark = pytest.mark.filterwarnings("ignore")  # of what schemathesis is made of


#: Operations but unloading and the document's own, and those of them that have a body.
_ALL = {GenerationMode.POSITIVE: 16, GenerationMode.NEGATIVE: 5}


def check_operations(server: Running, examples: int, mode: Any) -> int:
    """Sends so many requests of each operation, valid ones or others; how many operations."""
    schema: Any = schemathesis.openapi.from_url(f"http://{server.rest}/openapi.json")
    count = 0
    for found in schema.get_all_operations():
        operation: Any = found.ok()
        if operation.path.endswith("/unload"):
            continue  # the others are asked for the model
        if mode is GenerationMode.NEGATIVE and not len(operation.body):
            continue  # nothing in it could be wrong
        count += 1

        @settings(max_examples=examples)
        @given(operation.as_strategy(generation_mode=mode))
        def check(case: Any) -> None:
            case.call_and_validate()

        check()
    return count


@pytest.mark.parametrize("mode", GenerationMode)
def test_nothing_contradicts_the_document(server: Running, mode: Any) -> None:
    assert check_operations(server, 2, mode) == _ALL[mode]


@pytest.mark.full
@pytest.mark.parametrize("mode", GenerationMode)
def test_nothing_contradicts_the_document_at_length(server: Running, mode: Any) -> None:
    assert check_operations(server, 200, mode) == _ALL[mode]
