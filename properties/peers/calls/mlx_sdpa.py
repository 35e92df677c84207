"""mlx.core.fast.scaled_dot_product_attention on NumPy arrays in the layout (B, H, L, D), on the CPU.

Nothing but NumPy and MLX is imported, MLX inside the functions, so that this file runs alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np


def attention(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, mask: Any = None) -> Any:
    """out, with what hides keys as the string "causal" or as a boolean mask."""
    return _by_mask(q, k, v, causal, scale, mask, None)


def attention_sinks(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, mask: Any = None, sinks: Any = None) -> Any:
    """out with sinks. Without them a row that sees nothing is another number, so they are wanted."""
    if sinks is None:
        raise NotImplementedError("the calls without sinks are another peer's")
    return _by_mask(q, k, v, causal, scale, mask, sinks)


def _by_mask(q: Any, k: Any, v: Any, causal: Any, scale: Any, mask: Any, sinks: Any) -> Any:
    if causal is not None and mask is not None:
        mask = mask & _triangle(q, k)
    return _run(q, k, v, scale, "causal" if causal is not None and mask is None else mask, sinks)


def attention_bias(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, bias: Any = None, mask: Any = None) -> Any:
    """out, with everything that hides keys as an additive mask of -inf."""
    if causal is not None:
        mask = _triangle(q, k) if mask is None else mask & _triangle(q, k)
    if mask is not None:
        bias = np.where(mask, 0.0 if bias is None else bias, np.array(-np.inf, q.dtype)).astype(q.dtype)
    return _run(q, k, v, scale, bias, None)


def _triangle(q: Any, k: Any) -> Any:
    Lq, Lk = q.shape[2], k.shape[2]
    return np.tri(Lq, Lk, Lk - Lq, dtype=bool)[None, None]


def _run(q: Any, k: Any, v: Any, scale: Any, mask: Any, sinks: Any) -> Any:
    mx: Any = import_module("mlx.core")
    with mx.stream(mx.cpu):
        q_, k_, v_ = (mx.array(np.ascontiguousarray(x)) for x in (q, k, v))
        seen = mask if mask is None or isinstance(mask, str) else mx.array(np.ascontiguousarray(mask))
        sinks = None if sinks is None else mx.array(np.asarray(sinks))
        factor = float(q.shape[-1] ** -0.5 if scale is None else scale)
        out = mx.fast.scaled_dot_product_attention(q_, k_, v_, scale=factor, mask=seen, sinks=sinks)
        if q.dtype.name == "bfloat16":                                          # NumPy's buffers do not know it
            return np.array(out.view(mx.uint16)).view(q.dtype)
        return np.array(out)
