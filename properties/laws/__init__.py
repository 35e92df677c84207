"""The laws of each operation: what must hold of any implementation, and what rounding it allows."""
