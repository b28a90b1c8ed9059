"""The graph: values, operators, scalar expressions, and what can be done with them."""
