"""A key/value cache that holds codes: keys and values of each token quantized as they come, and dequantized when they are read."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Float64, Int64
from .quantization import bit_width, dequantize, quantize


class QuantizedKVCache:
    """Keys and values of one layer as codes, with one scale for each token, head and group of channels.

        stored      quantize(k, group=group), affine, token by token: what is stored never changes
        read        (q - zero) scale

    append(k, v) takes (B, Hkv, n, D) and (B, Hkv, n, Dv); view() gives both dequantized, float64; crop(n) keeps the first n.
    nbytes(scale_bytes=2) counts codes at `bits` each, a scale and a zero of one byte a group.
    Source: KIVI, Liu et al. 2024 (arXiv 2402.02750), section 3, the form with scales a token.

    >>> cache = QuantizedKVCache(bits=8, group=2)
    >>> x = np.array([0.0, 255.0, -1.0, 0.0]).reshape(1, 1, 1, 4)
    >>> cache.append(x, x)
    >>> cache.view()[0].ravel().tolist(), len(cache), cache.nbytes()
    ([0.0, 255.0, -1.0, 0.0], 1, 20)
    """

    def __init__(self, *, bits: int, group: int) -> None:
        self.bits, self.group = bit_width(bits), arguments.whole_number("group", group, least=1)
        self._parts: list[tuple[tuple[Int64, Float64, Int64], tuple[Int64, Float64, Int64]]] = []

    def append(self, k: ArrayLike, v: ArrayLike) -> None:
        """The tokens of k and v behind those there are. Raises ValueError where the shapes do not go on from those."""
        k, v = arguments.widen("k", k, ndim=4), arguments.widen("v", v, ndim=4)
        if k.shape[:3] != v.shape[:3]:
            raise ValueError(f"v: got shape {v.shape} beside k {k.shape}; want ({k.shape[0]}, {k.shape[1]}, {k.shape[2]}, Dv)")
        for name, x, held in zip(("k", "v"), (k, v), self._parts[0] if self._parts else (None, None)):
            if held is not None and (x.shape[:2], x.shape[3]) != (held[0].shape[:2], held[0].shape[3]):
                raise ValueError(f"{name}: got shape {x.shape} behind {held[0].shape}; want the same but for the tokens")
        for t in range(k.shape[2]):
            self._parts.append((self._stored(k[:, :, t : t + 1]), self._stored(v[:, :, t : t + 1])))

    def view(self) -> tuple[Float64, Float64]:
        """Keys and values dequantized, (B, Hkv, len, D) and (B, Hkv, len, Dv). Raises ValueError for a cache that never held any."""
        if not self._parts:
            raise ValueError("view: the cache holds no token; want append first")
        k, v = ([dequantize(*part[i], group=self.group) for part in self._parts] for i in (0, 1))
        return np.concatenate(k, axis=2), np.concatenate(v, axis=2)

    def crop(self, n: int) -> None:
        """Only the first n tokens stay: rollback after a rejected draft."""
        n = arguments.whole_number("n", n, least=0)
        if n > len(self._parts):
            raise ValueError(f"n: got {n} of {len(self._parts)} tokens; want 0..{len(self._parts)}")
        del self._parts[n:]

    def nbytes(self, *, scale_bytes: int = 2) -> int:
        """Bytes of codes, scales and zeros."""
        return sum(-(-q.size * self.bits // 8) + scale.size * (scale_bytes + 1) for part in self._parts for q, scale, _ in part)

    def __len__(self) -> int:
        return len(self._parts)

    def _stored(self, x: Float64) -> tuple[Int64, Float64, Int64]:
        q, scale, zero = quantize(x, bits=self.bits, group=self.group, symmetric=False)
        return q.astype(np.int64), scale, zero
