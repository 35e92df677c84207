"""Legal variants of attention's forward pass: tiles, orders, splits, powers, and where each rounding happens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..arithmetic import Arithmetic
from . import textbook
from . import variants_steps as steps
from .specimen import variant
from .textbook import Array, Call
from .variants_steps import BINARY, Steps, kernel, online

FAMILY = "attention-forward"
SPLIT = Arithmetic(merges_lse=True)
EVERY_ALIGNMENT = (None, "bottom_right", "top_left")


# Tiles and their order ---------------------------------------------------------------------------------------------------

tiles_of_16 = variant("attention", id="tiles-of-16", family=FAMILY, causal=EVERY_ALIGNMENT, promises=("deterministic",))(
    kernel(Steps(tile=16), "Online softmax over tiles of 16 keys, the first one first.")
)  # fmt: skip
tiles_of_64_backwards = variant("attention", id="tiles-of-64-backwards", family=FAMILY, causal=EVERY_ALIGNMENT)(
    kernel(Steps(tile=64, order=steps.backwards), "Tiles of 64 keys, the last one first, which for causal rows rarely moves the maximum.")
)  # fmt: skip
tiles_of_32_interleaved = variant("attention", id="tiles-of-32-interleaved", family=FAMILY)(
    kernel(Steps(tile=32, order=steps.interleaved), "Tiles of 32 keys, the even ones before the odd ones.")
)  # fmt: skip
tiles_of_128_from_the_middle = variant("attention", id="tiles-of-128-from-the-middle", family=FAMILY)(
    kernel(Steps(tile=128, order=steps.from_the_middle), "Tiles of 128 keys, those of the second half before those of the first.")
)  # fmt: skip
tiles_of_48 = variant("attention", id="tiles-of-48", family=FAMILY)(
    kernel(Steps(tile=48, row_sum=steps.sum_in_lanes), "Tiles of 48 keys, no power of two, whose row sums are taken in eight lanes.")
)  # fmt: skip
tiles_of_8 = variant("attention", id="tiles-of-8", family=FAMILY, arithmetic=Arithmetic(tile_min=8))(
    kernel(Steps(tile=8), "Tiles of 8 keys: twice the rescalings of what is usual, and declared.")
)  # fmt: skip
key_by_key = variant("attention", id="key-by-key", family=FAMILY, arithmetic=Arithmetic(tile_min=1))(
    kernel(Steps(tile=1), "Every key is a tile of its own, as in a scalar decoding loop.")
)  # fmt: skip
sink_after_the_keys = variant("attention", id="sink-after-the-keys", family=FAMILY)(
    kernel(Steps(tile=32, sink_last=True), "The sinks enter the running sum after the last tile instead of before the first.")
)  # fmt: skip

# Keys split over workers, merged through the log-sum-exp -----------------------------------------------------------------

in_2_parts = variant("attention", id="split-2", family=FAMILY, arithmetic=SPLIT)(
    kernel(Steps(tile=16, parts=2), "The keys in 2 parts, merged through their log-sum-exp.")
)  # fmt: skip
in_3_parts = variant("attention", id="split-3", family=FAMILY, arithmetic=SPLIT)(
    kernel(Steps(tile=32, parts=3, order=steps.backwards), "The keys in 3 parts of tiles of 32, each from its last tile to its first.")
)  # fmt: skip
in_4_parts = variant("attention", id="split-4-base-2", family=FAMILY, arithmetic=SPLIT)(
    kernel(Steps(tile=16, parts=4, base=BINARY), "The keys in 4 parts, powers of 2 inside each, natural logarithms between them.")
)  # fmt: skip
in_5_parts = variant("attention", id="split-5", family=FAMILY, arithmetic=SPLIT)(
    kernel(Steps(tile=16, parts=5, finish=steps.by_reciprocal), "The keys in 5 parts, each normalised by a reciprocal before the merge.")
)  # fmt: skip
in_6_parts = variant("attention", id="split-6-strided", family=FAMILY, arithmetic=SPLIT)(
    kernel(Steps(tile=16, parts=6, order=steps.interleaved), "The keys in 6 parts, none of them one stretch: even tiles, then odd ones.")
)  # fmt: skip
in_7_parts = variant("attention", id="split-7-sequential", family=FAMILY, arithmetic=SPLIT)(
    kernel(Steps(tile=16, parts=7, row_sum=steps.sequential_sum), "The keys in 7 parts, most of them empty for short rows.")
)  # fmt: skip

# Powers, scales, sums, products ------------------------------------------------------------------------------------------


def _folded(call: Call) -> Array:
    """Scores of base 2 from one factor scale log2 e; what is added afterwards is multiplied by log2 e alone."""
    number, log2e = call.q.dtype.type, steps.LOG2E
    if call.softcap is None:
        s = (call.q @ call.k.swapaxes(-1, -2)) * number(call.scale * log2e)
    else:
        s = textbook.capped(call, textbook.products(call)) * number(log2e)
    s = s if call.bias is None else s + call.bias * number(log2e)
    return s if call.alibi_slopes is None else np.asarray(s - (call.alibi_slopes[:, None, None] * number(log2e)) * textbook.distances(call))


@variant("attention", id="scale-times-log2e-folded", family=FAMILY, source="Dao 2023 (arXiv 2307.08691)")
def scale_and_log2e_in_one(q: Any, k: Any, v: Any, *, causal: Any, **options: Any) -> tuple[Array, Array]:
    """scale log2 e is one rounded factor of the product, and powers of 2 are taken."""
    sinks = options.pop("sinks", None)
    if sinks is not None:
        options["sinks"] = sinks.astype(textbook.working(q)) * textbook.working(q)(steps.LOG2E)
    return online(Steps(tile=64, scores=_folded, base=replace(BINARY, scores_come_scaled=True)), q, k, v, causal=causal, **options)


base_2 = variant("attention", id="base-2", family=FAMILY, causal=EVERY_ALIGNMENT)(
    kernel(Steps(tile=64, base=BINARY), "Scores are multiplied by log2 e and powers of 2 taken; the log-sum-exp is turned back in the end.")
)  # fmt: skip
q_scaled_first = variant("attention", id="q-scaled-first", family=FAMILY)(
    kernel(Steps(tile=64, scores=steps.scores_of_scaled_q()), "q is multiplied by scale before the product with k, in the working type.")
)  # fmt: skip


def _half_on_each(call: Call) -> Array:
    """The product of q and k, each multiplied by the root of the scale."""
    root = call.q.dtype.type(call.scale**0.5)
    return np.asarray((call.q * root) @ (call.k * root).swapaxes(-1, -2))


half_the_scale_on_each = variant("attention", id="root-of-scale-on-q-and-k", family=FAMILY, refuses=("negative_scale",))(
    kernel(Steps(tile=32, scores=lambda call: textbook.biased(call, textbook.capped(call, _half_on_each(call)))),
           "q and k are both multiplied by the root of the scale, which keeps 16-bit products small.")
)  # fmt: skip
sequential_sums = variant("attention", id="sequential-sums", family=FAMILY)(
    kernel(Steps(tile=64, row_sum=steps.sequential_sum), "Row sums are added one term after another.")
)  # fmt: skip
reversed_sums = variant("attention", id="reversed-sums", family=FAMILY)(
    kernel(Steps(tile=64, row_sum=steps.reversed_sum, product=steps.transposed_product),
           "Row sums are added from the last term, and P V is taken as the transpose of V^T P^T.")
)  # fmt: skip
fused = variant("attention", id="fused-multiply-adds", family=FAMILY, dtypes=["float32"])(
    kernel(Steps(tile=64, scores=steps.scores_by(steps.fused_product), product=steps.fused_product),
           "Both products are chains of fused multiply-adds, in the order of the terms.")
)  # fmt: skip
last_term_first = variant("attention", id="products-from-the-last-term", family=FAMILY, dtypes=["float32"])(
    kernel(Steps(tile=32, scores=steps.scores_by(steps.backward_product), product=steps.backward_product),
           "Both products are added from their last term, products and sums rounded apart.")
)  # fmt: skip
truncating = variant("attention", id="truncating-accumulation", family=FAMILY, dtypes=["float32"], arithmetic=Arithmetic(truncating=True))(
    kernel(Steps(tile=64, scores=steps.scores_by(steps.truncating_product), product=steps.truncating_product),
           "Both products are accumulated in blocks of 8 that are cut off instead of rounded.")
)  # fmt: skip
reciprocal = variant("attention", id="reciprocal-of-the-row-sum", family=FAMILY, arithmetic=Arithmetic())(
    kernel(Steps(tile=32, finish=steps.by_reciprocal), "The output is multiplied by the reciprocal of the row sum, one division a row.")
)  # fmt: skip
lazy = variant(
    "attention", id="lazy-rescaling", family=FAMILY, arithmetic=Arithmetic(exp_ulps=16.0), source="https://github.com/Dao-AILab/flash-attention",
)(
    kernel(Steps(tile=16, rise=8.0), "The maximum follows only when a score passes it by more than 8, so weights reach e^8; declared as an "
                                     "exponential that is worse by 8 roundings, since that is what the longer difference may cost.")
)  # fmt: skip
flushing = variant("attention", id="flush-to-zero", family=FAMILY, dtypes=["float32"], arithmetic=Arithmetic(flush_to_zero=True))(
    kernel(Steps(tile=64, stored=steps.flushed, summed=steps.flushed, scores=steps.scores_by(np.matmul, steps.flushed),
                 finish=lambda acc, l: steps.flushed(steps.flushed(acc) / l)),
           "Subnormal scores, weights and outputs become zero.")
)  # fmt: skip


# The whole row at once ---------------------------------------------------------------------------------------------------


@variant("attention", id="p-normalised-before-pv", family=FAMILY, causal=EVERY_ALIGNMENT, promises=("deterministic",))
def weights_first(q: Any, k: Any, v: Any, *, causal: Any, **options: Any) -> tuple[Array, Array]:
    """The textbook: a softmax over whole rows, then its product with V."""
    return textbook.attention(q, k, v, causal=causal, **options)


def _normalised_each_step(call: Call, s: Array, tile: int) -> tuple[Array, Array]:
    number, shape = s.dtype.type, (*s.shape[:3], 1)
    m, l, out = np.full(shape, -np.inf, s.dtype), np.zeros(shape, s.dtype), np.zeros((*s.shape[:3], call.v.shape[-1]), s.dtype)
    keep = np.broadcast_to(np.asarray(call.keep, s.dtype), s.shape)
    for start in range(0, call.Lk, tile):
        keys = slice(start, start + tile)
        m_new = np.maximum(m, s[..., keys].max(axis=-1, keepdims=True))
        shift = np.where(np.isneginf(m_new), 0, m_new)
        p, alpha = np.exp(s[..., keys] - shift), np.exp(m - shift)
        l_new = l * alpha + p.sum(axis=-1, keepdims=True)
        safe = np.where(l_new == 0, 1, l_new).astype(number)
        out = out * (l * alpha / safe) + (p * keep[..., keys]) @ call.v[..., keys, :] / safe
        m, l = m_new, l_new
    return out, (np.where(np.isneginf(m), 0, m) + np.log(l))[..., 0]


@variant("attention", id="normalised-in-every-step", family=FAMILY, arithmetic=SPLIT,
         source="Dao et al. 2022 (arXiv 2205.14135), algorithm 1")  # fmt: skip
def normalised_in_every_step(
    q: Any, k: Any, v: Any, *, causal: Any, window: Any = None, scale: Any = None, softcap: Any = None, bias: Any = None, mask: Any = None,
    kv_lengths: Any = None, alibi_slopes: Any = None, dropout_mask: Any = None, dropout_p: Any = 0.0,
) -> tuple[Array, Array]:  # fmt: skip
    """FlashAttention-1: the accumulator is kept divided by the running sum, which makes each step a merge of parts, and is declared so."""
    with np.errstate(all="ignore"):
        call = textbook.prepared(q, k, v, causal=causal, window=window, scale=scale, softcap=softcap, bias=bias, mask=mask,
                                 kv_lengths=kv_lengths, alibi_slopes=alibi_slopes, dropout_mask=dropout_mask, dropout_p=dropout_p)
        s = np.where(textbook.visible(call), textbook.scores(call), -np.inf).astype(call.q.dtype)
        out, lse = _normalised_each_step(call, s, 32)
        return out.astype(q.dtype), lse


@variant("attention", id="float64-inside", family=FAMILY)
def in_float64(q: Any, k: Any, v: Any, *, causal: Any, **options: Any) -> tuple[Array, Array]:
    """Computed in float64 whatever comes in, results rounded once."""
    out, lse = textbook.attention(q.astype(np.float64), k.astype(np.float64), v.astype(np.float64), causal=causal, **options)
    return out.astype(q.dtype), lse.astype(textbook.working(q))


@variant("attention", id="float64-only", family=FAMILY, dtypes=["float64"], promises=("deterministic",))
def float64_alone(q: Any, k: Any, v: Any, *, causal: Any, **options: Any) -> tuple[Array, Array]:
    """Takes float64 alone."""
    return online(Steps(tile=64), q, k, v, causal=causal, **options)


@variant("attention", id="out-only", family=FAMILY)
def out_alone(q: Any, k: Any, v: Any, *, causal: Any, **options: Any) -> Array:
    """Returns the output and keeps its log-sum-exp to itself."""
    return online(Steps(tile=32), q, k, v, causal=causal, **options)[0]


@variant("attention", id="into-buffers", family=FAMILY, buffers=("out", "lse"))
def into_buffers(q: Any, k: Any, v: Any, *, causal: Any, out: Any, lse: Any, scale: Any = None, window: Any = None) -> None:
    """Accumulates into the output buffer itself, tile after tile, and divides it in place."""
    with np.errstate(all="ignore"):
        call = textbook.prepared(q, k, v, causal=causal, scale=scale, window=window)
        s = np.where(textbook.visible(call), textbook.scores(call), -np.inf).astype(call.q.dtype)
        m, l = np.full((*s.shape[:3], 1), -np.inf, s.dtype), np.zeros((*s.shape[:3], 1), s.dtype)
        out[...] = 0
        for start in range(0, call.Lk, 32):
            x = s[..., start : start + 32]
            m_new = np.maximum(m, x.max(axis=-1, keepdims=True))
            shift = np.where(np.isneginf(m_new), 0, m_new)
            p = np.exp(x - shift)
            alpha = np.exp(m - shift)
            l *= alpha
            l += p.sum(axis=-1, keepdims=True)
            out *= alpha
            out += p @ call.v[..., start : start + 32, :]
            m = m_new
        out /= np.where(l == 0, 1, l)
        lse[...] = (np.where(np.isneginf(m), 0, m) + np.log(l))[..., 0]


@variant("attention", id="row-by-row", family=FAMILY, promises=("deterministic", "batch_invariant"), refuses=("empty",))
def row_by_row(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, softcap: Any = None) -> tuple[Array, Array]:
    """Every head of every item is a call of its own, as a grid of blocks is: no row knows what else is in the batch."""
    out, lse = np.empty((*q.shape[:3], v.shape[-1]), q.dtype), np.empty(q.shape[:3], textbook.working(q))
    G = q.shape[1] // k.shape[1]
    for b, h in np.ndindex(q.shape[:2]):
        one = (np.ascontiguousarray(x[b, head])[None, None] for x, head in ((q, h), (k, h // G), (v, h // G)))
        o, l = textbook.attention(*one, causal=causal, scale=scale, softcap=softcap)
        out[b, h], lse[b, h] = o[0, 0], l[0, 0]
    return out, lse


@variant("attention", id="head-sizes-64-and-128", family=FAMILY, head_dims=[64, 128], refuses=("value_dim", "cross_lengths", "empty"),
         causal=["bottom_right"])  # fmt: skip
def head_sizes_of_a_compiled_kernel(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None) -> tuple[Array, Array]:
    """Compiled for two head sizes, self-attention and causal masks alone, and refuses all else."""
    if q.shape[-1] not in (64, 128) or causal != "bottom_right":
        raise NotImplementedError(f"q: got head size {q.shape[-1]}, causal {causal}; want 64 or 128, bottom_right")
    return online(Steps(tile=64), q, k, v, causal=causal, scale=scale)
