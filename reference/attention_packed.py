"""Attention over sequences of different lengths packed end to end, each seeing only itself. Padded batches are left to attention."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Array, Causal, Float64, Int64, Window
from .attention import attention
from .attention_backward import attention_backward


def attention_packed(q: ArrayLike, k: ArrayLike, v: ArrayLike, cu_q: ArrayLike, cu_k: ArrayLike, *, causal: Causal,
                     window: Window = None, scale: float | None = None, softcap: float | None = None) -> tuple[Float64, Float64]:
    """Attention of n packed sequences: out (Tq, Hq, Dv), lse (Hq, Tq), float64.

        out[cu_q[i] : cu_q[i + 1]] = attention of queries cu_q[i] : cu_q[i + 1] over keys cu_k[i] : cu_k[i + 1]

    q (Tq, Hq, D), k (Tk, Hkv, D), v (Tk, Hkv, Dv); cu_q, cu_k (n + 1,) int, 0 first, never falling, Tq and Tk last.
    Empty sequences are legal; queries of a sequence without keys see nothing: out 0, lse -inf. Positions, and with
    them causality and windows, start anew in each sequence. Other conventions as in `attention`.

    >>> q, k, v = np.zeros((2, 1, 1)), np.zeros((3, 1, 1)), np.array([1.0, 3.0, 7.0]).reshape(3, 1, 1)
    >>> attention_packed(q, k, v, [0, 1, 2], [0, 2, 3], causal=None)[0].ravel()
    array([2., 7.])

    Raises ValueError or TypeError that names the argument, what came and what is wanted.
    Error bound: that of `attention` for each sequence.
    Source: flash_attn_varlen_func of Dao-AILab/flash-attention (cu_seqlens_q, cu_seqlens_k).
    """
    q, k, v, cu_q, cu_k = _packed(q, k, v, cu_q, cu_k)
    Tq, Hq, _ = q.shape
    out, lse = np.zeros((Tq, Hq, v.shape[-1])), np.full((Hq, Tq), -np.inf)
    for rows, keys in _sequences(cu_q, cu_k):
        one, one_lse = attention(_batch(q[rows]), _batch(k[keys]), _batch(v[keys]), causal=causal, window=window, scale=scale,
                                 softcap=softcap)
        out[rows], lse[:, rows] = one[0].swapaxes(0, 1), one_lse[0]
    return out, lse


def attention_packed_backward(q: ArrayLike, k: ArrayLike, v: ArrayLike, out: ArrayLike, lse: ArrayLike, dout: ArrayLike,
                              cu_q: ArrayLike, cu_k: ArrayLike, *, causal: Causal, window: Window = None, scale: float | None = None,
                              softcap: float | None = None) -> dict[str, Float64]:
    """The gradients of sum(dout * attention_packed(q, k, v, …).out): a dict of "dq", "dk", "dv", shaped as q, k, v.

    Each sequence's gradients are those of `attention_backward` on it alone. out (Tq, Hq, Dv) and lse (Hq, Tq) are what
    `attention_packed` returned: their shapes are checked, their values recomputed. Sequences without queries or
    without keys have gradients of 0.

    >>> q, k, v = np.zeros((1, 1, 1)), np.zeros((2, 1, 1)), np.array([1.0, 3.0]).reshape(2, 1, 1)
    >>> out, lse = attention_packed(q, k, v, [0, 1], [0, 2], causal=None)
    >>> attention_packed_backward(q, k, v, out, lse, np.ones((1, 1, 1)), [0, 1], [0, 2], causal=None)["dv"].ravel()
    array([0.5, 0.5])

    Raises ValueError or TypeError that names the argument, what came and what is wanted.
    Error bound: that of `attention_backward` for each sequence. Source: as `attention_packed`.
    """
    q, k, v, cu_q, cu_k = _packed(q, k, v, cu_q, cu_k)
    (Tq, Hq, _), Dv = q.shape, v.shape[-1]
    out = arguments.float_array("out", out, (Tq, Hq, Dv))
    lse = arguments.float_array("lse", lse, (Hq, Tq))
    dout = arguments.float_array("dout", dout, (Tq, Hq, Dv))
    gradients = {"dq": np.zeros(q.shape), "dk": np.zeros(k.shape), "dv": np.zeros(v.shape)}
    for rows, keys in _sequences(cu_q, cu_k):
        one = attention_backward(_batch(q[rows]), _batch(k[keys]), _batch(v[keys]), _batch(out[rows]), lse[None, :, rows],
                                 _batch(dout[rows]), causal=causal, window=window, scale=scale, softcap=softcap)
        for name, part in (("dq", rows), ("dk", keys), ("dv", keys)):
            gradients[name][part] = one[name][0].swapaxes(0, 1)
    return gradients


def _packed(q: ArrayLike, k: ArrayLike, v: ArrayLike, cu_q: ArrayLike, cu_k: ArrayLike) -> tuple[Array, Array, Array, Int64, Int64]:
    """The tensors, each in its own dtype, and offsets that fit them and one another."""
    q, k, v = (arguments.float_array(name, x, ndim=3) for name, x in (("q", q), ("k", k), ("v", v)))
    arguments.query_key_value(_batch(q), _batch(k), _batch(v))
    cu_q, cu_k = arguments.offsets("cu_q", cu_q, len(q)), arguments.offsets("cu_k", cu_k, len(k))
    if len(cu_q) != len(cu_k):
        raise ValueError(f"cu_k: got offsets of {len(cu_k) - 1} sequences beside {len(cu_q) - 1} in cu_q; want as many")
    return q, k, v, cu_q, cu_k


def _batch(x: Array) -> Array:
    """(T, H, D) as a batch of one, (1, H, T, D)."""
    return x.swapaxes(0, 1)[None]


def _sequences(cu_q: Int64, cu_k: Int64) -> Iterator[tuple[slice, slice]]:
    for i in range(len(cu_q) - 1):
        yield slice(cu_q[i], cu_q[i + 1]), slice(cu_k[i], cu_k[i + 1])
