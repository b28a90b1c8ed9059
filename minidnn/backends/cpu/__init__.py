"""The CPU backend: ISPC kernels, run by a small native runner on a pool of threads."""
