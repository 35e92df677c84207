"""Plain calls of other libraries, under the contract's argument names. Nothing of ours is imported: a repro carries such a file alone."""
