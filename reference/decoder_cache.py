"""What a decoder remembers between steps: each layer's keys and values side by side, or in pages of a pool that sequences share."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Float64, Int64, Window
from .attention import attention
from .kv_cache import KVCache, write_kv
from .paged_attention import paged_attention, slot_mapping
from .paging import BlockAllocator


class DecoderCache(Protocol):
    """What `transformer_forward` asks of a cache, in this order: `begin`, `attend` once a layer, `end`.

        open(tokens)                    called once with a whole prompt: how many of its tokens are remembered already
        begin(tokens)                   (B, n) new tokens: their positions (n,)
        attend(layer, q, k, v, scale)   keeps k and v of the new tokens; attention of q over all kept ones, causal
        end()                           all layers have written

    q (B, H, n, D), k (B, Hkv, n, D), v (B, Hkv, n, Dv) -> (B, H, n, Dv).
    """

    def open(self, tokens: ArrayLike) -> int: ...
    def begin(self, tokens: Int64) -> Int64: ...
    def attend(self, layer: int, q: Float64, k: Float64, v: Float64, scale: float | None) -> Float64: ...
    def end(self) -> None: ...


class ContiguousCache:
    """A `KVCache` for each layer, B sequences of one length; `window` as the left side of attention's window.

    >>> cache = ContiguousCache(layers=1)
    >>> cache.begin(np.array([[7, 7]])).tolist()
    [0, 1]
    >>> one = np.ones((1, 1, 2, 1))
    >>> cache.attend(0, one, one, one, None).ravel()
    array([1., 1.])
    >>> cache.begin(np.array([[7]])).tolist()
    [2]

    Exact but for the attention. Source: as `KVCache`.
    """

    def __init__(self, layers: int, *, window: int | None = None) -> None:
        self.window = window
        self.layers = [KVCache(window=window) for _ in range(arguments.whole_number("layers", layers, least=1))]

    def __len__(self) -> int:
        return len(self.layers[-1])

    def open(self, tokens: ArrayLike) -> int:
        return 0

    def begin(self, tokens: Int64) -> Int64:
        return len(self) + np.arange(tokens.shape[1])

    def attend(self, layer: int, q: Float64, k: Float64, v: Float64, scale: float | None) -> Float64:
        cache = self.layers[layer]
        cache.append(k[:, :, :0], v[:, :, :0])                                  # tells the shapes the first time
        old_k, old_v = cache.view()
        out, _ = attention(q, np.concatenate([old_k, k], axis=2), np.concatenate([old_v, v], axis=2), causal="bottom_right",
                           window=left_window(self.window), scale=scale)
        cache.append(k, v)
        return out

    def end(self) -> None:
        pass

    def crop(self, n: int) -> None:
        """Keeps the first n tokens of every layer."""
        for cache in self.layers:
            cache.crop(n)


class PagePool:
    """Pages of all layers and the allocator that says whose they are. A block has the same number in every layer.

    k_pages and v_pages (N, block_size, Hkv, D), one of each a layer, made at the first write; NaN where nothing was written.

    >>> PagePool(layers=2, num_blocks=4, block_size=16).allocator.stats()["free"]
    4
    """

    def __init__(self, layers: int, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        self.allocator = BlockAllocator(num_blocks, block_size, prefix_caching=prefix_caching)
        self.pages: list[tuple[Float64, Float64] | None] = [None] * arguments.whole_number("layers", layers, least=1)

    def copy_block(self, source: int, target: int) -> None:
        """The copy that the allocator asked for, in every layer."""
        for pages in self.pages:
            for x in pages or ():
                x[target] = x[source]

    def write(self, layer: int, k: Float64, v: Float64, slots: Int64) -> tuple[Float64, Float64]:
        """k (n, Hkv, D), v (n, Hkv, Dv) into their slots; the pages of that layer."""
        N, S = self.allocator.num_blocks, self.allocator.block_size
        k_pages, v_pages = self.pages[layer] or tuple(np.full((N, S, *x.shape[1:]), np.nan) for x in (k, v))
        flat = write_kv(k_pages.reshape(N * S, *k.shape[1:]), v_pages.reshape(N * S, *v.shape[1:]), k, v, slots)
        self.pages[layer] = k_pages, v_pages = flat[0].reshape(k_pages.shape), flat[1].reshape(v_pages.shape)
        return k_pages, v_pages


class PagedCache:
    """One sequence in a `PagePool`, that begins with what the pool remembers of equal prompts under an equal salt.

    `open` finds whole blocks; of a prompt that is found in full the last token is computed again for its logits
    (vllm-project/vllm#11186), and not written again: its block may be shared, and other sums round to other bits.
    `fork` shares all blocks with a new sequence; `crop` rolls back; `free` gives the blocks back.

    >>> pool = PagePool(layers=1, num_blocks=4, block_size=2)
    >>> a, b = PagedCache(pool, "a"), PagedCache(pool, "b")
    >>> one = np.ones((1, 1, 3, 1))
    >>> a.open([5, 6, 7]), a.begin(np.array([[5, 6, 7]])).tolist()
    (0, [0, 1, 2])
    >>> a.attend(0, one, one, one, None).ravel(), a.end()
    (array([1., 1., 1.]), None)
    >>> b.open([5, 6]), b.begin(np.array([[6]])).tolist()
    (1, [1])

    Raises what `BlockAllocator` raises. Source: Kwon et al. 2023 (arXiv 2309.06180), section 4.
    """

    def __init__(self, pool: PagePool, seq: Hashable, *, window: int | None = None, salt: bytes = b"") -> None:
        self.pool, self.seq, self.window, self.salt = pool, seq, window, salt
        self._known: list[int] = []                                             # tokens that the allocator has places for
        self._found = self._length = 0                                          # tokens in shared blocks; tokens computed so far
        self._positions = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return self._length

    def open(self, tokens: ArrayLike) -> int:
        tokens = np.asarray(tokens).ravel()
        self._found = self.pool.allocator.allocate(self.seq, tokens, salt=self.salt)
        self._known = tokens.tolist()
        self._length = min(self._found, max(len(tokens) - 1, 0))
        return self._length

    def begin(self, tokens: Int64) -> Int64:
        if len(tokens) != 1:
            raise ValueError(f"tokens: got shape {tokens.shape}; want one sequence")
        self._positions = self._length + np.arange(tokens.shape[1])
        for position, token in zip(self._positions, tokens[0].tolist()):
            if position == len(self._known):
                copy = self.pool.allocator.append(self.seq, token)
                if copy is not None:
                    self.pool.copy_block(*copy)
                self._known.append(token)
            elif self._known[position] != token:
                raise ValueError(f"tokens: got {token} at position {position}; want {self._known[position]}, with which it was opened")
        return self._positions

    def attend(self, layer: int, q: Float64, k: Float64, v: Float64, scale: float | None) -> Float64:
        table = np.array(self.pool.allocator.table(self.seq), np.int64)
        slots = slot_mapping(table, self._positions, block_size=self.pool.allocator.block_size)
        slots = np.where(self._positions < self._found, -1, slots)
        k_pages, v_pages = self.pool.write(layer, k[0].swapaxes(0, 1), v[0].swapaxes(0, 1), slots)
        out, _ = paged_attention(q, k_pages, v_pages, table[None], [self._length + q.shape[2]], causal="bottom_right",
                                 window=left_window(self.window), scale=scale)
        return out

    def end(self) -> None:
        self._length += len(self._positions)
        self.pool.allocator.commit(self.seq, self._length)                      # now, not before: others read what is published

    def fork(self, seq: Hashable) -> PagedCache:
        """A new sequence of the same tokens, computed as far as this one."""
        self.pool.allocator.fork(self.seq, seq)
        child = PagedCache(self.pool, seq, window=self.window, salt=self.salt)
        child._known, child._found, child._length = self._known.copy(), self._found, self._length
        return child

    def crop(self, n: int) -> None:
        """Keeps the first n tokens."""
        self.pool.allocator.truncate(self.seq, n)
        del self._known[n:]
        self._found, self._length = min(self._found, n), min(self._length, n)

    def free(self) -> None:
        self.pool.allocator.free(self.seq)


def left_window(window: int | None) -> Window:
    """A window that looks back only, as attention takes it: None, or (window, 0).

    >>> left_window(3), left_window(None)
    ((3, 0), None)
    """
    return None if window is None else (window, 0)
