"""A binding of cuDNN 9 for CuPy arrays; importing it needs neither CuPy, cuDNN nor a GPU."""
