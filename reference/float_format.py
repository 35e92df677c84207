"""Floating-point formats: rounding a real number to one, exactly once.

Values are held in float64, in which every number of every format here is exact. The arithmetic around a rounding
(accumulation, loss scaling) is left to the modules that use it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, NDArray

Float64 = NDArray[np.float64]
Mode = Literal["nearest_even", "toward_zero", "up", "down", "stochastic"]
Overflow = Literal["infinity", "nan", "saturate"]

# name: (bits of fraction, smallest normal exponent, largest number, what nearest rounding past the largest gives)
_FORMATS: dict[str, tuple[int, int, float, Overflow]] = {
    "float64": (52, -1022, float(np.finfo(np.float64).max), "infinity"),
    "float32": (23, -126, float(np.finfo(np.float32).max), "infinity"),
    "tfloat32": (10, -126, (2 - 2.0**-10) * 2.0**127, "infinity"),
    "float16": (10, -14, 65504.0, "infinity"),
    "bfloat16": (7, -126, (2 - 2.0**-7) * 2.0**127, "infinity"),
    "float8_e5m2": (2, -14, 57344.0, "infinity"),
    "float8_e5m2fnuz": (2, -15, 57344.0, "nan"),
    "float8_e4m3": (3, -6, 240.0, "infinity"),
    "float8_e4m3fn": (3, -6, 448.0, "nan"),
    "float8_e4m3fnuz": (3, -7, 240.0, "nan"),
    "float8_e4m3b11fnuz": (3, -10, 30.0, "nan"),
    "float8_e3m4": (4, -2, 15.5, "infinity"),
    "float6_e2m3fn": (3, 0, 7.5, "saturate"),
    "float6_e3m2fn": (2, -2, 28.0, "saturate"),
    "float4_e2m1fn": (1, 0, 6.0, "saturate"),
}


@dataclass(frozen=True)
class FloatFormat:
    """One binary floating-point format, by its ml_dtypes name (and `tfloat32`, which no array holds).

        round(x) = the number of the format nearest to x; of two equally near the one with an even last bit

    >>> FloatFormat("float16").round(0.5 + 1e-6)
    array(0.5)
    >>> FloatFormat("bfloat16").round(70000.0)
    array(70144.)
    >>> FloatFormat("float8_e4m3fn").round([464.0, 465.0], overflow="saturate")
    array([448., 448.])

    Attributes, float64 and exact: `max` the largest number; `tiny` the smallest normal; `smallest` the smallest
    positive (subnormal) number; `eps` the distance from 1 to the next; `unit_roundoff` = eps / 2, the largest relative
    error of one rounding to nearest of a normal number. `overflow` says what lies past `max` under "nearest_even".
    `has_infinity`, `has_nan`, `has_negative_zero` say what else the format holds.

    Raises ValueError for an unknown name. Source: IEEE 754-2019, sections 3.3 and 4.3; Micikevicius et al. 2022
    (arXiv 2209.05433) for the 8-bit formats; the OCP Microscaling specification 1.0 for the 6- and 4-bit ones.
    """

    name: str
    fraction_bits: int = field(init=False, repr=False)
    min_exponent: int = field(init=False, repr=False)
    max: float = field(init=False, repr=False)
    overflow: Overflow = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.name not in _FORMATS:
            raise ValueError(f"name: got {self.name!r}; want one of {', '.join(_FORMATS)}")
        for attribute, value in zip(("fraction_bits", "min_exponent", "max", "overflow"), _FORMATS[self.name]):
            object.__setattr__(self, attribute, value)

    @property
    def eps(self) -> float:
        return 2.0**-self.fraction_bits

    @property
    def unit_roundoff(self) -> float:
        return self.eps / 2

    @property
    def tiny(self) -> float:
        return 2.0**self.min_exponent

    @property
    def smallest(self) -> float:
        return self.tiny * self.eps

    @property
    def has_negative_zero(self) -> bool:
        return "uz" not in self.name

    @property
    def has_infinity(self) -> bool:
        return self.overflow == "infinity"

    @property
    def has_nan(self) -> bool:
        return self.overflow != "saturate"

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of arrays in this format; TypeError for `tfloat32`, which lives in float32 arrays."""
        if self.name == "tfloat32":
            raise TypeError("tfloat32: no array type holds it; want float32 arrays of rounded values")
        return np.dtype(getattr(ml_dtypes, self.name, self.name))

    def round(self, x: ArrayLike, *, mode: Mode = "nearest_even", overflow: Overflow | None = None, u: ArrayLike | None = None) -> Float64:
        """Round x, any shape, once to this format; returns float64 of the same shape, every value one of the format.

            quantum = 2^(max(exponent of x, smallest normal exponent) - fraction bits)
            round(x) = quantum * rint(x / quantum)

        mode: "nearest_even", "toward_zero", "up", "down", or "stochastic", which needs `u`, uniforms in [0, 1) that
        broadcast to x, and gives quantum * floor(x / quantum + u) on |x|: x itself on average. overflow: what becomes of
        a result past `max`, "infinity", "nan" or "saturate"; None takes the format's own rule in mode "nearest_even"
        and "stochastic", and in the directed modes `max` where the direction points towards zero. NaN stays NaN, or
        raises ValueError in a format without one; an infinity in a format without them overflows.

        Raises ValueError for an unknown mode or overflow, and for a missing or out-of-range u.
        Exact: no error beyond the rounding asked for, since dividing by a power of two and rint are exact in float64.
        """
        x = np.asarray(x, dtype=np.float64)
        if mode not in ("nearest_even", "toward_zero", "up", "down", "stochastic"):
            raise ValueError(f"mode: got {mode!r}; want nearest_even, toward_zero, up, down or stochastic")
        if overflow not in (None, "infinity", "nan", "saturate"):
            raise ValueError(f"overflow: got {overflow!r}; want None, infinity, nan or saturate")
        if (u is None) == (mode == "stochastic"):
            raise ValueError(f"u: got {'no uniforms' if u is None else 'uniforms'} in mode {mode!r}; want them in mode 'stochastic' alone")
        if np.isnan(x).any() and not self.has_nan:
            raise ValueError(f"x: got NaN; want numbers, since {self.name} has no NaN")
        finite = np.where(np.isfinite(x), x, 0.0)
        rounded = self._round_finite(finite, mode, u)
        result = np.where(np.isfinite(x), rounded, x)
        past = np.abs(result) > self.max
        if past.any():
            result = np.where(past, self._past_the_largest(x, mode, overflow), result)
        return result if self.has_negative_zero else result + 0.0

    def cast(self, x: ArrayLike, *, overflow: Overflow | None = None) -> NDArray[Any]:
        """`round` to nearest, returned as an array of this format's `dtype`."""
        return self.round(x, overflow=overflow).astype(self.dtype)

    def _round_finite(self, x: Float64, mode: Mode, u: ArrayLike | None) -> Float64:
        if self.name == "float64":
            return x
        _, exponent = np.frexp(x)                                               # |x| in [2^(exponent-1), 2^exponent)
        shift = self.fraction_bits - np.maximum(exponent - 1, self.min_exponent)
        scaled = np.ldexp(x, shift)                                             # exact: quantum = 2^-shift
        if mode == "stochastic":
            uniforms = np.broadcast_to(np.asarray(u, dtype=np.float64), x.shape)
            if not ((uniforms >= 0.0) & (uniforms < 1.0)).all():
                raise ValueError("u: got values outside [0, 1); want uniforms in [0, 1)")
            magnitude = np.abs(scaled)
            lower = np.floor(magnitude)
            steps = np.copysign(lower + (uniforms >= 1.0 - (magnitude - lower)), scaled)   # no rounding in lower + u
        else:
            steps = {"nearest_even": np.rint, "toward_zero": np.trunc, "up": np.ceil, "down": np.floor}[mode](scaled)
        return np.asarray(np.copysign(np.ldexp(steps, -shift), x), dtype=np.float64)

    def _past_the_largest(self, x: Float64, mode: Mode, overflow: Overflow | None) -> Float64:
        inward = {"toward_zero": np.ones_like(x, dtype=bool), "up": x < 0, "down": x > 0}.get(mode, np.zeros_like(x, dtype=bool))
        past = {"infinity": np.inf, "nan": np.nan, "saturate": self.max}[overflow or self.overflow]
        if past == np.inf and not self.has_infinity:
            raise ValueError(f"overflow: got 'infinity'; want 'nan' or 'saturate', since {self.name} has no infinity")
        inward = inward & np.isfinite(x) if overflow is None else np.zeros_like(inward)
        return np.copysign(np.where(inward, self.max, past), x)
