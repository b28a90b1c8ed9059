"""What the laboratory does on a CPU."""
