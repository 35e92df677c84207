"""The oracles: pure NumPy, float64, one algorithm a file, each readable beside its paper."""

from .float_format import FloatFormat

__all__ = ["FloatFormat"]
