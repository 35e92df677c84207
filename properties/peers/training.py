"""Losses, optimizers and the gradient scaler of PyTorch on a CPU.

Addresses: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.cross_entropy.html (the mean over no target is NaN),
https://docs.pytorch.org/docs/stable/generated/torch.optim.AdamW.html,
https://docs.pytorch.org/docs/stable/generated/torch.nn.KLDivLoss.html, https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..declaration import subject
from .calls import loss_scaler
from .calls import training as calls
from .installed import copy_of, library_version, versions_text

NAN_OF_0 = {"conventions": {"zero_over_zero": "nan"}}
NAN_OF_NOTHING = {"conventions": {"all_ignored": "nan"}}

# name: of each operation the function in `calls` and what it declares
PEERS: dict[str, dict[str, tuple[Callable[..., Any], dict[str, Any]]]] = {
    "torch": {
        "cross_entropy": (calls.torch_cross_entropy, NAN_OF_NOTHING),
        "cross_entropy_backward": (calls.torch_cross_entropy_backward, {"conventions": {"all_ignored": "nan", "ignored_logits": "spread"}}),
        "distillation_loss": (calls.torch_distillation, {"conventions": {"all_ignored": "nan", "impossible_class": "nan"},
                                                         "only": {"divergence": ["forward_kl", "reverse_kl"]}}),
        "distillation_loss_backward": (calls.torch_distillation_backward, {"conventions": {"impossible_class": "nan"},
                                                                           "only": {"divergence": ["forward_kl", "reverse_kl"]}}),
        "adamw_step": (calls.torch_adamw, NAN_OF_0),
        "clip_grad_norm": (calls.torch_clip_grad_norm, {"conventions": {"clip_denominator": "norm_plus_1e-6"}}),
    },
    "torch_foreach": {"adamw_step": (calls.torch_adamw_foreach, NAN_OF_0)},
    "torch_fused": {"adamw_step": (calls.torch_adamw_fused, NAN_OF_0)},
    "torch_scaler_any_size": {},
}  # fmt: skip

OBJECT = "loss_scaler"                                                          # the operation whose objects some of them make
OBJECTS: dict[str, Callable[..., Any]] = {
    "torch": loss_scaler.TorchGradScaler,
    "torch_scaler_any_size": loss_scaler.TorchGradScalerOfAnySize,
}


def library_versions(name: str) -> dict[str, str]:
    """The version of PyTorch, whichever of its functions."""
    return {"torch": library_version("torch", extra="torch")}


@lru_cache
def subjects(name: str) -> tuple[Callable[..., Any], ...]:
    """The operations of a peer, declared. Raises UsageError where the library is missing."""
    version = versions_text(library_versions(name))
    common = {"name": name, "framework": "torch", "version": version, "dtypes": ("float32", "float64")}
    return tuple(subject(operation, **{**common, **declared})(copy_of(function))
                 for operation, (function, declared) in PEERS[name].items())  # fmt: skip


def objects(name: str) -> dict[str, Callable[..., Any]]:
    """The factory of scalers by operation, of the peers that have one. Raises UsageError where the library is missing."""
    library_versions(name)
    return {OBJECT: OBJECTS[name]} if name in OBJECTS else {}
