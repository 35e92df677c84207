"""tinygrad's scaled_dot_product_attention, softmax and logsumexp on NumPy arrays.

Nothing but NumPy and tinygrad is imported, tinygrad inside the functions, so that this file runs alone.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import numpy as np

# Its own assembler for 64-bit Intel and AMD processors: the other backends of its CPU device want clang. Elsewhere DEV=PYTHON does, slowly.
os.environ.setdefault("DEV", "CPU:X86")


def attention(q: Any, k: Any, v: Any, *, causal: Any, bias: Any = None, mask: Any = None) -> Any:
    """out, but for a single key that is hidden: it gets all the weight."""
    _, seen = _visibility(q, k, causal, bias, mask)
    if k.shape[2] == 1 and seen is not None and (np.isneginf(seen) if seen.dtype != bool else ~seen).any():
        raise NotImplementedError("a hidden key is seen all the same where it is the only one")
    return attention_single_key(q, k, v, causal=causal, bias=bias, mask=mask)


def attention_single_key(q: Any, k: Any, v: Any, *, causal: Any, bias: Any = None, mask: Any = None) -> Any:
    """out of Tensor.scaled_dot_product_attention."""
    is_causal, seen = _visibility(q, k, causal, bias, mask)
    q_, k_, v_ = (_tensor(x) for x in (q, k, v))
    attn_mask = None if seen is None else _tensor(seen)
    options = {"attn_mask": attn_mask, "is_causal": is_causal, "enable_gqa": q.shape[1] != k.shape[1]}
    return _array(q_.scaled_dot_product_attention(k_, v_, **options), q.dtype)


def softmax(x: Any, *, axis: int = -1) -> Any:
    """p, but for a single -inf: it is 1, where more of them are NaN."""
    if x.shape[axis] == 1 and np.isneginf(x).any():
        raise NotImplementedError("a row of one -inf is 1, a row of several is NaN")
    return softmax_single_entry(x, axis=axis)


def softmax_single_entry(x: Any, *, axis: int = -1) -> Any:
    """Tensor.softmax."""
    return _array(_tensor(x).softmax(axis), x.dtype)


def log_sum_exp(x: Any, *, axis: int = -1) -> Any:
    """Tensor.logsumexp."""
    return _array(_tensor(x).logsumexp(axis), x.dtype)


def _visibility(q: Any, k: Any, causal: Any, bias: Any, mask: Any) -> tuple[bool, Any]:
    """is_causal and attn_mask. The two exclude each other, so a causal mask beside another one is made part of it."""
    if causal == "top_left" and bias is None and mask is None:
        return True, None
    Lq, Lk = q.shape[2], k.shape[2]
    if causal is not None:
        triangle = np.tri(Lq, Lk, Lk - Lq if causal == "bottom_right" else 0, dtype=bool)[None, None]
        mask = triangle if mask is None else mask & triangle
    if bias is None or mask is None:
        return False, mask if bias is None else bias
    return False, np.where(mask, bias, np.array(-np.inf, bias.dtype))


def _tensor(x: Any) -> Any:
    tinygrad: Any = import_module("tinygrad")
    if x.dtype.name == "bfloat16":                                              # NumPy's own types do not hold it
        return tinygrad.Tensor(np.ascontiguousarray(x).view(np.uint16)).bitcast(tinygrad.dtypes.bfloat16)
    return tinygrad.Tensor(np.ascontiguousarray(x))


def _array(tensor: Any, dtype: Any) -> Any:
    if dtype.name == "bfloat16":
        return tensor.bitcast(import_module("tinygrad").dtypes.uint16).numpy().view(dtype)
    return tensor.numpy()
