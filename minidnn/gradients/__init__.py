"""Gradients: a function from graph to graph.

A scalar expression is differentiated by :mod:`.scalar`, an operator by its rule (:mod:`.table`, and
the files of :mod:`.rules`), a graph by the walk of :mod:`.reverse`.  The result is made of the same
operators, so that passes, memory planning and every device apply to it, and so does this function.
"""
