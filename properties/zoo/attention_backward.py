"""Mutants of the attention-backward family."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import textbook, triggers
from .specimen import mutant
from .textbook import Array, Call

FAMILY = "attention-backward"
TILE = 4


@mutant(
    "attention_backward", id="sink-gradient-missing", family=FAMILY, source="https://github.com/Dao-AILab/flash-attention/issues/1973",
    trigger=lambda: triggers.backward(Lq=4, Lk=4, sinks=np.array([0.5], np.float32)),
)  # fmt: skip
def sink_learns_nothing(
    q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, scale: Any = None, sinks: Any = None
) -> dict[str, Array]:
    """The gradient of the sinks is left at 0."""
    gradients = textbook.attention_backward(q, k, v, out, lse, dout, causal=causal, scale=scale, sinks=sinks)
    return gradients if sinks is None else {**gradients, "dsinks": np.zeros_like(sinks)}


def _tail_hidden_too_late(call: Call, lse: Array) -> Array:
    """P with a last tile of TILE keys whose columns past the end are exponentiated first and multiplied by 0 afterwards."""
    p = textbook.recomputed(call, lse)
    if not call.Lk % TILE:
        return p
    past = np.exp(0.0 - np.where(np.isneginf(lse), 0, lse))[..., None]          # a key of zeros, as the tile's buffer holds
    return np.asarray(p + past * 0)


@mutant(
    "attention_backward", id="ragged-tail-score-mod-nan-grad", family=FAMILY, source="https://github.com/pytorch/pytorch/issues/153799",
    trigger=lambda: triggers.backward(Lq=5, Lk=5, causal="bottom_right",
                                      bias=(40.0 * np.arange(-5, 0, dtype=np.float32))[None, None, None]),
)  # fmt: skip
def tail_of_the_tile_overflows(
    q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, scale: Any = None, bias: Any = None, alibi_slopes: Any = None
) -> dict[str, Array]:
    """Where the last tile of keys is not full, e^(0 - lse) of its empty columns is taken and then hidden by a product with 0.

    A row whose scores are all far below 0, by a bias that falls with distance, say, makes it infinite, and inf x 0 is NaN.
    """
    return textbook.attention_backward(q, k, v, out, lse, dout, causal=causal, scale=scale, bias=bias, alibi_slopes=alibi_slopes,
                                       recomputed=_tail_hidden_too_late)  # fmt: skip


def _sign_of_the_dropped_lost(call: Call, p: Array, dp: Array, delta: Array) -> Array:
    return np.asarray(p * np.where(np.asarray(call.keep) > 0, dp - delta, delta))


@mutant(
    "attention_backward", id="softmax-jacobian-sign-condition", family=FAMILY,
    source="https://github.com/HKUSTDial/flash-sparse-attention/pull/109",
    trigger=lambda: triggers.backward(Lq=4, Lk=4, dropout_mask=np.array([1, 1, 0, 1], bool)[None, None, None], dropout_p=0.25),
)  # fmt: skip
def dropped_entries_change_sign(
    q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, scale: Any = None, dropout_mask: Any = None, dropout_p: Any = 0.0
) -> dict[str, Array]:
    """The branch for entries that dropout took gives dS = P delta, which is right for a P stored as -P, and P is stored as it is."""
    return textbook.attention_backward(q, k, v, out, lse, dout, causal=causal, scale=scale, dropout_mask=dropout_mask, dropout_p=dropout_p,
                                       score_gradient=_sign_of_the_dropped_lost)  # fmt: skip


@mutant(
    "attention_backward", id="batched-backward-wrong-only-with-batch-2", family=FAMILY,
    source="https://github.com/NVIDIA/TransformerEngine/issues/3216",
    trigger=lambda: triggers.backward(B=2),
)  # fmt: skip
def first_items_delta_for_all(
    q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, scale: Any = None
) -> dict[str, Array]:
    """delta, the row sums of dO O, of the first item of a batch serves for all items."""

    def of_the_first(dout: Array, out: Array) -> Array:
        return np.broadcast_to(textbook.row_sums(dout, out)[:1], (*dout.shape[:-1], 1))

    return textbook.attention_backward(q, k, v, out, lse, dout, causal=causal, scale=scale, row_sums=of_the_first)


@mutant(
    "attention_backward", id="dv-column-stride-from-qk-dim", family=FAMILY,
    source="https://github.com/Dao-AILab/flash-attention/issues/2552",
    trigger=lambda: triggers.backward(D=8, Dv=6),
)  # fmt: skip
def last_columns_of_dv_shifted(
    q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, scale: Any = None
) -> dict[str, Array]:
    """dV is written in chunks of gcd(32, D / 2) columns; the columns left over, where Dv is no multiple of it, land one too far."""
    gradients = textbook.attention_backward(q, k, v, out, lse, dout, causal=causal, scale=scale)
    dv, Dv = gradients["dv"], v.shape[-1]
    whole = Dv - Dv % math.gcd(32, max(q.shape[-1] // 2, 1))
    shifted = np.concatenate([dv[..., :whole], np.zeros_like(dv[..., whole : whole + 1]), dv[..., whole:-1]], axis=-1)
    return {**gradients, "dv": shifted if whole < Dv else dv}
