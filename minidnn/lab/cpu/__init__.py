"""The laboratory on a CPU: ladders in ISPC, their model, and their measurement."""
