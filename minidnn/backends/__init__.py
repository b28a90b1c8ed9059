"""The backends, which compile plans and run them: the reference, the CPU and CUDA."""
