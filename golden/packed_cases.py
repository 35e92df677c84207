"""Golden cases of packed attention and its gradient: sequences of different lengths end to end, some of them empty."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles import reference
from oracles.properties.case import Case
from oracles.reference import FloatFormat

from . import draws

# name: (format, (Hq, Hkv, D, Dv), lengths of the queries, lengths of the keys, options, exponent of q's values)
PACKED: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...], dict[str, Any], int]] = {
    "smallest": ("float64", (1, 1, 1, 1), (1,), (1,), {"causal": None}, 0),
    "no-sequences": ("float32", (2, 1, 4, 4), (), (), {"causal": None}, 0),
    "nothing-but-empty": ("float32", (2, 1, 4, 4), (0, 0), (0, 0), {"causal": "bottom_right"}, 0),
    "one-sequence": ("float32", (2, 2, 16, 16), (13,), (13,), {"causal": "bottom_right"}, 0),
    "one-token-each": ("bfloat16", (4, 2, 16, 16), (1, 1, 1, 1), (5, 1, 9, 3), {"causal": "bottom_right"}, 0),
    "empty-between": ("float16", (2, 1, 8, 8), (4, 0, 3), (4, 0, 3), {"causal": "bottom_right"}, 0),
    "queries-without-keys": ("float32", (2, 1, 8, 8), (3, 4), (5, 0), {"causal": None}, 0),
    "keys-without-queries": ("float32", (2, 1, 8, 8), (3, 0), (5, 4), {"causal": None}, 0),
    "top-left": ("float64", (1, 1, 8, 8), (5, 7), (9, 6), {"causal": "top_left"}, 0),
    "more-queries-than-keys": ("float32", (2, 2, 8, 8), (9, 4), (5, 4), {"causal": "bottom_right"}, 0),
    "grouped-other-values": ("float32", (6, 2, 24, 5), (7, 5, 2), (7, 11, 2), {"causal": "bottom_right", "scale": 0.3}, 0),
    "window": ("bfloat16", (2, 1, 16, 16), (17, 9), (17, 20), {"causal": "bottom_right", "window": (4, None)}, 0),
    "window-both-softcap": ("float16", (2, 1, 16, 16), (8, 12), (10, 12), {"causal": None, "window": (3, 2), "softcap": 1.5}, 0),
    "huge-scores": ("float32", (1, 1, 32, 32), (11, 6), (11, 6), {"causal": "bottom_right"}, 6),
    "tile-border": ("float32", (2, 1, 64, 64), (129, 1, 30), (129, 65, 30), {"causal": "bottom_right"}, 0),
}  # fmt: skip


def attention_packed_cases() -> list[Case]:
    """The cases of `PACKED`."""
    cases = []
    for name, (dtype, (Hq, Hkv, D, Dv), n_q, n_k, options, exponent) in PACKED.items():
        Tq, Tk = sum(n_q), sum(n_k)
        arrays = {
            "q": draws.normal(f"packed {name} q", (Tq, Hq, D), dtype, exponent=exponent),
            "k": draws.normal(f"packed {name} k", (Tk, Hkv, D), dtype),
            "v": draws.normal(f"packed {name} v", (Tk, Hkv, Dv), dtype),
            "cu_q": np.cumsum([0, *n_q], dtype=np.int64), "cu_k": np.cumsum([0, *n_k], dtype=np.int64),
        }  # fmt: skip
        cases.append(Case("attention_packed", arrays, options, origin=name))
    return cases


def attention_packed_backward_cases() -> list[Case]:
    """The same with dout drawn, and out and lse the oracle's, rounded to their formats as a kernel gets them."""
    cases = []
    for case in attention_packed_cases():
        dtype, arrays = PACKED[case.origin][0], dict(case.arrays)
        out, lse = reference.attention_packed(**case.arguments())
        offsets = {name: arrays.pop(name) for name in ("cu_q", "cu_k")}
        given = {"out": FloatFormat(dtype).cast(out), "lse": lse.astype(np.float64 if dtype == "float64" else np.float32),
                 "dout": draws.normal(f"packed {case.origin} dout", out.shape, dtype)}  # fmt: skip
        cases.append(Case("attention_packed_backward", {**arrays, **given, **offsets}, case.options, origin=case.origin))
    return cases
