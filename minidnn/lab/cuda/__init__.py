"""Steps and ladders in CUDA."""
