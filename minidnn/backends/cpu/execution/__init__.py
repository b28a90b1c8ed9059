"""Programs as tables of kernels with operands in memory, run by native code, and kept in files."""
