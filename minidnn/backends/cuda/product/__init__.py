"""Products of batches of matrices, and attention: computed, read and written where they lie."""
