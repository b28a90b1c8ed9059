"""How a step sees a plane: in a buffer of the patch, or as a tensor outside of it."""

from __future__ import annotations

from dataclasses import dataclass

from .element import ELEMENTS, Element
from .tensor import Access


@dataclass(frozen=True)
class Ring:
    """How a buffered plane is addressed: its storage and row shift are arguments."""

    rows: int
    #: Floats from one row to the next.
    pitch: int
    pointer: str
    shift: int
    #: Where the plane's column 0 lies, in columns.
    origin: str


@dataclass(frozen=True)
class CallerTensor:
    """An input or output: how its lanes lie, and its pointer and offsets in the caller."""

    access: Access
    pointer: str
    #: Elements from one pixel to the next, pixels of a row, and elements between channels.
    pixel: int
    columns: int
    plane: int
    lanes: str = ""
    #: Lanes that an output has to fill, with zeros past its channels.
    fill: str = ""
    #: The part of an output that is written, if it is not all that is computed.
    rows: tuple[str, str] | None = None
    own_columns: tuple[str, str] | None = None
    #: Whether it is so large that caches would not keep it until it is read.
    is_large: bool = False
    element: Element = ELEMENTS["float32"]


@dataclass(frozen=True)
class PlaneView:
    """A plane as a step sees it."""

    extent: tuple[int, int]
    ring: Ring | None = None
    input: CallerTensor | None = None
    output: CallerTensor | None = None
    #: Whether the ring's edge columns hold the identity of the window that reads it.
    padded: bool = True
