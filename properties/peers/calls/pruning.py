"""Pruning by torch.nn.utils.prune on a CPU.

Nothing but the library is imported, inside the function, so that this file runs alone.
"""

from __future__ import annotations

from typing import Any


def torch_prune(weights: Any, *, sparsity: float, scope: str) -> Any:
    """l1_unstructured of each layer, or global_unstructured with L1Unstructured over all, and the masks they leave."""
    import torch
    from torch.nn.utils import prune

    layers = [torch.nn.ParameterDict({"w": torch.nn.Parameter(w.clone())}) for w in weights]
    if not sum(w.numel() for w in weights):
        raise NotImplementedError("no weights")
    holders = []
    for layer in layers:
        holder = torch.nn.Module()
        holder.register_parameter("w", layer["w"])
        holders.append(holder)
    if scope == "global":
        prune.global_unstructured([(holder, "w") for holder in holders], pruning_method=prune.L1Unstructured, amount=sparsity)
    else:
        for holder in holders:
            prune.l1_unstructured(holder, "w", amount=sparsity)
    masks = [holder.w_mask != 0 for holder in holders]
    return masks if isinstance(weights, list) else torch.stack(masks)
