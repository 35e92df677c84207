"""Rounding: how far apart two computations of attention may be, from the sums of absolute values they round."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from oracles.reference import attention_scores, softmax_over_visible, visible_keys

Array = NDArray[Any]


class Rounding:
    """Bounds on the error of any one computation of attention and its gradients with unit roundoff u, for finite inputs.

    d  error of a score: D products and sums, then at most 16 roundings of it, of the bias and of ALiBi
    t  relative error of a probability: e^(score and maximum), 16 roundings and Lk additions
    """

    def __init__(self, q: Array, k: Array, v: Array, options: dict[str, Any], *, u: float = 2.0**-53) -> None:
        q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
        (B, Hq, Lq, D), (_, Hkv, Lk, _) = q.shape, v.shape
        self.groups, self.u, self.options = (Hkv, Hq // Hkv), u, options
        self.q, self.k, self.v = np.abs(q), *(np.abs(np.repeat(x, Hq // Hkv, axis=1)) for x in (k, v))
        self.scale = abs(options.get("scale") or D**-0.5)
        named = {name: options[name] for name in ("causal", "scale", "softcap", "bias", "kv_lengths", "alibi_slopes") if name in options}
        s = attention_scores(q, k, **named)
        named = {name: options[name] for name in ("causal", "window", "mask", "kv_lengths", "bias") if name in options}
        visible = visible_keys(B, Hq, Lq, Lk, **named)
        sinks = None if options.get("sinks") is None else np.asarray(options["sinks"], np.float64)
        self.p, self.lse = softmax_over_visible(s, visible, sinks)
        size = self.scale * self.q @ self.k.swapaxes(-1, -2)
        added = np.abs(np.where(visible, s, 0.0))
        if options.get("bias") is not None:
            bias = np.broadcast_to(np.asarray(options["bias"], np.float64), s.shape)
            added = added + np.abs(np.where(np.isfinite(bias), bias, 0.0))
        if options.get("alibi_slopes") is not None:
            added = added + np.abs(np.asarray(options["alibi_slopes"], np.float64))[:, None, None] * (Lq + Lk)
        d = np.where(visible, u * ((D + 16) * size + 16 * added), 0.0).max(axis=-1, initial=0.0, keepdims=True)
        sink = 0.0 if sinks is None else 4 * u * np.abs(sinks)[:, None, None]
        self.d = d + sink                                                       # (B, Hq, Lq, 1)
        self.t = np.expm1(2 * self.d + (2 * Lk + 16) * u)
        keep = options.get("dropout_mask")
        self.keep = 1.0 if keep is None else keep / (1.0 - options["dropout_p"])

    def out(self) -> Array:
        n = self.p.shape[-1]
        return (self.t + (1 + self.t) * (n + 8) * self.u) * ((self.p * self.keep) @ self.v)

    def of_lse(self) -> Array:
        finite = np.where(np.isfinite(self.lse), self.lse, 0.0)
        return self.d[..., 0] + (2 * self.p.shape[-1] + 8) * self.u + 4 * self.u * np.abs(finite)

    def gradients(self, dout: Array, *, terms: int = 0) -> dict[str, Array]:
        """Of each gradient; `terms` more additions where the other side sums differently."""
        (_, _, Lq, D), (_, _, Lk, Dv), dout = self.q.shape, self.v.shape, np.abs(np.asarray(dout, np.float64))
        softcap = self.options.get("softcap")
        w = self.t + (Lq + Lk + D + Dv + 32 + terms) * self.u + (0.0 if softcap is None else 2 * self.d / softcap)
        dp = (dout @ self.v.swapaxes(-1, -2)) * self.keep
        total = (self.p * dp).sum(axis=-1, keepdims=True)
        ds = 4 * w * self.p * (dp + total)
        Hkv, group = self.groups
        heads = lambda x: x.reshape(x.shape[0], Hkv, group, *x.shape[2:]).sum(axis=2)  # noqa: E731
        bounds = {"dq": self.scale * ds @ self.k, "dk": heads(self.scale * ds.swapaxes(-1, -2) @ self.q),
                  "dv": heads((4 * w * self.p * self.keep).swapaxes(-1, -2) @ dout)}
        if self.options.get("bias") is not None:
            shape = np.shape(self.options["bias"])
            lead = ds.sum(axis=tuple(range(ds.ndim - len(shape))))
            bounds["dbias"] = lead.sum(axis=tuple(i for i, n in enumerate(shape) if n == 1), keepdims=True)
        if self.options.get("sinks") is not None:
            bounds["dsinks"] = (4 * w * total).sum(axis=(0, 2, 3))              # a sink's probability is at most 1
        return bounds


@pytest.fixture
def rounding() -> type[Rounding]:
    return Rounding


def case(seed: int, *, finite: bool = True) -> tuple[dict[str, Array], dict[str, Any]]:
    """Arrays q, k, v, dout and options drawn from a seed: every option now and then, lengths from 0 to 12."""
    r = np.random.default_rng(seed)
    B, Hkv, group = (int(r.integers(1, 3)) for _ in range(3))
    Lq, Lk, D, Dv = (int(r.integers(low, high)) for low, high in ((0, 13), (0, 13), (1, 6), (1, 6)))
    Hq = Hkv * group
    shapes = {"q": (B, Hq, Lq, D), "k": (B, Hkv, Lk, D), "v": (B, Hkv, Lk, Dv), "dout": (B, Hq, Lq, Dv)}
    arrays = {name: r.normal(size=shape) for name, shape in shapes.items()}
    options: dict[str, Any] = {"causal": (None, "bottom_right", "top_left")[r.integers(3)]}
    if r.random() < 0.4:
        options["window"] = tuple(None if r.random() < 0.3 else int(r.integers(0, 5)) for _ in range(2))
    if r.random() < 0.3:
        options["scale"] = float(r.normal())
    if r.random() < 0.3:
        options["softcap"] = 1.5
    if r.random() < 0.4:
        bias = r.normal(size=[(B, Hq, Lq, Lk), (1, Hq, 1, Lk), (Lq, 1), (Lk,), (B, 1, Lq, Lk)][r.integers(5)])
        options["bias"] = np.where(r.random(bias.shape) < 0.2, -np.inf, bias)
    if r.random() < 0.3:
        options["mask"] = r.random((B, 1, Lq, Lk)) < 0.7
    if r.random() < 0.3:
        options["kv_lengths"] = r.integers(0, Lk + 1, size=B)
    if r.random() < 0.3:
        options["sinks"] = r.normal(size=Hq)
    if r.random() < 0.3:
        options["alibi_slopes"] = r.random(Hq)
    if r.random() < 0.3:
        options |= {"dropout_mask": r.random((B, Hq, Lq, Lk)) < 0.7, "dropout_p": 0.3}
    if not finite:
        for x in arrays.values():
            if x.size and r.random() < 0.5:
                x.flat[r.integers(x.size, size=2)] = r.choice([np.nan, np.inf, -np.inf], size=2)
    return arrays, options


@pytest.fixture
def drawn() -> Any:
    return case
