"""Contractions of bytes by sums of products of four, in int32.

Values lie in blocks of channels as those of float32 do.  Kernels and schemes are those of
:mod:`..dot_product`, with other words in their lines.
"""
