"""What all that runs on NVIDIA GPUs shares, whichever library computes there."""
