"""Compilers, what they make and where it is kept: kernels, and the runner that starts them."""
