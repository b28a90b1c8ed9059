"""Post-training quantization: chooses the scale and zero point of each value and weight."""
