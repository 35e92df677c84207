"""Mutants of the kv-cache family that are objects: lengths, roll-backs and splits. Those of single calls stand in `write_kv` and `rope`."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..stateful.kv_cache_model import new_cache
from ..stateful.kv_cache_sequences import append, crop, select
from .specimen import mutant
from .textbook_cache import Cache

FAMILY = "kv-cache"


@mutant(
    "kv_cache", id="appended-length-computed-from-capacity", family=FAMILY,
    source="https://github.com/ROCm/hip-ep/pull/753 https://github.com/microsoft/onnxruntime/pull/24485",
    trigger=lambda: (new_cache(), append(5), append(1, first=20)),
)  # fmt: skip
class LengthFromTheCapacity(Cache):
    """The number of tokens before the new ones is taken from the buffer, which has room for more than were written."""

    def write(self, end: int, k: Any, v: Any) -> None:
        new, past = k.shape[2], self.n
        super().write(end, k, v)
        self.n = self.k.shape[2] if past and new else end


@mutant(
    "kv_cache", id="values-split-from-the-keys", family=FAMILY, source="https://github.com/huggingface/transformers/issues/34232",
    trigger=lambda: (new_cache(), append(2, B=2), select(1, 0), append(1, B=2, first=40)),
)  # fmt: skip
class ValuesSplitFromTheKeys(Cache):
    """Splitting the cache fills the list of values from that of keys."""

    def select(self, rows: Any) -> None:
        super().select(rows)
        self.v = np.resize(self.k, self.v.shape)


@mutant(
    "kv_cache", id="cache-crop-copy-breaks-static-cache", family=FAMILY,
    source="https://github.com/huggingface/transformers/issues/30312",
    trigger=lambda: (new_cache(), append(8), append(4, first=40), crop(10), append(1, first=90)),
)  # fmt: skip
class CropMakesAnotherCache(Cache):
    """Rolling back makes a new, shorter buffer, while those who write still hold the old one, and its length."""

    def __init__(self, *, window: int | None = None) -> None:
        super().__init__(window=window)
        self.cropped: tuple[Any, Any, int] | None = None

    def crop(self, n: int) -> None:
        written = self.n if self.cropped is None else self.cropped[2]
        super().crop(n)
        if self.k is not None:
            self.cropped = self.k[:, :, :n].copy(), self.v[:, :, :n].copy(), n
            self.n = max(written, n)

    def __len__(self) -> int:
        return self.n if self.cropped is None else self.cropped[2]

    def view(self) -> tuple[Any, Any]:
        if self.cropped is None:
            return super().view()
        k, v, n = self.cropped
        first = 0 if self.window is None else max(0, n - self.window)
        return k[:, :, first:], v[:, :, first:]
