"""Keys and values kept between steps: written into slots, appended to one layer's cache, rolled back. Pages are left to paging."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Float64, Int64


def write_kv(k_cache: ArrayLike, v_cache: ArrayLike, k: ArrayLike, v: ArrayLike, slots: ArrayLike) -> tuple[Float64, Float64]:
    """New caches in which token t stands in slot slots[t]: k_cache (S, Hkv, D), v_cache (S, Hkv, Dv), float64.

        k_cache[slots[t]] = k[t],   v_cache[slots[t]] = v[t]   for t = 0, 1, …

    k (T, Hkv, D), v (T, Hkv, Dv), slots (T,) in -1 .. S - 1. A slot of -1 skips its token: it names no place, also not the
    last. A slot given twice holds the last of its tokens. All other slots are as they were, NaN included.

    >>> k = np.array([1.0, 2.0, 3.0]).reshape(3, 1, 1)
    >>> write_kv(np.zeros((3, 1, 1)), np.zeros((3, 1, 1)), k, -k, [2, -1, 2])[0].ravel()
    array([0., 0., 3.])

    Raises ValueError or TypeError that names the argument, what came and what is wanted.
    Exact: a kernel rounds to the format of its cache, once. Source: reshape_and_cache of vLLM (Kwon et al. 2023, arXiv
    2309.06180, section 5.1).
    """
    k_cache, v_cache = (arguments.widen(name, x, ndim=3) for name, x in (("k_cache", k_cache), ("v_cache", v_cache)))
    S, Hkv, D = k_cache.shape
    if v_cache.shape[:2] != (S, Hkv):
        raise ValueError(f"v_cache: got shape {v_cache.shape} beside k_cache {k_cache.shape}; want ({S}, {Hkv}, Dv)")
    k = arguments.widen("k", k, ndim=3)
    if k.shape[1:] != (Hkv, D):
        raise ValueError(f"k: got shape {k.shape} beside k_cache {k_cache.shape}; want (T, {Hkv}, {D})")
    T = len(k)
    v = arguments.widen("v", v, (T, Hkv, v_cache.shape[2]))
    slots = arguments.integers("slots", slots, (T,), least=-1, most=S - 1)
    for t in range(T):                                                          # one by one: the last token of a slot wins
        if slots[t] >= 0:
            k_cache[slots[t]], v_cache[slots[t]] = k[t], v[t]
    return k_cache, v_cache


class KVCache:
    """Keys and values of one layer, all tokens so far of B sequences of the same length.

        append(k, v)   adds n tokens, k (B, Hkv, n, D), v (B, Hkv, n, Dv)
        view()         k, v that the next query may see before its own token is appended: the last `window`, or all
        crop(n)        keeps the first n tokens (drafts that were refused are rolled back); the cache stays the same object
        select(rows)   keeps these sequences, in this order, one as often as it is named (beams)
        len(cache)     how many tokens were appended and kept, outside the window too

    window as the left side of attention's window: the number of keys before the current one, 0 for none, None for all.
    Views are copies in float64. After crop(n) a view is what it was when n tokens had been appended.

    >>> cache = KVCache(window=2)
    >>> k = np.arange(3.0).reshape(1, 1, 3, 1)
    >>> cache.append(k, -k)
    >>> len(cache), cache.view()[0].ravel()
    (3, array([1., 2.]))
    >>> cache.crop(1)
    >>> len(cache), cache.view()[0].ravel()
    (1, array([0.]))

    Raises ValueError or TypeError that names the argument, what came and what is wanted; ValueError for a view before the
    first append, when no shape is known yet: appending n = 0 tokens is legal and tells it. A refused append changes nothing.
    Exact. Source: Shazeer 2019 (arXiv 1911.02150), section 2.4; rolling back: Leviathan et al. 2022 (arXiv 2211.17192).
    """

    def __init__(self, *, window: int | None = None) -> None:
        self.window = None if window is None else arguments.whole_number("window", window, least=0)
        self._kept: tuple[Float64, Float64] | None = None

    def __len__(self) -> int:
        # Of the tokens, never of a buffer that holds them: microsoft/onnxruntime#24485 took the past from the capacity.
        return 0 if self._kept is None else self._kept[0].shape[2]

    def append(self, k: ArrayLike, v: ArrayLike) -> None:
        k, v = arguments.widen("k", k, ndim=4), arguments.widen("v", v, ndim=4)
        if v.shape[:3] != k.shape[:3]:
            raise ValueError(f"v: got shape {v.shape} beside k {k.shape}; want ({k.shape[0]}, {k.shape[1]}, {k.shape[2]}, Dv)")
        if self._kept is not None:
            for name, new, old in (("k", k, self._kept[0]), ("v", v, self._kept[1])):
                if (*new.shape[:2], new.shape[3]) != (*old.shape[:2], old.shape[3]):
                    raise ValueError(f"{name}: got shape {new.shape} for a cache of {old.shape}; want all axes but the third alike")
            k, v = np.concatenate([self._kept[0], k], axis=2), np.concatenate([self._kept[1], v], axis=2)
        self._kept = k, v

    def view(self) -> tuple[Float64, Float64]:
        k, v = self._all()
        first = 0 if self.window is None else max(0, len(self) - self.window)
        return k[:, :, first:].copy(), v[:, :, first:].copy()

    def crop(self, n: int) -> None:
        n = arguments.whole_number("n", n, least=0)
        if n > len(self):
            raise ValueError(f"n: got {n} for a cache of {len(self)} tokens; want 0..{len(self)}")
        if self._kept is not None:
            # Moves the end of this cache; a new, shorter one would leave the writers behind: huggingface/transformers#30312.
            self._kept = self._kept[0][:, :, :n], self._kept[1][:, :, :n]

    def select(self, rows: ArrayLike) -> None:
        k, v = self._all()
        rows = arguments.integers("rows", rows, least=0, most=len(k) - 1)
        if rows.ndim != 1:
            raise ValueError(f"rows: got shape {rows.shape}; want one axis")
        self._kept = k[rows], v[rows]                                           # each from its own: huggingface/transformers#34232

    def _all(self) -> tuple[Float64, Float64]:
        if self._kept is None:
            raise ValueError("cache: got one to which nothing was appended, of no shape yet; want an append first, of 0 tokens or more")
        return self._kept


def padded_positions(present: ArrayLike, *, past: int = 0) -> Int64:
    """The position of each token after the first `past`, padding not counted: int64 (B, L - past).

        position[b, j] = max(0, number of present tokens of row b up to and with j, less 1)   for j >= past

    present (B, L) bool, False where padding stands, those in the cache included. A padding token has the position of the
    token before it, 0 before the first: it is hidden, so that none matters. The count runs over all L columns and is cut
    afterwards: mosaicml/examples#257 cut first and lost the padding on the left at every step of decoding.

    >>> padded_positions(np.array([[False, False, True, True, True]]), past=4)
    array([[2]])

    Raises ValueError for a past outside 0..L, TypeError for what is no boolean. Exact. Source: position_ids of the
    generate method of huggingface/transformers.
    """
    present = np.asarray(present)
    if present.ndim != 2:
        raise ValueError(f"present: got shape {present.shape}; want 2 axes")
    present = arguments.boolean_mask("present", present, present.shape)
    past = arguments.whole_number("past", past, least=0)
    if past > present.shape[1]:
        raise ValueError(f"past: got {past} for {present.shape[1]} columns; want 0..{present.shape[1]}")
    return np.maximum(np.cumsum(present, axis=1, dtype=np.int64) - 1, 0)[:, past:]
