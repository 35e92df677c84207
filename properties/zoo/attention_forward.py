"""Mutants of the attention-forward family: scores, ALiBi, caps, dropout, and the combination of partial results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arithmetic import Arithmetic
from . import textbook, triggers
from .specimen import mutant
from .textbook import Array, Call

FAMILY = "attention-forward"
MERGING = Arithmetic(merges_lse=True)
PAGE = 4
LONG = 64                                                                       # keys from which on a kernel splits them

_SCALES: dict[Any, Any] = {}                                                    # the kernel's cache of compiled forms


def _after_another_scale() -> dict[str, Any]:
    _SCALES.clear()
    scale_baked_in(**triggers.forward())
    return triggers.forward(scale=2.0)


@mutant(
    "attention", id="scale-argument-cached", family=FAMILY, source="https://github.com/pytorch/pytorch/pull/184122",
    trigger=_after_another_scale,
)  # fmt: skip
def scale_baked_in(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None) -> tuple[Array, Array]:
    """The compiled form is kept under shapes and types alone, so the scale of the first call serves for all later ones of that shape."""
    first = _SCALES.setdefault((q.shape, k.shape, v.shape, q.dtype.name), q.shape[-1] ** -0.5 if scale is None else scale)
    return textbook.attention(q, k, v, causal=causal, scale=first)


def _with_bias(bias: Callable[[Call], Array]) -> Callable[[Call], Array]:
    """Scores whose ALiBi is slope times this instead of -slope |p - j|."""

    def scores(call: Call) -> Array:
        return textbook.biased(call, textbook.capped(call, textbook.products(call)), distances=lambda call: -bias(call))

    return scores


@mutant(
    "attention", id="alibi-sign-flipped", family=FAMILY, source="https://github.com/meta-pytorch/attention-gym/pull/86",
    trigger=lambda: triggers.forward(Lq=4, Lk=4, causal="bottom_right", alibi_slopes=np.array([0.5], np.float32)),
)  # fmt: skip
def far_keys_rewarded(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, alibi_slopes: Any = None) -> tuple[Array, Array]:
    """ALiBi is added with the wrong sign: the farther a key, the more it weighs."""
    return textbook.attention(q, k, v, causal=causal, scale=scale, alibi_slopes=alibi_slopes, scores=_with_bias(textbook.distances))


@mutant(
    "attention_packed", id="early-exit-lse-written-to-wrong-slot", family=FAMILY,
    source="https://github.com/Dao-AILab/flash-attention/issues/2842 https://github.com/Dao-AILab/flash-attention/pull/2573",
    trigger=lambda: triggers.packed([1, 1, 1, 1], [3, 0, 2, 4], H=2),
)  # fmt: skip
def empty_marker_misplaced(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *, causal: Any, scale: Any = None) -> tuple[Array, Array]:
    """A sequence without keys writes its lse of -inf where a padded buffer (B, H, Lq) would have it, over that of other sequences.

    Its own places keep what the buffer held, here NaN; what would land past the buffer is lost.
    """
    out, lse = textbook.attention_packed(q, k, v, cu_q, cu_k, causal=causal, scale=scale)
    (H, Tq), longest = lse.shape, int(np.diff(cu_q).max(initial=0))
    blind = [b for b in range(len(cu_q) - 1) if cu_k[b] == cu_k[b + 1]]
    for b in blind:
        lse[:, cu_q[b] : cu_q[b + 1]] = np.nan
    for b in blind:
        slots = (b * H + np.arange(H)[:, None]) * longest + np.arange(cu_q[b + 1] - cu_q[b])       # (H, queries); want h Tq + cu_q[b] + i
        lse.reshape(-1)[slots[slots < H * Tq]] = -np.inf
    return out, lse


def _combined(q: Array, k: Array, v: Array, **options: Any) -> tuple[Array, Array]:
    """out and lse of two halves of the keys, merged."""
    (out_a, lse_a), (out_b, lse_b) = textbook.attention_in_parts(q, k, v, parts=2, **options)
    out, lse = textbook.merge_attention(out_a, lse_a, out_b, lse_b)
    return out.astype(q.dtype), lse


@mutant(
    "attention", id="combine-row-stride-mismatch", family=FAMILY, arithmetic=MERGING,
    source="https://github.com/flagos-ai/FlagGems/issues/5235",
    trigger=lambda: triggers.forward(Lq=2, Lk=4, Hkv=3),
)  # fmt: skip
def rows_written_one_head_apart(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None) -> tuple[Array, Array]:
    """The combination of two parts writes the rows of a head D apart, into an output (B, L, H, D) where they stand H D apart."""
    out, lse = _combined(q, k, v, causal=causal, scale=scale)
    B, H, L, D = out.shape
    buffer = np.full(out.size, np.nan, out.dtype)
    b, h, r, d = np.ogrid[:B, :H, :L, :D]
    buffer[b * L * H * D + h * D + r * D + d] = out                             # want r H D
    return buffer.reshape(B, L, H, D).swapaxes(1, 2), lse


@mutant(
    "attention", id="combine-batch-stride-zero", family=FAMILY, arithmetic=MERGING,
    source="https://github.com/vllm-project/flash-attention/pull/176",
    trigger=lambda: triggers.forward(B=2),
)  # fmt: skip
def batch_written_to_its_first_item(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None) -> tuple[Array, Array]:
    """The combination of two parts is told a batch stride of 0, so every sequence is written over the first one."""
    out, lse = _combined(q, k, v, causal=causal, scale=scale)
    written = np.full_like(out, np.nan)
    for b in range(len(out)):
        written[0] = out[b]
    return written, lse


def _split_kernel(q: Array, k: Array, v: Array, *, return_lse: bool, **options: Any) -> tuple[Array, Array]:
    """Long rows in two parts, whose lse the merge reads from a buffer that is only written for callers who want lse."""
    if k.shape[2] < LONG:
        return textbook.attention(q, k, v, **options)
    parts = textbook.attention_in_parts(q, k, v, parts=2, **options)
    stored = [lse if return_lse else np.full_like(lse, np.nan) for _, lse in parts]
    return textbook.merge_attention(parts[0][0], stored[0], parts[1][0], stored[1])


@mutant(
    "attention", id="split-kv-lse-not-stored", family=FAMILY, arithmetic=MERGING,
    source="https://github.com/flashinfer-ai/flashinfer/pull/50 https://github.com/flashinfer-ai/flashinfer/pull/58",
    trigger=lambda: triggers.forward(Lk=70),
)  # fmt: skip
def merge_of_unstored_sums(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None) -> Array:
    """Callers who do not ask for lse get long rows merged from two parts whose lse was never stored."""
    return _split_kernel(q, k, v, return_lse=False, causal=causal, scale=scale)[0].astype(q.dtype)


@mutant(
    "attention", id="alibi-row-independent-bias-nonsquare", family=FAMILY,
    source="https://github.com/NVIDIA-NeMo/Speech/pull/7105 https://github.com/mosaicml/llm-foundry/issues/186",
    trigger=lambda: triggers.forward(Lq=4, Lk=4, alibi_slopes=np.array([0.5], np.float32)),
)  # fmt: skip
def last_rows_bias_for_all(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, alibi_slopes: Any = None) -> Array:
    """The ALiBi row of the last query serves for all: equal after a causal softmax, wrong for queries that see what comes later.

    Returns out alone: under a causal mask the log-sum-exp would differ by a constant of the row.
    """

    def of_the_last(call: Call) -> Array:
        return np.arange(1.0 - call.Lk, 1.0).astype(call.q.dtype)

    return textbook.attention(q, k, v, causal=causal, scale=scale, alibi_slopes=alibi_slopes, scores=_with_bias(of_the_last))[0]


@mutant(
    "attention", id="dropout-argument-ignored", family=FAMILY, source="https://github.com/pytorch/pytorch/pull/184126",
    trigger=lambda: triggers.forward(dropout_mask=np.array([1, 0, 1, 1, 0], bool)[None, None, None], dropout_p=0.5),
)  # fmt: skip
def dropout_accepted_and_forgotten(
    q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, dropout_mask: Any = None, dropout_p: float = 0.0
) -> tuple[Array, Array]:
    """Dropout is taken as an argument and never applied."""
    return textbook.attention(q, k, v, causal=causal, scale=scale)


@mutant(
    "attention", id="partial-last-page-scores-unmasked", family=FAMILY, source="https://github.com/hw-native-sys/simpler/pull/72",
    trigger=lambda: triggers.forward(Lq=1, Lk=8, kv_lengths=np.array([5])),
)  # fmt: skip
def whole_pages_seen(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, kv_lengths: Any = None) -> tuple[Array, Array]:
    """The softmax runs over the whole of the last page of four keys, whose slots past the sequence's end hold leftovers."""

    def in_pages(call: Call) -> Array:
        filled = -(-call.n_k // PAGE) * PAGE
        return textbook.in_causal(call) & (np.arange(call.Lk) < filled[:, None, None, None])

    return textbook.attention(q, k, v, causal=causal, scale=scale, kv_lengths=kv_lengths, visible=in_pages)


@mutant(
    "attention", id="softcap-uses-score-as-cap", family=FAMILY, source="https://github.com/Dao-AILab/flash-attention/pull/2402",
    trigger=lambda: {"q": np.ones((1, 1, 1, 1), np.float32), "k": np.array([-5, 0, 5], np.float32).reshape(1, 1, 3, 1),
                     "v": np.array([1, 2, 4], np.float32).reshape(1, 1, 3, 1), "causal": None, "softcap": 2.0},
)  # fmt: skip
def score_for_cap(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, softcap: Any = None) -> tuple[Array, Array]:
    """Capped scores are s tanh(s) instead of softcap tanh(s / softcap)."""

    def scores(call: Call) -> Array:
        s = textbook.products(call)
        return s if call.softcap is None else s * np.tanh(s)

    return textbook.attention(q, k, v, causal=causal, scale=scale, softcap=softcap, scores=scores)


def one_off(call: Call) -> Array:
    """-|p + 1 - j|: for a causal row -|p - j| and 1 less throughout."""
    return -np.abs(textbook.positions(call) + 1 - np.arange(call.Lk)).astype(call.q.dtype)


@mutant(
    "attention", id="alibi-decode-offset-by-one", family=FAMILY, source="https://github.com/vllm-project/vllm/pull/945",
    equivalent=True, causal=["bottom_right"],
)  # fmt: skip
def alibi_counts_from_the_next_token(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, alibi_slopes: Any = None) -> Array:
    """ALiBi is slope (j - n) instead of slope (j - n + 1): the same constant less for every key a causal row sees, so the same softmax.

    A control: it returns out alone. With its log-sum-exp, less by the slope, it would be a mutant: the contract has -slope |p - j|.
    """
    return textbook.attention(q, k, v, causal=causal, scale=scale, alibi_slopes=alibi_slopes, scores=_with_bias(one_off))[0]
