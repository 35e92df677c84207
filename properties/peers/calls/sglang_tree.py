"""SGLang's RadixCache as a block allocator, under the names of the contract. It runs without a GPU.

Nothing but the library is imported, inside the functions, so that this file runs alone. The tree finds, locks, keeps and evicts; a pool
of pages stands in for the memory it manages. What the tree has no call for (a fork, a roll-back) is left out. A call is served as
SGLang's scheduler does: match, lock, evict where pages are short; publish by insert, giving back what the tree holds already; at
the end publish again, which refreshes the recency of the prefix, and unlock.
"""

from __future__ import annotations

import importlib
import os
from array import array
from dataclasses import dataclass
from typing import Any


def _library(module: str) -> Any:
    return importlib.import_module(f"sglang.srt.mem_cache.{module}")


class OutOfBlocks(Exception):
    """Fewer pages are free or evictable than are wanted."""


class Pages:
    """The pages that are free, as the tree sees its memory: it hands back slots by `free_segment`."""

    device = "cpu"

    def __init__(self, num_pages: int, size: int) -> None:
        self.free, self.size = list(range(num_pages)), size

    def free_segment(self, slots: Any, *, start_pos: int) -> None:
        self.free += self.of(slots)

    def of(self, slots: Any) -> list[int]:
        return [slot // self.size for slot in slots.tolist()[:: self.size]]


@dataclass
class Sequence:
    """tokens; the tree's node up to which it is locked, and its pages there; pages behind that which the tree does not know."""

    tokens: list[int]
    salt: bytes
    node: Any
    locked: list[int]
    own: list[int]

    @property
    def table(self) -> list[int]:
        return self.locked + self.own


class RadixPool:
    """See the module."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
        self.num_blocks, self.size, self.pages = num_blocks, block_size, Pages(num_blocks, block_size)
        self.tree = _library("radix_cache").RadixCache.create_simulated(
            disable=not prefix_caching, mock_allocator=self.pages, page_size=block_size
        )
        self.sequences: dict[str, Sequence] = {}

    def allocate(self, seq: str, tokens: list[int], *, salt: bytes = b"") -> int:
        if seq in self.sequences:
            raise ValueError(f"{seq} is in use")
        node, found = self._match(tokens, salt)
        self.tree.inc_lock_ref(node)
        try:
            own = self._take(-(-len(tokens) // self.size) - len(found))
        except OutOfBlocks:
            self.tree.dec_lock_ref(node)
            raise
        self.sequences[seq] = Sequence(list(tokens), salt, node, found, own)
        return len(found) * self.size

    def append(self, seq: str, token: int) -> None:
        s = self._known(seq)
        if len(s.tokens) % self.size == 0:
            s.own += self._take(1)
        s.tokens.append(token)

    def commit(self, seq: str, n: int) -> None:
        s = self._known(seq)
        if not 0 <= n <= len(s.tokens):
            raise ValueError(f"n = {n} of {len(s.tokens)} tokens")
        if not self.tree.disable and n // self.size > len(s.locked):
            self._publish(s, n // self.size)

    def free(self, seq: str) -> None:
        s = self._known(seq)
        # The tree evicts by whole nodes, and the contract by blocks: each prefix is looked up, which splits the nodes at every page.
        for end in range(1, len(s.locked) + 1):
            self._match(s.tokens[: end * self.size], s.salt)
        self.tree.dec_lock_ref(s.node)
        self.pages.free += s.own
        del self.sequences[seq]

    def table(self, seq: str) -> list[int]:
        return self._known(seq).table

    def match_prefix(self, tokens: list[int], *, salt: bytes = b"") -> list[int]:
        return self._match(tokens, salt)[1]

    def evict(self, n: int) -> list[int]:
        already = len(self.pages.free)
        self.tree.evict(_library("base_prefix_cache").EvictParams(num_tokens=n * self.size))
        return self.pages.free[already:]

    def stats(self) -> dict[str, int]:
        used = self.tree.protected_size() // self.size + sum(len(s.own) for s in self.sequences.values())
        cached = self.tree.evictable_size() // self.size
        return {"num_blocks": self.num_blocks, "used": used, "cached": cached, "free": len(self.pages.free)}

    def _publish(self, s: Sequence, pages: int) -> None:
        import torch

        tokens, mine = s.tokens[: pages * self.size], s.table[:pages]
        slots = torch.tensor([page * self.size + offset for page in mine for offset in range(self.size)], dtype=torch.int64)
        result = self.tree.insert(_library("base_prefix_cache").InsertParams(key=self._key(tokens, s.salt), value=slots))
        self.pages.free += mine[len(s.locked) : result.prefix_len // self.size]         # the tree holds these pages by others already
        node, held = self._match(tokens, s.salt)
        self.tree.dec_lock_ref(s.node)
        self.tree.inc_lock_ref(node)
        s.node, s.locked, s.own = node, held, s.table[pages:]

    def _take(self, n: int) -> list[int]:
        """n free pages, evicting what is missing; all or none."""
        short = n - len(self.pages.free)
        if short > self.tree.evictable_size() // self.size:
            raise OutOfBlocks
        if short > 0:
            self.evict(short)
        taken, self.pages.free = self.pages.free[:n], self.pages.free[n:]
        return taken

    def _match(self, tokens: list[int], salt: bytes) -> tuple[Any, list[int]]:
        node = self.tree.match_prefix(_library("base_prefix_cache").MatchPrefixParams(key=self._key(tokens, salt))).last_device_node
        return node, self.pages.of(self.tree.path_device_indices(node))

    def _key(self, tokens: list[int], salt: bytes) -> Any:
        return _library("radix_cache").RadixKey(array("q", tokens), cache_salt=salt.hex() or None)

    def _known(self, seq: str) -> Sequence:
        if seq not in self.sequences:
            raise ValueError(f"{seq} is unknown")
        return self.sequences[seq]
