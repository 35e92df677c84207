"""Softmax and log-sum-exp: at once, in one pass, and put together from parts. Scores and masks are left to attention."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Float64


def softmax(x: ArrayLike, *, axis: int = -1) -> Float64:
    """The softmax of x along one axis: float64, the shape of x.

        p_i = e^(x_i - m) / sum_j e^(x_j - m),   m = max x

    An empty row gives an empty row; a row of nothing but -inf gives zeros; a NaN or a +inf makes its row NaN.

    >>> softmax([0.0, 0.0, -np.inf])
    array([0.5, 0.5, 0. ])

    Raises TypeError for integers, ValueError for an axis that x has not.
    Error bound: (n + 6 + (m - x_i)) u p_i.
    Source: Blanchard, Higham and Higham 2021 (doi 10.1093/imanum/draa038), algorithm 3.1.
    """
    x = _rows("x", x, axis)
    m = x.max(axis=-1, keepdims=True, initial=-np.inf)
    with np.errstate(over="ignore"):                                            # a difference past the largest number weighs 0
        e = np.exp(x - _shift(m))
    l = e.sum(axis=-1, keepdims=True)
    return np.moveaxis(e / np.where(l == 0.0, 1.0, l), -1, axis)


def log_sum_exp(x: ArrayLike, *, axis: int = -1) -> Float64:
    """The natural logarithm of the sum of exponentials of x along one axis, which goes: float64.

        lse = m + log1p(sum over the others of e^(x_j - m)),   m = max x, one of the places that hold it left out

    An empty row, or one of nothing but -inf, gives -inf; a NaN or a +inf makes it NaN.

    >>> float(log_sum_exp([0.0, -40.0])) == float(np.exp(-40.0))
    True
    >>> log_sum_exp([[-np.inf, -np.inf], [2.0, -np.inf]])
    array([-inf,   2.])

    Raises TypeError for integers, ValueError for an axis that x has not.
    Error bound: 4 ulp of max(|m|, |lse|), and ceil(log2 n) u of the logarithm from adding n terms in pairs; where m < 0
    and lse is near 0 the sum cancels, and no more than that can be had from float64.
    Source: Blanchard, Higham and Higham 2021 (doi 10.1093/imanum/draa038), equation 3.8 and its log1p form.
    """
    x = _rows("x", x, axis)
    x = np.concatenate([x, np.full((*x.shape[:-1], 1), -np.inf)], axis=-1)      # a term of weight 0: never empty
    top = x.argmax(axis=-1, keepdims=True)
    m = np.take_along_axis(x, top, axis=-1)
    shift = _shift(m)
    with np.errstate(invalid="ignore", over="ignore"):
        d = x - shift
        b = x - d                                                               # what d leaves of the exact x - shift:
        rest = np.nan_to_num((x - (d + b)) + (b - shift))                       # TwoSum, Knuth
        e = np.exp(d) * (1.0 + rest)
    np.put_along_axis(e, top, 0.0, axis=-1)
    return np.asarray(np.where(np.isneginf(m), m, shift + np.log1p(e.sum(axis=-1, keepdims=True)))[..., 0])


def online_softmax(x: ArrayLike, *, block: int) -> Float64:
    """The softmax of x along its last axis, its maximum and its sum found in one pass over blocks of that axis.

        m' = max(m, max of the block)
        l' = l e^(m - m') + sum over the block of e^(x - m')
        p = e^(x - m) / l at the end

    The same real number as `softmax`, and the same conventions; not the same bits.

    >>> online_softmax([1.0, 1.0, 1.0, 1.0], block=3)
    array([0.25, 0.25, 0.25, 0.25])

    Raises ValueError for a block below 1. Error bound: (n + 6 + 3 (number of blocks) + 2 (m - x_i)) u p_i.
    Source: Milakov and Gimelshein 2018 (arXiv 1805.02867), algorithm 3.
    """
    x = _rows("x", x, -1)
    block = arguments.whole_number("block", block, least=1)
    m = np.full((*x.shape[:-1], 1), -np.inf)
    l = np.zeros_like(m)
    with np.errstate(over="ignore"):                                            # a difference past the largest number weighs 0
        for start in range(0, x.shape[-1], block):
            part = x[..., start : start + block]
            m_new = np.maximum(m, part.max(axis=-1, keepdims=True))
            l = l * np.exp(m - _shift(m_new)) + np.exp(part - _shift(m_new)).sum(axis=-1, keepdims=True)
            m = m_new
        return np.asarray(np.exp(x - _shift(m)) / np.where(l == 0.0, 1.0, l))


def merge_attention(out_a: ArrayLike, lse_a: ArrayLike, out_b: ArrayLike, lse_b: ArrayLike) -> tuple[Float64, Float64]:
    """Combine attention over two disjoint sets of keys into attention over their union.

        lse = ln(e^lse_a + e^lse_b)
        out = e^(lse_a - lse) out_a + e^(lse_b - lse) out_b

    The empty set is neutral: out = 0, lse = -inf. Associative and commutative in real arithmetic. A part whose lse is
    -inf adds nothing, whatever its out; an lse of NaN or +inf makes the row NaN.

    >>> q, k, v = np.ones((1, 1, 1, 2)), np.eye(2)[None, None], np.array([[[[1.0], [3.0]]]])
    >>> from oracles.reference import attention
    >>> out, lse = merge_attention(*attention(q, k[..., :1, :], v[..., :1, :], causal=None),
    ...                            *attention(q, k[..., 1:, :], v[..., 1:, :], causal=None))
    >>> out
    array([[[[2.]]]])

    Shapes: out `(..., Dv)`, lse `(...)`. Returns out, lse in float64.
    Raises ValueError where the shapes of a and b differ, or that of lse is not that of out without its last axis.
    Error bound: (6 + |lse_a - lse_b|) u (w_a |out_a| + w_b |out_b|), w the weights; lse 4 ulp of the larger of |lse|.
    Source: Milakov and Gimelshein 2018 (arXiv 1805.02867), section 3.1; two empty parts: vllm-project/vllm#39148.
    """
    out_a, lse_a = arguments.widen("out_a", out_a), arguments.widen("lse_a", lse_a)
    out_b, lse_b = arguments.widen("out_b", out_b, out_a.shape), arguments.widen("lse_b", lse_b, lse_a.shape)
    if out_a.ndim == 0 or lse_a.shape != out_a.shape[:-1]:
        raise ValueError(f"lse_a: got shape {lse_a.shape} beside out_a {out_a.shape}; want {out_a.shape[:-1]}")
    m = _shift(np.maximum(lse_a, lse_b))
    with np.errstate(over="ignore"):
        w_a, w_b = np.exp(lse_a - m), np.exp(lse_b - m)                         # (...)
    nothing = np.isneginf(lse_a) & np.isneginf(lse_b)
    lse = np.where(nothing, -np.inf, m + np.log1p(np.minimum(w_a, w_b)))        # the larger of the two weights is 1
    l = np.where(nothing, 1.0, w_a + w_b)
    a = np.where(np.isneginf(lse_a)[..., None], 0.0, (w_a / l)[..., None] * out_a)
    b = np.where(np.isneginf(lse_b)[..., None], 0.0, (w_b / l)[..., None] * out_b)
    return a + b, lse


def _rows(name: str, x: ArrayLike, axis: int) -> Float64:
    """x in float64 with the axis moved last; ValueError where there is no such axis."""
    x = arguments.widen(name, x)
    if not -x.ndim <= axis < x.ndim:
        raise ValueError(f"axis: got {axis} for {name} of shape {x.shape}; want {-x.ndim}..{x.ndim - 1}")
    return np.moveaxis(x, axis, -1)


def _shift(m: Float64) -> Float64:
    """What to subtract: the maximum, 0 for -inf (-inf - -inf is no number), NaN for +inf (so that the row is NaN)."""
    return np.where(np.isneginf(m), 0.0, np.where(m == np.inf, np.nan, m))
