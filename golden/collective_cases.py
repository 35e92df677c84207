"""Golden cases of what ranks bring together: sums, means and extremes, what is gathered, buckets, accumulation, copies of a weight."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles.properties.array_lists import spread
from oracles.properties.case import Case
from oracles.reference import FloatFormat

from . import draws
from .draws import Array

# name: (format, ranks, shape of each rank's array, options, how the values lie)
REDUCED: dict[str, tuple[str, int, tuple[int, ...], dict[str, Any], str]] = {
    "smallest": ("float64", 1, (1,), {}, "normal"),
    "no-elements": ("float32", 3, (0, 3), {}, "normal"),
    "no-axes": ("float64", 3, (), {"op": "mean"}, "normal"),
    "two-ranks": ("float32", 2, (4, 5), {}, "normal"),
    "mean-of-three": ("float32", 3, (3, 5), {"op": "mean"}, "normal"),
    "more-ranks-than-elements": ("float32", 7, (2,), {"op": "mean"}, "normal"),
    "largest": ("float32", 4, (4, 3), {"op": "max"}, "normal"),
    "smallest-of-each": ("bfloat16", 3, (6, 2), {"op": "min"}, "normal"),
    "tree": ("float32", 5, (5, 3), {"algorithm": "tree"}, "normal"),
    "tree-mean": ("float64", 6, (3, 3), {"op": "mean", "algorithm": "tree"}, "normal"),
    "tree-largest": ("float16", 3, (3, 3), {"op": "max", "algorithm": "tree"}, "normal"),
    "bfloat16": ("bfloat16", 4, (4, 8), {}, "normal"),
    "float16-mean": ("float16", 3, (9, 4), {"op": "mean"}, "normal"),
    "float64": ("float64", 4, (8, 3), {}, "normal"),
    "cancelling": ("float32", 4, (4, 4), {}, "cancelling"),
    "opposite": ("float32", 2, (2, 4), {"op": "mean"}, "opposite"),
    "far-apart": ("float64", 3, (3, 3), {}, "far"),
    "tile-border": ("float32", 3, (129, 2), {"op": "mean"}, "normal"),
}  # fmt: skip

# name: (format, ranks, shape of each rank's array, options, how the values lie): the first axis a multiple of the ranks
SCATTERED: dict[str, tuple[str, int, tuple[int, ...], dict[str, Any], str]] = {
    "smallest": ("float64", 1, (1,), {}, "normal"),
    "no-rows": ("float32", 3, (0, 3), {}, "normal"),
    "no-columns": ("float32", 2, (4, 0), {"op": "mean"}, "normal"),
    "two-ranks": ("float32", 2, (4, 5), {}, "normal"),
    "one-row-each": ("float32", 5, (5,), {"op": "mean"}, "normal"),
    "mean-of-three": ("float32", 3, (6, 5), {"op": "mean"}, "normal"),
    "largest": ("float32", 4, (8, 3), {"op": "max"}, "normal"),
    "smallest-of-each": ("bfloat16", 3, (6, 2), {"op": "min"}, "normal"),
    "bfloat16": ("bfloat16", 4, (4, 8), {}, "normal"),
    "float16-mean": ("float16", 3, (9, 2, 2), {"op": "mean"}, "normal"),
    "float64": ("float64", 4, (8, 3), {}, "normal"),
    "cancelling": ("float32", 4, (4, 4), {}, "cancelling"),
    "far-apart": ("float64", 3, (3, 3), {}, "far"),
    "tile-border": ("float32", 3, (387,), {"op": "mean"}, "normal"),
}  # fmt: skip

# name: (format, rows of each rank, shape of a row)
GATHERED: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {
    "smallest": ("float64", (1,), ()), "nothing": ("float32", (0, 0), (3,)), "two-ranks": ("float32", (2, 2), (3,)),
    "three-ranks": ("float32", (2, 2, 2), (2, 2)), "ragged": ("float32", (3, 1, 2), (4,)), "nothing-first": ("float32", (0, 2), (3,)),
    "nothing-between": ("bfloat16", (2, 0, 1), (3,)), "nothing-last": ("float16", (1, 4, 0), (2,)), "float64": ("float64", (2, 3), (5,)),
    "bfloat16": ("bfloat16", (4, 4, 4, 4), (2,)), "float16": ("float16", (3, 3), ()), "eight-ranks": ("float32", (1,) * 8, (2,)),
    "tile-border": ("float32", (129, 128), (1,)),
}  # fmt: skip

# name: (format, ranks, shapes of the gradients, elements of a bucket)
BUCKETS: dict[str, tuple[str, int, tuple[tuple[int, ...], ...], int]] = {
    "smallest": ("float64", 1, ((1,),), 1), "one-gradient": ("float32", 3, ((4,),), 100), "no-elements": ("float32", 3, ((0,), (2,)), 4),
    "no-axes": ("float32", 3, ((), ()), 1), "one-bucket": ("float32", 3, ((2, 3), (4,), (5,)), 1000),
    "a-bucket-each": ("float32", 3, ((2, 3), (4,), (5,)), 1), "two-in-a-bucket": ("float32", 2, ((3,), (3,), (3,), (3,)), 6),
    "larger-than-a-bucket": ("float32", 3, ((2,), (9,), (2,)), 4), "bfloat16": ("bfloat16", 4, ((4, 2), (3,)), 8),
    "float16": ("float16", 3, ((4, 2), (3,)), 8), "float64": ("float64", 5, ((3, 3), (2,)), 7), "many": ("float32", 3, ((2,),) * 8, 5),
    "tile-border": ("float32", 3, ((129,), (3, 2)), 64),
}  # fmt: skip

# name: (format, (ranks, micro-batches), shape of a gradient, which counts of tokens are 0)
ACCUMULATED: dict[str, tuple[str, tuple[int, int], tuple[int, ...], str]] = {
    "smallest": ("float64", (1, 1), (1,), "none"), "no-elements": ("float32", (2, 2), (0,), "none"),
    "no-micro-batches": ("float32", (2, 0), (3,), "none"), "no-axes": ("float32", (3, 2), (), "none"),
    "one-rank": ("float32", (1, 4), (5,), "none"), "one-micro-batch": ("float32", (4, 1), (5,), "none"),
    "both": ("float32", (3, 4), (2, 3), "none"), "a-rank-without-tokens": ("float32", (3, 2), (4,), "a rank"),
    "no-tokens-at-all": ("float32", (2, 2), (4,), "all"), "some-without-tokens": ("float64", (3, 5), (3,), "some"),
    "bfloat16": ("bfloat16", (2, 4), (9,), "none"), "float16": ("float16", (2, 3), (9,), "some"),
    "tile-border": ("float32", (2, 3), (129,), "none"),
}  # fmt: skip

# name: (format, (copies, ranks), shape of the weight, how the values lie)
TIED: dict[str, tuple[str, tuple[int, int], tuple[int, ...], str]] = {
    "smallest": ("float64", (1, 1), (1,), "normal"), "no-elements": ("float32", (2, 2), (0, 3), "normal"),
    "no-axes": ("float32", (2, 3), (), "normal"), "one-copy": ("float32", (1, 3), (4,), "normal"),
    "one-rank": ("float32", (2, 1), (4,), "normal"), "two-copies": ("float32", (2, 3), (3, 4), "normal"),
    "three-copies": ("float32", (3, 5), (4,), "normal"), "bfloat16": ("bfloat16", (2, 4), (3, 3), "normal"),
    "float16": ("float16", (2, 3), (3, 3), "normal"), "float64": ("float64", (2, 3), (3, 3), "normal"),
    "cancelling": ("float32", (2, 3), (5,), "cancelling"), "opposite": ("float32", (2, 3), (5,), "opposite"),
    "tile-border": ("float32", (2, 3), (129,), "normal"),
}  # fmt: skip


def all_reduce_cases() -> list[Case]:
    """The cases of `REDUCED`."""
    return [_reduction("all_reduce", name, row) for name, row in REDUCED.items()]


def reduce_scatter_cases() -> list[Case]:
    """The cases of `SCATTERED`."""
    return [_reduction("reduce_scatter", name, row) for name, row in SCATTERED.items()]


def _reduction(operation: str, name: str, row: tuple[str, int, tuple[int, ...], dict[str, Any], str]) -> Case:
    dtype, R, shape, options, how = row
    return Case(operation, spread("arrays", ranks(f"{operation} {name}", R, shape, dtype, how)), options, origin=name)


def all_gather_cases() -> list[Case]:
    """The cases of `GATHERED`."""
    return [Case("all_gather", spread("arrays", [draws.normal(f"all_gather {name} {r}", (n, *shape), dtype) for r, n in enumerate(rows)]),
                 {}, origin=name) for name, (dtype, rows, shape) in GATHERED.items()]  # fmt: skip


def bucketed_all_reduce_cases() -> list[Case]:
    """The cases of `BUCKETS`: each rank's gradients become ready in an order of its own."""
    cases = []
    for name, (dtype, R, shapes, elements) in BUCKETS.items():
        grads = [draws.normal(f"bucketed {name} {k}", (R, *shape), dtype) for k, shape in enumerate(shapes)]
        arrival = np.argsort(draws.bell(f"bucketed {name} arrival", (R, len(shapes))), axis=1, kind="stable").astype(np.int64)
        arrays = {**spread("grads", grads), "arrival": arrival}
        cases.append(Case("bucketed_all_reduce", arrays, {"bucket_elements": elements}, origin=name))
    return cases


def accumulate_gradients_cases() -> list[Case]:
    """The cases of `ACCUMULATED`: a micro-batch without tokens has a gradient of 0."""
    cases = []
    for name, (dtype, counts, shape, nobody) in ACCUMULATED.items():
        tokens = draws.whole(f"accumulated {name} tokens", counts, 1, 9)
        grads = draws.normal(f"accumulated {name}", (*counts, *shape), dtype)
        if nobody == "a rank":
            tokens[1] = 0
        if nobody == "some":
            tokens = np.where(draws.whole(f"accumulated {name} some", counts, 0, 3) == 0, 0, tokens)
        if nobody == "all":
            tokens = np.zeros_like(tokens)
        grads[tokens == 0] = 0
        cases.append(Case("accumulate_gradients", {"grads": grads, "tokens": tokens}, {}, origin=name))
    return cases


def tied_gradients_cases() -> list[Case]:
    """The cases of `TIED`."""
    cases = []
    for name, (dtype, (S, R), shape, how) in TIED.items():
        grads = np.stack(ranks(f"tied {name}", S * R, shape, dtype, how)).reshape(S, R, *shape)
        cases.append(Case("tied_gradients", {"grads": grads}, {}, origin=name))
    return cases


def ranks(key: str, R: int, shape: tuple[int, ...], dtype: str, how: str) -> list[Array]:
    """R arrays. cancelling: near +-1000 in turn; opposite: the second half is minus the first; far: 2^40 apart from rank to rank."""
    drawn = [np.asarray(draws.normal(f"{key} {r}", shape, dtype, exponent=-40 * r if how == "far" else 0)) for r in range(R)]
    if how == "cancelling":
        wide = [(1000.0 if r % 2 == 0 else -1000.0) + x.astype(np.float64) for r, x in enumerate(drawn)]
        return [np.asarray(FloatFormat(dtype).cast(x)) for x in wide]
    if how == "opposite":
        return [*drawn[: R // 2], *(-x for x in drawn[: R // 2])]
    return drawn
