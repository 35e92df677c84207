"""The bound for the gradient of attention, stage by stage: P, dP, delta, dS, and the three products they enter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.arithmetic import ResolvedArithmetic
from oracles.reference import arguments
from oracles.reference.arguments import Array, Bool, Causal, Float64, Window
from oracles.reference.attention_backward import attention_backward

from .attention import Forward, batch, dropped, forward, odd, sequences
from .scores import finite, grouped
from .softmax import grown
from .sums import Roundings, checked, compound, dot_bound, g, roundings, underflow


@dataclass(frozen=True)
class Gradient:
    """What the gradient's stages are and how far off they may be, grouped: (B, Hkv, R, Lk), rows (..., 1).

    excess, high: of the recomputed P, as in `Weights`. ds is P (dP - delta), the gradient of the scores after cap and
    bias. over: elements where a declared format may overflow.
    """

    excess: Float64
    high: Float64
    delta: Float64
    delta_error: Float64
    ds: Float64
    ds_error: Float64
    over: Bool


def attention_backward_bound(arithmetic: ResolvedArithmetic, q: ArrayLike, k: ArrayLike, v: ArrayLike, out: ArrayLike, lse: ArrayLike,
                             dout: ArrayLike, *, causal: Causal, window: Window = None, scale: float | None = None,
                             softcap: float | None = None, bias: ArrayLike | None = None, mask: ArrayLike | None = None,
                             kv_lengths: ArrayLike | None = None, sinks: ArrayLike | None = None, alibi_slopes: ArrayLike | None = None,
                             dropout_mask: ArrayLike | None = None, dropout_p: float = 0.0) -> dict[str, Float64]:
    """How far a legal kernel may be from the exact gradients: "dq", "dk", "dv", and "dbias", "dsinks" where given.

        P = exp(s - lse)       |error| <= P (e^d - 1),  d = ds + b_lse + u (3 |s - lse| + |s| + |lse|) + exp_cost
        dP = z (dO V^T)        |error| <= z ((1 + g(Dv, u_a)) (1 + 3 u) - 1) |dO||V|^T
        delta = rowsum(dO O)   |error| <= |dO| b_O + (1 + g(Dv, u_a)) ..., or, from rowsum(P dP), that of P and dP: the larger
        dS = P (dP - delta)    |error| <= P (e^d - 1) |dP - delta| + P e^d (error of dP and delta, 3 u (|dP| + |delta|))
        dS is multiplied by 1 - tanh^2 of the cap (4 u and twice the error of tanh), rounded to `probabilities`: u_p |dS|
        dV = (z P)^T dO        |error| <= (z P (e^d - 1))^T |dO| + c (z P e^d)^T |dO|,  c: u_p and g(rows, u_a)
        dQ = scale dS K        |error| <= |scale| (error of dS)|K| + g(keys, u_a), 4 u of |scale| |dS||K|;  dK alike

    then one rounding of `out`. b_O and b_lse: out and lse are taken to be the exact ones rounded once to `out` and `lse`
    (their values are not looked at). With `recomputes` they are the kernel's own: b_O, b_lse are `attention_bound`, d has
    the error of e / l too, and P, dP and each stage of dS may be stored in the `probabilities` format, as automatic
    differentiation does. rows: all queries that see the key, in every head of its group. `gradient`: partial results are
    rounded after each of at most `gradient_blocks` additions, which is g(gradient_blocks, u_gradient) more.
    `scaled_q`: dK may use the rounded scale q. dbias sums dS over the broadcast axes; dsink = -sum p_sink delta.

    What is hidden, and a row that sees nothing, adds nothing. 0 where the oracle is NaN or infinite, to be compared by
    kind; inf where a score, dP, dS (in `probabilities`), a sum or a result may overflow its format. Never NaN.

    >>> from oracles.properties import Arithmetic
    >>> x = np.ones((1, 1, 1, 1), np.float32)
    >>> bound = attention_backward_bound(Arithmetic().resolve("float32"), x, x, x, x, x[..., 0], x, causal=None)
    >>> list(bound), bool(bound["dv"].item() < 1e-5)
    (['dq', 'dk', 'dv'], True)

    Source: derived here, from Dao et al. 2022 (arXiv 2205.14135), appendix B.2.
    """
    options: dict[str, Any] = dict(causal=causal, window=window, scale=scale, softcap=softcap, bias=bias, mask=mask, kv_lengths=kv_lengths,
                                   sinks=sinks, alibi_slopes=alibi_slopes, dropout_mask=dropout_mask, dropout_p=dropout_p)
    q, k, v = arguments.query_key_value(q, k, v)
    (B, Hq, Lq, D), (_, Hkv, Lk, Dv) = q.shape, v.shape
    arguments.float_array("out", out, (B, Hq, Lq, Dv))
    arguments.float_array("lse", lse, (B, Hq, Lq))
    wide_dout = arguments.widen("dout", dout, (B, Hq, Lq, Dv))
    r = roundings(arithmetic)
    f = forward(r, q, k, v, **options)
    scale = arguments.score_scale(scale, D)
    q_rows, keys, dout_rows = grouped(finite(q.astype(np.float64)), Hkv), finite(k.astype(np.float64)), grouped(finite(wide_dout), Hkv)
    gradient, bounds = from_forward(r, f, q_rows, keys, dout_rows, scale)
    bounds["dq"] = bounds["dq"].reshape(q.shape)
    if bias is not None:
        bounds["dbias"] = _bias_bound(r, f, gradient, (B, Hq, Lq, Lk), np.shape(bias))
    if sinks is not None:
        bounds["dsinks"] = _sink_bound(r, f, gradient, arguments.widen("sinks", sinks, (Hq,)), (B, Hq, Lq))
    if odd(q, k, v, dout, bias, sinks):
        exact = attention_backward(q, k, v, out, lse, dout, **options)
        bounds = {name: np.where(np.isfinite(exact[name]), bound, 0.0) for name, bound in bounds.items()}
    return checked(bounds)


def from_forward(r: Roundings, f: Forward, q: Float64, k: Float64, dout: Float64, scale: float) -> tuple[Gradient, dict[str, Float64]]:
    """What follows from a forward pass whose out and lse are known to within its bounds: the stages; dq, dk and dv, dq still grouped."""
    gradient = _stages(r, f, dout)
    return gradient, _products(r, f, gradient, q, k, dout, scale)


def _stages(r: Roundings, f: Forward, dout: Float64) -> Gradient:
    """P, dP, delta and dS, each with its error."""
    w, s, visible, u, Dv = f.w, f.scores, f.scores.visible, r.elementwise.u, f.v.shape[-1]
    again = r.declared.recomputes
    p_stored = r.probabilities if again else None
    lse = np.where(w.seen > 0.0, w.lse, 0.0)
    b_lse = f.lse_bound if again else r.lse.u * np.abs(lse) + r.lse.eta
    b_out = f.out_bound if again else r.out.bound(f.out)
    given_up = s.overflow | w.hopeless | ~np.isfinite(b_lse) | ~np.isfinite(b_out).all(axis=-1, keepdims=True)
    b_lse, b_out = finite(b_lse), finite(b_out)

    apart = 3.0 * np.abs(s.s - lse) + np.abs(s.s) + s.ds + np.abs(lse)
    d = (w.d if again else s.ds) + b_lse + u * apart + r.exp_cost + (-np.log1p(-r.probabilities.u) if again else 0.0)
    excess, hopeless = grown(w.p, np.minimum(d, np.finfo(np.float64).max), np.where(visible, s.s, -np.inf), lse)
    high = w.p + excess

    size = np.abs(dout) @ np.abs(f.v).swapaxes(-1, -2)                          # (B, Hkv, R, Lk)
    limit = min(r.accumulate.largest, r.elementwise.largest)
    passes = visible & (2.0 * size * (1.0 + g(Dv, r.accumulate.u)) * np.max(f.z, initial=1.0) > limit)      # 2: dP - delta
    given_up = given_up | hopeless | np.any(passes, axis=-1, keepdims=True)     # delta spreads it along the row, 0 x inf to what is hidden
    size = np.where(given_up, 0.0, size)
    dp = np.where(visible & ~given_up, dropped(dout @ f.v.swapaxes(-1, -2), f.z), 0.0)
    dropout = 0.0 if isinstance(f.z, float) else 3.0 * u
    dp_error = np.where(visible, dropped(dot_bound(r.accumulate, size, Dv), f.z), 0.0)
    dp_error = dp_error + dropout * (np.abs(dp) + dp_error)
    if p_stored is not None:
        dp_error = dp_error + float(compound(g(2.0, p_stored.u))) * (np.abs(dp) + dp_error) + 2.0 * p_stored.eta * visible

    delta = (dout * f.out).sum(axis=-1, keepdims=True)
    delta_error = _delta_error(r, f, w.p, excess, high, dout, b_out, dp, dp_error)
    apart = np.abs(dp - delta)
    wrong = dp_error + delta_error
    wrong = wrong + 3.0 * u * (np.abs(dp) + np.abs(delta) + wrong)
    given_up = given_up | np.any(2.0 * (apart + wrong) > limit, axis=-1, keepdims=True)      # sum P e^d |dP| is below limit / 2 + wrong
    lost = underflow(high, *_weight_etas(r)) * (apart + wrong)
    ds, ds_error = w.p * (dp - delta), excess * apart + high * wrong + lost
    ds_error = ds_error + np.minimum(r.elementwise.eta, np.abs(ds) + ds_error)
    return Gradient(excess, high, delta, delta_error, ds, ds_error, np.broadcast_to(given_up & (w.seen > 0.0), high.shape))


def _weight_etas(r: Roundings) -> tuple[float, ...]:
    """The underflows of a recomputed P: of its exp, and, with `recomputes`, of e / l and where it is stored."""
    return (r.elementwise.eta, r.elementwise.eta, r.probabilities.eta) if r.declared.recomputes else (r.elementwise.eta,)


def _delta_error(r: Roundings, f: Forward, p: Float64, excess: Float64, high: Float64, dout: Float64, b_out: Float64, dp: Float64,
                 dp_error: Float64) -> Float64:
    """The error of delta, whether it is summed from dO O or from P dP."""
    u, Dv = r.elementwise.u, dout.shape[-1]
    size = np.abs(dout)
    from_out = (size * b_out).sum(axis=-1, keepdims=True)
    from_out = from_out + dot_bound(r.accumulate, (size * (np.abs(f.out) + b_out)).sum(axis=-1, keepdims=True), Dv)
    most = np.abs(dp) + dp_error
    from_p = (excess * most + p * dp_error).sum(axis=-1, keepdims=True)
    size_p = (high * most).sum(axis=-1, keepdims=True)
    from_p = from_p + dot_bound(r.accumulate, size_p, f.w.seen + 1.0) + u * size_p
    from_p = from_p + (underflow(high, *_weight_etas(r)) * most).sum(axis=-1, keepdims=True)
    worst = np.maximum(from_out, from_p)
    return np.asarray(worst + u * ((size * np.abs(f.out)).sum(axis=-1, keepdims=True) + worst))


def _products(r: Roundings, f: Forward, gradient: Gradient, q: Float64, k: Float64, dout: Float64, scale: float) -> dict[str, Float64]:
    """The bounds of dq, dk and dv; dq still grouped."""
    visible, w, u = f.scores.visible, f.w, r.elementwise.u
    rows = visible.sum(axis=-2)[..., None].astype(np.float64)                   # (B, Hkv, Lk, 1)
    blocks = g(r.declared.gradient_blocks, r.gradient.u)

    dropout = 0.0 if isinstance(f.z, float) else 3.0 * u
    used = float(compound(r.probabilities.u, dropout))
    share = dropped(gradient.high, f.z)
    dv = dropped(w.p, f.z).swapaxes(-1, -2) @ dout
    etas = [eta * float(np.max(f.z, initial=1.0)) for eta in _weight_etas(r)] + [r.elementwise.eta if dropout else 0.0, r.probabilities.eta]
    wrong = dropped(gradient.excess, f.z) + used * share + underflow(share, *etas)
    dv_size = ((1.0 + used) * share).swapaxes(-1, -2) @ np.abs(dout)            # (B, Hkv, Lk, Dv)
    dv_error = wrong.swapaxes(-1, -2) @ np.abs(dout) + dot_bound(r.accumulate, dv_size, rows)
    dv_error = _stored(r, dv_error, dv_size, blocks)

    ds, ds_error, over = _through_cap(r, f, gradient, scale)
    ds_size = np.abs(ds) + ds_error
    once = float(compound(g(4.0, u)))
    again = float(compound(once, r.inputs.u)) if r.declared.scaled_q else once
    dq_size, dk_size = ds_size @ np.abs(k), ds_size.swapaxes(-1, -2) @ np.abs(q)
    dq_error = ds_error @ np.abs(k) + dot_bound(r.accumulate, dq_size, w.seen) + once * dq_size * (1.0 + g(w.seen, r.accumulate.u))
    dk_error = ds_error.swapaxes(-1, -2) @ np.abs(q) + dot_bound(r.accumulate, dk_size, rows)
    dk_error = dk_error + again * dk_size * (1.0 + g(rows, r.accumulate.u))
    if r.declared.scaled_q:
        dk_error = dk_error + r.inputs.eta / (abs(scale) or 1.0) * ds_size.sum(axis=-2)[..., None]
    dq_error, dk_error = (_stored(r, abs(scale) * e, abs(scale) * size, blocks, max(1.0, abs(scale)))
                          for e, size in ((dq_error, dq_size), (dk_error, dk_size)))
    row_over, column_over = np.any(over, axis=-1, keepdims=True), np.any(over, axis=-2)[..., None]
    limit = min(r.accumulate.largest, r.gradient.largest) / max(1.0, 1.0 / (abs(scale) or 1.0))

    def bound(x: Float64, error: Float64, size: Float64, given_up: Bool, limit: float) -> Float64:
        return np.where(given_up | (size + error > limit), np.inf, r.out.bound(x, error))

    return {"dq": bound(scale * (ds @ k), dq_error, abs(scale) * dq_size, row_over, limit),
            "dk": bound(scale * (ds.swapaxes(-1, -2) @ q), dk_error, abs(scale) * dk_size, column_over, limit),
            "dv": bound(dv, dv_error, dv_size, np.any(gradient.over, axis=-2)[..., None], min(r.accumulate.largest, r.gradient.largest))}


def _stored(r: Roundings, error: Float64, size: Float64, blocks: Float64, factor: float = 1.0) -> Float64:
    """The error of a sum whose partial results may be kept in the `gradient` format, and its underflow."""
    lost = (r.declared.gradient_blocks * r.gradient.eta + r.elementwise.eta) * factor
    return np.asarray(error + blocks * (size + error) + np.where(size + error > 0.0, lost, 0.0))


def _through_cap(r: Roundings, f: Forward, gradient: Gradient, scale: float) -> tuple[Float64, Float64, Bool]:
    """dS behind the cap and in the `probabilities` format: its value, its error, and where it may overflow.

    It is stored once, or, with `recomputes`, after every stage: dS, the cap's three, the scale.
    """
    slope, slope_error, u = f.scores.cap_slope, f.scores.cap_slope_error, r.elementwise.u
    ds, ds_error, stages = gradient.ds, gradient.ds_error, 1
    if not isinstance(slope, float):
        ds_error = ds_error * (slope + slope_error) + np.abs(ds) * slope_error
        ds = ds * slope
        ds_error = ds_error + 3.0 * u * (np.abs(ds) + ds_error)
    if r.declared.recomputes:
        stages = 2 if isinstance(slope, float) else 5
    early = max(1.0, abs(scale)) / (abs(scale) or 1.0)                          # where scale dS is what underflows
    stored_eta = r.probabilities.eta * (early if r.declared.recomputes else 1.0)
    for _ in range(stages):
        size = np.abs(ds) + ds_error
        ds_error = ds_error + r.probabilities.u * size + underflow(size, r.elementwise.eta * early, r.elementwise.eta * early, stored_eta)
    widest = max(1.0, abs(scale)) if r.declared.recomputes else 1.0
    high = np.abs(gradient.ds) + gradient.ds_error                              # before the cap: it only makes it smaller
    return ds, ds_error, gradient.over | (np.maximum(high, np.abs(ds) + ds_error) * widest > r.probabilities.largest)


def _bias_bound(r: Roundings, f: Forward, gradient: Gradient, shape: tuple[int, ...], target: tuple[int, ...]) -> Float64:
    """dS summed over the axes along which the bias was broadcast."""
    size = np.abs(gradient.ds) + gradient.ds_error
    stages = 2 if r.declared.recomputes else 1
    error = gradient.ds_error + g(stages, r.probabilities.u) * size + underflow(size, *[r.probabilities.eta] * stages)
    given_up = gradient.over | (size + error > r.probabilities.largest)

    def summed(x: Array) -> Float64:
        x = x.reshape(shape)
        x = x.sum(axis=tuple(range(x.ndim - len(target))), dtype=np.float64)
        return np.asarray(x.sum(axis=tuple(i for i, n in enumerate(target) if n == 1), keepdims=True))

    n, total = summed(f.scores.visible), summed(size + error)
    error = summed(error) + dot_bound(r.accumulate, total, n)
    error = _stored(r, error, total, g(r.declared.gradient_blocks, r.gradient.u))
    lost = (summed(given_up) > 0.0) | (total + error > min(r.accumulate.largest, r.gradient.largest))
    return np.where(lost, np.inf, r.out.bound(summed(gradient.ds), error))


def _sink_bound(r: Roundings, f: Forward, gradient: Gradient, sinks: Float64, shape: tuple[int, int, int]) -> Float64:
    """-sum over batch and queries of p_sink delta: (Hq,)."""
    u = r.elementwise.u
    lse, delta, delta_error = (x.reshape(shape) for x in (f.w.lse, gradient.delta, gradient.delta_error))
    b_lse = finite(f.lse_bound).reshape(shape) if r.declared.recomputes else r.lse.u * np.abs(lse) + r.lse.eta
    sink = np.where(np.isfinite(sinks), sinks, 0.0)[:, None]
    p = np.where(np.isfinite(sinks)[:, None], np.exp(np.where(np.isfinite(sinks)[:, None], sink - lse, 0.0)), 0.0)
    d = (2.0 * u + r.scores.u) * np.abs(sink) + b_lse + u * (3.0 * np.abs(sink - lse) + np.abs(lse)) + r.exp_cost
    d = d - 2.0 * np.log1p(-r.probabilities.u) + (2.0 + f.w.rescalings.reshape(shape)) * (r.exp_cost if r.declared.recomputes else 0.0)
    excess, hopeless = grown(p, d, np.where(np.isfinite(sinks)[:, None], sink, -np.inf), lse)
    wrong = excess * (np.abs(delta) + delta_error) + p * delta_error
    wrong = wrong + (2.0 * u * (p + excess) + underflow(p + excess, *_weight_etas(r))) * (np.abs(delta) + delta_error)
    size = (p * np.abs(delta) + wrong).sum(axis=(0, 2))
    error = wrong.sum(axis=(0, 2)) + dot_bound(r.accumulate, size, float(shape[0] * shape[2]))
    error = _stored(r, error, size, g(r.declared.gradient_blocks, r.gradient.u))
    lost = (gradient.over.any(axis=-1).reshape(shape) | np.asarray(hopeless)[..., 0:1]).any(axis=(0, 2))
    lost = lost | (size + error > min(r.accumulate.largest, r.gradient.largest))
    return np.where(lost, np.inf, r.out.bound((p * delta).sum(axis=(0, 2)), error))


def attention_packed_backward_bound(arithmetic: ResolvedArithmetic, q: ArrayLike, k: ArrayLike, v: ArrayLike, out: ArrayLike,
                                    lse: ArrayLike, dout: ArrayLike, cu_q: ArrayLike, cu_k: ArrayLike, *, causal: Causal,
                                    window: Window = None, scale: float | None = None,
                                    softcap: float | None = None) -> dict[str, Float64]:
    """`attention_backward_bound` for each of n packed sequences: "dq", "dk", "dv", shaped as q, k, v.

    out, dout (Tq, Hq, Dv), lse (Hq, Tq); the rest as in `attention_packed_bound`. Sequences without keys or queries: 0.

    >>> from oracles.properties import Arithmetic
    >>> x = np.ones((2, 1, 1), np.float32)
    >>> a = Arithmetic().resolve("float32")
    >>> attention_packed_backward_bound(a, x, x, x, x, x[:, :, 0].T, x, [0, 2, 2], [0, 0, 2], causal=None)["dv"].ravel()
    array([0., 0.])
    """
    q, k, v, out, dout = (arguments.float_array(name, x, ndim=3) for name, x in
                          (("q", q), ("k", k), ("v", v), ("out", out), ("dout", dout)))
    lse = arguments.float_array("lse", lse, (q.shape[1], len(q)))
    bounds = {"dq": np.zeros(q.shape), "dk": np.zeros(k.shape), "dv": np.zeros(v.shape)}
    for rows, keys in sequences(q, k, cu_q, cu_k):
        one = attention_backward_bound(arithmetic, batch(q[rows]), batch(k[keys]), batch(v[keys]), batch(out[rows]), lse[None, :, rows],
                                       batch(dout[rows]), causal=causal, window=window, scale=scale, softcap=softcap)
        for name, part in (("dq", rows), ("dk", keys), ("dv", keys)):
            bounds[name][part] = one[name][0].swapaxes(0, 1)
    return bounds
