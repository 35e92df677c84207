"""Triggers of pages: small arguments of paged attention on which mutants differ from the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def paged(lengths: Sequence[int], tables: Sequence[Sequence[int]], *, N: int = 8, S: int = 2, Hkv: int = 1, G: int = 1, Lq: int = 1,
          D: int = 4, Dv: int = 4, **options: Any) -> dict[str, Any]:
    """Arguments of paged_attention: N(0, 1) from a fixed seed, causal None unless given."""
    g = np.random.default_rng(1)
    q, k, v = (g.standard_normal(shape).astype(np.float32) for shape in ((len(lengths), Hkv * G, Lq, D), (N, S, Hkv, D), (N, S, Hkv, Dv)))
    return {"q": q, "k_pages": k, "v_pages": v, "block_tables": np.array(tables, np.int64), "kv_lengths": np.array(lengths, np.int64),
            "causal": None, **options}


def emptied(arguments: dict[str, Any], value: float = np.nan) -> dict[str, Any]:
    """The same with NaN, or something else, in all slots that hold no token."""
    S, used = arguments["k_pages"].shape[1], np.zeros(arguments["k_pages"].shape[:2], bool)
    for table, n in zip(arguments["block_tables"], arguments["kv_lengths"]):
        t = np.arange(n)
        used[table[t // S], t % S] = True
    filled = {name: np.where(used[..., None, None], arguments[name], value).astype(np.float32) for name in ("k_pages", "v_pages")}
    return {**arguments, **filled}
