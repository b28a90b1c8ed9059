"""The laboratory: small kernels, one idea each, with what they should cost and why."""
