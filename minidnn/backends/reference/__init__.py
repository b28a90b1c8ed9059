"""The reference backend: NumPy, slow and right.  The oracle of all others."""
