"""Reverse-mode differentiation as a function from graph to graph.

:mod:`.scalar` differentiates a scalar expression, an operator's rule (:mod:`.table`, and the files
of :mod:`.rules`) differentiates a node, and the walk of :mod:`.reverse` differentiates a graph.
The result consists of ordinary operators, so that passes, memory planning and every device apply to
it, and so that it can be differentiated again.
"""
