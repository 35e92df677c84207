"""Latent attention of Hugging Face's DeepSeek models, in PyTorch on a CPU.

Addresses: https://huggingface.co/docs/transformers/model_doc/deepseek_v2, https://huggingface.co/docs/transformers/model_doc/deepseek_v3
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..arithmetic import Arithmetic
from ..declaration import subject
from .calls import deepseek as calls
from .installed import copy_of, library_version, versions_text

# Read in the source of 5.24 (modeling_deepseek_v3.py): keys and values are made with kv_b_proj and stored in the model's format, so are
# scores and P; the softmax is taken in float32 even of float64, which is why that is not declared. What is hidden gets the least number
# of the format added, so that a row that sees nothing is a mean of all values, and NaN spreads.
COMMON: dict[str, Any] = {
    "arithmetic": Arithmetic(projected="input", scores="input", probabilities="input"), "framework": "torch", "refuses": ("empty",),
    "conventions": {"empty_rows": "mean_v", "nonfinite_behind_mask": "spread"},
}  # fmt: skip

# name: (the function in `calls`, what it declares)
PEERS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "deepseek_v3_eager": (calls.v3_eager, {"dtypes": ("float32", "bfloat16"), **COMMON}),
    "deepseek_v3_sdpa": (calls.v3_sdpa, {"dtypes": ("float32", "float64"), **COMMON}),
    # Its rotary embedding goes through complex64, so that float64 would lose half its digits there.
    "deepseek_v2_eager": (calls.v2_eager, {"dtypes": ("float32", "bfloat16"), **COMMON}),
}  # fmt: skip


def library_versions(name: str) -> dict[str, str]:
    """The versions of transformers and of PyTorch, which computes."""
    return {"transformers": library_version("transformers", extra="peers"), "torch": library_version("torch", extra="torch")}


@lru_cache
def subjects(name: str) -> tuple[Callable[..., Any], ...]:
    """The peer's latent attention, declared. Raises UsageError where a library is missing."""
    version = versions_text(library_versions(name))
    function, declared = PEERS[name]
    return (subject("mla_attention", name=name, version=version, **declared)(copy_of(function)),)
