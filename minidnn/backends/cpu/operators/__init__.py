"""Kernels of single operators, an operator or a family of them a file."""
