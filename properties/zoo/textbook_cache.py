"""Textbook cache: a plain KV cache of one layer that mutants and variants of caches are made from. It shares nothing with the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np


class Cache:
    """A buffer for keys and one for values, enlarged by doubling; the first `n` tokens of both are written."""

    def __init__(self, *, window: int | None = None) -> None:
        self.window = window
        self.k: Any = None
        self.v: Any = None
        self.n = 0

    def __len__(self) -> int:
        return self.n

    def append(self, k: Any, v: Any) -> None:
        self.check(k, v)
        if self.k is None:
            self.k, self.v = (np.full((*x.shape[:2], 4, x.shape[3]), np.nan) for x in (k, v))
        end = self.n + k.shape[2]
        while self.k.shape[2] < end:
            self.k, self.v = (np.concatenate([x, np.full_like(x, np.nan)], axis=2) for x in (self.k, self.v))
        self.write(end, k, v)

    def write(self, end: int, k: Any, v: Any) -> None:
        self.k[:, :, self.n : end], self.v[:, :, self.n : end] = k, v
        self.n = end

    def check(self, k: Any, v: Any) -> None:
        if k.shape[:3] != v.shape[:3]:
            raise ValueError(f"v of shape {v.shape} beside k of {k.shape}")
        for new, old in ((k, self.k), (v, self.v)):
            if old is not None and (*new.shape[:2], new.shape[3]) != (*old.shape[:2], old.shape[3]):
                raise ValueError(f"shape {new.shape} behind {old.shape}")

    def view(self) -> tuple[Any, Any]:
        if self.k is None:
            raise ValueError("nothing was appended")
        first = 0 if self.window is None else max(0, self.n - self.window)
        return self.k[:, :, first : self.n], self.v[:, :, first : self.n]

    def crop(self, n: int) -> None:
        if not 0 <= n <= self.n:
            raise ValueError(f"n = {n} of {self.n} tokens")
        self.n = n

    def select(self, rows: Any) -> None:
        if self.k is None or not all(0 <= row < len(self.k) for row in rows):
            raise ValueError(f"rows {rows}")
        self.k, self.v = self.k[rows], self.v[rows]
