"""The ladder of copies on a CPU."""
