"""Golden cases of tensor parallelism: products cut by columns and rows, whole heads, the vocabulary, norms, the clip over ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles.properties.array_lists import spread
from oracles.properties.case import Case

from . import draws
from .loss_cases import SHARDED, vocab_parallel_cross_entropy_cases

# name: (format, tokens, C, columns of each rank, how the values lie)
COLUMNS: dict[str, tuple[str, int, int, tuple[int, ...], str]] = {
    "smallest": ("float64", 1, 1, (1,), "normal"), "no-tokens": ("float32", 0, 3, (2, 2), "normal"),
    "nothing-to-sum": ("float32", 2, 0, (2, 2), "normal"), "one-rank": ("float32", 3, 5, (4,), "normal"),
    "two-ranks": ("float32", 3, 5, (4, 4), "normal"), "three-ranks": ("float32", 2, 7, (2, 2, 2), "normal"),
    "one-column-each": ("float64", 3, 5, (1, 1, 1, 1), "normal"), "bfloat16": ("bfloat16", 4, 9, (3, 3), "normal"),
    "float16": ("float16", 4, 9, (3, 3), "normal"), "float64": ("float64", 3, 9, (3, 3), "normal"),
    "cancelling": ("float32", 2, 4, (2, 2), "cancelling"), "ragged": ("float32", 3, 5, (3, 1, 2), "normal"),
    "tile-border": ("float32", 2, 129, (2, 2), "normal"), "eight-ranks": ("bfloat16", 2, 33, (2,) * 8, "normal"),
}  # fmt: skip

# name: (format, tokens, rows of each rank, N, how the values lie)
ROWS: dict[str, tuple[str, int, tuple[int, ...], int, str]] = {
    "smallest": ("float64", 1, (1,), 1, "normal"), "no-tokens": ("float32", 0, (2, 2), 3, "normal"),
    "nothing-to-sum": ("float32", 2, (0, 0), 3, "normal"), "one-rank": ("float32", 3, (5,), 4, "normal"),
    "two-ranks": ("float32", 3, (4, 4), 5, "normal"), "three-ranks": ("float32", 2, (3, 3, 3), 4, "normal"),
    "one-row-each": ("float64", 3, (1, 1, 1, 1), 5, "normal"), "bfloat16": ("bfloat16", 4, (5, 5), 3, "normal"),
    "float16": ("float16", 4, (5, 5), 3, "normal"), "float64": ("float64", 3, (4, 4, 4), 3, "normal"),
    "ranks-cancel": ("float32", 2, (4, 4), 3, "ranks cancel"), "ragged": ("float32", 3, (3, 1, 2), 4, "normal"),
    "tile-border": ("float32", 2, (65, 65), 4, "normal"), "eight-ranks": ("bfloat16", 2, (4,) * 8, 3, "normal"),
}  # fmt: skip

# name: (format, C, (query heads, key heads, ranks), D, Dv)
HEADS: dict[str, tuple[str, int, tuple[int, int, int], int, int]] = {
    "smallest": ("float64", 1, (1, 1, 1), 1, 1), "no-rows": ("float32", 0, (2, 2, 2), 3, 3), "one-rank": ("float32", 3, (4, 2, 1), 2, 2),
    "every-head-its-own": ("float32", 3, (4, 4, 2), 2, 2), "grouped": ("float32", 3, (8, 4, 2), 2, 2),
    "one-key-head-each": ("bfloat16", 2, (8, 4, 4), 2, 2), "fewer-key-heads-than-ranks": ("float32", 2, (8, 2, 4), 2, 2),
    "one-key-head-for-all": ("float16", 3, (6, 1, 3), 2, 2), "other-values": ("float64", 3, (4, 2, 2), 3, 5),
    "three-ranks": ("float32", 2, (6, 3, 3), 4, 4), "eight-ranks": ("bfloat16", 2, (8, 8, 8), 3, 3),
    "tile-border": ("float32", 1, (4, 2, 2), 65, 65),
}  # fmt: skip

# name: (format, V, C, ranks, shape of the tokens)
TABLES: dict[str, tuple[str, int, int, int, tuple[int, ...]]] = {
    "smallest": ("float64", 1, 1, 1, (1,)), "no-tokens": ("float32", 4, 3, 2, (0,)), "no-axes": ("float32", 5, 3, 2, ()),
    "one-rank": ("float32", 5, 3, 1, (7,)), "two-ranks": ("float32", 6, 3, 2, (7,)), "no-multiple": ("float32", 10, 3, 4, (12,)),
    "fewer-rows-than-ranks": ("float32", 3, 2, 5, (6,)), "batch": ("bfloat16", 12, 4, 3, (2, 5)), "float16": ("float16", 9, 4, 3, (5,)),
    "float64": ("float64", 9, 4, 2, (5,)), "one-column": ("float32", 33, 1, 4, (17,)), "vocabulary": ("bfloat16", 257, 2, 8, (9,)),
}  # fmt: skip

# name: (format, ranks, (tokens, heads, D) of each, what is cut, eps, exponent of x)
NORMS: dict[str, tuple[str, int, tuple[int, int, int], str, float, int]] = {
    "smallest": ("float64", 1, (1, 1, 1), "tokens", 1e-6, 0), "no-tokens": ("float32", 2, (0, 2, 3), "tokens", 1e-6, 0),
    "one-rank": ("float32", 1, (3, 2, 5), "heads", 1e-6, 0), "tokens": ("float32", 2, (3, 2, 5), "tokens", 1e-6, 0),
    "heads": ("float32", 2, (3, 2, 5), "heads", 1e-6, 0), "one-number-without-eps": ("float64", 2, (3, 2, 1), "tokens", 0.0, 0),
    "no-eps": ("float32", 3, (2, 2, 4), "heads", 0.0, 0), "large-eps": ("float32", 2, (2, 2, 7), "tokens", 0.5, 0),
    "small-numbers": ("float32", 2, (2, 2, 7), "tokens", 1e-6, -12), "bfloat16": ("bfloat16", 2, (2, 2, 9), "heads", 1e-5, 0),
    "float16": ("float16", 3, (2, 1, 9), "tokens", 1e-5, 0), "float64": ("float64", 2, (2, 3, 5), "tokens", 1e-6, 0),
    "tile-border": ("float32", 2, (1, 1, 129), "heads", 1e-6, 0), "four-ranks": ("bfloat16", 4, (1, 2, 8), "tokens", 1e-6, 0),
}  # fmt: skip

# name: (format, ranks, shapes of the gradients of a rank, which are cut, max_norm)
CLIPS: dict[str, tuple[str, int, tuple[tuple[int, ...], ...], tuple[int, ...], float]] = {
    "smallest": ("float64", 1, ((1,),), (0,), 0.5), "no-elements": ("float32", 2, ((0,), (3,)), (0, 1), 1.0),
    "no-axes": ("float32", 2, ((), ()), (0, 1), 0.25), "all-held-by-all": ("float32", 3, ((4,), (2, 3)), (0, 0), 1.0),
    "all-cut": ("float32", 3, ((4,), (2, 3)), (1, 1), 1.0), "both": ("float32", 2, ((4,), (2, 3), (5,)), (0, 1, 1), 1.0),
    "one-rank": ("float32", 1, ((4,), (2, 3)), (0, 1), 1.0), "within-the-norm": ("float32", 2, ((4,), (2, 3)), (0, 1), 100.0),
    "limit-of-zero": ("float32", 2, ((4,), (3,)), (1, 0), 0.0), "bfloat16": ("bfloat16", 4, ((9,), (3,)), (1, 0), 1.0),
    "float16": ("float16", 3, ((9,), (3,)), (0, 1), 0.3), "float64": ("float64", 4, ((5,), (3,)), (1, 0), 0.3),
    "tile-border": ("float32", 2, ((129,), (3,)), (1, 0), 1.0),
}  # fmt: skip


def column_parallel_cases() -> list[Case]:
    """The cases of `COLUMNS`."""
    cases = []
    for name, (dtype, T, C, columns, how) in COLUMNS.items():
        key = f"column {name}"
        x, w = draws.normal(f"{key} x", (T, C), dtype), [draws.normal(f"{key} w {r}", (C, n), dtype) for r, n in enumerate(columns)]
        if how == "cancelling":                                                 # what the first half of a sum gives the second takes
            x[:, C // 2 :], w = -x[:, : C // 2], [np.concatenate([one[: C // 2]] * 2) for one in w]
        bias = [draws.normal(f"{key} bias {r}", (n,), dtype) for r, n in enumerate(columns)]
        cases.append(Case("column_parallel", {"x": x, **spread("w_shards", w), **spread("bias_shards", bias)}, {}, origin=name))
    return cases


def row_parallel_cases() -> list[Case]:
    """The cases of `ROWS`."""
    cases = []
    for name, (dtype, T, rows, N, how) in ROWS.items():
        key = f"row parallel {name}"
        x = [draws.normal(f"{key} x {r}", (T, n), dtype) for r, n in enumerate(rows)]
        w = [draws.normal(f"{key} w {r}", (n, N), dtype) for r, n in enumerate(rows)]
        if how == "ranks cancel":
            x[1], w[1] = -x[0], w[0].copy()
        bias = draws.normal(f"{key} bias", (N,), dtype)
        cases.append(Case("row_parallel", {**spread("x_shards", x), **spread("w_shards", w), "bias": bias}, {}, origin=name))
    return cases


def shard_qkv_cases() -> list[Case]:
    """The cases of `HEADS`."""
    cases = []
    for name, (dtype, C, (H, Hkv, R), D, Dv) in HEADS.items():
        widths = {"w_q": H * D, "w_k": Hkv * D, "w_v": Hkv * Dv}
        arrays = {letter: draws.normal(f"heads {name} {letter}", (C, n), dtype) for letter, n in widths.items()}
        cases.append(Case("shard_qkv", arrays, {"heads": H, "kv_heads": Hkv, "world": R}, origin=name))
    return cases


def vocab_parallel_embedding_cases() -> list[Case]:
    """The cases of `TABLES`; the last token of the vocabulary is among those of several."""
    cases = []
    for name, (dtype, V, C, R, shape) in TABLES.items():
        tokens = draws.whole(f"embedding {name} tokens", shape, 0, V)
        if tokens.size > 1:
            tokens.reshape(-1)[-1] = V - 1
        table = draws.normal(f"embedding {name} table", (V, C), dtype)
        cases.append(Case("vocab_parallel_embedding", {"tokens": tokens, "table": table}, {"world": R}, origin=name))
    return cases


def vocab_parallel_cross_entropy_backward_cases() -> list[Case]:
    """The cases of `loss_cases.SHARDED`, with a gradient of the loss: one number, or one a row where nothing is reduced."""
    cases = []
    for case in vocab_parallel_cross_entropy_cases():
        shape: tuple[int, ...] = case.arrays["targets"].shape if case.options["reduction"] == "none" else ()
        dloss = np.asarray(draws.normal(f"sharded {case.origin} dloss", shape, SHARDED[case.origin][0]))
        cases.append(Case("vocab_parallel_cross_entropy_backward", {**case.arrays, "dloss": dloss}, case.options, origin=case.origin))
    return cases


def norm_backward_sharded_cases() -> list[Case]:
    """The cases of `NORMS`."""
    cases = []
    for name, (dtype, R, shape, cut, eps, exponent) in NORMS.items():
        key = f"norm {name}"
        x = [draws.normal(f"{key} x {r}", shape, dtype, exponent=exponent) for r in range(R)]
        dout, weight = [draws.normal(f"{key} dout {r}", shape, dtype) for r in range(R)], draws.normal(f"{key} weight", shape[2:], dtype)
        arrays = {**spread("x_shards", x), "weight": weight, **spread("dout_shards", dout)}
        options: dict[str, Any] = {"eps": eps, "sharded": cut}
        cases.append(Case("norm_backward_sharded", arrays, options, origin=name))
    return cases


def clip_grad_norm_sharded_cases() -> list[Case]:
    """The cases of `CLIPS`; what all hold is the same on every rank."""
    cases = []
    for name, (dtype, R, shapes, cut, limit) in CLIPS.items():
        grads = [np.asarray(draws.normal(f"clip sharded {name} {k}", (R, *shape), dtype)) for k, shape in enumerate(shapes)]
        for grad, kind in zip(grads, cut):
            if not kind:
                grad[...] = grad[:1]
        arrays = {**spread("grads", grads), "placement": np.asarray(cut, dtype=np.int64)}
        cases.append(Case("clip_grad_norm_sharded", arrays, {"max_norm": limit}, origin=name))
    return cases
