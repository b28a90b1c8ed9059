"""What kernels become: text for each engine, and numbers by NumPy."""
