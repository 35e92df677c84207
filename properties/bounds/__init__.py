"""The error model: componentwise bounds on what legal rounding may do, derived from a declared arithmetic."""
