"""Visibility: which keys a query may see, and where a query stands among the keys. What is made of it is attention's business."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Bool, Causal, Int64, Window


def query_positions(B: int, Lq: int, Lk: int, *, causal: Causal, kv_lengths: ArrayLike | None = None) -> Int64:
    """Where each query stands among the keys of its sequence: int64 (B, Lq).

        p = i                    causal = "top_left"
        p = i + n_k - Lq         causal = "bottom_right" or None (windows and ALiBi need a place there too)

    n_k = kv_lengths[b] where given, else Lk. Negative positions are legal: Lq > Lk, or a short kv_length.

    >>> query_positions(1, 3, 5, causal="bottom_right")
    array([[2, 3, 4]])
    >>> query_positions(1, 3, 5, causal="top_left")
    array([[0, 1, 2]])

    Raises ValueError for an unknown `causal` or a kv_length outside 0..Lk. Exact.
    Source: bottom right, FlashAttention 2.1 and vLLM; top left, PyTorch's scaled_dot_product_attention.
    """
    causal = arguments.causal_rule(causal)
    n_k = arguments.key_lengths(kv_lengths, B, Lk)
    shift = np.zeros_like(n_k) if causal == "top_left" else n_k - Lq            # (B,)
    return shift[:, None] + np.arange(Lq, dtype=np.int64)                       # (B, Lq)


def visible_keys(B: int, Hq: int, Lq: int, Lk: int, *, causal: Causal, window: Window = None, mask: ArrayLike | None = None,
                 kv_lengths: ArrayLike | None = None, bias: ArrayLike | None = None) -> Bool:
    """Which keys each query may see: bool (B, Hq, Lq, Lk).

        visible = mask and j < n_k and (j <= p if causal) and p - left <= j <= p + right and bias != -inf

    p as in `query_positions`. A window's sides are inclusive and do not count the current key: (0, 0) sees one key;
    None leaves a side open. mask: True sees. A NaN in bias is seen (it makes its row NaN), an infinite one too unless
    it is -inf. mask and bias broadcast to (B, Hq, Lq, Lk).

    >>> visible_keys(1, 1, 2, 3, causal="bottom_right").astype(int)[0, 0]
    array([[1, 1, 0],
           [1, 1, 1]])
    >>> visible_keys(1, 1, 2, 3, causal=None, window=(0, 1)).astype(int)[0, 0]
    array([[0, 1, 1],
           [0, 0, 1]])

    Raises ValueError or TypeError for a negative window, an unknown `causal`, a shape that does not broadcast. Exact.
    Source: the flash_attn_func documentation (Dao-AILab/flash-attention), causal alignment and window_size.
    """
    shape = (B, Hq, Lq, Lk)
    left, right = arguments.window_sides(window)
    j = np.arange(Lk, dtype=np.int64)
    p = query_positions(B, Lq, Lk, causal=causal, kv_lengths=kv_lengths)[:, None, :, None]     # (B, 1, Lq, 1)
    visible = j < arguments.key_lengths(kv_lengths, B, Lk)[:, None, None, None]                # (B, 1, 1, Lk)
    if causal is not None:
        visible = visible & (j <= p)
    if left is not None:
        visible = visible & (p - j <= left)                                     # as a difference: left may be huge
    if right is not None:
        visible = visible & (j - p <= right)
    if mask is not None:
        visible = visible & arguments.boolean_mask("mask", mask, shape)
    if bias is not None:
        visible = visible & ~np.isneginf(arguments.additive_bias(bias, shape).astype(np.float64))
    return np.array(np.broadcast_to(visible, shape))
