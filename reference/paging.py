"""Paging: which block of a pool holds which tokens of which sequence. No keys or values here, and no attention: only the book-keeping."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from numpy.typing import ArrayLike

from . import arguments

_LEAST, _MOST = -(2**63), 2**63 - 1                                             # token ids are int64


class OutOfBlocks(RuntimeError):
    """The pool has fewer blocks to give than were asked for; nothing has changed."""


class BlockAllocator:
    """Blocks of one pool, taken on demand, shared by reference count, kept after use for those who begin with the same tokens.

        allocate(seq, tokens, *, salt=b"")   a new sequence of these tokens; how many of them stand in the cache, whole blocks
        append(seq, token)                   one token more; None, or (source, target) of the block copy that the caller must make
        commit(seq, n)                       the data of the first n tokens are written: full blocks among them are published
        fork(parent, child)                  a new sequence of the same tokens, that shares every block
        truncate(seq, n), free(seq)          keeps the first n tokens, or none and not the sequence either
        table(seq)                           its blocks, in order: token t stands in block t // block_size at t % block_size
        match_prefix(tokens, *, salt=b"")    the published blocks that hold the longest prefix of whole blocks
        evict(n)                             forgets the content of at most n cached blocks, least recently used first: which
        stats()                              num_blocks = used + cached + free; hits, evictions: blocks, counted from the start

    A block is used while a table names it, once for each sequence; cached when none does and its content is published;
    free otherwise. What is to be filled comes from free blocks first, then from cached ones, those unused for longest
    first; of blocks let go together the tail goes first, as nothing behind a lost block can be found.

    A write never reaches a sibling: a token appended to a block that others share goes to a copy. One appended to a block
    that is published, after truncate, takes the publication back. A block is found by the hash of its tokens chained to
    the hashes before it and to the salt, and taken only if tokens, predecessors and salt are equal too. Published is
    what was committed, and nothing else; of equal blocks the one committed first. A pin, for a copy that still runs or a load that
    is under way, is a fork that is freed when it ends.

    Everything may be found, also the last token: who needs its logits computes it again, and writes the same numbers
    into a block that may be shared.

    >>> pool = BlockAllocator(4, 2)
    >>> pool.allocate("a", [5, 6, 7]), pool.table("a")
    (0, [0, 1])
    >>> pool.commit("a", 3)
    >>> pool.allocate("b", [5, 6, 8]), pool.table("b")
    (2, [0, 2])
    >>> pool.fork("a", "c")
    >>> pool.append("c", 9)
    (1, 3)
    >>> pool.append("c", 9)
    Traceback (most recent call last):
    oracles.reference.paging.OutOfBlocks: seq: got a need of 1 blocks with 0 free and 0 cached ones to give; want no more than 0
    >>> pool.free("a"), pool.free("c"), pool.stats()
    (None, None, {'num_blocks': 4, 'used': 2, 'cached': 0, 'free': 2, 'hits': 1, 'evictions': 0})

    seq is anything hashable. Raises OutOfBlocks; ValueError for a seq that is unknown, or known where a new one is wanted,
    and for an n out of range; TypeError for tokens that are no integers. Whatever raises has changed nothing. Exact.
    Source: Kwon et al. 2023 (arXiv 2309.06180), sections 4.2 to 4.5; hashes and eviction: vllm-project/vllm#2614.
    """

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        self.num_blocks = arguments.whole_number("num_blocks", num_blocks, least=0)
        self.block_size = arguments.whole_number("block_size", block_size, least=1)
        self.prefix_caching = bool(prefix_caching)
        self._sequences: dict[Hashable, _Sequence] = {}
        self._references = [0] * self.num_blocks
        self._content: list[_Content | None] = [None] * self.num_blocks         # of published blocks
        self._published: dict[int, int] = {}                                    # hash -> block
        self._free = deque(range(self.num_blocks))
        self._cached: dict[int, None] = {}                                      # least recently used first
        self._hits = self._evictions = 0

    def allocate(self, seq: Hashable, tokens: ArrayLike, *, salt: bytes = b"") -> int:
        self._must_be_new(seq)
        new = _Sequence(_whole_numbers(tokens), [], [_root(salt)], 0)
        found = self._find(new.tokens, new.contents)
        # A found block that nobody uses is not one to give as well: vllm-project/vllm#6849 counted it on both sides.
        kept = sum(self._references[block] == 0 for block in found)
        need = -(-len(new.tokens) // self.block_size) - len(found)
        self._must_have(need, beside=kept)
        for block in found:
            self._cached.pop(block, None)
            self._references[block] += 1
        new.blocks = found + [self._take() for _ in range(need)]
        new.committed = len(found) * self.block_size
        self._hits += len(found)
        self._sequences[seq] = new
        return new.committed

    def append(self, seq: Hashable, token: int) -> tuple[int, int] | None:
        s = self._named(seq)
        token = arguments.whole_number("token", token, least=_LEAST)
        copy = None
        if len(s.tokens) % self.block_size == 0:
            self._must_have(1)
            s.blocks.append(self._take())
        elif self._references[s.blocks[-1]] > 1:
            self._must_have(1)
            copy = s.blocks[-1], self._take()
            # One reference for each sequence and block, so that one is given back: vllm-project/vllm#3347 gave two.
            self._release(copy[0])
            s.blocks[-1] = copy[1]
        elif self._content[s.blocks[-1]] is not None:                           # truncated into: what is published must not change
            self._forget(s.blocks[-1])
        s.tokens.append(token)
        return copy

    def commit(self, seq: Hashable, n: int) -> None:
        s = self._named(seq)
        s.committed = max(s.committed, self._length_within(s, n))
        if not self.prefix_caching:
            return
        for i in range(len(s.contents) - 1, s.committed // self.block_size):
            content = _Content(s.contents[-1], tuple(s.tokens[i * self.block_size : (i + 1) * self.block_size]))
            known = self._published.get(content.hash)
            if known is None:
                self._published[content.hash], self._content[s.blocks[i]] = s.blocks[i], content
            elif _same(content, self._content[known]):
                content = self._content[known] or content                       # one object for one content: short comparisons
            s.contents.append(content)

    def fork(self, parent: Hashable, child: Hashable) -> None:
        s = self._named(parent)
        self._must_be_new(child)
        for block in s.blocks:
            self._references[block] += 1
        self._sequences[child] = _Sequence(s.tokens.copy(), s.blocks.copy(), s.contents.copy(), s.committed)

    def truncate(self, seq: Hashable, n: int) -> None:
        s = self._named(seq)
        n = self._length_within(s, n)
        kept = -(-n // self.block_size)
        for block in reversed(s.blocks[kept:]):
            self._release(block)
        s.committed = min(s.committed, n)
        del s.tokens[n:], s.blocks[kept:], s.contents[n // self.block_size + 1 :]

    def free(self, seq: Hashable) -> None:
        for block in reversed(self._named(seq).blocks):
            self._release(block)
        del self._sequences[seq]

    def table(self, seq: Hashable) -> list[int]:
        return self._named(seq).blocks.copy()

    def match_prefix(self, tokens: ArrayLike, *, salt: bytes = b"") -> list[int]:
        return self._find(_whole_numbers(tokens), [_root(salt)])

    def evict(self, n: int) -> list[int]:
        n = arguments.whole_number("n", n, least=0)
        return [self._drop_oldest(give=True) for _ in range(min(n, len(self._cached)))]

    def stats(self) -> dict[str, int]:
        cached, free = len(self._cached), len(self._free)
        return {"num_blocks": self.num_blocks, "used": self.num_blocks - cached - free, "cached": cached, "free": free,
                "hits": self._hits, "evictions": self._evictions}

    def _find(self, tokens: list[int], contents: list[_Content]) -> list[int]:
        """The published blocks of the longest prefix; their contents are added to `contents`, which begins with the salt."""
        found: list[int] = []
        if not self.prefix_caching:
            return found
        for end in range(self.block_size, len(tokens) + 1, self.block_size):
            content = _Content(contents[-1], tuple(tokens[end - self.block_size : end]))
            block = self._published.get(content.hash)
            if block is None or not _same(content, self._content[block]):
                break
            found.append(block)
            contents.append(self._content[block] or content)
        return found

    def _take(self) -> int:
        """A block to fill, named by one table."""
        block = self._free.popleft() if self._free else self._drop_oldest(give=False)
        self._references[block] = 1
        return block

    def _release(self, block: int) -> None:
        """One table less names it."""
        self._references[block] -= 1
        if self._references[block] == 0:
            if self._content[block] is None:
                self._free.append(block)
            else:
                self._cached[block] = None                                      # now the most recently used

    def _drop_oldest(self, *, give: bool) -> int:
        """The cached block unused for longest, its content forgotten; given back to the free ones where that is asked for."""
        block = next(iter(self._cached))
        del self._cached[block]
        self._forget(block)
        self._evictions += 1
        if give:
            self._free.append(block)
        return block

    def _forget(self, block: int) -> None:
        """Nobody finds it any more. Without this a later look-up returns a block of other tokens: vllm-project/vllm#4764."""
        content = self._content[block]
        if content is not None:
            del self._published[content.hash]
        self._content[block] = None

    def _must_have(self, need: int, *, beside: int = 0) -> None:
        free, cached = len(self._free), len(self._cached) - beside
        if need > free + cached:
            raise OutOfBlocks(f"seq: got a need of {need} blocks with {free} free and {cached} cached ones to give; "
                              f"want no more than {free + cached}")

    def _must_be_new(self, seq: Hashable) -> None:
        if seq in self._sequences:
            raise ValueError(f"seq: got {seq!r}, which is in use; want a new one")

    def _named(self, seq: Hashable) -> _Sequence:
        if seq not in self._sequences:
            raise ValueError(f"seq: got {seq!r}, which is unknown; want one that was allocated or forked, and not freed")
        return self._sequences[seq]

    def _length_within(self, s: _Sequence, n: int) -> int:
        n = arguments.whole_number("n", n, least=0)
        if n > len(s.tokens):
            raise ValueError(f"n: got {n} for a sequence of {len(s.tokens)} tokens; want 0..{len(s.tokens)}")
        return n


class _Content:
    """What a full block holds: its tokens, and behind what they stand. The first of a chain is the salt."""

    __slots__ = ("hash", "parent", "tokens")

    def __init__(self, parent: _Content | None, tokens: tuple[int, ...] | bytes) -> None:
        self.parent, self.tokens = parent, tokens
        self.hash: int = _chain_hash(0 if parent is None else parent.hash, tokens)


class _Sequence:
    """tokens, the blocks they stand in, the contents of the committed full ones (after the salt), how many tokens are committed."""

    __slots__ = ("blocks", "committed", "contents", "tokens")

    def __init__(self, tokens: list[int], blocks: list[int], contents: list[_Content], committed: int) -> None:
        self.tokens, self.blocks, self.contents, self.committed = tokens, blocks, contents, committed


def _chain_hash(parent: int, tokens: tuple[int, ...] | bytes) -> int:
    return hash((parent, tokens))


def _same(a: _Content | None, b: _Content | None) -> bool:
    """Whether two contents are equal from the salt on: equal hashes are only a hint."""
    while a is not b:
        if a is None or b is None or a.hash != b.hash or a.tokens != b.tokens:
            return False
        a, b = a.parent, b.parent
    return True


def _root(salt: bytes) -> _Content:
    if not isinstance(salt, bytes):
        raise TypeError(f"salt: got {salt!r}; want bytes")
    return _Content(None, salt)


def _whole_numbers(tokens: ArrayLike) -> list[int]:
    checked = arguments.integers("tokens", tokens, least=_LEAST, most=_MOST)
    if checked.ndim != 1:
        raise ValueError(f"tokens: got shape {checked.shape}; want one axis")
    numbers: list[int] = checked.tolist()
    return numbers
