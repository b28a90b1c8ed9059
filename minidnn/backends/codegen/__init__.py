"""Source text for both engines: indented lines, scalar expressions, functions, reductions."""
