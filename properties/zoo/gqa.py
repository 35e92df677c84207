"""Mutants of the gqa family: which key/value head a query head reads, and what flows back to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from . import textbook, triggers
from .specimen import mutant
from .textbook import Array, Call

FAMILY = "gqa"


@mutant(
    "attention", id="past-length-uniform-over-batch", family=FAMILY, source="https://github.com/microsoft/onnxruntime/pull/27992",
    trigger=lambda: triggers.forward(B=2, Lq=1, Lk=8, causal="bottom_right", window=(2, None), kv_lengths=np.array([3, 8])),
)  # fmt: skip
def one_past_for_the_batch(
    q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, window: Any = None, kv_lengths: Any = None
) -> tuple[Array, Array]:
    """All sequences of a batch take the longest one's number of past keys for their own, which moves windows and the causal limit."""

    def shared_past(call: Call) -> Array:
        everywhere = replace(call, n_k=np.full_like(call.n_k, call.n_k.max(initial=0)))
        return textbook.in_length(call) & textbook.in_causal(everywhere) & textbook.in_window(everywhere)

    return textbook.attention(q, k, v, causal=causal, scale=scale, window=window, kv_lengths=kv_lengths, visible=shared_past)


@mutant(
    "attention", id="gqa-tile-instead-of-repeat", family=FAMILY,
    source="https://github.com/onnx/onnx/pull/7274 https://github.com/ekzhang/jax-js/pull/180 https://github.com/apple/axlearn/pull/842",
    trigger=lambda: triggers.forward(Hkv=2, G=2),
)  # fmt: skip
def heads_tiled(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None) -> tuple[Array, Array]:
    """Key/value heads are laid out 0, 1, 0, 1 for the query heads instead of 0, 0, 1, 1."""
    return textbook.attention(q, k, v, causal=causal, scale=scale, heads=lambda x, G: np.tile(x, (1, G, 1, 1)))


@mutant(
    "attention_backward", id="gqa-grad-not-summed-over-group", family=FAMILY,
    source="https://github.com/marin-community/levanter/pull/449",
    trigger=lambda: triggers.backward(Hkv=2, G=2, Lq=3, Lk=3, D=2, Dv=2),
)  # fmt: skip
def one_head_of_the_group(
    q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, scale: Any = None
) -> dict[str, Array]:
    """dK and dV of a key/value head are those of the first query head that reads it, not the sum over all that do."""
    return textbook.attention_backward(q, k, v, out, lse, dout, causal=causal, scale=scale, summed_over_group=lambda x, G: x[:, ::G])


def _repeat_tokens(x: Array, G: int) -> Array:
    (B, L, Hkv, D) = x.shape                                                    # heads are axis 2 in this layout, and axis 1 is repeated
    return np.repeat(x, G, axis=1).reshape(B, L, Hkv * G, D)


@mutant(
    "attention", id="gqa-repeat-on-sequence-axis", family=FAMILY, layout="blhd",
    source="https://github.com/PrimeIntellect-ai/prime-rl/pull/2681",
    trigger=lambda: triggers.forward(Hkv=2, G=2, Lq=3, Lk=3, D=2, Dv=2),
)  # fmt: skip
def tokens_repeated(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None) -> tuple[Array, Array]:
    """In the layout (B, L, H, D) the key/value heads are repeated along axis 1, so that heads are made of neighbouring tokens."""
    G = q.shape[2] // k.shape[2]
    q, k, v = (x.swapaxes(1, 2) for x in (q, _repeat_tokens(k, G), _repeat_tokens(v, G)))
    out, lse = textbook.attention(q, k, v, causal=causal, scale=scale)
    return out.swapaxes(1, 2), lse
