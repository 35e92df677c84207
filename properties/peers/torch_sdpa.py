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
from .installed import copy_of, library_version, versions_text

# is_causal is the upper left triangle (tril(diagonal=0) in the documentation); the lower right one is an attn_mask.
CAUSAL = (None, "top_left", "bottom_right")
# A row that sees nothing is 0 since https://github.com/pytorch/pytorch/pull/131060 and #133882: the oracles' own convention.

# The documentation promises no arithmetic. What is declared is read in aten/src/ATen/native/cpu/FlashAttentionKernel.cpp and
# aten/src/ATen/cpu/vec of pytorch/pytorch, and was seen to hold on 2.13.
# float32, float64: exp_u20, "a faster version of exp with ULP=20", is 40 roundoffs at most.
# 16 bits: fexp_u20, where exp(0) = 1 - 1.07e-4 and the polynomial is nowhere worse, is 2^-13; P and dS are rounded to the input
# format; dK, dV are added to in it after every 32 queries (64 from 192 queries on), and once more over a group of heads: 7 times
# up to 256 queries. The math backend widens 16-bit inputs to float32, but autograd hands every gradient on in its tensor's format:
# that of a bias once as a whole mask, once summed over what was broadcast.
WIDE = Arithmetic(exp_ulps=40.0, recomputes=True)
NARROW = Arithmetic(exp_ulps=2048.0, probabilities="input", gradient="input", gradient_blocks=8, recomputes=True)
MATH = Arithmetic(recomputes=True, gradient="input", gradient_blocks=2)

# name: (the functions in `calls`, input formats, arithmetic, what it does not take). One stands apart because it is wrong:
# docs/findings.md, torch-negative-scale-under-causal. The others that reach the flash kernel leave such scales out.
POSITIVE = ("negative_scale",)
PEERS: dict[str, tuple[str, tuple[str, ...], Arithmetic, tuple[str, ...]]] = {
    "torch_sdpa": ("default", ("float32", "float64"), WIDE, POSITIVE),
    "torch_sdpa_negative_scale": ("default", ("float32", "float64"), WIDE, ()),
    "torch_sdpa_16bit": ("default", ("float16", "bfloat16"), NARROW, POSITIVE),
    "torch_sdpa_math": ("math", ("float32", "float64", "float16", "bfloat16"), MATH, ()),
    "torch_sdpa_flash": ("flash", ("float32", "float64"), WIDE, POSITIVE),
    "torch_sdpa_flash_16bit": ("flash", ("float16", "bfloat16"), NARROW, POSITIVE),
}


def library_versions(name: str) -> dict[str, str]:
    """The version of PyTorch."""
    return {"torch": library_version("torch", extra="torch")}


@lru_cache
def subjects(name: str) -> tuple[Callable[..., Any], ...]:
    """Forward and backward of one peer, declared. Raises UsageError where PyTorch is missing."""
    version = versions_text(library_versions(name))
    variant, dtypes, arithmetic, refused = PEERS[name]
    common: dict[str, Any] = {
        "dtypes": dtypes, "causal": CAUSAL, "framework": "torch", "arithmetic": arithmetic, "name": name, "version": version,
    }  # fmt: skip
    # Flash: "requires q, k, v to have the same last dimension", and the private operation under it dies on a length of 0.
    flash = ("value_dim", "empty") if variant == "flash" else ()
    forward = subject("attention", refuses=(*flash, *refused), **common)(copy_of(getattr(calls, f"attention_{variant}")))
    backward = subject("attention_backward", refuses=(*flash[:1], *refused), **common)(copy_of(getattr(calls, f"backward_{variant}")))
    return forward, backward
