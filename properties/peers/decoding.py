"""Decoding in Hugging Face transformers and in PyTorch on a CPU: filters, penalties, verification of drafts, draws, the loss of heads.

Addresses: https://github.com/huggingface/transformers/blob/main/src/transformers/generation/logits_process.py,
https://github.com/huggingface/transformers/blob/main/src/transformers/generation/utils.py (_speculative_sampling),
https://github.com/huggingface/transformers/blob/main/src/transformers/modeling_layers.py (MtpModel),
https://docs.pytorch.org/docs/stable/generated/torch.multinomial.html, https://docs.pytorch.org/docs/stable/distributions.html
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..arithmetic import Arithmetic
from ..declaration import subject
from .calls import decoding as calls
from .installed import copy_of, library_version, versions_text

# TopKLogitsWarper removes what is below the k-th largest logit, so equal ones all stay; TopPLogitsWarper sorts without asking for a
# stable sort, so which of equal ones stays is open. The order is that of `generate`.
FILTERS = {"top_k_ties": "all", "top_p_ties": "any"}

# name: the operations, the function in `calls` of each, what it declares
PEERS: dict[str, dict[str, tuple[Callable[..., Any], dict[str, Any]]]] = {
    "transformers": {
        "filter_probabilities": (calls.transformers_filters, {"conventions": FILTERS}),
        "apply_penalties": (calls.transformers_repetition, {}),
        "speculative_verify": (calls.transformers_speculative, {"conventions": {"zero_residual": "any"}}),
        # `logits.float()`: float64 is narrowed, so it is not declared.
        "mtp_loss": (calls.transformers_mtp_loss, {
            "dtypes": ("float32", "float16", "bfloat16"), "arithmetic": Arithmetic(out="float32")}),
    },
    "transformers_own_draws": {"speculative_verify": (calls.transformers_speculative_own, {"conventions": {"uniforms": "own"}})},
    "torch_multinomial": {"sample": (calls.torch_multinomial, {"conventions": {"uniforms": "own"}})},
    "torch_multinomial_16bit": {
        "sample": (calls.torch_multinomial, {"conventions": {"uniforms": "own"}, "dtypes": ("float16", "bfloat16")})},
    "torch_categorical": {"sample": (calls.torch_categorical, {"conventions": {"uniforms": "own"}})},
}  # fmt: skip


def library_versions(name: str) -> dict[str, str]:
    """The version of PyTorch, and that of transformers where it is one of its functions."""
    libraries = ("transformers", "torch") if name.startswith("transformers") else ("torch",)
    return {library: library_version(library, extra=library) for library in libraries}


@lru_cache
def subjects(name: str) -> tuple[Callable[..., Any], ...]:
    """The operations of a peer, declared. Raises UsageError where the library is missing."""
    version = versions_text(library_versions(name))
    return tuple(subject(operation, **{"name": name, "framework": "torch", "version": version, "dtypes": ("float32", "float64"),
                                       **declared})(copy_of(function))
                 for operation, (function, declared) in PEERS[name].items())  # fmt: skip
