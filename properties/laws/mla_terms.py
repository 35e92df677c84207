"""Latent terms: what the laws of latent attention ask of a case, and how they change one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oracles.reference import visible_keys

from ..case import Case
from ..safetensors_file import Array
from .attention_terms import VISIBILITY_TERMS, chosen


def sizes(case: Case) -> tuple[int, int, int, int]:
    """B, H, Lq, Lk of a case."""
    (B, H, Lq, _), Lk = case.arrays["q_nope"].shape, case.arrays["latent"].shape[1]
    return B, H, Lq, Lk


def is_empty(case: Case) -> bool:
    """Whether there is no query or no key to speak of."""
    return 0 in (*sizes(case), case.arrays["w_uv"].size)


def visible(case: Case) -> NDArray[np.bool_]:
    """Which keys each query may see: bool (B, H, Lq, Lk)."""
    return visible_keys(*sizes(case), **chosen(case, VISIBILITY_TERMS))


def with_values(array: Array, values: Array) -> Array:
    """Values in the dtype of an array, which holds them; NaN and infinities stay where they stood in it."""
    old = array.astype(np.float64)
    return np.where(np.isfinite(old), values, old).astype(array.dtype)


def seen_alone(case: Case, *names: str) -> Case:
    """The case without some arguments that may hide keys, and with plain numbers where poison stood behind them."""
    seen = np.any(visible(case), axis=(1, 2))[..., None]                        # (B, Lk, 1)
    kept = {name: case.arrays[name] for name in ("latent", "k_rope")}
    plain = {name: np.where(seen, x.astype(np.float64), 0.5).astype(x.dtype) for name, x in kept.items()}
    arrays = {name: array for name, array in {**case.arrays, **plain}.items() if name not in names}
    options = {name: value for name, value in case.options.items() if name not in names}
    return Case(case.operation, arrays, options, case.origin, case.notes)


def keys_taken(case: Case, index: Array) -> Case:
    """The case with its keys chosen by index, and the columns of its mask with them."""
    arrays = {name: case.arrays[name][:, index] for name in ("latent", "k_rope")}
    if "mask" in case.arrays and case.arrays["mask"].shape[-1] == case.arrays["latent"].shape[1]:
        arrays["mask"] = case.arrays["mask"][..., index]
    return case.with_arrays(**arrays)


def rows_taken(case: Case, rows: slice) -> Case:
    """The case with some of its queries, and the rows of its mask with them."""
    arrays = {name: case.arrays[name][:, :, rows] for name in ("q_nope", "q_rope")}
    if "mask" in case.arrays and case.arrays["mask"].shape[-2] == case.arrays["q_nope"].shape[2]:
        arrays["mask"] = case.arrays["mask"][..., rows, :]
    return case.with_arrays(**arrays)
