"""The case sources: one file a family of operations, and what they share (memory layouts, poison)."""
