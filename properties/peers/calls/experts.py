"""Routing and the balance loss of transformers' Mixtral, on PyTorch's arrays.

Nothing but NumPy and the libraries is imported, these inside the functions, so that this file runs alone.
"""

from __future__ import annotations

from typing import Any


def mixtral_route(logits: Any, *, k: int, normalize: bool) -> Any:
    """MixtralTopKRouter with an identity for its weight, so that its logits are those given; it normalises always."""
    from types import SimpleNamespace

    import torch
    from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter

    E = logits.shape[1]
    router = MixtralTopKRouter(SimpleNamespace(num_experts_per_tok=k, num_local_experts=E, hidden_size=E)).to(logits.dtype)
    router.weight.data = torch.eye(E, dtype=logits.dtype)
    with torch.no_grad():
        _, gates, ids = router(logits)
    return ids, gates


def mixtral_balance(probs: Any, ids: Any, *, mask: Any = None) -> Any:
    """load_balancing_loss_func of ln p. It chooses the experts itself: other ids than its own are refused."""
    import torch
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    E, k = probs.shape[1], ids.shape[1]
    own = torch.topk(torch.softmax(torch.log(probs), dim=-1), k, dim=-1)[1]
    if not torch.equal(own.sort(dim=-1)[0], ids.sort(dim=-1)[0]):
        raise NotImplementedError("it chooses the k most probable experts itself, which these are not")
    return load_balancing_loss_func((torch.log(probs),), E, k, mask).to(probs.dtype)
