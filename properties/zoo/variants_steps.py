"""Steps of legal kernels: a tiled attention of which a variant exchanges some steps, and sums, products and powers that round differently.

Options, masks and what a row that sees nothing gives are the textbook's; the order and the arithmetic are what differs here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oracles.reference import FloatFormat

from . import textbook
from .textbook import Array, Call

LOG2E, LN2 = 1.4426950408889634, 0.6931471805599453


# Sums of the last axis, kept ---------------------------------------------------------------------------------------------


def pairwise_sum(x: Array) -> Array:
    """As NumPy adds: in blocks, the blocks in pairs."""
    return np.asarray(x.sum(axis=-1, keepdims=True))


def sequential_sum(x: Array) -> Array:
    """One term after another, from the first."""
    return np.cumsum(x, axis=-1, dtype=x.dtype)[..., -1:] if x.shape[-1] else pairwise_sum(x)


def reversed_sum(x: Array) -> Array:
    """One term after another, from the last."""
    return sequential_sum(x[..., ::-1])


def sum_in_lanes(x: Array, lanes: int = 8) -> Array:
    """Every lane adds every eighth term, then the lanes are added in pairs, as a warp does."""
    padded = np.zeros((*x.shape[:-1], -(-x.shape[-1] // lanes) * lanes), x.dtype)
    padded[..., : x.shape[-1]] = x
    total = sequential_sum(padded.reshape(*x.shape[:-1], padded.shape[-1] // lanes, lanes).swapaxes(-1, -2))[..., 0]
    while total.shape[-1] > 1:
        total = total[..., 0::2] + total[..., 1::2]
    return np.asarray(total)


# Products ----------------------------------------------------------------------------------------------------------------


def fused_product(a: Array, b: Array) -> Array:
    """One fused multiply-add after another: product and sum exact in float64, rounded together."""
    total = np.zeros(np.broadcast_shapes((*a.shape[:-1], 1), (*b.shape[:-2], 1, b.shape[-1])), a.dtype)
    for j in range(a.shape[-1]):
        total = (total.astype(np.float64) + a[..., j, None].astype(np.float64) * b[..., j, None, :]).astype(a.dtype)
    return total


def backward_product(a: Array, b: Array) -> Array:
    """The last term first, every product and every sum rounded."""
    total = np.zeros(np.broadcast_shapes((*a.shape[:-1], 1), (*b.shape[:-2], 1, b.shape[-1])), a.dtype)
    for j in reversed(range(a.shape[-1])):
        total = total + a[..., j, None] * b[..., j, None, :]
    return total


def truncating_product(a: Array, b: Array) -> Array:
    """Eight terms at a time, exact, added to the accumulator and cut off there instead of rounded, as tensor cores do."""
    total = np.zeros(np.broadcast_shapes((*a.shape[:-1], 1), (*b.shape[:-2], 1, b.shape[-1])), np.float32)
    for j in range(0, a.shape[-1], 8):
        exact = total.astype(np.float64) + a[..., j : j + 8].astype(np.float64) @ b[..., j : j + 8, :].astype(np.float64)
        near = exact.astype(np.float32)
        total = np.where(np.abs(near.astype(np.float64)) > np.abs(exact), np.nextafter(near, np.float32(0)), near)
    return total


def transposed_product(a: Array, b: Array) -> Array:
    """a b as the transpose of b^T a^T."""
    return np.asarray((b.swapaxes(-1, -2) @ a.swapaxes(-1, -2)).swapaxes(-1, -2))


# Formats -----------------------------------------------------------------------------------------------------------------


def kept(x: Array) -> Array:
    """Not rounded at all."""
    return x


def in_format(name: str) -> Callable[[Array], Array]:
    """Rounds once to a format, and goes on in the type it had."""
    return lambda x: np.asarray(FloatFormat(name).round(x, overflow="saturate" if "8" in name[:6] else None).astype(x.dtype))


def flushed(x: Array) -> Array:
    """Subnormal numbers become 0."""
    return np.where(np.abs(x) < np.finfo(x.dtype).tiny, np.zeros_like(x), x)


# Scores ------------------------------------------------------------------------------------------------------------------


def scores_by(product: Callable[[Array, Array], Array], stored: Callable[[Array], Array] = kept) -> Callable[[Call], Array]:
    """Scores of another product, each stage stored in another format."""

    def scores(call: Call) -> Array:
        s = stored(product(call.q, call.k.swapaxes(-1, -2)))
        s = stored(call.q.dtype.type(call.scale) * s)
        if call.softcap is not None:
            s = stored(call.softcap * stored(np.tanh(stored(s / call.softcap))))
        s = s if call.bias is None else stored(s + call.bias)
        return s if call.alibi_slopes is None else stored(s - stored(call.alibi_slopes[:, None, None] * textbook.distances(call)))

    return scores


def scores_of_scaled_q(rounded: Callable[[Array], Array] = kept) -> Callable[[Call], Array]:
    """q is multiplied by scale before the product, and may be rounded to a format of its own then."""

    def scores(call: Call) -> Array:
        q = rounded(call.q * call.q.dtype.type(call.scale))
        return textbook.biased(call, textbook.capped(call, q @ call.k.swapaxes(-1, -2)))

    return scores


# Powers ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Base:
    """The base of the exponentials: scores are multiplied by `unit`, unless they come so, and the logarithm by 1 / unit in the end."""

    unit: float
    power: Callable[[Array], Array]
    logarithm: Callable[[Array], Array]
    scores_come_scaled: bool = False

    def scaled(self, s: Array) -> Array:
        return s if self.unit == 1.0 or self.scores_come_scaled else np.asarray(s * s.dtype.type(self.unit))

    def natural(self, lse: Array) -> Array:
        return lse if self.unit == 1.0 else np.asarray(lse * lse.dtype.type(1.0 / self.unit))


NATURAL, BINARY = Base(1.0, np.exp, np.log), Base(LOG2E, np.exp2, np.log2)


# Orders of tiles ---------------------------------------------------------------------------------------------------------


def forwards(n: int) -> Sequence[int]:
    return range(n)


def backwards(n: int) -> Sequence[int]:
    return range(n)[::-1]


def interleaved(n: int) -> Sequence[int]:
    """The even tiles, then the odd ones."""
    return [*range(0, n, 2), *range(1, n, 2)]


def from_the_middle(n: int) -> Sequence[int]:
    return [*range(n // 2, n), *range(n // 2)]


# The tiled kernel --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Steps:
    """What a tiled kernel does, and in which order.

    tile    keys between two rescalings; parts: stretches of whole tiles, merged through their log-sum-exp in the end
    rise    how far a score may pass the running maximum before that follows
    stored  what becomes of P before the product with V; summed: before the row sum
    finish  the accumulator and the row sum to the output
    sink_last   the sinks enter after the keys
    """

    tile: int = 32
    order: Callable[[int], Sequence[int]] = forwards
    parts: int = 1
    scores: Callable[[Call], Array] = textbook.scores
    base: Base = NATURAL
    product: Callable[[Array, Array], Array] = np.matmul
    row_sum: Callable[[Array], Array] = pairwise_sum
    rise: float = 0.0
    stored: Callable[[Array], Array] = kept
    summed: Callable[[Array], Array] = kept
    finish: Callable[[Array, Array], Array] = np.divide
    sink_last: bool = False
    heads: Callable[[Array, int], Array] = textbook.repeated


def by_reciprocal(acc: Array, l: Array) -> Array:
    """A reciprocal for each row, a product for each element."""
    return np.asarray(acc * (1 / l))


def online(steps: Steps, q: Any, k: Any, v: Any, **options: Any) -> tuple[Array, Array]:
    """out (B, Hq, Lq, Dv) in the format of q and lse (B, Hq, Lq) by online softmax; options as in the contract."""
    with np.errstate(all="ignore"):
        call = textbook.prepared(q, k, v, heads=steps.heads, **options)
        s, seen = steps.base.scaled(steps.scores(call)), textbook.visible(call)
        s = np.where(seen, s, -np.inf).astype(s.dtype)
        tiles = [np.arange(i, min(i + steps.tile, call.Lk)) for i in range(0, call.Lk, steps.tile)]
        tiles = [tiles[i] for i in steps.order(len(tiles))]
        stretches = [tiles[len(tiles) * i // steps.parts : len(tiles) * (i + 1) // steps.parts] for i in range(steps.parts)]
        done = [over(steps, call, s, stretch, with_sinks=i == 0) for i, stretch in enumerate(stretches)]
        out, lse = done[0] if len(done) == 1 else merged(done)
        return out.astype(q.dtype), lse


def over(steps: Steps, call: Call, s: Array, tiles: list[Array], *, with_sinks: bool) -> tuple[Array, Array]:
    """Online softmax over some tiles of hidden-is-minus-infinity scores: out, not yet rounded, and lse."""
    sink = None
    if call.sinks is not None and with_sinks:
        sink = np.broadcast_to(steps.base.scaled(call.sinks)[:, None, None], (*s.shape[:3], 1))
    m, l = np.full((*s.shape[:3], 1), -np.inf, s.dtype), np.zeros((*s.shape[:3], 1), s.dtype)
    acc = np.zeros((*s.shape[:3], call.v.shape[-1]), s.dtype)
    if sink is not None and not steps.sink_last:
        m, l = sink, np.where(np.isneginf(sink), 0, 1).astype(s.dtype)
    for keys in tiles:
        x = s[..., keys]
        top = x.max(axis=-1, keepdims=True)
        m_new = np.where(top > m + steps.rise, top, m)
        p, alpha = _power(steps, x, m_new), _power(steps, m, m_new)
        l = l * alpha + steps.row_sum(steps.summed(p))
        keep = call.keep if isinstance(call.keep, float) else np.broadcast_to(call.keep, s.shape)[..., keys]
        acc = acc * alpha + steps.product(steps.stored(p if isinstance(keep, float) else p * keep), call.v[..., keys, :])
        m = m_new
    if sink is not None and steps.sink_last:
        m_new = np.maximum(m, sink)
        alpha = _power(steps, m, m_new)
        l, acc, m = l * alpha + _power(steps, sink, m_new), acc * alpha, m_new
    shift = np.where(np.isneginf(m), 0, m).astype(s.dtype)
    lse = steps.base.natural(shift + steps.base.logarithm(l))
    return steps.finish(acc, np.where(l == 0, 1, l).astype(s.dtype)), lse[..., 0]


def _power(steps: Steps, x: Array, m: Array) -> Array:
    """e^(x - m), or 2^; 0 where x is -inf, whatever m is."""
    return np.where(np.isneginf(x), 0, steps.base.power(x - np.where(np.isneginf(m), 0, m))).astype(x.dtype)


def merged(parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Results over disjoint keys put together by their log-sum-exp, all at once."""
    m = np.maximum.reduce([lse for _, lse in parts])
    m = np.where(np.isneginf(m), 0, m).astype(m.dtype)
    weights = [np.exp(lse - m) for _, lse in parts]
    l = np.add.reduce(weights)
    safe = np.where(l == 0, 1, l).astype(l.dtype)
    return np.add.reduce([(w / safe)[..., None] * out for w, (out, _) in zip(weights, parts)]), m + np.log(l)


def kernel(steps: Steps, doc: str) -> Callable[..., tuple[Array, Array]]:
    """A tiled attention of these steps, with a docstring of its own."""

    def attention(q: Any, k: Any, v: Any, *, causal: Any, **options: Any) -> tuple[Array, Array]:
        return online(steps, q, k, v, causal=causal, **options)

    attention.__doc__ = doc
    return attention
