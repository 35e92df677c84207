"""Plain calls of other libraries, under the contract's argument names. Nothing of ours is imported here: a repro carries one of these files alone."""
