"""Compilers of kernels and of the native runner, and the cache of what they compile."""
