"""JAX's Pallas kernels on a CPU, interpreted: GPU attention and decoding, TPU flash and splash attention.

Address: https://docs.jax.dev/en/latest/pallas/index.html; the kernels are documented in their source alone, jax/experimental/pallas/ops.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..arithmetic import Arithmetic
from ..declaration import subject
from .calls import jax_pallas as calls
from .installed import library_version, quick_compilation, versions_text

# Read in the source of 0.10: P rounded to the format of v; scores, softmax and sums in float32. XLA's CPU code flushes subnormal numbers.
# Causal is span_q >= span_k, the upper left triangle, in the GPU and TPU flash kernels; splash takes an offset.
# What is hidden by a kernel has weight 0 and is summed all the same: 0 times NaN. In all but splash attention a large finite number hides
# it, in place of a score that is multiplied by log2 e, or added to it: docs/findings.md, jax-pallas-finite-mask.
FLASH = Arithmetic(probabilities="input", flush_to_zero=True, recomputes=True)
DECLARED: dict[str, Any] = {"layout": "blhd", "framework": "jax", "conventions": {"nonfinite_behind_mask": "spread"}}
FINITE = {"conventions": {"nonfinite_behind_mask": "spread", "hidden_weight": "finite_mask"}}
SELF: dict[str, Any] = {
    "causal": (None, "top_left"), "head_dims": (64,), "length_multiple": calls.BLOCK, "refuses": ("empty", "grouped", "value_dim"),
    "arithmetic": FLASH, **DECLARED, **FINITE,
}  # fmt: skip

# name: operation -> (the function in `calls`, what it declares)
PEERS: dict[str, dict[str, tuple[Callable[..., Any], dict[str, Any]]]] = {
    "jax_pallas_mha": {
        "attention": (calls.mha, {"dtypes": ("float32", "bfloat16", "float16"), **SELF}),
        # "q_seq_len and kv_seq_len must be divided into the same number of blocks"; delta is summed in the format of out.
        "attention_backward": (calls.mha_backward, {
            "dtypes": ("float32",), **SELF, "refuses": (*SELF["refuses"], "cross_lengths"), "conventions": DECLARED["conventions"]}),
    },
    # Partial results over two halves of the keys are kept in the format of q and merged in it; eps is added to the sum.
    "jax_pallas_decode": {
        "attention": (calls.decode, {"dtypes": ("float32",), "causal": (None, "bottom_right"), "head_dims": (64,),
                                     "refuses": ("empty", "value_dim"), "arithmetic": FLASH, **DECLARED, **FINITE}),
    },
    "jax_pallas_tpu_flash": {"attention": (calls.tpu_flash, {"dtypes": ("float32",), **SELF, "length_multiple": calls.TPU_BLOCK})},
    # The scale is the caller's business, so q is multiplied by it in its own format.
    "jax_splash": {
        "attention": (calls.splash, {"dtypes": ("float32",), "causal": (None, "bottom_right"), "head_dims": (64,),
                                     "length_multiple": calls.TPU_BLOCK, "refuses": ("empty", "value_dim"),
                                     "arithmetic": Arithmetic(scaled_q=True, flush_to_zero=True), **DECLARED}),
    },
}  # fmt: skip


def library_versions(name: str) -> dict[str, str]:
    """The version of JAX."""
    return {"jax": library_version("jax", extra="jax")}


@lru_cache
def subjects(name: str) -> tuple[Callable[..., Any], ...]:
    """What the peer has, declared. Raises UsageError where JAX is missing."""
    quick_compilation()
    version = versions_text(library_versions(name))
    return tuple(subject(operation, name=name, version=version, **declared)(function)
                 for operation, (function, declared) in PEERS[name].items())  # fmt: skip
