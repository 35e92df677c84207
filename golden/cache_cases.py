"""Golden cases of positions, pages and latents: every scaling and pairing of RoPE, tables out of order, both sides of a latent's cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles.properties.case import Case

from . import draws
from .draws import Array

_YARN: dict[str, Any] = {"kind": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0, "beta_slow": 1.0,
                         "mscale": 1.0, "mscale_all_dim": 0.0, "truncate": True}  # fmt: skip
_LLAMA3 = {"kind": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

# name: (format, shape of x, positions: a number for one, or first and step for a row, options)
ROPE: dict[str, tuple[str, tuple[int, ...], int | tuple[int, int], dict[str, Any]]] = {
    "smallest": ("float64", (2,), 1, {"pairing": "half"}),
    "no-tokens": ("float32", (2, 0, 4), (0, 1), {"pairing": "half"}),
    "position-zero": ("bfloat16", (2, 3, 8), 0, {"pairing": "interleaved"}),
    "half": ("float32", (2, 17, 64), (0, 1), {"pairing": "half"}),
    "interleaved": ("float32", (2, 17, 64), (0, 1), {"pairing": "interleaved"}),
    "half-float16": ("float16", (1, 9, 40), (5, 3), {"pairing": "half"}),
    "interleaved-bfloat16": ("bfloat16", (3, 9, 24), (100, 7), {"pairing": "interleaved"}),
    "part-of-the-head": ("float32", (2, 7, 32), (0, 1), {"pairing": "half", "rotary_dim": 12}),
    "part-interleaved": ("float16", (2, 7, 32), (3, 1), {"pairing": "interleaved", "rotary_dim": 2}),
    "negative-positions": ("float64", (5, 16), (-7, 3), {"pairing": "half"}),
    "base-500000": ("bfloat16", (1, 11, 128), (8000, 1), {"pairing": "half", "base": 500000.0}),
    "position-131071": ("float32", (4, 64), (131068, 1), {"pairing": "half"}),
    "position-two-to-the-40": ("float64", (3, 32), (2**40 - 1, 1), {"pairing": "interleaved"}),
    "linear": ("float32", (6, 32), (4095, 2), {"pairing": "half", "scaling": {"kind": "linear", "factor": 8.0}}),
    "ntk": ("float32", (6, 32), (4095, 2), {"pairing": "interleaved", "scaling": {"kind": "ntk", "factor": 2.5}}),
    "yarn": ("float32", (6, 64), (4000, 3), {"pairing": "half", "scaling": _YARN}),
    "yarn-no-truncation": ("float64", (6, 64), (4000, 3), {"pairing": "half", "scaling": {**_YARN, "truncate": False}}),
    "yarn-deepseek": ("bfloat16", (6, 64), (0, 1000), {
        "pairing": "interleaved", "scaling": {**_YARN, "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.707}}),
    "yarn-no-ramp": ("float32", (3, 8), (1, 1), {"pairing": "half", "scaling": {**_YARN, "original_max_position_embeddings": 2}}),
    "llama3": ("bfloat16", (6, 128), (8000, 7), {"pairing": "half", "base": 500000.0, "scaling": _LLAMA3}),
}  # fmt: skip

# name: (format, (Hq, Hkv, D, Dv), block size, pages, kv_lengths, query_lengths or the one Lq, options)
PAGED: dict[str, tuple[str, tuple[int, ...], int, int, tuple[int, ...], int | tuple[int, ...], dict[str, Any]]] = {
    "smallest": ("float64", (1, 1, 1, 1), 1, 1, (1,), 1, {"causal": None}),
    "no-sequences": ("float32", (2, 1, 4, 4), 4, 3, (), 1, {"causal": "bottom_right"}),
    "nothing-cached": ("float32", (2, 1, 4, 4), 4, 3, (0, 0), 1, {"causal": "bottom_right"}),
    "one-page": ("float32", (2, 1, 8, 8), 16, 2, (5,), 1, {"causal": "bottom_right"}),
    "whole-pages": ("bfloat16", (4, 2, 16, 16), 8, 9, (16, 24), 1, {"causal": "bottom_right"}),
    "ragged": ("float16", (4, 2, 16, 16), 8, 12, (3, 17, 0, 33), 1, {"causal": "bottom_right"}),
    "block-of-one": ("float32", (2, 2, 8, 8), 1, 19, (7, 11), 1, {"causal": "bottom_right"}),
    "chunks": ("float32", (2, 1, 16, 16), 4, 16, (9, 14, 5), (4, 1, 5), {"causal": "bottom_right"}),
    "padded-queries": ("float32", (2, 1, 16, 16), 4, 16, (9, 0, 5), (4, 0, 2), {"causal": "bottom_right"}),
    "window": ("bfloat16", (2, 1, 16, 16), 4, 16, (21, 13), (3, 2), {"causal": "bottom_right", "window": (6, None)}),
    "sinks": ("float32", (4, 2, 16, 16), 4, 16, (0, 13), (2, 2), {"causal": "bottom_right", "sinks": "sinks"}),
    "softcap-scale": ("float64", (2, 1, 8, 5), 4, 8, (6, 9), 2, {"causal": None, "softcap": 2.0, "scale": 0.25}),
    "top-left": ("float32", (2, 1, 8, 8), 4, 8, (6, 9), 3, {"causal": "top_left"}),
    "long": ("bfloat16", (2, 1, 64, 64), 16, 40, (257, 129), 1, {"causal": "bottom_right"}),
}  # fmt: skip

# name: (format, (B, H, Lq, Lk, C, Dn, Dr, Dv), options, exponent of q_nope's values)
MLA: dict[str, tuple[str, tuple[int, ...], dict[str, Any], int]] = {
    "smallest": ("float64", (1, 1, 1, 1, 1, 1, 1, 1), {"causal": None, "scale": 1.0}, 0),
    "no-queries": ("float32", (1, 2, 0, 3, 4, 3, 2, 3), {"causal": None, "scale": 0.5}, 0),
    "no-keys": ("float32", (1, 2, 3, 0, 4, 3, 2, 3), {"causal": None, "scale": 0.5}, 0),
    "one-query": ("bfloat16", (2, 4, 1, 9, 16, 8, 4, 8), {"causal": "bottom_right", "scale": 0.25}, 0),
    "square": ("float32", (1, 2, 12, 12, 16, 8, 4, 8), {"causal": "bottom_right", "scale": 0.28867513459481287}, 0),
    "square-float16": ("float16", (1, 2, 9, 9, 8, 8, 4, 6), {"causal": "bottom_right", "scale": 0.25}, 0),
    "top-left": ("float32", (1, 2, 5, 9, 8, 4, 2, 4), {"causal": "top_left", "scale": 0.4}, 0),
    "more-queries-than-keys": ("float32", (1, 2, 7, 4, 8, 4, 2, 4), {"causal": "bottom_right", "scale": 0.4}, 0),
    "lengths": ("float64", (3, 2, 2, 7, 8, 4, 2, 4), {"causal": "bottom_right", "scale": 0.4, "kv_lengths": "lengths"}, 0),
    "mask": ("float32", (2, 2, 4, 6, 8, 4, 2, 4), {"causal": None, "scale": 0.4, "mask": "mask"}, 0),
    "negative-scale": ("float32", (1, 1, 4, 6, 8, 4, 2, 4), {"causal": None, "scale": -0.75}, 0),
    "huge-scores": ("float32", (1, 2, 6, 6, 8, 8, 4, 8), {"causal": "bottom_right", "scale": 0.28867513459481287}, 6),
    "wide-latent": ("bfloat16", (1, 2, 3, 33, 128, 32, 16, 32), {"causal": "bottom_right", "scale": 0.14433756729740643}, -3),
}  # fmt: skip


def rope_cases() -> list[Case]:
    """The cases of `ROPE`."""
    cases = []
    for name, (dtype, shape, where, options) in ROPE.items():
        positions = np.asarray(where) if isinstance(where, int) else where[0] + where[1] * np.arange(shape[-2])
        arrays = {"x": draws.normal(f"rope {name} x", shape, dtype), "positions": positions.astype(np.int64)}
        cases.append(Case("rope", arrays, options, origin=name))
    return cases


def paged_attention_cases() -> list[Case]:
    """The cases of `PAGED`: pages taken in drawn order; those that no table names hold NaN, as do slots past a sequence's length."""
    cases = []
    for name, (dtype, (Hq, Hkv, D, Dv), S, pages, n_k, n_q, options) in PAGED.items():
        Lq, B = n_q if isinstance(n_q, int) else max(n_q), len(n_k)
        tables, used = _tables(f"paged {name} tables", pages, S, n_k)
        arrays = {"q": draws.normal(f"paged {name} q", (B, Hq, Lq, D), dtype)}
        for letter, width in (("k", D), ("v", Dv)):
            drawn = draws.normal(f"paged {name} {letter}", (pages, S, Hkv, width), dtype)
            arrays[f"{letter}_pages"] = np.where(used[..., None, None], drawn, np.asarray(np.nan, drawn.dtype))
        arrays |= {"block_tables": tables, "kv_lengths": np.asarray(n_k, dtype=np.int64)}
        if not isinstance(n_q, int):
            arrays["query_lengths"] = np.asarray(n_q, dtype=np.int64)
        if "sinks" in options:
            arrays["sinks"] = draws.normal(f"paged {name} sinks", (Hq,), "float32")
        cases.append(Case("paged_attention", arrays, {k: v for k, v in options.items() if k != "sinks"}, origin=name))
    return cases


def _tables(key: str, pages: int, S: int, n_k: tuple[int, ...]) -> tuple[Array, Array]:
    """Block tables (B, max_blocks) over pages in drawn order, -1 behind; which slots (N, S) hold a token."""
    order = np.argsort(draws.raw(key, pages), kind="stable").tolist()
    blocks = [-(-n // S) for n in n_k]
    tables = np.full((len(n_k), max(blocks, default=0)), -1, dtype=np.int64)
    used = np.zeros((pages, S), dtype=bool)
    for b, n in enumerate(n_k):
        for j in range(blocks[b]):
            tables[b, j] = order.pop()
            used[tables[b, j], : n - j * S] = True
    return tables, used


def mla_attention_cases() -> list[Case]:
    """The cases of `MLA`."""
    cases = []
    for name, (dtype, (B, H, Lq, Lk, C, Dn, Dr, Dv), options, exponent) in MLA.items():
        shapes = {"q_nope": (B, H, Lq, Dn), "q_rope": (B, H, Lq, Dr), "latent": (B, Lk, C), "k_rope": (B, Lk, Dr), "w_uk": (H, C, Dn),
                  "w_uv": (H, C, Dv)}  # fmt: skip
        arrays = {letter: draws.normal(f"mla {name} {letter}", shape, dtype, exponent=exponent if letter == "q_nope" else 0)
                  for letter, shape in shapes.items()}  # fmt: skip
        plain = dict(options)
        if plain.pop("kv_lengths", None):
            arrays["kv_lengths"] = np.arange(B, dtype=np.int64) * (Lk // 2)     # the first sees nothing
        if plain.pop("mask", None):
            arrays["mask"] = draws.whole(f"mla {name} mask", (B, H, Lq, Lk), 0, 3) > 0
        cases.append(Case("mla_attention", arrays, plain, origin=name))
    return cases
