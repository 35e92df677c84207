"""Comparison: one array against what is wanted, element by element, with what is allowed. No tolerance has its origin here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .safetensors_file import Array

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Comparison:
    """What a comparison saw.

    compared, left_out   elements judged, and elements for which the bound gives no promise (allowed = inf)
    worst_ratio          largest error / allowed; inf for an error where none is allowed, and for a NaN that is not wanted
    worst_at             index of that element, or None where nothing was compared
    """

    name: str
    compared: int
    left_out: int
    worst_ratio: float
    worst_at: tuple[int, ...] | None
    got: float = 0.0
    wanted: float = 0.0
    allowed: float = 0.0

    @property
    def failed(self) -> bool:
        return not self.worst_ratio <= 1.0

    @property
    def place(self) -> str:
        """The element's name; of an array of no axis, such as a loss, the name alone."""
        return "" if self.worst_at is None else f"{self.name}[{','.join(map(str, self.worst_at))}]" if self.worst_at else self.name

    def __str__(self) -> str:
        if self.worst_at is None:
            return f"{self.name}: nothing compared"
        if np.isnan(self.got) or np.isnan(self.wanted):
            return f"{self.place} is {self.got:.9g}, wanted {self.wanted:.9g}"
        times = f"{self.worst_ratio:.3g} of what is allowed" if np.isfinite(self.worst_ratio) else "no such error is allowed there"
        return f"{self.place} is {self.got:.9g}, wanted {self.wanted:.9g} within {self.allowed:.3g}: {times}"


def ratios(got: Array, wanted: Float64, allowed: Float64) -> Float64:
    """error / allowed per element: |got - wanted| / allowed; NaN wants NaN, infinity the same infinity; 0 / 0 is 0.

    Elements with allowed = inf give 0. Shapes are equal. Raises ValueError for a NaN in `allowed`: a bound is a number.
    """
    if np.isnan(allowed).any():
        raise ValueError("allowed: got NaN; want a bound, or inf where there is no promise")
    g = np.asarray(got, dtype=np.float64)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        error = np.abs(g - wanted)
        same = (g == wanted) | (np.isnan(g) & np.isnan(wanted))
        ratio = np.where(same, 0.0, np.where(allowed > 0.0, error / np.where(allowed > 0.0, allowed, 1.0), np.inf))
    ratio = np.where(~same & ~np.isfinite(error), np.inf, ratio)                # one of the two is not finite
    return np.where(np.isposinf(allowed), 0.0, ratio)


def compare(name: str, got: Array, wanted: Float64, allowed: Float64) -> Comparison:
    """The worst element of `ratios`, and how many were judged."""
    promised = ~np.isposinf(allowed)
    compared = int(promised.sum())
    if compared == 0:
        return Comparison(name, 0, int(allowed.size), 0.0, None)
    ratio = np.where(promised, ratios(got, wanted, allowed), -1.0)
    at = np.unravel_index(int(ratio.argmax()), ratio.shape)
    index = tuple(int(i) for i in at)
    return Comparison(
        name, compared, int(allowed.size) - compared, float(ratio[at]), index, float(got[at]), float(wanted[at]), float(allowed[at])
    )
