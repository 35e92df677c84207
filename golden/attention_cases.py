"""Golden cases of attention and of its gradient: every convention once, lengths from 0 to 257, head sizes to 128, four formats."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles import reference
from oracles.properties.case import Case
from oracles.reference import FloatFormat

from . import draws
from .draws import Array

# name: (format, (B, Hq, Hkv, Lq, Lk, D, Dv), options, how the values lie). An option given as text is drawn: see `_drawn`.
ATTENTION: dict[str, tuple[str, tuple[int, ...], dict[str, Any], str]] = {
    "smallest": ("float64", (1, 1, 1, 1, 1, 1, 1), {"causal": None}, "normal"),
    "no-queries": ("float32", (1, 2, 1, 0, 3, 4, 4), {"causal": None}, "normal"),
    "no-keys": ("float32", (1, 2, 1, 3, 0, 4, 4), {"causal": "bottom_right"}, "normal"),
    "one-query": ("bfloat16", (2, 4, 2, 1, 17, 64, 64), {"causal": "bottom_right"}, "normal"),
    "square-causal": ("float32", (1, 2, 2, 64, 64, 64, 64), {"causal": "bottom_right"}, "normal"),
    "bottom-right": ("float16", (1, 2, 1, 5, 17, 40, 40), {"causal": "bottom_right"}, "normal"),
    "top-left": ("float32", (1, 2, 1, 5, 17, 16, 16), {"causal": "top_left"}, "normal"),
    "more-queries-than-keys": ("float32", (1, 2, 2, 13, 7, 8, 8), {"causal": "bottom_right"}, "normal"),
    "grouped": ("bfloat16", (1, 8, 2, 33, 33, 40, 40), {"causal": "bottom_right"}, "normal"),
    "one-key-head-other-values": ("float64", (2, 4, 1, 7, 11, 24, 5), {"causal": None}, "normal"),
    "scale-given": ("float64", (1, 1, 1, 6, 9, 7, 7), {"causal": None, "scale": -0.3}, "normal"),
    "window-left": ("float32", (1, 1, 1, 65, 65, 16, 16), {"causal": "bottom_right", "window": (3, None)}, "normal"),
    "window-both-lengths": ("float16", (3, 2, 1, 9, 20, 16, 16), {"causal": None, "window": (4, 2), "kv_lengths": "lengths"}, "normal"),
    "softcap": ("float32", (1, 2, 1, 24, 24, 32, 32), {"causal": "bottom_right", "softcap": 1.5}, "normal"),
    "sinks": ("bfloat16", (1, 4, 2, 19, 19, 16, 16), {"causal": "bottom_right", "sinks": "sinks"}, "normal"),
    "sinks-softcap-window": ("float32", (1, 2, 2, 12, 31, 16, 16),
                             {"causal": "bottom_right", "sinks": "sinks", "softcap": 4.0, "window": (8, None)}, "normal"),
    "sinks-far-above": ("float32", (1, 3, 1, 7, 9, 16, 16), {"causal": "bottom_right", "sinks": "far sinks"}, "normal"),
    "bias-and-mask": ("float32", (2, 2, 1, 11, 13, 8, 8), {"causal": None, "bias": "bias of a head", "mask": "mask"}, "normal"),
    "alibi": ("float64", (1, 4, 4, 15, 21, 8, 8), {"causal": "bottom_right", "alibi_slopes": "slopes"}, "normal"),
    "alibi-both-sides": ("float32", (1, 2, 1, 9, 13, 8, 8), {"causal": None, "alibi_slopes": "slopes"}, "normal"),
    "dropout": ("float32", (1, 2, 1, 14, 14, 8, 8), {"causal": "bottom_right", "dropout_mask": "mask", "dropout_p": 0.25}, "normal"),
    "nothing-visible": ("float32", (2, 2, 1, 4, 6, 8, 8), {"causal": None, "kv_lengths": "some empty", "sinks": "sinks"}, "normal"),
    "huge-scores": ("float32", (1, 2, 2, 21, 21, 32, 32), {"causal": "bottom_right"}, "huge"),
    "huge-scores-float64": ("float64", (1, 1, 1, 9, 9, 16, 16), {"causal": None}, "huge"),
    "cancelling-values": ("float32", (1, 1, 1, 32, 32, 16, 16), {"causal": None}, "cancelling"),
    "equal-scores": ("float16", (1, 1, 1, 5, 9, 16, 16), {"causal": None}, "equal"),
    "subnormal-values": ("float16", (1, 1, 1, 5, 8, 8, 8), {"causal": None}, "subnormal"),
    "tile-border-129": ("bfloat16", (1, 2, 1, 129, 129, 64, 64), {"causal": "bottom_right"}, "normal"),
    "tile-border-257": ("float32", (1, 1, 1, 257, 257, 128, 128), {"causal": "bottom_right"}, "normal"),
}  # fmt: skip


def attention_cases() -> list[Case]:
    """The cases of `ATTENTION`, in the order of the table."""
    return [_case(name) for name in ATTENTION]


def attention_backward_cases() -> list[Case]:
    """The same with dout drawn, and out and lse the oracle's, rounded to their formats as a kernel gets them."""
    cases = []
    for case in attention_cases():
        q, v = case.arrays["q"], case.arrays["v"]
        dtype = ATTENTION[case.origin][0]
        out, lse = reference.attention(**case.arguments())
        given = {"q": q, "k": case.arrays["k"], "v": v, "out": FloatFormat(dtype).cast(out),
                 "lse": lse.astype(np.float64 if dtype == "float64" else np.float32),
                 "dout": draws.normal(f"attention {case.origin} dout", out.shape, dtype)}  # fmt: skip
        rest = {name: array for name, array in case.arrays.items() if name not in given}
        cases.append(Case("attention_backward", {**given, **rest}, case.options, origin=case.origin))
    return cases


def _case(name: str) -> Case:
    dtype, (B, Hq, Hkv, Lq, Lk, D, Dv), options, values = ATTENTION[name]
    shapes = {"q": (B, Hq, Lq, D), "k": (B, Hkv, Lk, D), "v": (B, Hkv, Lk, Dv)}
    arrays = {letter: _values(values, f"attention {name} {letter}", letter, shape, dtype) for letter, shape in shapes.items()}
    plain = {}
    for option, value in options.items():
        if isinstance(value, str) and option != "causal":
            arrays[option] = _drawn(value, f"attention {name} {option}", (B, Hq, Lq, Lk))
        else:
            plain[option] = value
    return Case("attention", arrays, plain, origin=name)


def _values(how: str, name: str, letter: str, shape: tuple[int, ...], dtype: str) -> Array:
    """normal; huge: scores of some hundreds; cancelling: values near +-1000 in turn; equal: keys all the same; subnormal: v below tiny."""
    if how == "huge" and letter == "q":
        return draws.normal(name, shape, dtype, exponent=6)
    if how == "cancelling" and letter == "v":
        turn = np.where(np.arange(shape[-2]) % 2 == 0, 1000.0, -1000.0)[:, None]
        return np.asarray(FloatFormat(dtype).cast(turn + draws.normal(name, shape, "float32").astype(np.float64)))
    if how == "equal" and letter == "k":
        return np.repeat(draws.normal(name, (*shape[:-2], 1, shape[-1]), dtype), shape[-2], axis=-2)
    if how == "subnormal" and letter == "v":
        return draws.normal(name, shape, dtype, exponent=-20)
    return draws.normal(name, shape, dtype)


def _drawn(what: str, name: str, shape: tuple[int, int, int, int]) -> Array:
    """An array of the options: lengths of keys, sinks (the last of them -inf, or far from all scores), a bias, a mask, slopes."""
    B, Hq, Lq, Lk = shape
    if what in ("lengths", "some empty"):
        lengths = draws.whole(name, (B,), 1, Lk + 1)
        return np.where(np.arange(B) % 2 == 0, 0, lengths) if what == "some empty" else lengths
    if what == "sinks":
        sinks = draws.normal(name, (Hq,), "float32")
        return np.where(np.arange(Hq) == Hq - 1, np.float32(-np.inf), sinks)
    if what == "far sinks":                                                     # e^(sink - m) overflows float32, m the largest score alone
        return np.asarray([200.0, -200.0, 20.0], dtype=np.float32)
    if what == "slopes":
        return np.asarray(2.0 ** -(np.arange(Hq, dtype=np.float32) + 1), dtype=np.float32)
    if what == "bias of a head":
        return draws.normal(name, (1, Hq, Lq, Lk), "float32")
    return draws.whole(name, shape, 0, 4) > 0
