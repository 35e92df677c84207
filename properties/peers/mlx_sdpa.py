"""MLX's fast scaled dot product attention on a CPU.

Address: https://ml-explore.github.io/mlx/build/html/python/_autosummary/mlx.core.fast.scaled_dot_product_attention.html
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..arithmetic import Arithmetic
from ..declaration import subject
from .calls import mlx_sdpa as calls
from .installed import library_version, versions_text

# "The softmax operation is performed in float32 regardless of the input precision"; q is scaled, and q k^T and P stored, in the input's
# format (mlx/fast.cpp, the fallback). "Causal uses lower-right alignment". What is hidden has weight 0 and is summed all the same.
# A row that sees nothing, on which the page is silent: a boolean mask writes the lowest number, so that all weigh alike; -inf gives NaN;
# beside a sink it is 0.
DECLARED: dict[str, Any] = {
    "dtypes": ("float32", "float16", "bfloat16"), "causal": (None, "bottom_right"),
    "arithmetic": Arithmetic(scores="input", probabilities="input", scaled_q=True),
}  # fmt: skip
PEERS: dict[str, tuple[Callable[..., Any], str]] = {
    "mlx": (calls.attention, "mean_v"), "mlx_bias": (calls.attention_bias, "nan"), "mlx_sinks": (calls.attention_sinks, "zero"),
}  # fmt: skip


def library_versions(name: str) -> dict[str, str]:
    """The version of MLX."""
    return {"mlx": library_version("mlx", extra="mlx")}


@lru_cache
def subjects(name: str) -> tuple[Callable[..., Any], ...]:
    """The forward pass, declared. Raises UsageError where MLX is missing."""
    version = versions_text(library_versions(name))
    function, empty_rows = PEERS[name]
    conventions = {"empty_rows": empty_rows, "nonfinite_behind_mask": "spread"}
    return (subject("attention", name=name, version=version, conventions=conventions, **DECLARED)(function),)
