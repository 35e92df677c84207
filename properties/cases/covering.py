"""Covering: a recipe of attention mapped into what a subject takes. What a subject takes is `Coverage`'s business."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from ..coverage import Coverage

R = TypeVar("R")

# field of a recipe: (the argument of the contract it needs, its levels, the simplest first)
Options = Mapping[str, tuple[str, tuple[str, ...]]]

# Levels that make empty sequences, and what stands in for them.
EMPTYING = {"kv_lengths": ("some_zero", "ragged"), "lengths": ("some_empty", "ragged")}


def covered_attention(recipe: R, coverage: Coverage, options: Options) -> R:
    """The recipe mapped into the coverage; what lies inside is left alone, and mapping twice changes nothing more.

    An option the subject does not take becomes its simplest level, a format or alignment the first covered one, a head size
    the nearest covered one, a length the next multiple. Where they have to be equal, Lq becomes Lk and Dv becomes D.
    """
    old: Any = recipe
    changes: dict[str, Any] = {name: levels[0] for name, (argument, levels) in options.items() if argument not in coverage.arguments}
    for name, (level, instead) in EMPTYING.items():
        if not coverage.empty and getattr(recipe, name, None) == level:
            changes.setdefault(name, instead)
    if old.scale == "negative" and not coverage.negative_scale:
        changes.setdefault("scale", "odd")
    if old.dtype not in coverage.dtypes:
        changes["dtype"] = coverage.dtypes[0]
    if old.causal not in alignments(coverage):
        changes["causal"] = alignments(coverage)[0]
    if not coverage.grouped:
        changes["G"] = 1
    least, multiple = int(not coverage.empty), coverage.length_multiple
    lengths = [max(n, least) for n in (old.Lq, old.Lk)]
    Lq, Lk = (-(-n // multiple) * multiple for n in lengths)
    D, Dv = (_nearest(n, coverage.head_dims) for n in (old.D, old.Dv))
    changes |= {"B": max(old.B, least), "Lq": Lq if coverage.cross_lengths else Lk, "Lk": Lk, "D": D, "Dv": Dv if coverage.value_dim else D}
    result: R = replace(old, **changes)
    return result


def covered_levels(coverage: Coverage, options: Options) -> dict[str, tuple[Any, ...]]:
    """The levels of each option, alignment and format that lie inside the coverage: the factors of a balanced table."""
    taken = {name: levels for name, (argument, levels) in options.items() if argument in coverage.arguments}
    if not coverage.negative_scale and "scale" in taken:
        taken["scale"] = tuple(level for level in taken["scale"] if level != "negative")
    for name, (emptying, _) in EMPTYING.items():
        if not coverage.empty and name in taken:
            taken[name] = tuple(level for level in taken[name] if level != emptying)
    return {**taken, "causal": alignments(coverage), "dtype": coverage.dtypes}


def alignments(coverage: Coverage) -> tuple[str, ...]:
    """The covered alignments as levels of a recipe: None is "none"."""
    return tuple(rule or "none" for rule in coverage.causal)


def _nearest(n: int, allowed: tuple[int, ...] | None) -> int:
    return n if allowed is None else min(allowed, key=lambda m: (abs(m - n), m))
