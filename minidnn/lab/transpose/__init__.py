"""The ladder of transposed matrices."""
