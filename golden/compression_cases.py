"""Trace cases of pruning: masks by magnitude, of two in four, of whole units, and step by step.

Weights are whole multiples of 1/8 of distinct magnitudes, but where equals are meant to meet: then the lowest index decides.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles.reference import FloatFormat

from . import draws
from .draws import Array
from .traces import Step, Trace

# name: (format, shape, options, whether magnitudes meet)
MAGNITUDES: dict[str, tuple[str, tuple[int, ...], dict[str, Any], bool]] = {
    "smallest": ("float64", (1, 1), {"sparsity": 0.5, "scope": "layer"}, False),
    "no-layers": ("float32", (0, 4), {"sparsity": 0.5, "scope": "global"}, False),
    "nothing-goes": ("float32", (2, 5), {"sparsity": 0.0, "scope": "global"}, False),
    "everything-goes": ("float32", (2, 5), {"sparsity": 1.0, "scope": "layer"}, False),
    "half-of-each": ("float32", (2, 8), {"sparsity": 0.5, "scope": "layer"}, False),
    "half-of-all": ("float32", (2, 8), {"sparsity": 0.5, "scope": "global"}, False),
    "decimal-share": ("float64", (1, 90), {"sparsity": 0.29, "scope": "layer"}, False),
    "share-rounds-down": ("bfloat16", (3, 7), {"sparsity": 0.4, "scope": "layer"}, False),
    "matrices": ("float16", (2, 3, 4), {"sparsity": 0.75, "scope": "global"}, False),
    "equals": ("float32", (2, 9), {"sparsity": 0.5, "scope": "layer"}, True),
    "equals-of-all": ("float32", (3, 6), {"sparsity": 0.4, "scope": "global"}, True),
    "quantile": ("float32", (2, 9), {"sparsity": 0.5, "scope": "layer", "rule": "quantile"}, False),
    "quantile-between": ("float64", (2, 10), {"sparsity": 0.3, "scope": "layer", "rule": "quantile"}, False),
    "quantile-of-all": ("bfloat16", (3, 6), {"sparsity": 0.75, "scope": "global", "rule": "quantile"}, False),
    "quantile-equals": ("float32", (1, 9), {"sparsity": 0.5, "scope": "layer", "rule": "quantile"}, True),
}  # fmt: skip

# name: (format, shape, axis, whether magnitudes meet)
TWO_OF_FOUR: dict[str, tuple[str, tuple[int, ...], int, bool]] = {
    "smallest": ("float64", (1,), 0, False), "nothing": ("float32", (0,), 0, False), "one-four": ("float32", (4,), 0, False),
    "two-left": ("float32", (6,), 0, False), "three-left": ("bfloat16", (7,), -1, False), "rows": ("float32", (3, 8), 1, False),
    "columns": ("float16", (8, 3), 0, False), "middle-axis": ("float32", (2, 8, 3), 1, False),
    "short-columns": ("float32", (5, 3), 0, False),
    "equals": ("float32", (4, 8), -1, True), "equals-short": ("bfloat16", (2, 7), -1, True), "long": ("bfloat16", (2, 128), -1, False),
    "equals-down-a-column": ("float16", (12, 3), 0, True),
}  # fmt: skip

# name: (format, shape, axis, sparsity)
UNITS: dict[str, tuple[str, tuple[int, ...], int, float]] = {
    "smallest": ("float64", (1, 1), 0, 0.5), "one-of-two": ("float32", (2, 3), 0, 0.5), "columns": ("float32", (3, 6), 1, 0.5),
    "last-axis": ("bfloat16", (3, 6), -1, 0.34), "channels": ("float32", (4, 2, 3), 0, 0.5), "middle-axis": ("float16", (2, 5, 3), 1, 0.4),
    "nothing-goes": ("float32", (4, 3), 0, 0.0), "all-go": ("float32", (4, 3), 0, 1.0), "share-rounds-down": ("float32", (7, 3), 0, 0.4),
    "decimal-share": ("float64", (90, 2), 0, 0.29), "vector": ("float32", (8,), 0, 0.5), "long": ("float32", (16, 128), 0, 0.75),
}  # fmt: skip

# name: (format, shape of one step, sparsities, scope)
GRADUAL: dict[str, tuple[str, tuple[int, ...], tuple[float, ...], str]] = {
    "smallest": ("float64", (1, 1), (0.5,), "layer"), "no-steps": ("float32", (1, 4), (), "layer"),
    "one-step": ("float32", (2, 6), (0.5,), "layer"), "two-steps": ("float32", (2, 6), (0.34, 0.5), "layer"),
    "two-steps-of-all": ("float32", (2, 6), (0.34, 0.5), "global"), "the-same-twice": ("bfloat16", (2, 8), (0.5, 0.5), "layer"),
    "rising": ("float32", (1, 20), (0.1, 0.25, 0.5, 0.75), "layer"), "rising-of-all": ("float16", (3, 7), (0.1, 0.25, 0.5, 0.75), "global"),
    "from-nothing": ("float32", (2, 5), (0.0, 0.4), "global"), "to-everything": ("float32", (2, 5), (0.4, 1.0), "layer"),
    "decimal-share": ("float64", (1, 90), (0.28, 0.29), "layer"), "matrices": ("float32", (2, 3, 4), (0.25, 0.5, 0.75), "global"),
}  # fmt: skip


def compression_traces() -> list[Trace]:
    """The questions of pruning: a trace of one call each."""
    return [
        *(_call("prune_magnitude", name, weights=weights(f"prune {name}", shape, dtype, meet=meet), **options)
          for name, (dtype, shape, options, meet) in MAGNITUDES.items()),
        *(_call("prune_2_4", name, w=weights(f"two of four {name}", shape, dtype, meet=meet), axis=axis)
          for name, (dtype, shape, axis, meet) in TWO_OF_FOUR.items()),
        *(_call("prune_units", name, w=weights(f"units {name}", shape, dtype), axis=axis, sparsity=sparsity)
          for name, (dtype, shape, axis, sparsity) in UNITS.items()),
        *(_call("gradual_masks", name, history=weights(f"gradual {name}", (len(shares), *shape), dtype), sparsities=list(shares),
                scope=scope) for name, (dtype, shape, shares, scope) in GRADUAL.items()),
    ]  # fmt: skip


def weights(key: str, shape: tuple[int, ...], dtype: str, *, meet: bool = False) -> Array:
    """Multiples of 1/8 of either sign: the magnitudes 1 … n in drawn order, or 1 … 4 drawn, which meet.

    Over 2^8 of them would not be exact in bfloat16, so that every format holds those of a row apart by a whole step.
    """
    n = int(np.prod(shape))
    size = draws.whole(f"{key} size", (n,), 1, 5) if meet else np.argsort(draws.raw(f"{key} order", n), kind="stable") + 1
    sign = 1 - 2 * draws.whole(f"{key} sign", (n,), 0, 2)
    return np.asarray(FloatFormat(dtype).cast(np.ldexp((size * sign).reshape(shape).astype(np.float64), -3)))


def _call(operation: str, case: str, **arguments: Any) -> Trace:
    return Trace(operation, case, {}, (Step(operation, arguments),))
