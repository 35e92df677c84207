"""Legal variants of KV caches: one buffer or many pieces, in place or anew, rings, other formats, fewer methods."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles.reference import KVCache

from .specimen import variant
from .textbook_cache import Cache

FAMILY = "kv-cache"


@variant("kv_cache", id="oracle-cache", family=FAMILY)
class Oracle(KVCache):
    """The oracle itself: new arrays at every append."""


@variant("kv_cache", id="buffer-written-in-place", family=FAMILY)
class InPlace(Cache):
    """A buffer that is doubled when it is full, written in place; views are windows into it."""


@variant("kv_cache", id="static-buffer", family=FAMILY, source="https://github.com/huggingface/transformers/issues/30312")
class Static(Cache):
    """A buffer of its final size from the start, of zeros, whose length alone moves."""

    def append(self, k: Any, v: Any) -> None:
        if self.k is None and k.shape[:3] == v.shape[:3]:
            self.k, self.v = (np.zeros((*x.shape[:2], 256, x.shape[3])) for x in (k, v))
        super().append(k, v)


@variant("kv_cache", id="pieces-in-a-list", family=FAMILY)
class Pieces(Cache):
    """What is appended stays in a list of pieces, joined when it is looked at."""

    def __init__(self, *, window: int | None = None) -> None:
        super().__init__(window=window)
        self.pieces: list[tuple[Any, Any]] = []

    def append(self, k: Any, v: Any) -> None:
        self.check(k, v)
        self.pieces.append((k, v))
        self.join()

    def join(self) -> None:
        self.k, self.v = (np.concatenate(arrays, axis=2) for arrays in zip(*self.pieces))
        self.n = self.k.shape[2]

    def crop(self, n: int) -> None:
        super().crop(n)
        if self.pieces:
            self.pieces = [(self.k[:, :, :n], self.v[:, :, :n])]
            self.join()

    def select(self, rows: Any) -> None:
        super().select(rows)
        self.pieces = [(self.k, self.v)]


@variant("kv_cache", id="ring-of-the-window", family=FAMILY)
class Ring:
    """Only the last `window` tokens are kept; rolling back is not supported then."""

    def __init__(self, *, window: int | None = None) -> None:
        self.window, self.n = window, 0
        self.cache = Cache()

    def __len__(self) -> int:
        return self.n

    def append(self, k: Any, v: Any) -> None:
        self.cache.append(k, v)
        self.n += k.shape[2]
        if self.window is not None and len(self.cache) > self.window:
            kept = [array[:, :, -self.window :] if self.window else array[:, :, :0] for array in self.cache.view()]
            self.cache = Cache()
            self.cache.append(*kept)

    def view(self) -> Any:
        return self.cache.view()

    def crop(self, n: int) -> None:
        if self.window is not None and self.n and 0 <= n <= self.n:
            raise NotImplementedError("a ring has forgotten what was before its window")
        self.cache.crop(n)
        self.n = n


@variant("kv_cache", id="float32-cache", family=FAMILY)
class Float32(Cache):
    """Kept in float32, which holds what was appended."""

    def view(self) -> tuple[Any, Any]:
        k, v = super().view()
        return k.astype(np.float32), v.astype(np.float32)


@variant("kv_cache", id="tokens-first", family=FAMILY)
class TokensFirst(Cache):
    """Stored as (n, B, H, D): a view is a transposed one."""

    def view(self) -> tuple[Any, Any]:
        k, v = (np.ascontiguousarray(np.moveaxis(array, 2, 0)) for array in super().view())
        return np.moveaxis(k, 0, 2), np.moveaxis(v, 0, 2)


@variant("kv_cache", id="append-and-view-alone", family=FAMILY)
class AppendAndView:
    """No window, no rolling back, no beams."""

    def __init__(self) -> None:
        self.cache = Cache()
        self.append, self.view = self.cache.append, self.cache.view

    def __len__(self) -> int:
        return len(self.cache)
