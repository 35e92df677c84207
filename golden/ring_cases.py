"""Golden cases of context parallelism: a sequence in shards on a ring, a cache that ranks share out, a norm before an all-to-all."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles.properties.array_lists import spread
from oracles.properties.case import Case

from . import draws
from .draws import Array

# name: (format, ranks, (B, Hq, Hkv, n, D, Dv), options, segments of the sequence as a text a row, "-" padding, how the values lie)
RING: dict[str, tuple[str, int, tuple[int, ...], dict[str, Any], tuple[str, ...], str]] = {
    "smallest": ("float64", 1, (1, 1, 1, 1, 1, 1), {"causal": None}, (), "normal"),
    "no-tokens": ("float32", 2, (1, 2, 1, 0, 4, 4), {"causal": "bottom_right"}, (), "normal"),
    "one-rank": ("float32", 1, (1, 2, 2, 7, 8, 8), {"causal": "bottom_right"}, (), "normal"),
    "one-token-each": ("float64", 4, (2, 2, 1, 1, 5, 3), {"causal": "top_left"}, (), "normal"),
    "all-see-all": ("float32", 3, (1, 2, 2, 4, 8, 8), {"causal": None}, (), "normal"),
    "causal": ("float32", 3, (1, 2, 2, 5, 8, 8), {"causal": "bottom_right"}, (), "normal"),
    "zigzag": ("float32", 2, (1, 2, 2, 6, 8, 8), {"causal": "bottom_right", "order": "zigzag"}, (), "normal"),
    "zigzag-four-ranks": ("bfloat16", 4, (1, 2, 1, 4, 8, 8), {"causal": "top_left", "order": "zigzag"}, (), "normal"),
    "grouped": ("bfloat16", 2, (1, 8, 2, 6, 8, 8), {"causal": "bottom_right"}, (), "normal"),
    "other-values": ("float64", 3, (2, 2, 1, 3, 7, 2), {"causal": None, "scale": -0.3}, (), "normal"),
    "packed": ("float32", 3, (1, 2, 2, 5, 8, 8), {"causal": "bottom_right"}, ("000001111122222",), "normal"),
    "packed-zigzag": ("float32", 2, (2, 1, 1, 6, 8, 8), {"causal": "bottom_right", "order": "zigzag"}, ("000011112222", "011111111112"),
                      "normal"),
    "padding": ("float16", 2, (2, 2, 1, 5, 8, 8), {"causal": "bottom_right"}, ("--00000000", "0000000---"), "normal"),
    "nothing-but-padding": ("float32", 2, (1, 1, 1, 3, 4, 4), {"causal": None}, ("------",), "normal"),
    "large-scores": ("float32", 3, (1, 1, 1, 5, 16, 16), {"causal": "bottom_right"}, (), "large"),
    "equal-scores": ("float16", 2, (1, 1, 1, 4, 8, 8), {"causal": None}, (), "equal"),
    "float16": ("float16", 3, (1, 2, 2, 5, 16, 16), {"causal": "bottom_right"}, (), "normal"),
    "tile-border": ("float32", 3, (1, 1, 1, 43, 16, 16), {"causal": "bottom_right"}, (), "normal"),
}  # fmt: skip

# name: (format, ranks, (B, Hq, Hkv, S, D, Dv), (places asked for, of them none), interleave, scale, how the values lie)
CACHES: dict[str, tuple[str, int, tuple[int, ...], tuple[int, int], int, float | None, str]] = {
    "smallest": ("float64", 1, (1, 1, 1, 1, 1, 1), (1, 0), 1, None, "normal"),
    "no-sequences": ("float32", 2, (0, 2, 1, 3, 4, 4), (2, 0), 1, None, "normal"),
    "no-places": ("float32", 2, (2, 2, 1, 3, 4, 4), (0, 0), 1, None, "normal"),
    "none-asked-for": ("float32", 2, (1, 2, 1, 3, 4, 4), (3, 3), 1, None, "normal"),
    "one-rank": ("float32", 1, (2, 2, 2, 9, 8, 8), (5, 0), 1, None, "normal"),
    "in-turn": ("float32", 3, (2, 2, 2, 4, 8, 8), (7, 0), 1, None, "normal"),
    "two-at-a-time": ("float32", 3, (2, 4, 2, 6, 8, 8), (9, 2), 2, None, "normal"),
    "long-turns": ("bfloat16", 2, (2, 4, 1, 16, 8, 8), (20, 3), 8, None, "normal"),
    "all-places": ("float16", 4, (1, 2, 1, 4, 8, 8), (16, 0), 2, None, "normal"),
    "scale-given": ("float64", 2, (2, 2, 2, 5, 7, 3), (6, 1), 1, 0.7, "normal"),
    "float64": ("float64", 3, (2, 4, 2, 4, 16, 16), (8, 1), 1, None, "normal"),
    "large-scores": ("float32", 2, (1, 2, 2, 8, 16, 16), (11, 0), 1, None, "large"),
    "tile-border": ("bfloat16", 3, (1, 2, 1, 48, 16, 16), (129, 4), 16, None, "normal"),
}  # fmt: skip

# name: (format, ranks, (B, H, tokens of a rank, D), eps, exponent of x)
EXCHANGED: dict[str, tuple[str, int, tuple[int, int, int, int], float, int]] = {
    "smallest": ("float64", 1, (1, 1, 1, 1), 1e-6, 0), "no-tokens": ("float32", 2, (1, 2, 0, 3), 1e-6, 0),
    "one-rank": ("float32", 1, (2, 3, 4, 5), 1e-6, 0), "two-ranks": ("float32", 2, (1, 4, 3, 5), 1e-6, 0),
    "three-ranks": ("float32", 3, (2, 3, 2, 4), 1e-6, 0), "batch": ("float64", 2, (3, 2, 2, 3), 1e-6, 0),
    "one-number-without-eps": ("float64", 2, (1, 2, 3, 1), 0.0, 0), "no-eps": ("float32", 2, (1, 2, 2, 4), 0.0, 0),
    "large-eps": ("float32", 2, (1, 2, 2, 7), 0.5, 0), "small-numbers": ("float32", 2, (1, 2, 2, 7), 1e-6, -12),
    "bfloat16": ("bfloat16", 2, (1, 4, 2, 9), 1e-5, 0), "float16": ("float16", 3, (1, 3, 2, 5), 1e-5, 0),
    "four-ranks": ("bfloat16", 4, (1, 4, 1, 8), 1e-6, 0), "tile-border": ("float32", 2, (1, 2, 1, 129), 1e-6, 0),
}  # fmt: skip


def ring_attention_cases() -> list[Case]:
    """The cases of `RING`."""
    cases = []
    for name, (dtype, R, (B, Hq, Hkv, n, D, Dv), options, rows, how) in RING.items():
        shapes = {"q": (B, Hq, n, D), "k": (B, Hkv, n, D), "v": (B, Hkv, n, Dv)}
        arrays: dict[str, Array] = {}
        for letter, shape in shapes.items():
            arrays |= spread(f"{letter}_shards", [_values(how, f"ring {name} {letter} {r}", letter, shape, dtype) for r in range(R)])
        if rows:
            arrays["segments"] = np.asarray([[-1 if mark == "-" else int(mark) for mark in row] for row in rows], dtype=np.int64)
        cases.append(Case("ring_attention", arrays, options, origin=name))
    return cases


def _values(how: str, key: str, letter: str, shape: tuple[int, ...], dtype: str) -> Array:
    """normal; large: scores of some tens; equal: the keys of a rank all the same, on every rank."""
    if how == "large" and letter == "q":
        return draws.normal(key, shape, dtype, exponent=3)
    if how == "equal" and letter == "k":
        return np.repeat(draws.normal(f"{key.rpartition(' ')[0]} all", (*shape[:-2], 1, shape[-1]), dtype), shape[-2], axis=-2)
    return draws.normal(key, shape, dtype)


def ring_attention_backward_cases() -> list[Case]:
    """The same sequences with a gradient of out."""
    cases = []
    for case in ring_attention_cases():
        dtype, R, (B, Hq, _, n, _, Dv), *_ = RING[case.origin]
        douts = spread("dout_shards", [draws.normal(f"ring {case.origin} dout {r}", (B, Hq, n, Dv), dtype) for r in range(R)])
        cases.append(Case("ring_attention_backward", {**case.arrays, **douts}, case.options, origin=case.origin))
    return cases


def sharded_cache_attention_cases() -> list[Case]:
    """The cases of `CACHES`: places drawn without repetition, some of them none."""
    cases = []
    for name, (dtype, R, (B, Hq, Hkv, S, D, Dv), (asked, nothing), interleave, scale, how) in CACHES.items():
        key = f"cache of ranks {name}"
        q = _values(how, f"{key} q", "q", (B, Hq, D), dtype)
        k, v = ([draws.normal(f"{key} {letter} {r}", (B, Hkv, S, width), dtype) for r in range(R)]
                for letter, width in (("k", D), ("v", Dv)))  # fmt: skip
        indices = np.argsort(draws.bell(f"{key} indices", (B, R * S)), axis=1, kind="stable").astype(np.int64)[:, :asked]
        indices[:, asked - nothing :] = -1
        arrays = {"q": q, **spread("k_shards", k), **spread("v_shards", v), "indices": indices}
        options = {"interleave": interleave} | ({} if scale is None else {"scale": scale})
        cases.append(Case("sharded_cache_attention", arrays, options, origin=name))
    return cases


def exchanged_norm_backward_cases() -> list[Case]:
    """The cases of `EXCHANGED`."""
    cases = []
    for name, (dtype, R, (B, H, n, D), eps, exponent) in EXCHANGED.items():
        key = f"exchanged {name}"
        dy = [draws.normal(f"{key} dy {r}", (B, H // R, R * n, D), dtype) for r in range(R)]
        x = [draws.normal(f"{key} x {r}", (B, H, n, D), dtype, exponent=exponent) for r in range(R)]
        arrays = {**spread("dy_shards", dy), **spread("x_shards", x), "weight": draws.normal(f"{key} weight", (D,), dtype)}
        cases.append(Case("exchanged_norm_backward", arrays, {"eps": eps}, origin=name))
    return cases
