"""PyTorch's FlexAttention on a CPU, as it is and compiled.

Address: https://docs.pytorch.org/docs/stable/nn.attention.flex_attention.html
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..arithmetic import Arithmetic
from ..declaration import subject
from .calls import torch_flex as calls
from .installed import library_version, versions_text

# torch/_higher_order_ops/flex_attention.py of 2.13: scores and softmax in float32 (float64), P rounded to the format of q before it meets
# v; a row that sees nothing is 0 with lse -inf ("Set fully masked rows' sumexp to 0.0"). What is hidden has weight 0 and is summed all
# the same: 0 times NaN. Not declared: no keys at all, which raise, docs/findings.md, torch-flex-without-keys. No backward: "FlexAttention
# does not support backward on CPU".
# Compiled, each shape costs a run of g++, some seconds: what is declared are few shapes. float64 and the lse are refused ("not supported
# yet").
# torch/_inductor/codegen/cpp_flex_attention_template.py: exp_u20 as in the flash kernel of torch_sdpa.
PEERS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "torch_flex": (calls.attention_eager, {
        "dtypes": ("float32", "float64", "float16", "bfloat16"), "causal": (None, "bottom_right", "top_left"), "refuses": ("empty",),
        "arithmetic": Arithmetic(probabilities="input"), "conventions": {"nonfinite_behind_mask": "spread"}}),
    "torch_flex_compiled": (calls.attention_compiled, {
        "dtypes": ("float32",), "causal": (None, "bottom_right"), "head_dims": (64,), "length_multiple": 128,
        "refuses": ("empty", "grouped", "value_dim", "cross_lengths"), "arithmetic": Arithmetic(exp_ulps=40.0)}),
}  # fmt: skip


def library_versions(name: str) -> dict[str, str]:
    """The version of PyTorch."""
    return {"torch": library_version("torch", extra="torch")}


@lru_cache
def subjects(name: str) -> tuple[Callable[..., Any], ...]:
    """The forward pass, declared. Raises UsageError where PyTorch is missing."""
    version = versions_text(library_versions(name))
    function, declared = PEERS[name]
    return (subject("attention", name=name, framework="torch", version=version, **declared)(function),)
