"""Sampling: penalties, filters and the inverse of the distribution function. Drafts and their verification are left to speculative."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from . import arguments, distributions
from .arguments import Array, Float64, Int64


def filter_probabilities(logits: ArrayLike, *, temperature: ArrayLike = 1.0, top_k: ArrayLike | None = None, top_p: ArrayLike | None = None,
                         min_p: ArrayLike | None = None) -> Float64:
    """The distribution that is sampled from: softmax at a temperature, then top-k, top-p and min-p: float64 (..., V).

        p = softmax(z / temperature)
        top_k   keep the k largest
        top_p   of what is left, renormalised, keep the shortest prefix in descending order whose mass is >= top_p
        min_p   of what is left, keep p_i >= min_p max_j p_j, both before any filter
        p_i / sum of what is kept

    in this order, ties by lowest index. The parameters broadcast to the rows of logits (...); None filters nothing, as
    do top_k >= V, top_p = 1 and min_p = 0. Temperature 0 gives one-hot at the largest logit, whatever the other filters.
    The largest logit of a row is always kept. A logit of -inf has probability 0.

    >>> filter_probabilities(np.log([0.5, 0.25, 0.125, 0.125]), top_k=3, top_p=0.625).round(6)
    array([0.666667, 0.333333, 0.      , 0.      ])
    >>> filter_probabilities([[1.0, 3.0], [1.0, 1.0]], temperature=[0.0, 1.0])
    array([[0. , 1. ],
           [0.5, 0.5]])

    Raises TypeError for integer logits and a top_k that is none, ValueError for a NaN, a +inf or a row of -inf, and for
    temperature < 0, top_k < 1, top_p outside (0, 1] and min_p outside [0, 1].
    Error bound: (V + 8 + 2 (m - z_i) / temperature) u p_i, m the largest logit, given the tokens kept; a token is kept
    or dropped rightly where its mass, or ratio, lies further than (V + 8) u from the border.
    Source: top-k, Fan et al. 2018 (arXiv 1805.04833); top-p, Holtzman et al. 2020 (arXiv 1904.09751), section 3.1; min-p,
    Nguyen et al. 2024 (arXiv 2407.01082).
    """
    z = _logits(logits)
    rows, V = z.shape[:-1], z.shape[-1]
    T = distributions.per_row("temperature", temperature, rows, least=0.0)      # (..., 1)
    order = np.argsort(-z, axis=-1, kind="stable")                              # descending, ties by lowest index: dmlc/gluon-nlp#1481
    z = np.take_along_axis(z, order, axis=-1)
    with np.errstate(over="ignore"):                                            # a tiny temperature: all but the largest weigh 0
        ratio = np.exp((z - z[..., :1]) / np.where(T == 0.0, 1.0, T))           # p_i / max p
    k = np.where(T == 0.0, 1, V if top_k is None else _counts(top_k, rows))
    kept = np.arange(V) < k                                                     # (..., V), in descending order
    if top_p is not None:
        kept &= _shortest_prefix(np.where(kept, ratio, 0.0), distributions.per_row("top_p", top_p, rows, above=0.0, most=1.0))
    if min_p is not None:
        # p_i / max p is the same before and after a renormalisation, and no array is overwritten: sgl-project/sglang#15648
        kept &= ratio >= distributions.per_row("min_p", min_p, rows, least=0.0, most=1.0)
    p = np.where(kept, ratio, 0.0)
    filtered = np.empty_like(p)
    np.put_along_axis(filtered, order, p / p.sum(axis=-1, keepdims=True), axis=-1)
    return filtered


def _shortest_prefix(w: Float64, top_p: Float64) -> Array:
    """Which of the descending weights lie in the shortest prefix with a share >= top_p: those with less than that before them.

    The token that crosses the border is in (ggml-org/llama.cpp#1953), so that one at least is: ml-explore/mlx-lm#388. The
    mass before a token, for top_p >= 1/2, is counted from the other end, where the small weights lose nothing: top_p = 1
    keeps every weight above 0 (BlinkDL/ChatRWKV#170, flashinfer-ai/flashinfer#2202).
    """
    tail = np.flip(np.cumsum(np.flip(w, axis=-1), axis=-1), axis=-1)            # w_j + w_{j+1} + …
    before = np.zeros_like(w)
    before[..., 1:] = np.cumsum(w, axis=-1)[..., :-1]
    total = tail[..., :1]                                                       # of what top-k left: the rest is renormalised
    return np.asarray(np.where(top_p < 0.5, before < top_p * total, tail > (1.0 - top_p) * total))


def apply_penalties(logits: ArrayLike, tokens: ArrayLike, *, prompt_lengths: ArrayLike | None = None, repetition: ArrayLike = 1.0,
                    frequency: ArrayLike = 0.0, presence: ArrayLike = 0.0) -> Float64:
    """Logits with the tokens so far made less likely: float64 (..., V).

        z_i / repetition if z_i > 0 else z_i repetition      for every token i of the prompt and the output
        z_i - frequency n_i - presence [n_i > 0]              n_i = how often i stands in the output

    in this order. tokens (..., T), one row for each row of logits, -1 where there is none; the first prompt_lengths (...)
    of a row are its prompt (None: no prompt), which frequency and presence do not count. The parameters broadcast to the
    rows.

    >>> apply_penalties([1.0, -1.0, 1.0], [0, 1, 1], prompt_lengths=1, repetition=2.0, frequency=0.25)
    array([ 0.5, -2.5,  1. ])

    Raises TypeError for integer logits or float tokens, ValueError for tokens outside -1..V-1, shapes that do not meet,
    repetition <= 0, prompt lengths outside 0..T.
    Error bound: 4 u (|z_i| repetition + |frequency| n_i + |presence|), 1 / repetition where that is larger.
    Source: repetition, Keskar et al. 2019 (arXiv 1909.05858), section 4.1; the other two, the OpenAI API reference.
    """
    z = arguments.widen("logits", logits)
    if z.ndim == 0 or z.shape[-1] == 0:
        raise ValueError(f"logits: got shape {z.shape}; want rows of at least one number")
    rows, V = z.shape[:-1], z.shape[-1]
    tokens = arguments.integers("tokens", tokens, least=-1, most=V - 1)
    if tokens.ndim != z.ndim or tokens.shape[:-1] != rows:
        raise ValueError(f"tokens: got shape {tokens.shape} beside logits {z.shape}; want ({', '.join(map(str, (*rows, 'T')))})")
    T = tokens.shape[-1]
    prompt = arguments.broadcast("prompt_lengths", arguments.integers(
        "prompt_lengths", 0 if prompt_lengths is None else prompt_lengths, least=0, most=T), rows)[..., None]
    # Two histories, of the whole and of the output alone: vllm-project/vllm-metal#69. Row by row: vllm-project/vllm#5639.
    seen = _counted(tokens, V)
    n = _counted(np.where(np.arange(T) < prompt, -1, tokens), V)
    r = distributions.per_row("repetition", repetition, rows, above=0.0)
    z = np.where(seen > 0, np.where(z > 0.0, z / r, z * r), z)
    z = z - distributions.per_row("frequency", frequency, rows) * n
    return np.asarray(z - distributions.per_row("presence", presence, rows) * (n > 0))


def sample(probabilities: ArrayLike, u: ArrayLike) -> Int64:
    """The token that a uniform number stands for: int64 of the shape of u, that of probabilities (..., V) without V.

        the first i with u S < p_0 + … + p_i,   S = the sum of all

    Weights that do not sum to 1 are legal. Never a token of probability 0, since its sum is that of its predecessor.

    >>> sample([[0.5, 0.0, 0.5], [0.5, 0.0, 0.5]], [0.25, 0.5])
    array([0, 2])

    Raises ValueError for weights that are negative, NaN or all 0, u outside [0, 1) and a shape of u that is not that of the rows.
    Error bound: the token is right where u S is further than V u_roundoff S from each sum (u_roundoff = 2^-53).
    Source: Devroye 1986, Non-Uniform Random Variate Generation, section III.2.
    """
    p = distributions.weights("probabilities", probabilities)
    u = distributions.uniforms("u", u, p.shape[:-1])
    c = np.cumsum(p, axis=-1)                                                   # (..., V)
    # u S may round up to S where S is subnormal: then the last token with a weight, never one past the end
    # (flashinfer-ai/flashinfer#384).
    past = u[..., None] * c[..., -1:] >= c
    last = (c < c[..., -1:]).sum(axis=-1)
    return np.asarray(np.minimum(past.sum(axis=-1), last), dtype=np.int64)


def _logits(logits: ArrayLike) -> Float64:
    """Rows of logits in float64, each with a largest finite one."""
    z = arguments.widen("logits", logits)
    if z.ndim == 0 or z.shape[-1] == 0:
        raise ValueError(f"logits: got shape {z.shape}; want rows of at least one number")
    if not np.isfinite(z.max(axis=-1)).all():
        raise ValueError("logits: got a row with a NaN, a +inf or nothing but -inf; want a largest finite number in every row")
    return z


def _counts(top_k: ArrayLike, rows: tuple[int, ...]) -> Int64:
    """top_k for each row: (..., 1), at least 1; more than the vocabulary is legal."""
    k = arguments.integers("top_k", top_k, least=1, most=2**63 - 1)
    return arguments.broadcast("top_k", k, rows)[..., None]


def _counted(tokens: Int64, V: int) -> Int64:
    """How often each of V tokens stands in each row, -1 not counted: (..., V)."""
    n = math.prod(tokens.shape[:-1])
    counts = np.zeros((n, V + 1), dtype=np.int64)                               # -1 counts in the last column
    np.add.at(counts, (np.arange(n)[:, None], tokens.reshape(n, tokens.shape[-1])), 1)
    return counts[:, :V].reshape(*tokens.shape[:-1], V)
