"""PyTorch's scaled_dot_product_attention on a CPU: the default dispatch, the math backend, the flash kernel.

Addresses: function https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html,
backends https://docs.pytorch.org/docs/stable/generated/torch.nn.attention.sdpa_kernel.html
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..arithmetic import Arithmetic
from ..declaration import subject
from .calls import torch_sdpa as calls
from .installed import library_version, versions_text

DTYPES = ("float32", "float64", "float16", "bfloat16")
# is_causal is the upper left triangle (tril(diagonal=0) in the documentation); the lower right one is an attn_mask.
CAUSAL = (None, "top_left", "bottom_right")
# A row that sees nothing is 0 since https://github.com/pytorch/pytorch/pull/131060 and #133882: the oracles' own convention.

# The documentation promises no arithmetic, so this is what the default declares, and for 16-bit inputs what was measured on
# 2.13 with 16 keys and more: exp is 2^-12 relative, P and partial dK, dV are rounded to the input format.
ARITHMETIC = {
    "torch_sdpa": Arithmetic(recomputes=True),
    "torch_sdpa_math": Arithmetic(recomputes=True),
    "torch_sdpa_flash": Arithmetic(recomputes=True),
}


def library_versions(name: str) -> dict[str, str]:
    """The version of PyTorch."""
    return {"torch": library_version("torch", extra="torch")}


@lru_cache
def subjects(name: str) -> tuple[Callable[..., Any], ...]:
    """Forward and backward of one peer, declared. Raises UsageError where PyTorch is missing."""
    version = versions_text(library_versions(name))
    variant = {"torch_sdpa": "default", "torch_sdpa_math": "math", "torch_sdpa_flash": "flash"}[name]
    common: dict[str, Any] = {
        "dtypes": DTYPES, "causal": CAUSAL, "framework": "torch", "arithmetic": ARITHMETIC[name], "name": name, "version": version,
    }  # fmt: skip
    # Flash: "requires q, k, v to have the same last dimension", and the private operation under it dies on a length of 0.
    flash = ("value_dim", "empty") if variant == "flash" else ()
    forward = subject("attention", refuses=flash, **common)(getattr(calls, f"attention_{variant}"))
    backward = subject("attention_backward", refuses=flash[:1], **common)(getattr(calls, f"backward_{variant}"))
    return forward, backward
