"""The ladder of gradients of a convolution by its weights."""
