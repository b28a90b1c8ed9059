"""The strategy "cudnn": each layer of a graph is one call of cuDNN's legacy API."""
