"""Legal attention kernels in NumPy: what they round, and in which order, is drawn; how much they may round is declared.

Independent of the bounds and of the oracles, whose masks alone they share. Arrays are grouped: q, dout (Hkv, R, D) with
R = G Lq rows of one key head; k, v (Hkv, Lk, D); everything on rows and keys (Hkv, R, Lk). A batch of B makes B Hkv of them.
Values are held in float32 (float64 for float64 subjects).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracles.reference import FloatFormat, query_positions, visible_keys

from .arithmetic import ResolvedArithmetic

Array = NDArray[Any]
LOG2E, LN2 = 1.4426950408889634, 0.6931471805599453
_WIDE = ("float32", "float64")


@dataclass(frozen=True)
class Problem:
    """One call: arrays widened to the working type, masks and additive terms per row and key."""

    q: Array
    k: Array
    v: Array
    scale: float
    visible: NDArray[np.bool_]
    softcap: float | None = None
    bias: Array | None = None
    slope: Array | None = None          # (Hkv, R, 1)
    distance: Array | None = None       # (Hkv, R, Lk)
    sink: Array | None = None           # (Hkv, R, 1)
    kept: NDArray[np.bool_] | None = None
    dropout_p: float = 0.0


def as_problem(arrays: Mapping[str, Any], options: Mapping[str, Any], working: Any = np.float32) -> Problem:
    """The call of attention with these arrays (q, k, v) and options in grouped form: heads of all items of the batch in one row."""
    q, k, v = (np.asarray(arrays[name]).astype(working) for name in ("q", "k", "v"))
    (B, Hq, Lq, D), (_, Hkv, Lk, _) = q.shape, k.shape
    shape = (B, Hq, Lq, Lk)

    def rows(x: NDArray[Any]) -> NDArray[Any]:
        return grouped_rows(np.broadcast_to(x, (*shape[:3], x.shape[-1])), Hkv)

    def per_head(x: NDArray[Any]) -> NDArray[Any]:
        return rows(x.astype(working)[None, :, None, None])

    visible = visible_keys(*shape, causal=options["causal"], window=options.get("window"), mask=options.get("mask"),
                           kv_lengths=options.get("kv_lengths"), bias=options.get("bias"))
    extra: dict[str, Any] = {}
    if "bias" in options:
        bias: Array = np.broadcast_to(np.asarray(options["bias"], dtype=working), shape)
        extra["bias"] = rows(np.where(np.isneginf(bias), 0, bias))
    if "alibi_slopes" in options:
        p = query_positions(B, Lq, Lk, causal=options["causal"], kv_lengths=options.get("kv_lengths"))
        extra["slope"] = per_head(options["alibi_slopes"])
        extra["distance"] = rows(np.broadcast_to(np.abs(p[:, None, :, None] - np.arange(Lk)), shape).astype(working))
    if "sinks" in options:
        extra["sink"] = per_head(options["sinks"])
    if "dropout_mask" in options:
        extra.update(kept=rows(np.broadcast_to(options["dropout_mask"], shape)), dropout_p=options["dropout_p"])
    scale = options.get("scale")
    k, v = (x.reshape(B * Hkv, Lk, x.shape[-1]) for x in (k, v))
    return Problem(rows(q), k, v, 1.0 / np.sqrt(D) if scale is None else scale, rows(visible), softcap=options.get("softcap"), **extra)


def grouped_rows(x: NDArray[Any], Hkv: int) -> NDArray[Any]:
    """(B, Hq, L, N) as (B Hkv, G L, N)."""
    B, Hq, L, N = x.shape
    return x.reshape(B * Hkv, Hq // Hkv * L, N)


@dataclass(frozen=True)
class Plan:
    """How a kernel goes about it. Every choice is legal under the arithmetic it is drawn for.

    product: blas, forward, backward or blocks of 8 with truncation. tile: keys between two rescalings, None for all at
    once. normalise: at the end by division or reciprocal, in every step (FlashAttention-1), or P before the product.
    sloppiness in [-1, 1]: how much of the declared error of exp, log, tanh is used, with which sign; None: at random.
    fault: the name of something illegal, for tests of what finds it.
    """

    product: str = "blas"
    tile: int | None = None
    reverse: bool = False
    splits: int = 1
    base2: bool = False
    normalise: str = "divide"
    sink_first: bool = False
    bias_with_alibi: bool = False
    delta_from_p: bool = False
    dropout_at_end: bool = False
    scale_before_rounding: bool = False
    sloppiness: float | None = 0.0
    fault: str | None = None
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))


def store(x: Array, name: str, flush: bool = False) -> Array:
    """x rounded once to a format (saturating in float8), in the working type."""
    if name == "float64":
        y = x
    elif name == "float32":
        y = x.astype(np.float32, copy=False)
    else:
        y = np.clip(x, -448.0, 448.0) if name == "float8_e4m3fn" else x
        with np.errstate(over="ignore"):
            y = y.astype(FloatFormat(name).dtype).astype(np.float32)
    return np.where(np.abs(y) < FloatFormat(name).tiny, np.zeros_like(y), y) if flush else y


class Kernel:
    """The arithmetic and the plan together; the methods are the kernel's operations."""

    def __init__(self, arithmetic: ResolvedArithmetic, plan: Plan) -> None:
        self.a, self.plan = arithmetic, plan
        self.type = np.float64 if arithmetic.elementwise == "float64" else np.float32
        self.u = FloatFormat(arithmetic.elementwise).unit_roundoff

    def e(self, x: Any) -> Any:
        """One elementwise result."""
        return store(x, self.a.elementwise, self.a.flush_to_zero)

    def function(self, name: str, x: Array) -> Any:
        """exp, exp2, log, log2 or tanh, wrong by what is declared, its own rounding included."""
        ulps = {"exp": self.a.exp_ulps, "exp2": self.a.exp_ulps, "tanh": self.a.tanh_ulps}.get(name, self.a.log_ulps)
        with np.errstate(all="ignore"):
            y = getattr(np, name)(x.astype(np.float64))
        sloppiness = self.plan.rng.uniform(-1, 1, x.shape) if self.plan.sloppiness is None else self.plan.sloppiness
        wrong = np.where((x == 0.0) & (name != "log"), 0.0, sloppiness * (ulps - 1.0) * self.u) if self.type == np.float32 else 0.0
        with np.errstate(over="ignore"):
            return self.e((y * (1.0 + wrong)).astype(self.type))

    def product(self, a: Array, b: Array) -> Array:
        """a b, accumulated as planned: (H, I, N) (H, N, J)."""
        if self.type == np.float64:
            return a @ b
        n, flush, sums = a.shape[-1], self.a.flush_to_zero, self.a.accumulate
        if self.plan.product == "blas":
            return store(a @ b, sums, flush)
        total = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32)
        if self.plan.product == "blocks":
            for j in range(0, n, 8):
                exact = total.astype(np.float64) + a[..., j:j + 8].astype(np.float64) @ b[..., j:j + 8, :].astype(np.float64)
                near = exact.astype(np.float32)
                total = np.where(np.abs(near.astype(np.float64)) > np.abs(exact), np.nextafter(near, np.float32(0)), near)
            return store(total, "float32", flush)
        for j in range(n) if self.plan.product == "forward" else reversed(range(n)):
            total = store(total + store(a[..., :, j, None] * b[..., None, j, :], sums, flush), sums, flush)
        return total

    def sum(self, x: Array) -> Array:
        """Row sums, (..., 1)."""
        return self.product(x, np.ones((*x.shape[:-2], x.shape[-1], 1), self.type))


def scores(c: Kernel, x: Problem) -> tuple[Array, Array | None]:
    """Scores as stored before the softmax, and the tanh of the cap."""
    a, number = c.a, c.type
    keep = (lambda s: s) if a.scores in _WIDE else (lambda s: store(s, a.scores, a.flush_to_zero))
    scale = number(x.scale * (1.001 if c.plan.fault == "scale" else 1.0))
    if a.scaled_q:
        s = keep(c.product(store(c.e(x.q * scale), a.inputs, a.flush_to_zero), x.k.swapaxes(-1, -2)))
    else:
        s = keep(c.e(keep(c.product(x.q, x.k.swapaxes(-1, -2))) * scale))
    t = None
    if x.softcap is not None:
        cap = number(x.softcap)
        t = keep(c.function("tanh", keep(c.e(s * c.e(1 / cap)) if c.plan.base2 else c.e(s / cap))))
        s = keep(c.e(t * cap))
    extra = None if x.slope is None else keep(c.e(-x.slope * x.distance))
    if x.bias is not None:
        if extra is not None and c.plan.bias_with_alibi:
            extra = keep(c.e(x.bias + extra))
        else:
            s = keep(c.e(s + x.bias))
    return (s if extra is None else keep(c.e(s + extra))), t


def _exp_difference(c: Kernel, a: Array, b: Array) -> Any:
    """e^(a - b), in base e or 2."""
    if c.plan.base2:
        log2e = c.type(LOG2E)
        return c.function("exp2", c.e(c.e(a * log2e) - c.e(b * log2e)))
    return c.function("exp", c.e(a - b))


def _log(c: Kernel, l: Array) -> Array:
    return np.asarray(c.e(c.function("log2", l) * c.type(LN2)) if c.plan.base2 else c.function("log", l))


def forward(arithmetic: ResolvedArithmetic, plan: Plan, x: Problem) -> tuple[Array, Array]:
    """out (Hkv, R, Dv) and lse (Hkv, R, 1), stored in the declared formats."""
    c = Kernel(arithmetic, plan)
    with np.errstate(over="ignore", invalid="ignore"):
        s, _ = scores(c, x)
        n = s.shape[-1]
        pieces = np.array_split(np.arange(-(-n // arithmetic.tile_min)), plan.splits)      # parts are whole tiles
        parts: list[tuple[Array, Array]] = []
        for piece in pieces:
            if len(piece):
                keys = np.arange(piece[0] * arithmetic.tile_min, min((piece[-1] + 1) * arithmetic.tile_min, n))
                parts.append(_one_part(c, x, s, keys, x.sink if not parts else None))
        out, lse = parts[0] if len(parts) == 1 else merged(c, parts)
        if x.kept is not None and plan.dropout_at_end:
            out = c.e(out * c.type(1.0 / (1.0 - x.dropout_p)))
        if plan.fault == "base2_lse":
            lse = c.e(lse * c.type(LOG2E))
    return store(out, arithmetic.out, arithmetic.flush_to_zero), store(lse, arithmetic.lse)


def _one_part(c: Kernel, x: Problem, s: Array, keys: NDArray[np.int64], sink: Array | None) -> tuple[Array, Array]:
    """Online softmax over some keys: out and lse."""
    a, plan, number = c.a, c.plan, c.type
    shape = (*s.shape[:-1], 1)
    m, l = np.full(shape, -np.inf, number), np.zeros(shape, number)
    if sink is not None and plan.sink_first:
        m, l = np.where(np.isneginf(sink), -np.inf, sink).astype(number), np.where(np.isneginf(sink), 0, 1).astype(number)
    acc = np.zeros((*s.shape[:-1], x.v.shape[-1]), number)
    tile = plan.tile or len(keys)
    blocks = [keys[i:i + tile] for i in range(0, len(keys), tile)]
    for block in reversed(blocks) if plan.reverse else blocks:
        seen = x.visible[..., block]
        if plan.fault == "dropped_key" and block[-1] == s.shape[-1] - 1:
            seen = seen & (np.arange(len(block)) < len(block) - 1)
        sb = np.where(seen, s[..., block], -np.inf).astype(number)
        top = np.maximum(m, sb.max(axis=-1, keepdims=True))
        shift = np.where(np.isfinite(top), top, 0).astype(number)
        p = np.where(seen, _exp_difference(c, sb, shift), 0).astype(number)
        alpha = np.where(np.isfinite(m), _exp_difference(c, np.where(np.isfinite(m), m, shift), shift), 0).astype(number)
        rounded = _for_product(c, x, p, block)
        summed = store(p, a.probabilities, a.flush_to_zero) if a.row_sum_rounded else p
        old = l
        l = c.e(c.e(l * alpha) + c.sum(summed))
        if plan.fault == "not_rescaled":
            alpha = np.ones_like(alpha)
        now: Any = np.where(l > 0, l, 1).astype(number)
        if plan.normalise == "each_step":
            acc = c.e(c.e(c.e(c.e(acc * old) * alpha) / now) + c.e(c.product(rounded, x.v[..., block, :]) / now))
        else:
            acc = c.e(c.e(acc * alpha) + c.product(rounded, x.v[..., block, :]))
        if plan.fault == "bfloat16_accumulator":
            acc = store(acc, "bfloat16")
        m = top
    if sink is not None and not plan.sink_first:
        top = np.maximum(m, sink)
        shift = np.where(np.isfinite(top), top, 0).astype(number)
        alpha = np.where(np.isfinite(m), _exp_difference(c, np.where(np.isfinite(m), m, shift), shift), 0).astype(number)
        weight = np.where(np.isneginf(sink), 0, _exp_difference(c, np.where(np.isneginf(sink), shift, sink), shift)).astype(number)
        old, l = l, c.e(c.e(l * alpha) + weight)
        acc, m = c.e(acc * alpha), top
        if plan.normalise == "each_step":
            acc = c.e(c.e(acc * old) / np.where(l > 0, l, 1).astype(number))
    safe: Any = np.where(l > 0, l, 1).astype(number)
    lse = np.where(l > 0, c.e(np.where(np.isfinite(m), m, 0) + _log(c, safe)), -np.inf).astype(number)
    if plan.normalise == "first":
        seen = x.visible[..., keys]
        e = np.where(seen, _exp_difference(c, np.where(seen, s[..., keys], 0), np.where(np.isfinite(m), m, 0)), 0).astype(number)
        return c.product(_for_product(c, x, c.e(e / safe), keys), x.v[..., keys, :]), lse
    if plan.normalise == "each_step":
        return acc, lse
    return (c.e(acc * c.e(1 / safe)) if plan.normalise == "reciprocal" else c.e(acc / safe)), lse


def _for_product(c: Kernel, x: Problem, p: Array, keys: NDArray[np.int64]) -> Array:
    """P with its dropout, rounded for the product with V."""
    if x.kept is not None:
        p = np.where(x.kept[..., keys], p, 0).astype(c.type)
        p = p if c.plan.dropout_at_end else c.e(p * c.type(1.0 / (1.0 - x.dropout_p)))
    return store(p, {"p_float16": "float16", "p_float8": "float8_e4m3fn"}.get(c.plan.fault or "", c.a.probabilities), c.a.flush_to_zero)


def merged(c: Kernel, parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Partial results put together by their log-sum-exp, all at once."""
    top = np.maximum.reduce([lse for _, lse in parts])
    shift = np.where(np.isfinite(top), top, 0).astype(c.type)
    weights = [np.where(np.isfinite(lse), _exp_difference(c, np.where(np.isfinite(lse), lse, shift), shift), 0).astype(c.type)
               for _, lse in parts]
    total, out = np.zeros_like(top), np.zeros_like(parts[0][0])
    for w in weights:
        total = c.e(total + w)
    safe: Any = np.where(total > 0, total, 1).astype(c.type)
    for w, (part, _) in zip(weights, parts, strict=True):
        out = c.e(out + c.e((c.e(w / safe) if c.plan.normalise == "reciprocal" else w) * part))
    if c.plan.normalise != "reciprocal":
        out = c.e(out / safe)
    return out, np.where(total > 0, c.e(shift + _log(c, safe)), -np.inf).astype(c.type)


def backward(arithmetic: ResolvedArithmetic, plan: Plan, x: Problem, out: Array, lse: Array, dout: Array) -> dict[str, Array]:
    """dq, dk, dv, ds (before the cap, the gradient of the bias) and dsink per row; out, lse read or, if declared, recomputed."""
    c = Kernel(arithmetic, plan)
    a, number, flush = arithmetic, c.type, arithmetic.flush_to_zero
    stored = (lambda y: store(y, a.probabilities, flush)) if a.recomputes and a.probabilities not in _WIDE else (lambda y: y)
    with np.errstate(over="ignore", invalid="ignore"):
        s, t = scores(c, x)
        if a.recomputes:
            out, lse = forward(a, plan, x)
        shift = np.where(np.isfinite(lse), lse, 0).astype(number)
        p = stored(np.where(x.visible, _exp_difference(c, np.where(x.visible, s, 0), shift), 0).astype(number))
        dp = stored(np.where(x.visible, c.product(dout, x.v.swapaxes(-1, -2)), 0))
        z = None if x.kept is None else (x.kept / number(1.0 - x.dropout_p)).astype(number)
        zp = p if z is None else c.e(p * z)
        dp = dp if z is None else stored(c.e(dp * z))
        delta = c.sum(c.e(p * dp)) if plan.delta_from_p else c.sum(c.e(dout * out))
        dsc = stored(c.e(p * c.e(dp - delta)))
        ds = dsc
        if t is not None:
            ds = stored(c.e(ds * c.e(1 - c.e(t * t))))
        early = plan.scale_before_rounding and a.recomputes
        scale = number(x.scale)
        if early:
            ds = c.e(ds * scale)
        ds = store(ds, a.probabilities, flush)
        late = number(1.0) if early else scale
        grad = {"dq": c.e(_in_blocks(c, ds, x.k) * late),
                "dk": c.e(_in_blocks(c, ds.swapaxes(-1, -2), x.q) * late),
                "dv": _in_blocks(c, store(zp, a.probabilities, flush).swapaxes(-1, -2), dout)}
        grad = {name: store(g, a.out, flush) for name, g in grad.items()}
        grad["ds"] = store(dsc, a.probabilities, flush)
        if x.sink is not None:
            weight = _exp_difference(c, np.where(np.isneginf(x.sink), shift, x.sink), shift)
            grad["dsink"] = -c.e(np.where(np.isneginf(x.sink), 0, weight).astype(number) * delta)
    return grad


def _in_blocks(c: Kernel, a: Array, b: Array) -> Array:
    """a b, the terms in at most gradient_blocks parts, each partial sum stored in the gradient format."""
    if c.a.gradient in _WIDE:
        return c.product(a, b)
    total = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32)
    for block in np.array_split(np.arange(a.shape[-1]), c.a.gradient_blocks):
        if len(block):
            total = store(c.e(total + c.product(a[..., block], b[..., block, :])), c.a.gradient, c.a.flush_to_zero)
    return total
