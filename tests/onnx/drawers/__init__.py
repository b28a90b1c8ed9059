"""How nodes of each kind are drawn for random models: operands and attributes of every opset."""

from . import elementwise, movement, normalization, products, windows

DRAWERS = (
    *elementwise.DRAWERS,
    *movement.DRAWERS,
    *normalization.DRAWERS,
    *products.DRAWERS,
    *windows.DRAWERS,
)
