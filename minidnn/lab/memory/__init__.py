"""The ladder of accesses to memory, on a GPU."""
