"""JAX on a CPU: jax.nn.dot_product_attention, compiled.

Address: https://docs.jax.dev/en/latest/_autosummary/jax.nn.dot_product_attention.html
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..arithmetic import Arithmetic
from ..declaration import subject
from .calls import jax_attention as calls
from .installed import copy_of, library_version, quick_compilation, versions_text

DECLARED: dict[str, Any] = {
    "layout": "blhd", "framework": "jax", "causal": (None, "top_left"),
    "refuses": ("value_dim",),                                                  # "value array, should have the same shape as the key array"
    # jax/_src/nn/functions.py of 0.10: "softmax is always carried out in fp32", its result in the format of key, lse too.
    # XLA's CPU code sets the processor to flush subnormal numbers.
    "arithmetic": Arithmetic(elementwise="float32", scores="float32", probabilities="input", lse="input", recomputes=True,
                             flush_to_zero=True),
    # Same file: what is masked gets a score of -0.7 times the largest number, so that a row of nothing but masked keys weighs
    # them all alike. The page does not speak of such rows.
    # NaN beyond key_value_seq_lengths spreads, as measured: docs/findings.md, jax-nan-in-padding.
    "conventions": {"empty_rows": "mean_v", "empty_lse": "any", "nonfinite_behind_mask": "spread"},
}  # fmt: skip

# Every shape is a compilation, half a second and more: two of the peers declare few, so that a check ends in minutes.
FEW_SHAPES: dict[str, Any] = {"head_dims": (16,), "length_multiple": 32}

# name: (what ends the names of its calls, input formats, shapes). Two stand apart. float64: its softmax is that of float32, so that what is
# hidden may overflow there. With a bias: rows blinded by -inf are NaN, docs/findings.md, jax-blind-row.
# No float16: compiled, it raises on a CPU, jax-float16-on-a-cpu.
PEERS: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "jax": ("", ("float32", "bfloat16"), FEW_SHAPES),
    "jax_any_shape": ("", ("float32", "bfloat16"), {}),
    "jax_bias": ("_bias", ("float32", "bfloat16"), FEW_SHAPES),
    "jax_float64": ("", ("float64",), {}),
}


def library_versions(name: str) -> dict[str, str]:
    """The version of JAX."""
    return {"jax": library_version("jax", extra="jax")}


@lru_cache
def subjects(name: str) -> tuple[Callable[..., Any], ...]:
    """Forward and backward, declared. Raises UsageError where JAX is missing."""
    quick_compilation()
    ending, dtypes, shapes = PEERS[name]
    common = {"name": name, "dtypes": dtypes, "version": versions_text(library_versions(name)), **DECLARED, **shapes}
    forward = subject("attention", **common)(copy_of(getattr(calls, f"attention{ending}")))
    return forward, subject("attention_backward", **common)(copy_of(getattr(calls, f"backward{ending}")))
