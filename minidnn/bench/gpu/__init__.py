"""Networks on minidnn and in PyTorch's modes on a GPU, all of a cell's in one process."""
