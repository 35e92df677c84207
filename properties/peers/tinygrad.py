"""tinygrad on a CPU: scaled_dot_product_attention, softmax and logsumexp.

Address: https://docs.tinygrad.org/tensor/ops/
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from ..arithmetic import Arithmetic
from ..declaration import subject
from .calls import tinygrad as calls
from .installed import library_version, versions_text

# tinygrad/mixin/rand.py and op.py of 0.14: q k^T and its division by sqrt(D) in float32 at least, then everything in the input's format,
# exp in float32, P = e times the reciprocal of the sum. There is no argument for the scale. is_causal is tril(), the upper left
# triangle. A boolean mask becomes one of -inf, so a row that sees nothing is NaN, on which the page is silent; what is hidden has weight 0
# and is summed all the same: 0 times NaN. Matrix products round each product in the input's format before they add it up in float32 (`dot`
# in op.py: (x * w).sum()), and accumulation in that format is what covers this. A model of these steps in NumPy has its bits. Not declared:
# bfloat16, in which its assembler refuses a maximum of more than 32 entries (docs/findings.md, tinygrad-bfloat16-maximum) and what is
# below the normal numbers is taken for 0.
ARITHMETIC = Arithmetic(elementwise="input", scores="input", probabilities="input", lse="input")
COMMON: dict[str, Any] = {"dtypes": ("float32", "float64", "float16"), "arithmetic": ARITHMETIC}
ATTENTION: dict[str, Any] = {
    **COMMON, "arithmetic": replace(ARITHMETIC, accumulate="input"), "causal": (None, "top_left", "bottom_right"),
    "conventions": {"empty_rows": "nan", "nonfinite_behind_mask": "spread"},
}  # fmt: skip
SOFTMAX: dict[str, Any] = {**COMMON, "conventions": {"empty_rows": "nan"}}
LOG_SUM_EXP: dict[str, Any] = {**COMMON, "conventions": {"empty_lse": "any"}}

# name: operation -> (the function in `calls`, what it declares). One stands apart because it is wrong: docs/findings.md,
# tinygrad-single-hidden-key. The log-sum-exp of nothing but -inf is left open because it is wrong: tinygrad-logsumexp-of-nothing.
PEERS: dict[str, dict[str, tuple[Callable[..., Any], dict[str, Any]]]] = {
    "tinygrad": {
        "attention": (calls.attention, ATTENTION), "softmax": (calls.softmax, SOFTMAX), "log_sum_exp": (calls.log_sum_exp, LOG_SUM_EXP),
    },
    "tinygrad_single_key": {
        "attention": (calls.attention_single_key, ATTENTION), "softmax": (calls.softmax_single_entry, SOFTMAX),
    },
}  # fmt: skip


def library_versions(name: str) -> dict[str, str]:
    """The version of tinygrad."""
    return {"tinygrad": library_version("tinygrad", extra="tinygrad")}


@lru_cache
def subjects(name: str) -> tuple[Callable[..., Any], ...]:
    """Attention and the two operations on rows, declared. Raises UsageError where tinygrad is missing."""
    version = versions_text(library_versions(name))
    return tuple(subject(operation, name=name, version=version, **declared)(function)
                 for operation, (function, declared) in PEERS[name].items())  # fmt: skip
