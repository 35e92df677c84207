"""Context parallelism by all-to-all: each rank gives away heads for tokens, so that it sees whole sequences. The ring is apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Array, Causal, Float64
from .attention import attention
from .attention_backward import attention_backward
from .collectives import exchange
from .sequence_shards import Order, Shards, gathered_sequence, scattered_sequence


def all_to_all_attention(q_shards: Sequence[ArrayLike], k_shards: Sequence[ArrayLike], v_shards: Sequence[ArrayLike], *, causal: Causal,
                         order: Order = "contiguous", segments: ArrayLike | None = None,
                         scale: float | None = None) -> tuple[list[Float64], list[Float64]]:
    """`ring_attention` by exchanging heads for tokens: the shards of out and of its log-sum-exp, two lists.

        all-to-all    R shards of all heads and L/R tokens become R shards of H/R heads and all tokens
        attention     on each rank, over the whole sequence
        all-to-all    back

    >>> q = k = np.zeros((1, 2, 1, 1))
    >>> all_to_all_attention([q, q], [k, k], [k + 1.0, k + 3.0], causal="top_left")[0][1].ravel()
    array([2., 2.])

    Raises ValueError where the query or key heads are no multiple of the ranks, and as `ring_attention` does.
    Error bound: that of attention, `properties.bounds`.
    Source: Jacobs et al. 2023 (arXiv 2309.14509), section 3.1.
    """
    s = Shards.of(q_shards, k_shards, v_shards, causal=causal, order=order, segments=segments)
    q, k, v = (_to_heads(name, shards, s) for name, shards in (("q_shards", s.q), ("k_shards", s.k), ("v_shards", s.v)))
    answers = [attention(*heads, causal=causal, mask=_mask(s), scale=scale) for heads in zip(q, k, v)]
    return _to_tokens([out for out, _ in answers], s), [x[..., 0] for x in _to_tokens([lse[..., None] for _, lse in answers], s)]


def all_to_all_attention_backward(q_shards: Sequence[ArrayLike], k_shards: Sequence[ArrayLike], v_shards: Sequence[ArrayLike],
                                  dout_shards: Sequence[ArrayLike], *, causal: Causal, order: Order = "contiguous",
                                  segments: ArrayLike | None = None,
                                  scale: float | None = None) -> tuple[list[Float64], list[Float64], list[Float64]]:
    """`ring_attention_backward` by exchanging heads for tokens: the shards of dq, dk and dv, three lists.

    The gradients come back by the same two exchanges: what is done to k before the first, a norm say, has its own backward pass
    after the last.

    >>> x = np.zeros((1, 1, 1, 1))
    >>> all_to_all_attention_backward([x + 1.0], [x], [x], [x + 2.0], causal=None)[2]
    [array([[[[2.]]]])]

    Raises ValueError where the query or key heads are no multiple of the ranks, and as `ring_attention` does.
    Error bound: that of `attention_backward`. Source: Jacobs et al. 2023 (arXiv 2309.14509), section 3.1.
    """
    s = Shards.of(q_shards, k_shards, v_shards, causal=causal, order=order, segments=segments)
    shape = (*s.q[0].shape[:3], s.v[0].shape[3])
    douts = [arguments.widen(f"dout_shards[{r}]", x, shape) for r, x in enumerate(dout_shards)]
    if len(douts) != len(s.q):
        raise ValueError(f"dout_shards: got {len(douts)} shards; want {len(s.q)}, one for every rank")
    lists = {"q_shards": s.q, "k_shards": s.k, "v_shards": s.v, "dout_shards": douts}
    heads = [_to_heads(name, shards, s) for name, shards in lists.items()]
    gradients = []
    for q, k, v, dout in zip(*heads):
        out, lse = attention(q, k, v, causal=causal, mask=_mask(s), scale=scale)
        gradients.append(attention_backward(q, k, v, out, lse, dout, causal=causal, mask=_mask(s), scale=scale))
    dq, dk, dv = (_to_tokens([of_rank[name] for of_rank in gradients], s) for name in ("dq", "dk", "dv"))
    return dq, dk, dv


def _mask(s: Shards) -> Array:
    """Which tokens of the whole sequence are of one segment: (B, 1, L, L)."""
    same = (s.segments[:, :, None] == s.segments[:, None, :]) & (s.segments >= 0)[:, :, None]
    return np.asarray(same[:, None])


def _to_heads(name: str, shards: Sequence[Array], s: Shards) -> list[Array]:
    """Shards (B, H, n, D) of tokens to shards (B, H/R, R n, D) of heads, the tokens in the order of the sequence."""
    R, H = len(shards), shards[0].shape[1]
    if H % R:
        raise ValueError(f"{name}: got {H} heads for {R} ranks; want a multiple of {R}, whole heads for every rank")
    parts, _ = exchange([np.split(x.astype(np.float64), R, axis=1) for x in shards])
    return [gathered_sequence(received, s.positions) for received in parts]


def _to_tokens(heads: Sequence[Array], s: Shards) -> list[Array]:
    """The way back."""
    parts, _ = exchange([scattered_sequence(x, s.positions) for x in heads])
    return [np.concatenate(received, axis=1) for received in parts]
