"""Triggers: small arguments on which mutants differ from the oracle. Each mutant adds the option that shows its fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import textbook


def forward(*, B: int = 1, Hkv: int = 1, G: int = 1, Lq: int = 3, Lk: int = 5, D: int = 4, Dv: int = 4, dtype: str = "float32",
            **options: Any) -> dict[str, Any]:
    """Arguments of attention: N(0, 1) from a fixed seed, causal None unless given."""
    q, k, v, _ = _normal(dtype, (B, Hkv * G, Lq, D), (B, Hkv, Lk, D), (B, Hkv, Lk, Dv))
    return {"q": q, "k": k, "v": v, "causal": None, **options}


def backward(**sizes_and_options: Any) -> dict[str, Any]:
    """Arguments of attention_backward: those of `forward`, the textbook's out and lse, and a dout."""
    given = forward(**sizes_and_options)
    out, lse = textbook.attention(**given)
    return {**given, "out": out, "lse": lse, "dout": _normal(out.dtype.name, out.shape, seed=2)[0]}


def packed(lengths_q: Sequence[int], lengths_k: Sequence[int], *, H: int = 2, **options: Any) -> dict[str, Any]:
    """Arguments of attention_packed: sequences of these lengths, head size 4."""
    cu_q, cu_k = (np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64) for lengths in (lengths_q, lengths_k))
    q, k, v, _ = _normal("float32", (int(cu_q[-1]), H, 4), (int(cu_k[-1]), H, 4), (int(cu_k[-1]), H, 4))
    return {"q": q, "k": k, "v": v, "cu_q": cu_q, "cu_k": cu_k, "causal": None, **options}


def parts(*, empty: str = "") -> dict[str, Any]:
    """Arguments of merge_attention: two rows of each part; empty names the parts ("a", "b", "ab") whose first row saw nothing."""
    out_a, out_b, lse_a, lse_b = _normal("float32", (2, 3), (2, 3), (2,), seed=3)
    for name, out, lse in (("a", out_a, lse_a), ("b", out_b, lse_b)):
        if name in empty:
            out[0], lse[0] = 0.0, -np.inf
    return {"out_a": out_a, "lse_a": lse_a, "out_b": out_b, "lse_b": lse_b}


def _normal(dtype: str, *shapes: tuple[int, ...], seed: int = 1) -> list[Any]:
    """An array for each shape, and one more like the last."""
    generator = np.random.default_rng(seed)
    return [generator.standard_normal(shape).astype(dtype) for shape in (*shapes, shapes[-1])]
