"""Legal variants of the context-parallel family: rings in both directions, all forms of a merge, keys gathered first, halves skipped."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arithmetic import Arithmetic
from . import textbook_shards as textbook
from .context_parallel import halves
from .specimen import variant
from .textbook_decoding import working
from .textbook_shards import Array, Call

FAMILY = "context-parallel"
Lists = tuple[list[Array], ...]
ALL: dict[str, Any] = {"causal": (None, "bottom_right", "top_left")}


def _call(q_shards: Any, k_shards: Any, v_shards: Any, **options: Any) -> Call:
    return textbook.prepared(q_shards, k_shards, v_shards, **options)


@variant("ring_attention", id="ring-textbook", family=FAMILY, dtypes=["float32", "float64", "float16", "bfloat16"], **ALL)
def as_in_the_paper(q_shards: Any, k_shards: Any, v_shards: Any, *, causal: Any, order: str = "contiguous", segments: Any = None,
                    scale: Any = None) -> Lists:  # fmt: skip
    """Keys from the rank before, parts merged by weights over their sum."""
    return textbook.ring_attention(q_shards, k_shards, v_shards, causal=causal, order=order, segments=segments, scale=scale)


@variant("ring_attention", id="ring-the-other-way", family=FAMILY, **ALL)
def the_other_way(q_shards: Any, k_shards: Any, v_shards: Any, *, causal: Any, order: str = "contiguous", segments: Any = None,
                  scale: Any = None) -> Lists:  # fmt: skip
    """Keys from the rank behind."""
    call = _call(q_shards, k_shards, v_shards, causal=causal, order=order, segments=segments, scale=scale)
    return textbook.rounded(*textbook.ring(call, source=lambda r, t, R: (r + t) % R), q_shards[0])


def _by_a_sigmoid(out: Array, lse: Array, out_b: Array, lse_b: Array) -> tuple[Array, Array]:
    """out - sigmoid(lse_b - lse) (out - out_b), lse - ln sigmoid(lse - lse_b); a part that saw nothing is left out."""
    with np.errstate(invalid="ignore", over="ignore"):
        share = 1 / (1 + np.exp(lse - lse_b))
        both = lse + np.where(lse_b > lse, (lse_b - lse) + np.log1p(np.exp(lse - lse_b)), np.log1p(np.exp(lse_b - lse)))
    merged = out - np.nan_to_num(share)[..., None] * (out - out_b)
    nothing, first = np.isneginf(lse_b), np.isneginf(lse)
    out = np.where(nothing[..., None], out, np.where(first[..., None], out_b, merged))
    return out, np.where(nothing, lse, np.where(first, lse_b, both))


@variant("ring_attention", id="ring-sigmoid-merge", family=FAMILY, source="https://github.com/zhuzilin/ring-flash-attention/pull/34",
         arithmetic=Arithmetic(merges_lse=True), **ALL)
def merged_by_a_sigmoid(q_shards: Any, k_shards: Any, v_shards: Any, *, causal: Any, order: str = "contiguous", segments: Any = None,
                        scale: Any = None) -> Lists:  # fmt: skip
    """Parts merged by the sigmoid of the difference of their log-sum-exps."""
    call = _call(q_shards, k_shards, v_shards, causal=causal, order=order, segments=segments, scale=scale)
    return textbook.rounded(*textbook.ring(call, merge=_by_a_sigmoid), q_shards[0])


@variant("ring_attention", id="ring-unnormalised", family=FAMILY, source="https://arxiv.org/abs/2310.01889", **ALL)
def divided_at_the_end(q_shards: Any, k_shards: Any, v_shards: Any, *, causal: Any, order: str = "contiguous", segments: Any = None,
                       scale: Any = None) -> Lists:  # fmt: skip
    """Numerator, row sum and maximum go on from part to part, and are divided once at the end."""
    call = _call(q_shards, k_shards, v_shards, causal=causal, order=order, segments=segments, scale=scale)
    outs, lses = [], []
    for i, q in enumerate(call.q):
        m, l = np.full((*q.shape[:3], 1), -np.inf, q.dtype), np.zeros((*q.shape[:3], 1), q.dtype)
        o = np.zeros((*q.shape[:3], call.v[0].shape[3]), q.dtype)
        for t in range(call.R if q.shape[2] else 0):
            j = (i - t) % call.R
            s = np.where(textbook.visible(call, i, j), q.dtype.type(call.scale) * (q @ call.k[j].swapaxes(-1, -2)), -np.inf).astype(q.dtype)
            new = np.maximum(m, s.max(axis=-1, keepdims=True))
            shift = np.where(np.isneginf(new), 0, new)
            e, alpha = np.exp(s - shift), np.exp(m - shift)
            l, o, m = l * alpha + e.sum(axis=-1, keepdims=True, dtype=q.dtype), o * alpha + e @ call.v[j], new
        with np.errstate(divide="ignore"):
            lses.append((m + np.log(l))[..., 0])
        outs.append(o / np.where(l == 0, 1, l))
    return textbook.rounded(outs, lses, q_shards[0])


def _gathered(call: Call, i: int) -> tuple[Array, Array, Array]:
    """All keys and values on one rank, and which of them its queries see."""
    seen = np.concatenate([textbook.visible(call, i, j) for j in range(call.R)], axis=-1)
    return np.concatenate(call.k, axis=2), np.concatenate(call.v, axis=2), seen


@variant("ring_attention", id="keys-gathered-first", family=FAMILY, source="https://arxiv.org/abs/2407.21783",
         dtypes=["float32", "float64", "float16", "bfloat16"], **ALL)
def keys_gathered(q_shards: Any, k_shards: Any, v_shards: Any, *, causal: Any, order: str = "contiguous", segments: Any = None,
                  scale: Any = None) -> Lists:  # fmt: skip
    """All keys and values on every rank, one softmax a row: no merge."""
    call = _call(q_shards, k_shards, v_shards, causal=causal, order=order, segments=segments, scale=scale)
    parts = [textbook.part(q, *_gathered(call, i), call.scale) for i, q in enumerate(call.q)]
    return textbook.rounded([out for out, _ in parts], [lse for _, lse in parts], q_shards[0])


@variant("ring_attention", id="ring-halves-under-a-causal-mask", family=FAMILY, only={"order": ["zigzag"]},
         source="https://github.com/zhuzilin/ring-flash-attention/issues/2", **ALL)
def halves_where_they_are_all(q_shards: Any, k_shards: Any, v_shards: Any, *, causal: Any, order: str = "zigzag", segments: Any = None,
                              scale: Any = None) -> Lists:  # fmt: skip
    """Zig-zag order alone; under a causal mask only the halves of queries or keys that see each other are looked at."""
    call = _call(q_shards, k_shards, v_shards, causal=causal, order=order, segments=segments, scale=scale)
    return textbook.rounded(*textbook.ring(call, seen=halves if call.causal else textbook.visible), q_shards[0])


@variant("ring_attention", id="parts-merged-at-once", family=FAMILY, **ALL)
def merged_at_once(q_shards: Any, k_shards: Any, v_shards: Any, *, causal: Any, order: str = "contiguous", segments: Any = None,
                   scale: Any = None) -> Lists:  # fmt: skip
    """All parts first, then one softmax over their log-sum-exps."""
    call = _call(q_shards, k_shards, v_shards, causal=causal, order=order, segments=segments, scale=scale)
    outs, lses = [], []
    for i, q in enumerate(call.q):
        parts = [textbook.part(q, call.k[j], call.v[j], textbook.visible(call, i, j), call.scale) for j in range(call.R)]
        lse = np.stack([one for _, one in parts])
        m = lse.max(axis=0)
        w = np.exp(lse - np.where(np.isneginf(m), 0, m))
        l = w.sum(axis=0, dtype=q.dtype)
        outs.append(sum((w[j] / np.where(l == 0, 1, l))[..., None] * out for j, (out, _) in enumerate(parts)))
        with np.errstate(divide="ignore"):
            lses.append(np.where(np.isneginf(m), m, m + np.log(l)))
    return textbook.rounded([np.asarray(out) for out in outs], lses, q_shards[0])


@variant("ring_attention", id="ring-on-tensor-cores", family=FAMILY, dtypes=["bfloat16", "float16"],
         arithmetic=Arithmetic(probabilities="input"), **ALL)
def with_narrow_weights(q_shards: Any, k_shards: Any, v_shards: Any, *, causal: Any, order: str = "contiguous", segments: Any = None,
                        scale: Any = None) -> Lists:  # fmt: skip
    """e^(s - m) is rounded to 16 bits before it meets the values, in every part; parts stay in float32."""
    narrow = q_shards[0].dtype

    def part(q: Array, k: Array, v: Array, seen: Array, factor: float) -> tuple[Array, Array]:
        if k.shape[2] == 0:
            return textbook.part(q, k, v, seen, factor)
        s = np.where(seen, q.dtype.type(factor) * (q @ k.swapaxes(-1, -2)), -np.inf).astype(q.dtype)
        m = s.max(axis=-1, keepdims=True)
        e = np.exp(s - np.where(np.isneginf(m), 0, m))
        l = e.sum(axis=-1, keepdims=True, dtype=q.dtype)
        out = e.astype(narrow).astype(q.dtype) @ v / np.where(l == 0, 1, l)
        with np.errstate(divide="ignore"):
            return out, np.where(np.isneginf(m), m, m + np.log(l))[..., 0]

    call = _call(q_shards, k_shards, v_shards, causal=causal, order=order, segments=segments, scale=scale)
    return textbook.rounded(*textbook.ring(call, part=part), q_shards[0])


# Backward ----------------------------------------------------------------------------------------------------------------


@variant("ring_attention_backward", id="ring-backward-textbook", family=FAMILY, dtypes=["float32", "float64", "float16", "bfloat16"], **ALL)
def backward_as_in_the_paper(q_shards: Any, k_shards: Any, v_shards: Any, dout_shards: Any, *, causal: Any, order: str = "contiguous",
                             segments: Any = None, scale: Any = None) -> Lists:  # fmt: skip
    """Gradients of keys and values go round with them."""
    return textbook.ring_attention_backward(q_shards, k_shards, v_shards, dout_shards, causal=causal, order=order, segments=segments,
                                            scale=scale)  # fmt: skip


@variant("ring_attention_backward", id="ring-backward-the-other-way", family=FAMILY, **ALL)
def backward_the_other_way(q_shards: Any, k_shards: Any, v_shards: Any, dout_shards: Any, *, causal: Any, order: str = "contiguous",
                           segments: Any = None, scale: Any = None) -> Lists:  # fmt: skip
    """Keys from the rank behind: every sum in another order."""
    call = _call(q_shards, k_shards, v_shards, causal=causal, order=order, segments=segments, scale=scale)
    return textbook.returned(call, textbook.ring_gradients(call, dout_shards, source=lambda r, t, R: (r + t) % R), q_shards[0])


@variant("ring_attention_backward", id="gradients-of-gathered-keys", family=FAMILY, **ALL)
def gradients_of_gathered_keys(q_shards: Any, k_shards: Any, v_shards: Any, dout_shards: Any, *, causal: Any, order: str = "contiguous",
                               segments: Any = None, scale: Any = None) -> Lists:  # fmt: skip
    """All keys on every rank, delta from P and dP, then the gradients of keys and values are summed over the ranks."""
    call = _call(q_shards, k_shards, v_shards, causal=causal, order=order, segments=segments, scale=scale)
    n, dq = call.q[0].shape[2], []
    dk, dv = (np.zeros_like(np.concatenate(shards, axis=2)) for shards in (call.k, call.v))
    for i, q in enumerate(call.q):
        k, v, seen = _gathered(call, i)
        dout, f = working(dout_shards[i]), q.dtype.type
        s = np.where(seen, f(call.scale) * (q @ k.swapaxes(-1, -2)), -np.inf).astype(q.dtype)
        m = s.max(axis=-1, keepdims=True, initial=-np.inf)
        e = np.exp(s - np.where(np.isneginf(m), 0, m))
        l = e.sum(axis=-1, keepdims=True, dtype=q.dtype)
        p, dp = e / np.where(l == 0, 1, l), dout @ v.swapaxes(-1, -2)
        ds = p * (dp - (p * dp).sum(axis=-1, keepdims=True, dtype=q.dtype)) * f(call.scale)
        dq.append(ds @ k)
        dk, dv = dk + ds.swapaxes(-1, -2) @ q, dv + p.swapaxes(-1, -2) @ dout
    parts = [[x[:, :, j * n : (j + 1) * n] for j in range(call.R)] for x in (dk, dv)]
    return textbook.returned(call, (dq, parts[0], parts[1]), q_shards[0])


# A cache over ranks, and a norm before an all-to-all ---------------------------------------------------------------------


@variant("sharded_cache_attention", id="cache-textbook", family=FAMILY, dtypes=["float32", "float64", "float16", "bfloat16"])
def each_rank_its_own(q: Any, k_shards: Any, v_shards: Any, indices: Any, *, interleave: int, scale: Any = None) -> tuple[Array, Array]:
    """Each rank over its own tokens."""
    return textbook.sharded_cache_attention(q, k_shards, v_shards, indices, interleave=interleave, scale=scale)


@variant("sharded_cache_attention", id="cache-gathered-first", family=FAMILY)
def cache_gathered(q: Any, k_shards: Any, v_shards: Any, indices: Any, *, interleave: int, scale: Any = None) -> tuple[Array, Array]:
    """The chosen tokens are brought to one rank, in the order of the indices."""
    R, (B, Hq, D) = len(k_shards), q.shape
    outs = np.zeros((B, Hq, v_shards[0].shape[3]), working(q).dtype)
    lses = np.full((B, Hq), -np.inf, working(q).dtype)
    for b in range(B):
        asked = indices[b][indices[b] >= 0]
        rank, place = asked // interleave % R, asked // (interleave * R) * interleave + asked % interleave
        k, v = (np.stack([working(shards[r])[b, :, at] for r, at in zip(rank, place)], axis=1) if len(asked) else
                np.zeros((shards[0].shape[1], 0, shards[0].shape[3]), working(q).dtype) for shards in (k_shards, v_shards))  # fmt: skip
        k, v = (np.repeat(x, Hq // x.shape[0], axis=0)[None] for x in (k, v))
        out, lse = textbook.part(working(q)[b : b + 1, :, None], k, v, np.ones((1, 1, 1, len(asked)), dtype=bool),
                                 D**-0.5 if scale is None else float(scale))  # fmt: skip
        outs[b], lses[b] = out[0, :, 0], lse[0, :, 0]
    return outs.astype(q.dtype), lses


@variant("exchanged_norm_backward", id="exchanged-norm-textbook", family=FAMILY, dtypes=["float32", "float64", "float16", "bfloat16"])
def exchange_then_norm(dy_shards: Any, x_shards: Any, weight: Any, *, eps: float = 1e-6) -> tuple[list[Array], Array]:
    """First the exchange, then the norm."""
    return textbook.exchanged_norm_backward(dy_shards, x_shards, weight, eps=eps)


@variant("exchanged_norm_backward", id="norm-of-gathered-tokens", family=FAMILY)
def norm_of_all_tokens(dy_shards: Any, x_shards: Any, weight: Any, *, eps: float = 1e-6) -> tuple[list[Array], Array]:
    """All heads and tokens in one array, whose norm is differentiated at once and cut again."""
    dy, x = np.concatenate([working(one) for one in dy_shards], axis=1), np.concatenate([working(one) for one in x_shards], axis=2)
    dx, terms = textbook.norm_backward(dy, x, working(weight), eps)
    total = terms.reshape(-1, x.shape[-1]).sum(axis=0, dtype=x.dtype)
    return [part.astype(weight.dtype) for part in np.split(dx, len(x_shards), axis=2)], total.astype(weight.dtype)
