"""Conventions: the points on which released libraries differ and which a subject may declare. Undeclared means the oracles' answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# name: (what may be declared, the oracles' own convention first; what it decides)
CONVENTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "empty_rows": (("zero", "nan", "mean_v"), "output of a query that sees none of the keys there are: 0, NaN, or the mean of all values"),
    "empty_lse": (("minus_infinity", "any"), "log-sum-exp of a query that sees no key: -inf, or left open"),
    "nonfinite_behind_mask": (("undeclared", "ignored", "spread"),
                              "NaN or inf that no query may see: undeclared, it is put only beyond kv_lengths; ignored, it must change "
                              "nothing anywhere; spread, it is never put"),
    "head_map": (("contiguous", "interleaved"), "query head h reads key/value head h // (Hq / Hkv), or h % Hkv"),
    "window_counts_current": (("no", "yes"), "the window's left number counts keys before the current one, or the current one too"),
    "bias_before_softcap": (("no", "yes"), "softcap is applied before the bias is added, or after (then the two together are not covered)"),
}  # fmt: skip


def declared(conventions: Mapping[str, Any]) -> dict[str, str]:
    """All conventions, the declared values over the oracles' own.

    Raises ValueError for an unknown name or value.
    """
    result = {name: allowed[0] for name, (allowed, _) in CONVENTIONS.items()}
    for name, value in conventions.items():
        if name not in CONVENTIONS:
            raise ValueError(f"conventions: got {name!r}; want one of {', '.join(CONVENTIONS)}")
        allowed, meaning = CONVENTIONS[name]
        if value not in allowed:
            raise ValueError(f"conventions[{name!r}]: got {value!r}; want one of {', '.join(allowed)} ({meaning})")
        result[name] = value
    return result
