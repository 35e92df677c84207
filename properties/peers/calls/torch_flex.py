"""torch.nn.attention.flex_attention on a CPU, not compiled and compiled, on tensors in the layout (B, H, L, D).

Nothing but PyTorch is imported, inside the functions, so that this file runs alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any


def attention_eager(q: Any, k: Any, v: Any, *, causal: Any, window: Any = None, scale: Any = None, softcap: Any = None, bias: Any = None,
                    mask: Any = None, kv_lengths: Any = None, alibi_slopes: Any = None) -> Any:
    """out, lse: what hides keys is a mask_mod, what changes scores a score_mod."""
    from torch.nn.attention import flex_attention as module
    from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

    module._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True                         # the same operations, not traced first: a second a call
    (B, Hq, Lq, _), Lk = q.shape, k.shape[2]
    options = {"scale": scale, "enable_gqa": Hq != k.shape[1]}
    visible = _mask_mod((B, Hq, Lq, Lk), causal, window, mask, kv_lengths)
    blocks = None if visible is None or 0 in (B, Lq) else create_block_mask(visible, B, Hq, Lq, Lk, device="cpu")
    change = _score_mod((B, Hq, Lq, Lk), causal, softcap, bias, kv_lengths, alibi_slopes)
    out, extra = flex_attention(q, k, v, score_mod=change, block_mask=blocks, return_aux=AuxRequest(lse=True), **options)
    return out, extra.lse


def attention_compiled(q: Any, k: Any, v: Any, *, causal: Any) -> Any:
    """out of the kernel that torch.compile makes. Past its limit of compilations PyTorch would answer without one: here it raises."""
    import torch

    shape = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    with torch._dynamo.config.patch(recompile_limit=10_000, accumulated_recompile_limit=10_000, fail_on_recompile_limit_hit=True):
        return _compiled()(q, k, v, block_mask=_causal_blocks(shape, causal), enable_gqa=q.shape[1] != k.shape[1])


@lru_cache(maxsize=1)
def _compiled() -> Any:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


@lru_cache(maxsize=256)
def _causal_blocks(shape: tuple[int, ...], causal: Any) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    visible = _mask_mod(shape, causal, None, None, None)
    return None if visible is None else create_block_mask(visible, None, None, shape[2], shape[3], device="cpu")


def _positions(shape: tuple[int, ...], causal: Any, kv_lengths: Any) -> Any:
    """Where query i of sequence b stands."""
    _, _, Lq, Lk = shape

    def position(b: Any, i: Any) -> Any:
        if causal == "top_left":
            return i
        return i + (Lk if kv_lengths is None else kv_lengths[b]) - Lq

    return position


def _mask_mod(shape: tuple[int, ...], causal: Any, window: Any, mask: Any, kv_lengths: Any) -> Any:
    """mask_mod, or None where nothing hides a key."""
    import torch

    if causal is None and window is None and mask is None and kv_lengths is None:
        return None
    position, (left, right) = _positions(shape, causal, kv_lengths), window or (None, None)
    seen = None if mask is None else mask.expand(shape)

    def visible(b: Any, h: Any, i: Any, j: Any) -> Any:
        p = position(b, i)
        hidden = [j > p] if causal is not None else []
        hidden += [j < p - left] if left is not None else []
        hidden += [j > p + right] if right is not None else []
        hidden += [j >= kv_lengths[b]] if kv_lengths is not None else []
        hidden += [~seen[b, h, i, j]] if seen is not None else []
        result = j >= 0
        for one in hidden:
            result = torch.logical_and(result, ~one)
        return result

    return visible


def _score_mod(shape: tuple[int, ...], causal: Any, softcap: Any, bias: Any, kv_lengths: Any, alibi_slopes: Any) -> Any:
    """score_mod, or None where nothing changes a score."""
    import torch

    if softcap is None and bias is None and alibi_slopes is None:
        return None
    position, added = _positions(shape, causal, kv_lengths), None if bias is None else bias.expand(shape)

    def change(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        if softcap is not None:
            s = softcap * torch.tanh(s / softcap)
        if added is not None:
            s = s + added[b, h, i, j]
        return s if alibi_slopes is None else s - alibi_slopes[h] * (position(b, i) - j).abs()

    return change
