"""The bound of the decoder's loss and gradients: its graph once more, forward and backward, each value with its running error."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.arithmetic import ResolvedArithmetic
from oracles.reference import Decoder, mla_scale, rope_frequencies
from oracles.reference.arguments import Float64, Int64

from .running import Running, running_softmax
from .sums import Rounding, checked, roundings

Errors = dict[str, Running]
Back = Callable[[Running], tuple[Running, Errors]]


def decoder_bound(
    arithmetic: ResolvedArithmetic, tokens: ArrayLike, targets: ArrayLike, weights: Mapping[str, ArrayLike], decoder: Decoder, *,
    balance: float = 0.0, ignore_index: int = -100,
) -> dict[str, Float64]:  # fmt: skip
    """How far loss and gradients of any legal training pass may be from the exact ones: {"loss", and each weight's name}.

    All sums in any order, over whatever ranks: a running error through the graph of `decoder_gradients`. inf for everything
    behind experts whose choice a rounding may turn. Values everybody has: weights, sines and cosines, 1 / sqrt(D).

    >>> from oracles.properties import Arithmetic
    >>> sizes = Decoder(vocabulary=3, width=2, layers=1, heads=1, kv_heads=1, head_size=2, hidden=1)
    >>> weights = {name: np.ones(shape) for name, shape in sizes.shapes().items()}
    >>> bool(decoder_bound(Arithmetic().resolve("float64"), [[0, 1]], [[1, 2]], weights, sizes)["head"].max() < 1e-12)
    True

    Source: Higham 2002, section 3.3; the graph is that of `transformer_backward`.
    """
    return checked({name: value.e for name, value in decoder_with_errors(
        arithmetic, tokens, targets, weights, decoder, balance=balance, ignore_index=ignore_index).items()})


def logits_with_errors(
    arithmetic: ResolvedArithmetic, tokens: ArrayLike, weights: Mapping[str, ArrayLike], decoder: Decoder
) -> Running:  # fmt: skip
    """The logits (B, T, V) of whole sequences with their bound: however the tokens are cut into calls, where latents are not absorbed.

    >>> from oracles.properties import Arithmetic
    >>> sizes = Decoder(vocabulary=3, width=2, layers=1, heads=1, kv_heads=1, head_size=2, hidden=1)
    >>> weights = {name: np.ones(shape) for name, shape in sizes.shapes().items()}
    >>> bool(logits_with_errors(Arithmetic().resolve("float64"), [[0, 1]], weights, sizes).e.max() < 1e-12)
    True

    Source: as `decoder_bound`.
    """
    return _forward(_rounding(arithmetic), np.asarray(tokens), weights, decoder, 0.0).logits


def decoder_with_errors(
    arithmetic: ResolvedArithmetic, tokens: ArrayLike, targets: ArrayLike, weights: Mapping[str, ArrayLike], decoder: Decoder, *,
    balance: float = 0.0, ignore_index: int = -100,
) -> Errors:  # fmt: skip
    """Loss and gradients, each with its bound."""
    r, ids, y = _rounding(arithmetic), np.asarray(tokens), np.asarray(targets)
    passed = _forward(r, ids, weights, decoder, balance)
    loss, dz = _scored(passed.logits, y, ignore_index)
    for layer in passed.layers:
        loss = loss if layer.balance is None else loss + layer.balance.times(balance)
    dx, dnorm = passed.norm_back(dz @ _up(passed.head))
    gradients: Errors = {"norm": dnorm}
    for i, layer in reversed(list(enumerate(passed.layers))):
        dx, own = layer.back(dx)
        gradients |= {f"layers.{i}.{name}": value for name, value in own.items()}
    one_hot = Running.exact((ids.reshape(-1, 1) == np.arange(decoder.vocabulary)).T, r)
    gradients["embedding"] = one_hot @ _rows(dx)                                # (V, E): zeros add nothing, whatever their number
    dhead = _outer(passed.last, dz)
    gradients |= {"head": dhead} if not decoder.tied else {"embedding": gradients["embedding"] + dhead.shaped(np.transpose)}
    return {"loss": loss, **{name: gradients[name] for name in weights}}


@dataclass(frozen=True)
class _Passed:
    """What the forward pass leaves: its layers, what the head reads, the head, the logits, and the way back through the last norm."""

    layers: list[_Layer]
    last: Running
    head: Running
    logits: Running
    norm_back: Callable[[Running], tuple[Running, Running]]


def _forward(r: Rounding, ids: Int64, weights: Mapping[str, ArrayLike], decoder: Decoder, balance: float) -> _Passed:
    w = {name: Running.exact(value, r) for name, value in weights.items()}
    x, layers = w["embedding"].at(ids), []
    for i in range(decoder.layers):
        own = {name.removeprefix(f"layers.{i}."): value for name, value in w.items() if name.startswith(f"layers.{i}.")}
        layers.append(_layer(x, own, decoder, balance))
        x = layers[-1].out
    last, norm_back = _normed(x, w["norm"], decoder.eps)
    head = w["embedding"].shaped(np.transpose) if decoder.tied else w["head"]
    return _Passed(layers, last, head, last @ head, norm_back)


def _rounding(arithmetic: ResolvedArithmetic) -> Rounding:
    a = roundings(arithmetic).accumulate
    return Rounding(a.u + 2.0**-53, a.eta, a.largest)


@dataclass(frozen=True)
class _Layer:
    out: Running
    balance: Running | None
    back: Back


def _layer(x: Running, w: Errors, decoder: Decoder, balance: float) -> _Layer:
    a, back_a = _normed(x, w["norm_attention"], decoder.eps)
    attended, back_attention = (_grouped if decoder.latent is None else _latent)(a, w, decoder)
    middle = x + attended
    f, back_f = _normed(middle, w["norm_feed_forward"], decoder.eps)
    if decoder.experts is None:
        fed, back_feed = _gated(f, w)
        unbalance = None
    else:
        fed, unbalance, back_feed = _experts(f, w, decoder, balance)

    def back(dout: Running) -> tuple[Running, Errors]:
        df, own = back_feed(dout)
        dmiddle, own["norm_feed_forward"] = back_f(df)
        dmiddle = dout + dmiddle
        da, more = back_attention(dmiddle)
        dx, own["norm_attention"] = back_a(da)
        return dmiddle + dx, own | more

    return _Layer(middle + fed, unbalance, back)


def _normed(x: Running, weight: Running, eps: float) -> tuple[Running, Callable[[Running], tuple[Running, Running]]]:
    """y = x r weight, r = 1 / sqrt(mean x^2 + eps); dx = r (dy weight - x r^2 mean(dy weight x)), dweight = sum dy x r."""
    one, D = Running.exact(1.0, x.r), x.x.shape[-1]
    r = one / ((x * x).sum(-1).times(1.0 / D) + Running.exact(eps, x.r)).root()

    def back(dy: Running) -> tuple[Running, Running]:
        d = dy * weight
        dx = r * (d - x * r * r * (d * x).sum(-1).times(1.0 / D))
        axes = tuple(range(x.x.ndim - 1))
        return dx, (dy * x * r).sum(axes).shaped(lambda t: t.reshape(-1))

    return x * r * weight, back


def _gated(x: Running, w: Errors) -> tuple[Running, Back]:
    g, a = x @ w["w_gate"], x @ w["w_up"]
    one = Running.exact(1.0, x.r)
    sigma, other = one / (one + (-g).exp()), one / (one + g.exp())              # 1 - sigma either way: more is allowed below
    s = g * sigma
    slope = sigma * (one + g * other)
    slope = Running(slope.x, slope.e + 4.0 * x.r.u * sigma.size * g.size, x.r)
    h = s * a

    def back(dy: Running) -> tuple[Running, Errors]:
        dh = dy @ _up(w["w_down"])
        da, dg = dh * s, dh * a * slope
        dx = dg @ _up(w["w_gate"]) + da @ _up(w["w_up"])
        return dx, {"w_gate": _outer(x, dg), "w_up": _outer(x, da), "w_down": _outer(h, dy)}

    return h @ w["w_down"], back


def _experts(x: Running, w: Errors, decoder: Decoder, balance: float) -> tuple[Running, Running, Back]:
    rows = _rows(x)
    logits = rows @ w["w_router"]
    p, _ = running_softmax(logits)
    ids, open_choice = _chosen(p, decoder.active)
    T, X = p.x.shape
    gates = _gates(logits, p, ids, decoder.normalize_gates)                     # (T, k)
    out, parts = Running.exact(np.zeros_like(rows.x), x.r), []
    for e in range(X):
        t, j = np.nonzero(ids == e)
        matrices = {name: w[name].at(e) for name in ("w_gate", "w_up", "w_down")}
        y, back_e = _gated(rows.at(t), matrices)
        gate = gates.at(t, j).at(slice(None), None)
        parts.append((t, j, y, gate, back_e))
        out = out + _spread(gate * y, t, T)
    share = np.bincount(ids.ravel(), minlength=X) / ids.size
    unbalance = p.sum(0).times(share * X / T).sum((0, 1)).shaped(lambda a: a.reshape(()))

    def back(dout: Running) -> tuple[Running, Errors]:
        d, found = _rows(dout), []
        dx, dgates = Running.exact(np.zeros_like(rows.x), x.r), Running.exact(np.zeros(ids.shape), x.r)
        for t, j, y, gate, back_e in parts:
            mine = d.at(t)
            dxe, own = back_e(gate * mine)
            dx = dx + _spread(dxe, t, T)
            dgates = dgates + _at((mine * y).sum(-1), t, j, ids.shape)
            found.append(own)
        dlogits = _router_back(logits, p, ids, dgates, decoder.normalize_gates)
        if balance:
            dp = Running.exact(np.broadcast_to(balance * X * share / T, p.x.shape), x.r)
            dp = Running(dp.x, 4.0 * x.r.u * np.abs(dp.x), x.r)
            dlogits = dlogits + p * (dp - (p * dp).sum(-1))
        dx = dx + dlogits @ _up(w["w_router"])
        own = {name: Running(np.stack([one[name].x for one in found]), np.stack([one[name].e for one in found]), x.r) for name in found[0]}
        own["w_router"] = _outer(rows, dlogits)
        return dx.shaped(lambda a: a.reshape(x.x.shape)), own

    out = out.shaped(lambda a: a.reshape(x.x.shape))
    return Running(out.x, out.e + (np.inf if open_choice else 0.0), x.r), unbalance, back


def _chosen(p: Running, k: int) -> tuple[Int64, bool]:
    """The k most probable experts, and whether a rounding may turn the choice of any token."""
    order = np.argsort(-p.x, axis=-1, kind="stable")
    low, high = (np.take_along_axis(edge, order, axis=-1) for edge in (p.x - p.e, p.x + p.e))
    return order[:, :k], bool((low[:, : min(k, p.x.shape[1] - 1)] <= high[:, 1 : k + 1]).any())


def _gates(logits: Running, p: Running, ids: Int64, normalize: bool) -> Running:
    """As the softmax of the chosen, or as quotients of probabilities over their sum: the larger error of the two."""
    mine = p.shaped(lambda a: np.take_along_axis(a, ids, axis=-1))
    if not normalize:
        return mine
    direct, _ = running_softmax(logits.shaped(lambda a: np.take_along_axis(a, ids, axis=-1)))
    quotient = mine / mine.sum(-1)
    return Running(direct.x, np.maximum(direct.e, quotient.e), p.r)


def _router_back(logits: Running, p: Running, ids: Int64, dgates: Running, normalize: bool) -> Running:
    gates, X = _gates(logits, p, ids, normalize), p.x.shape[1]
    if normalize:
        dz = gates * (dgates - (gates * dgates).sum(-1))                        # (T, k)
        return dz.shaped(lambda a: _scattered(a, ids, X))
    dp = dgates.shaped(lambda a: _scattered(a, ids, X))
    return p * (dp - (p * dp).sum(-1))


def _grouped(x: Running, w: Errors, decoder: Decoder) -> tuple[Running, Back]:
    H, Hkv, D = decoder.heads, decoder.kv_heads, decoder.head_size
    turn = _Turn.of(decoder, x.x.shape[1], D)
    q, k, v = (_split(x @ w[name], D) for name in ("w_q", "w_k", "w_v"))
    q, k = turn(q), turn(k)
    k, v = (y.shaped(lambda a: np.repeat(a, H // Hkv, axis=1)) for y in (k, v))
    out, attend_back = _attended(q, k, v, D**-0.5, decoder)
    joined = _join(out)

    def back(dy: Running) -> tuple[Running, Errors]:
        dq, dk, dv = attend_back(_split(dy @ _up(w["w_o"]), D))
        dk, dv = (_summed(y, Hkv) for y in (dk, dv))
        parts = {"w_q": _join(turn.back(dq)), "w_k": _join(turn.back(dk)), "w_v": _join(dv)}
        dx = parts["w_q"] @ _up(w["w_q"]) + parts["w_k"] @ _up(w["w_k"]) + parts["w_v"] @ _up(w["w_v"])
        return dx, {"w_o": _outer(joined, dy), **{name: _outer(x, part) for name, part in parts.items()}}

    return joined @ w["w_o"], back


def _latent(x: Running, w: Errors, decoder: Decoder) -> tuple[Running, Back]:
    D, Dr = decoder.head_size, decoder.rope_size or 0
    turn, scale = _Turn.of(decoder, x.x.shape[1], Dr), mla_scale(D, Dr, scaling=decoder.scaling)
    q = _split(x @ w["w_q"], D + Dr)
    c = x @ w["w_c"]
    latent, back_norm = _normed(c, w["norm_latent"], decoder.eps)
    shared = turn((x @ w["w_kr"]).shaped(lambda a: a[:, None]))                 # (B, 1, T, Dr)
    rows = latent.shaped(lambda a: a[:, None])                                  # (B, 1, T, C)
    q = _beside(q.shaped(lambda a: a[..., :D]), turn(q.shaped(lambda a: a[..., D:])))
    k = _beside(rows @ w["w_uk"], shared.shaped(lambda a: np.repeat(a, decoder.heads, axis=1)))
    out, attend_back = _attended(q, k, rows @ w["w_uv"], scale, decoder)
    joined = _join(out)

    def back(dy: Running) -> tuple[Running, Errors]:
        dq, dk, dv = attend_back(_split(dy @ _up(w["w_o"]), D))
        dq = _join(_beside(dq.shaped(lambda a: a[..., :D]), turn.back(dq.shaped(lambda a: a[..., D:]))))
        dk_nope = dk.shaped(lambda a: a[..., :D])
        dkr = turn.back(_summed(dk.shaped(lambda a: a[..., D:]), 1)).shaped(lambda a: a[:, 0])
        dlatent = _summed(dk_nope @ _up(w["w_uk"]) + dv @ _up(w["w_uv"]), 1).shaped(lambda a: a[:, 0])
        dc, dnorm = back_norm(dlatent)
        dx = dq @ _up(w["w_q"]) + dc @ _up(w["w_c"]) + dkr @ _up(w["w_kr"])
        up = [(_up(rows) @ one).sum(0).shaped(lambda a: a[0]) for one in (dk_nope, dv)]
        return dx, {"w_o": _outer(joined, dy), "w_q": _outer(x, dq), "w_c": _outer(x, dc), "w_kr": _outer(x, dkr), "norm_latent": dnorm,
                    "w_uk": up[0], "w_uv": up[1]}

    return joined @ w["w_o"], back


def _attended(
    q: Running, k: Running, v: Running, scale: float, decoder: Decoder
) -> tuple[Running, Callable[[Running], tuple[Running, Running, Running]]]:
    """One key head for each query head, and the gradients of q, k, v."""
    i, j = np.arange(q.x.shape[2])[:, None], np.arange(q.x.shape[2])
    seen = (j <= i) & (True if decoder.window is None else i - j <= decoder.window)
    p, _ = running_softmax((q @ _up(k)).times(scale), seen)
    out = p @ v

    def back(do: Running) -> tuple[Running, Running, Running]:
        dp = do @ _up(v)
        delta, other = (p * dp).sum(-1), (do * out).sum(-1)                     # the same number: kernels take either
        delta = Running(delta.x, np.maximum(delta.e, other.e + np.abs(other.x - delta.x)), p.r)
        ds = (p * (dp - delta)).times(scale)
        return ds @ k, _up(ds) @ q, _up(p) @ do

    return out, back


def _scored(z: Running, y: Int64, ignore_index: int) -> tuple[Running, Running]:
    """The mean loss, and its gradient; both may be a sum of shards' parts over the number of all targets."""
    counts = y != ignore_index
    N = max(int(counts.sum()), 1)
    at = (np.where(counts, y, 0)[..., None] == np.arange(z.x.shape[-1])) & counts[..., None]
    p, lse = running_softmax(z)
    of_target = z.shaped(lambda a: (a * at).sum(-1, keepdims=True))
    terms = (lse - of_target).shaped(lambda a: a * counts[..., None])
    loss = terms.sum((0, 1, 2)).times(1.0 / N).shaped(lambda a: a.reshape(()))
    dz = (p - Running.exact(at * 1.0, z.r)).shaped(lambda a: a * counts[..., None])
    return loss, dz.rounded(dz.x / N, dz.e / N, 4.0)


@dataclass(frozen=True)
class _Turn:
    """The turn of positions 0 .. T - 1, and back: everybody has the same sines and cosines."""

    cos: Float64
    sin: Float64
    pairing: str

    @classmethod
    def of(cls, decoder: Decoder, T: int, size: int) -> _Turn:
        f, m = rope_frequencies(size, base=decoder.base, scaling=decoder.scaling)
        angle = np.arange(T)[:, None] * f
        return cls(m * np.cos(angle), m * np.sin(angle), decoder.pairing)

    def __call__(self, y: Running) -> Running:
        R = y.x.shape[-1]
        a, b = (slice(0, R // 2), slice(R // 2, R)) if self.pairing == "half" else (slice(0, R, 2), slice(1, R, 2))
        first, second = y.shaped(lambda t: t[..., a]), y.shaped(lambda t: t[..., b])
        up, down = first.times(self.cos) - second.times(self.sin), first.times(self.sin) + second.times(self.cos)
        x, e = np.empty_like(y.x), np.empty_like(y.x)
        x[..., a], x[..., b], e[..., a], e[..., b] = up.x, down.x, up.e, down.e
        return Running(x, e, y.r)

    def back(self, y: Running) -> Running:
        return _Turn(self.cos, -self.sin, self.pairing)(y)


def _up(y: Running) -> Running:
    return y.shaped(lambda a: np.swapaxes(a, -1, -2))


def _rows(y: Running) -> Running:
    return y.shaped(lambda a: a.reshape(-1, a.shape[-1]))


def _outer(x: Running, d: Running) -> Running:
    return _up(_rows(x)) @ _rows(d)


def _split(y: Running, size: int) -> Running:
    return y.shaped(lambda a: a.reshape(*a.shape[:2], -1, size).swapaxes(1, 2))


def _join(y: Running) -> Running:
    return y.shaped(lambda a: a.swapaxes(1, 2).reshape(a.shape[0], a.shape[2], -1))


def _summed(y: Running, heads: int) -> Running:
    """(B, H, T, D) summed over the query heads of each of `heads` key heads."""
    return y.shaped(lambda a: a.reshape(a.shape[0], heads, -1, *a.shape[2:])).sum(2).shaped(lambda a: a[:, :, 0])


def _beside(a: Running, b: Running) -> Running:
    return Running(np.concatenate([a.x, b.x], axis=-1), np.concatenate([a.e, b.e], axis=-1), a.r)


def _spread(y: Running, t: Int64, T: int) -> Running:
    """Rows back at their tokens, zeros elsewhere."""
    def put(a: Float64) -> Float64:
        whole = np.zeros((T, a.shape[-1]))
        whole[t] = a
        return whole

    return y.shaped(put)


def _at(y: Running, t: Int64, j: Int64, shape: tuple[int, ...]) -> Running:
    def put(a: Float64) -> Float64:
        whole = np.zeros(shape)
        whole[t, j] = a[:, 0]
        return whole

    return y.shaped(put)


def _scattered(a: Float64, ids: Int64, experts: int) -> Float64:
    whole = np.zeros((len(a), experts))
    np.put_along_axis(whole, ids, a, axis=-1)
    return whole
