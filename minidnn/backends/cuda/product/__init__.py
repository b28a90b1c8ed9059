"""Products of batches of matrices that are computed, read and written where they lie."""
