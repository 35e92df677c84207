"""PyTorch's scaled_dot_product_attention on tensors of PyTorch, through its default dispatch or a backend of one's choice.

Nothing but PyTorch is imported, inside the functions, so that this file runs alone.
"""

from __future__ import annotations

from typing import Any


def attention_default(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, bias: Any = None, mask: Any = None) -> Any:
    """out of the backend that PyTorch chooses."""
    return _scaled_dot_product(q, k, v, causal, scale, bias, mask)


def attention_math(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, bias: Any = None, mask: Any = None) -> Any:
    """out of SDPBackend.MATH: one framework operation after another."""
    with _backend("MATH"):
        return _scaled_dot_product(q, k, v, causal, scale, bias, mask)


def attention_flash(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, bias: Any = None, mask: Any = None) -> Any:
    """out, lse of the operation behind SDPBackend.FLASH_ATTENTION on a CPU, which is private: nothing public returns the lse."""
    import torch

    is_causal, seen = _visibility(q, k, causal, bias, mask)
    if seen is not None and seen.dtype == torch.bool:                           # the public function does the same
        seen = torch.zeros(seen.shape, dtype=q.dtype).masked_fill(~seen, -torch.inf)
    operation = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return operation(q, k, v, 0.0, is_causal, attn_mask=seen, scale=scale)


def backward_default(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, scale: Any = None, bias: Any = None,
                     mask: Any = None) -> Any:
    """dq, dk, dv and dbias by autograd through the backend that PyTorch chooses; out and lse are its own."""
    return _gradients(q, k, v, dout, causal, scale, bias, mask, of_bias=True)


def backward_math(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, scale: Any = None, bias: Any = None,
                  mask: Any = None) -> Any:
    """dq, dk, dv and dbias by autograd through SDPBackend.MATH."""
    with _backend("MATH"):
        return _gradients(q, k, v, dout, causal, scale, bias, mask, of_bias=True)


def backward_flash(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, scale: Any = None, bias: Any = None,
                   mask: Any = None) -> Any:
    """dq, dk, dv by autograd through SDPBackend.FLASH_ATTENTION, which has no gradient of the bias and asks for a last axis of stride 1."""
    for name, array in (("q", q), ("k", k), ("v", v)):
        if array.stride(-1) != 1:                                               # "All fused kernels require": a stride of one element too
            raise NotImplementedError(f"{name}: got a last axis of stride {array.stride(-1)}; want 1")
    with _backend("FLASH_ATTENTION"):
        return _gradients(q, k, v, dout, causal, scale, bias, mask, of_bias=False)


def _backend(name: str) -> Any:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(getattr(SDPBackend, name))


def _gradients(q: Any, k: Any, v: Any, dout: Any, causal: Any, scale: Any, bias: Any, mask: Any, *, of_bias: bool) -> dict[str, Any]:
    import torch

    wanted = {"dq": q, "dk": k, "dv": v, **({"dbias": bias} if of_bias and bias is not None else {})}
    leaves = {name: array.detach().requires_grad_(True) for name, array in wanted.items()}
    bias = leaves.get("dbias", bias)
    out = _scaled_dot_product(leaves["dq"], leaves["dk"], leaves["dv"], causal, scale, bias, mask)
    return dict(zip(leaves, torch.autograd.grad(out, list(leaves.values()), dout)))


def _scaled_dot_product(q: Any, k: Any, v: Any, causal: Any, scale: Any, bias: Any, mask: Any) -> Any:
    import torch

    is_causal, seen = _visibility(q, k, causal, bias, mask)
    function = torch.nn.functional.scaled_dot_product_attention
    return function(q, k, v, attn_mask=seen, is_causal=is_causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1])


def _visibility(q: Any, k: Any, causal: Any, bias: Any, mask: Any) -> tuple[bool, Any]:
    """is_causal and attn_mask. The two exclude each other, so a causal mask beside another one is made part of it."""
    import torch

    if causal == "top_left" and bias is None and mask is None:
        return True, None
    Lq, Lk = q.shape[2], k.shape[2]
    if causal is not None:
        triangle = torch.ones(Lq, Lk, dtype=torch.bool).tril(Lk - Lq if causal == "bottom_right" else 0)[None, None]
        mask = triangle if mask is None else mask & triangle
    if bias is None:
        return False, mask
    return False, bias if mask is None else torch.where(mask, bias, torch.tensor(-torch.inf, dtype=bias.dtype))
