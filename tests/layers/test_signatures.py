"""``inspect.signature`` and ``help`` show of each public class what it takes, on every Python."""

from __future__ import annotations

import inspect
import pydoc
from dataclasses import dataclass
from typing import Any

import pytest

import minidnn as md
from minidnn import layers as L
from tools.api_page import MODULES, module_of, public_names

CLASSES = {
    f"{module}.{name}": value
    for module in MODULES
    for name, value in public_names(module_of(module)).items()
    if inspect.isclass(value) and not issubclass(value, Exception)
}


def written(kind: type[Any]) -> list[str]:
    """The names of the arguments as the nearest ``__init__`` has them in its code."""
    if kind.__init__ is object.__init__:
        return []
    code = kind.__init__.__code__
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return sorted(code.co_varnames[1:count])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", sorted(CLASSES))
def test_what_a_class_takes_is_shown(name: str) -> None:
    assert sorted(inspect.signature(CLASSES[name]).parameters) == written(CLASSES[name])


def test_help_begins_with_it() -> None:
    """Over one line or, since Python 3.13, several."""
    text = " ".join(pydoc.plain(pydoc.render_doc(L.Conv2d)).replace("|", " ").split())
    title, _, rest = text.partition("class Conv2d(_Conv) ")
    assert title.startswith("Python Library Documentation: class Conv2d in module ")
    assert rest.startswith(("Conv2d(in_channels", "Conv2d( in_channels"))
    assert "*args: 'Any'" not in text[: text.index("Method resolution order")]


class Own(md.Layer):
    def __init__(self, width: int, *rest: int, depth: int = 2) -> None:
        self.width, self.rest, self.depth = width, rest, depth


class Inherits(Own):
    pass


class WithoutAny(md.Layer):
    pass


@dataclass
class Written(md.Layer):
    """A decorator writes its ``__init__`` when the class is there."""

    rate: float
    size: int = 3


class Makes(Own):
    """What it takes is said by a ``__new__`` of its own."""

    def __new__(cls, rate: float) -> Makes:
        return super().__new__(cls)

    def __init__(self, rate: float) -> None:
        self.rate = rate


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (Own, "(width: 'int', *rest: 'int', depth: 'int' = 2) -> 'None'"),
        (Inherits, "(width: 'int', *rest: 'int', depth: 'int' = 2) -> 'None'"),
        (WithoutAny, "()"),
        (Written, "(rate: 'float', size: 'int' = 3) -> None"),
    ],
)
def test_layers_of_a_user(kind: type[md.Layer], shown: str) -> None:
    assert str(inspect.signature(kind)) == shown


def test_a_layer_that_makes_itself_is_asked_for_its_own() -> None:
    assert list(inspect.signature(Makes).parameters) == ["rate"]
    assert Makes(0.5).rate == 0.5


def test_a_layer_itself_takes_what_calls_take() -> None:
    assert list(inspect.signature(Own(3)).parameters) == ["inputs", "options"]


@pytest.mark.parametrize("given", [((3,), {}), ((), {"width": 3})])
def test_a_layer_without_init_takes_nothing(given: tuple[Any, Any]) -> None:
    args, options = given
    with pytest.raises(TypeError) as caught:
        WithoutAny(*args, **options)
    assert str(caught.value) == "WithoutAny() takes no arguments, as it has no __init__"
