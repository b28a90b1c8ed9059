"""What runs a plan: the reference, the CPU and CUDA."""
