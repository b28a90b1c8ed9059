"""The graph: values, nodes, operators, scalar expressions, and what reads or writes them."""
