"""Legal variants of grouped heads and layouts: how a query head gets to its keys, and their gradient back."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arithmetic import Arithmetic
from . import textbook
from . import variants_steps as steps
from .specimen import variant
from .textbook import Array
from .variants_steps import Steps, online

FAMILY = "gqa"
EVERY_ALIGNMENT = (None, "bottom_right", "top_left")


@variant("attention", id="gqa-repeated", family=FAMILY, causal=EVERY_ALIGNMENT)
def heads_repeated(q: Any, k: Any, v: Any, *, causal: Any, **options: Any) -> tuple[Array, Array]:
    """Key/value heads are copied for every query head that reads them."""
    G = q.shape[1] // k.shape[1]
    return textbook.attention(q, np.repeat(k, G, axis=1), np.repeat(v, G, axis=1), causal=causal, **options)


@variant("attention", id="gqa-grouped-rows", family=FAMILY)
def rows_of_a_group_together(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, softcap: Any = None) -> tuple[Array, Array]:
    """The query heads of a group are rows of one product with their key head: (B, Hkv, G Lq, D)."""
    with np.errstate(all="ignore"):
        (B, Hq, Lq, D), Hkv = q.shape, k.shape[1]
        call = textbook.prepared(q[:, :Hkv], k, v, causal=causal, scale=scale, softcap=softcap)
        rows = q.astype(call.q.dtype).reshape(B, Hkv, Hq // Hkv * Lq, D)
        s = textbook.capped(call, call.q.dtype.type(call.scale) * (rows @ call.k.swapaxes(-1, -2))).reshape(B, Hkv, Hq // Hkv, Lq, call.Lk)
        seen = textbook.visible(call)[:, :, None]                               # (B, 1, 1, Lq, Lk)
        p, lse = _softmax(np.where(seen, s, -np.inf).astype(s.dtype))
        out = p.reshape(B, Hkv, Hq // Hkv * Lq, call.Lk) @ call.v
        return out.reshape(B, Hq, Lq, v.shape[-1]).astype(q.dtype), lse.reshape(B, Hq, Lq)


def _softmax(x: Array) -> tuple[Array, Array]:
    m = x.max(axis=-1, keepdims=True, initial=-np.inf)
    shift = np.where(np.isneginf(m), 0, m).astype(x.dtype)
    e = np.exp(x - shift)
    l = e.sum(axis=-1, keepdims=True)
    return e / np.where(l == 0, 1, l).astype(x.dtype), (shift + np.log(l))[..., 0]


@variant("attention", id="gqa-einsum-over-groups", family=FAMILY)
def einsum_over_groups(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None) -> tuple[Array, Array]:
    """q as (B, Hkv, G, Lq, D), keys shared by broadcasting in einsum."""
    with np.errstate(all="ignore"):
        (B, Hq, Lq, D), Hkv = q.shape, k.shape[1]
        call = textbook.prepared(q[:, :Hkv], k, v, causal=causal, scale=scale)
        heads = q.astype(call.q.dtype).reshape(B, Hkv, Hq // Hkv, Lq, D)
        s = np.einsum("bhgqd,bhkd->bhgqk", heads, call.k) * call.q.dtype.type(call.scale)
        p, lse = _softmax(np.where(textbook.visible(call)[:, :, None], s, -np.inf).astype(s.dtype))
        out = np.einsum("bhgqk,bhkd->bhgqd", p, call.v)
        return out.reshape(B, Hq, Lq, v.shape[-1]).astype(q.dtype), lse.reshape(B, Hq, Lq)


@variant("attention", id="gqa-interleaved-heads", family=FAMILY, conventions={"head_map": "interleaved"})
def heads_interleaved(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, sinks: Any = None) -> tuple[Array, Array]:
    """Query head h reads key/value head h % Hkv, and declared so."""
    tiled = Steps(tile=32, heads=lambda x, G: np.tile(x, (1, G, 1, 1)))
    return online(tiled, q, k, v, causal=causal, scale=scale, sinks=sinks)


@variant("attention", id="layout-blhd", family=FAMILY, layout="blhd", causal=EVERY_ALIGNMENT)
def layout_blhd(q: Any, k: Any, v: Any, *, causal: Any, **options: Any) -> tuple[Array, Array]:
    """Axes in the order (B, L, H, D), as views of the other order inside."""
    out, lse = online(Steps(tile=64), *(x.swapaxes(1, 2) for x in (q, k, v)), causal=causal, **options)
    return out.swapaxes(1, 2), lse


@variant("attention", id="layout-blhd-bfloat16", family=FAMILY, layout="blhd", dtypes=["bfloat16"], causal=["bottom_right"],
         arithmetic=Arithmetic(probabilities="input"), refuses=("value_dim",))  # fmt: skip
def layout_blhd_of_a_model(q: Any, k: Any, v: Any, *, causal: Any, window: Any = None, softcap: Any = None) -> tuple[Array, Array]:
    """(B, L, H, D) in bfloat16, causal alone, P in bfloat16: what a model's decoder calls."""
    tiled = Steps(tile=64, stored=steps.in_format("bfloat16"))
    out, lse = online(tiled, *(x.swapaxes(1, 2) for x in (q, k, v)), causal=causal, window=window, softcap=softcap)
    return out.swapaxes(1, 2), lse


@variant("attention", id="multi-head-only", family=FAMILY, refuses=("grouped",))
def multi_head_alone(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None) -> tuple[Array, Array]:
    """Refuses grouped heads, and declares it."""
    if q.shape[1] != k.shape[1]:
        raise NotImplementedError(f"k: got {k.shape[1]} heads for {q.shape[1]} query heads; want as many")
    return online(Steps(tile=16), q, k, v, causal=causal, scale=scale)


@variant("attention_backward", id="gqa-gradient-head-after-head", family=FAMILY)
def gradient_head_after_head(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, scale: Any = None) -> dict[str, Array]:
    """dK and dV of a key/value head are added up query head by query head instead of all at once."""

    def one_after_another(x: Array, G: int) -> Array:
        total = x[:, 0::G].copy()
        for g in range(1, G):
            total += x[:, g::G]
        return total

    return textbook.attention_backward(q, k, v, out, lse, dout, causal=causal, scale=scale, summed_over_group=one_after_another)


@variant("attention_backward", id="gqa-gradient-of-grouped-rows", family=FAMILY)
def gradient_of_grouped_rows(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, scale: Any = None) -> dict[str, Array]:
    """The queries of a group are rows of one product, so their gradients add up inside it."""
    with np.errstate(all="ignore"):
        (B, Hq, Lq, _), Hkv = q.shape, k.shape[1]
        call = textbook.prepared(q[:, :Hkv], k, v, causal=causal, scale=scale)
        number = call.q.dtype.type(call.scale)
        q_, out_, dout_ = (x.astype(call.q.dtype).reshape(B, Hkv, Hq // Hkv * Lq, x.shape[-1]) for x in (q, out, dout))
        shift = np.where(np.isneginf(lse), 0, lse).astype(call.q.dtype).reshape(B, Hkv, Hq // Hkv * Lq, 1)
        seen = np.broadcast_to(textbook.visible(call)[:, :, None], (B, Hkv, Hq // Hkv, Lq, call.Lk))
        seen = seen.reshape(B, Hkv, Hq // Hkv * Lq, call.Lk)
        p = np.where(seen, np.exp(np.where(seen, number * (q_ @ call.k.swapaxes(-1, -2)), -np.inf) - shift), 0).astype(call.q.dtype)
        delta = (dout_ * out_).sum(axis=-1, keepdims=True)
        ds = p * np.where(seen, dout_ @ call.v.swapaxes(-1, -2) - delta, 0)
        dq, dk, dv = number * (ds @ call.k), number * (ds.swapaxes(-1, -2) @ q_), p.swapaxes(-1, -2) @ dout_
        return {"dq": dq.reshape(q.shape).astype(q.dtype), "dk": dk.astype(k.dtype), "dv": dv.astype(v.dtype)}


@variant("attention_backward", id="gradient-layout-blhd", family=FAMILY, layout="blhd")
def gradient_layout_blhd(
    q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, scale: Any = None, window: Any = None
) -> dict[str, Array]:
    """Gradients in the order (B, L, H, D)."""
    q, k, v, out, dout = (x.swapaxes(1, 2) for x in (q, k, v, out, dout))
    gradients = textbook.attention_backward(q, k, v, out, lse, dout, causal=causal, scale=scale, window=window)
    return {name: x.swapaxes(1, 2) for name, x in gradients.items()}
