"""The ladder of convolutions on a CPU."""
