"""Contractions of bytes by sums of products of four, in int32.

Values lie in blocks of channels as those of float32 do.  What :mod:`..dots` makes of pairs of
bfloat16 is made of quads here: lines of 64 bytes, tiles and blocks of pixels are the same.
"""
