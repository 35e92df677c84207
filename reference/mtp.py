"""Multi-token prediction: the loss of heads that each look one token further. Decoding with them is left to speculative_generate."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Bool, Float64


def mtp_loss(logits: ArrayLike, tokens: ArrayLike, *, weights: ArrayLike | None = None, segments: ArrayLike | None = None,
             ignore_index: int = -100) -> Float64:
    """The weighted sum over heads of each head's mean cross-entropy: float64 ().

        loss = sum_j w_j mean over t of (lse(z) - z[tokens[t + j]]),   z = logits[j - 1, t],   j = 1 … K

    logits (K, T, V), tokens (T,): head j at position t is scored on token t + j, head 1 being next-token prediction. The
    tokens come as they are, not shifted (radixark/miles#2215). weights (K,), 1 each where None. The mean of head j runs over
    the positions where t + j < T, segments[t + j] = segments[t] and tokens[t + j] is not ignore_index; a head with no such
    position adds 0. Logits at other positions never matter, NaN included. segments (T,): integers, one for each packed
    document. Twice the text does not double the loss (NVIDIA/Megatron-LM#1532).

    >>> z = np.log([[[0.5, 0.5], [0.25, 0.75]]])
    >>> float(np.exp(-mtp_loss(z, [0, 1])).round(12))                           # only t = 0 has a next token, of probability 1/2
    0.5

    Raises TypeError for integer logits or float tokens, ValueError for shapes that do not meet and tokens outside 0..V-1.
    Error bound: sum_j w_j (V + 8 + 2 (m - z)) u of the mean's terms and T u of the mean, m the largest logit of a row.
    Source: DeepSeek-V3 (arXiv 2412.19437), equations 24 and 25 (there: weights lambda / D, main head apart); Gloeckle et al.
    2024 (arXiv 2404.19737), equation 2.
    """
    z = arguments.widen("logits", logits, ndim=3)
    K, T, V = z.shape
    if V == 0:
        raise ValueError(f"logits: got shape {z.shape}; want a vocabulary of at least 1")
    w = np.ones(K) if weights is None else arguments.widen("weights", weights, (K,))
    ids = arguments.integers("tokens", tokens, (T,), least=min(0, ignore_index), most=max(V - 1, ignore_index))
    known = ids != ignore_index
    if ((ids[known] < 0) | (ids[known] >= V)).any():
        raise ValueError(f"tokens: got numbers from {ids.min()} to {ids.max()}; want 0..{V - 1} or ignore_index = {ignore_index}")
    loss = 0.0
    for j, scored in enumerate(mtp_positions(K, T, segments=segments), start=1):
        t = np.flatnonzero(scored)
        t = t[known[t + j]]
        if len(t):
            loss += w[j - 1] * _cross_entropy(z[j - 1, t], ids[t + j]).mean()
    return np.asarray(loss, dtype=np.float64)


def mtp_positions(K: int, T: int, *, segments: ArrayLike | None = None) -> Bool:
    """Where each head has a token to be scored on: bool (K, T), True iff t + j < T and both lie in one segment.

    >>> mtp_positions(2, 6, segments=[0, 0, 0, 1, 1, 1]).astype(int)
    array([[1, 1, 0, 1, 1, 0],
           [1, 0, 0, 1, 0, 0]])

    Packed documents end where their segment does: areal-project/AReaL#1445. Raises ValueError for another shape of segments.
    """
    documents = np.zeros(T, dtype=np.int64) if segments is None else arguments.integers(
        "segments", segments, (T,), least=-2**63, most=2**63 - 1)
    scored = np.zeros((K, T), dtype=bool)
    for j in range(1, K + 1):
        scored[j - 1, :-j] = documents[j:] == documents[:-j]
    return scored


def _cross_entropy(z: Float64, target: arguments.Int64) -> Float64:
    """lse(z) - z[target] of each row: (n,). The sum of the others through log1p, so that a leading target loses no digit."""
    top = z.argmax(axis=-1)[:, None]
    m = np.take_along_axis(z, top, axis=-1)
    with np.errstate(invalid="ignore"):                                         # a NaN or an infinite logit that counts: NaN
        e = np.exp(z - m)
        np.put_along_axis(e, top, 0.0, axis=-1)
        return np.asarray(np.log1p(e.sum(axis=-1)) + (m - np.take_along_axis(z, target[:, None], axis=-1))[:, 0])
