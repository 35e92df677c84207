"""Attention and its gradient in mpmath, one element at a time and by its definition: the second route's largest part."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np


def mp() -> Any:
    """mpmath's context. Raises ImportError that names the extra where it is missing."""
    try:
        import mpmath
    except ImportError:
        raise ImportError("certify: mpmath is not installed; want it: pip install 'oracles[certify]'") from None
    return mpmath.mp


def _numbers(row: Any) -> list[Any]:
    return [mp().mpf(float(x)) for x in row]


class TextbookRows:
    """One call of attention: `element(name, index)` is one element of a result, computed at mpmath's present precision."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.given = dict(arguments)
        self.q, self.k, self.v = (np.asarray(self.given[name]) for name in ("q", "k", "v"))
        (self.B, self.Hq, self.Lq, D), (self.Hkv, self.Lk) = np.shape(self.q), np.shape(self.k)[1:3]
        scale, self.cap = self.given.get("scale"), self.given.get("softcap")
        self.scale = 1 / mp().sqrt(D) if scale is None else mp().mpf(float(scale))
        self.row, self.p, self._raw = (lru_cache(maxsize=None)(one) for one in (self._row, self._p, self._raw_gradient))
        self.keys, self.values = lru_cache(maxsize=None)(self._keys), lru_cache(maxsize=None)(self._values)

    def element(self, name: str, index: tuple[int, ...]) -> Any:
        if name in ("out", "lse", "dq"):
            return getattr(self, name)(*index)
        if name in ("dk", "dv"):
            b, g, j, d = index
            heads = range(g * (self.Hq // self.Hkv), (g + 1) * (self.Hq // self.Hkv))
            return mp().fsum(getattr(self, name)(b, h, i, j, d) for h in heads for i in range(self.Lq))
        if name == "dbias":
            shape = (1,) * (4 - len(index)) + np.shape(self.given["bias"])
            full = (0,) * (4 - len(index)) + index
            over = [range(n) if one == 1 else (at,) for n, one, at in zip((self.B, self.Hq, self.Lq, self.Lk), shape, full)]
            return mp().fsum(self.ds(b, h, i)[j] for b in over[0] for h in over[1] for i in over[2] for j in over[3])
        return -mp().fsum(self._sink_part(b, index[0], i) for b in range(self.B) for i in range(self.Lq))

    def _keys(self, b: int, h: int, j: int) -> list[Any]:
        return _numbers(self.k[b, h // (self.Hq // self.Hkv), j])

    def _values(self, b: int, h: int, j: int) -> list[Any]:
        return _numbers(self.v[b, h // (self.Hq // self.Hkv), j])

    def dot(self, b: int, h: int, i: int, j: int) -> Any:
        return mp().fdot(_numbers(self.q[b, h, i]), self.keys(b, h, j))

    def _row(self, b: int, h: int, i: int) -> tuple[list[Any], Any, list[Any]]:
        """e^s of every key, 0 for those that are hidden; e^sink; the slope of the cap."""
        n = self.Lk if self.given.get("kv_lengths") is None else int(self.given["kv_lengths"][b])
        p = i if self.given.get("causal") == "top_left" else i + n - self.Lq
        weights, slopes = [], []
        for j in range(self.Lk):
            if not self._sees(b, h, i, j, p, n):
                weights.append(mp().mpf(0))
                slopes.append(mp().mpf(0))
                continue
            s, slope = self.dot(b, h, i, j) * self.scale, mp().mpf(1)
            if self.cap is not None:
                s, slope = self.cap * mp().tanh(s / self.cap), mp().sech(s / self.cap) ** 2
            if self.given.get("bias") is not None:
                s += mp().mpf(float(np.broadcast_to(self.given["bias"], (self.B, self.Hq, self.Lq, self.Lk))[b, h, i, j]))
            if self.given.get("alibi_slopes") is not None:
                s -= mp().mpf(float(self.given["alibi_slopes"][h])) * abs(p - j)
            weights.append(mp().exp(s))
            slopes.append(slope)
        sinks = self.given.get("sinks")
        sink = mp().mpf(0) if sinks is None or np.isneginf(float(sinks[h])) else mp().exp(mp().mpf(float(sinks[h])))
        return weights, sink, slopes

    def _sees(self, b: int, h: int, i: int, j: int, p: int, n: int) -> bool:
        left, right = self.given.get("window") or (None, None)
        mask = self.given.get("mask")
        return (j < n and not (self.given.get("causal") and j > p) and not (left is not None and p - j > left)
                and not (right is not None and j - p > right)
                and (mask is None or bool(np.broadcast_to(mask, (self.B, self.Hq, self.Lq, self.Lk))[b, h, i, j])))  # fmt: skip

    def _p(self, b: int, h: int, i: int) -> list[Any]:
        weights, sink, _ = self.row(b, h, i)
        total = mp().fsum(weights) + sink
        return [w / total if total else total for w in weights]

    def z(self, b: int, h: int, i: int, j: int) -> Any:
        kept = self.given.get("dropout_mask")
        if kept is None:
            return mp().mpf(1)
        return int(np.broadcast_to(kept, (self.B, self.Hq, self.Lq, self.Lk))[b, h, i, j]) / (1 - mp().mpf(float(self.given["dropout_p"])))

    def out(self, b: int, h: int, i: int, c: int) -> Any:
        return mp().fsum(p * self.z(b, h, i, j) * self.values(b, h, j)[c] for j, p in enumerate(self.p(b, h, i)) if p)

    def lse(self, b: int, h: int, i: int) -> Any:
        weights, sink, _ = self.row(b, h, i)
        total = mp().fsum(weights) + sink
        return mp().log(total) if total else -mp().inf

    def dp(self, b: int, h: int, i: int) -> list[Any]:
        do = _numbers(self.given["dout"][b, h, i])
        return [self.z(b, h, i, j) * mp().fdot(do, self.values(b, h, j)) for j in range(self.Lk)]

    def ds(self, b: int, h: int, i: int) -> list[Any]:
        p, dp = self.p(b, h, i), self.dp(b, h, i)
        delta = mp().fdot(p, dp)
        return [one * (d - delta) for one, d in zip(p, dp)]

    def _raw_gradient(self, b: int, h: int, i: int) -> list[Any]:
        """The gradient of q k^T."""
        return [self.scale * slope * d for slope, d in zip(self.row(b, h, i)[2], self.ds(b, h, i))]

    def dq(self, b: int, h: int, i: int, d: int) -> Any:
        return mp().fsum(x * self.keys(b, h, j)[d] for j, x in enumerate(self._raw(b, h, i)) if x)

    def dk(self, b: int, h: int, i: int, j: int, d: int) -> Any:
        return self._raw(b, h, i)[j] * mp().mpf(float(self.q[b, h, i, d]))

    def dv(self, b: int, h: int, i: int, j: int, c: int) -> Any:
        return self.p(b, h, i)[j] * self.z(b, h, i, j) * mp().mpf(float(self.given["dout"][b, h, i, c]))

    def _sink_part(self, b: int, h: int, i: int) -> Any:
        weights, sink, _ = self.row(b, h, i)
        total = mp().fsum(weights) + sink
        return sink / total * mp().fdot(self.p(b, h, i), self.dp(b, h, i)) if total else total


class PackedRows:
    """Packed sequences: an element belongs to one of them, and is that of the sequence alone."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.given = dict(arguments)
        self.ends = {side: np.asarray(self.given.pop(f"cu_{side}")).tolist() for side in ("q", "k")}

    def element(self, name: str, index: tuple[int, ...]) -> Any:
        side = "k" if name in ("dk", "dv") else "q"
        token, head, rest = (index[1], index[0], ()) if name == "lse" else (index[0], index[1], index[2:])
        n = max(i for i, start in enumerate(self.ends[side][:-1]) if start <= token < self.ends[side][i + 1])
        parts = {"q": slice(*self.ends["q"][n : n + 2]), "k": slice(*self.ends["k"][n : n + 2])}
        alone = dict(self.given)
        for one, where in (("q", "q"), ("dout", "q"), ("k", "k"), ("v", "k")):
            if one in alone:
                alone[one] = np.asarray(alone[one])[parts[where]].swapaxes(0, 1)[None]
        return TextbookRows(alone).element(name, (0, head, token - self.ends[side][n], *rest))


class PagedRows:
    """Pages: a sequence's keys are read where its table leads."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.given = dict(arguments)

    def element(self, name: str, index: tuple[int, ...]) -> Any:
        given = dict(self.given)
        b, h, i, *rest = index
        n_k, lengths = int(given.pop("kv_lengths")[b]), given.pop("query_lengths", None)
        table, pages = given.pop("block_tables")[b], [np.asarray(given.pop(f"{letter}_pages")) for letter in ("k", "v")]
        n_q = given["q"].shape[2] if lengths is None else int(lengths[b])
        if i >= n_q:
            return mp().mpf(0) if name == "out" else -mp().inf
        size = pages[0].shape[1]
        for letter, one in zip(("k", "v"), pages):
            tokens = [one[table[t // size]][t % size] for t in range(n_k)]
            given[letter] = np.asarray(tokens, dtype=one.dtype).reshape(n_k, *one.shape[2:]).swapaxes(0, 1)[None]
        given["q"] = given["q"][b : b + 1, :, :n_q]
        return TextbookRows(given).element(name, (0, h, i, *rest))


def latent_rows(arguments: Mapping[str, Any]) -> TextbookRows:
    """Latent attention: scores and values with the latents written out."""
    return _LatentRows(arguments)


class _LatentRows(TextbookRows):
    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self.latent, self.k_rope, self.w_uk, self.w_uv = (arguments[name] for name in ("latent", "k_rope", "w_uk", "w_uv"))
        q = np.concatenate([np.asarray(arguments[name]).astype(np.float64) for name in ("q_nope", "q_rope")], axis=-1)
        B, H, _, D = q.shape
        stand_in = np.zeros((B, H, self.latent.shape[1], D))
        super().__init__({"q": q, "k": stand_in, "v": stand_in, **{name: arguments.get(name) for name in
                                                                    ("causal", "scale", "kv_lengths", "mask")}})  # fmt: skip

    def _keys(self, b: int, h: int, j: int) -> list[Any]:
        return self._projected(b, j, self.w_uk[h]) + _numbers(self.k_rope[b, j])

    def _values(self, b: int, h: int, j: int) -> list[Any]:
        return self._projected(b, j, self.w_uv[h])

    def _projected(self, b: int, j: int, w: Any) -> list[Any]:
        return [mp().fdot(_numbers(self.latent[b, j]), _numbers(w[:, d])) for d in range(w.shape[1])]
