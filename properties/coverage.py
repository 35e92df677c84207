"""Coverage: which cases a subject promises to handle. Recipes are clamped to it; the rest is reported as not covered."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """What a subject takes.

    arguments       optional arguments it accepts, by their names in the contract ("window", "softcap", ...)
    dtypes          input formats; undeclared: float32 and float64
    causal          alignments, of None, "bottom_right", "top_left"; undeclared: None and "bottom_right"
    head_dims       values of D (and Dv) it takes; None: any
    grouped         Hq != Hkv
    value_dim       Dv != D
    cross_lengths   Lq != Lk
    empty           zero-length B, Lq or Lk
    negative_scale  scale < 0
    lists           lists of arrays, where one array whose first axis counts the members may stand for them
    length_multiple lengths it takes are multiples of this
    only            (option, values it takes) for options of a few values, such as a pairing or the kind of a scaling; absent: all
    """

    arguments: frozenset[str] = frozenset()
    dtypes: tuple[str, ...] = ("float32", "float64")
    causal: tuple[str | None, ...] = (None, "bottom_right")
    head_dims: tuple[int, ...] | None = None
    grouped: bool = True
    value_dim: bool = True
    cross_lengths: bool = True
    empty: bool = True
    negative_scale: bool = True
    lists: bool = True
    length_multiple: int = 1
    only: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def levels(self, option: str, known: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the known values of an option that it takes."""
        return tuple(value for value in known if value in dict(self.only).get(option, known))
