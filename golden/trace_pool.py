"""A block allocator for the second route: no hashes, no reference counts; what is shared or cached is looked up each time."""

from __future__ import annotations

from dataclasses import replace

from .traces import Step

Content = tuple[bytes, tuple[int, ...]]                                         # the salt, and all tokens up to the end of the block


class _Refused(Exception):
    """The name of the exception that the call must raise."""


class Pool:
    """One pool: sequences as tokens and tables, the published content of each block, and in what order blocks fell idle."""

    def __init__(self, num_blocks: int, block_size: int, prefix_caching: bool = True) -> None:
        self.size, self.caching = block_size, prefix_caching
        self.tokens: dict[str, list[int]] = {}
        self.tables: dict[str, list[int]] = {}
        self.salts: dict[str, bytes] = {}
        self.committed: dict[str, int] = {}
        self.holds: dict[int, Content] = {}                                     # published blocks
        self.idle = list(range(num_blocks))                                     # in no table; the one that fell idle first in front
        self.num_blocks, self.hits, self.evictions = num_blocks, 0, 0

    def answered(self, step: Step) -> Step:
        """The step with this pool's answer."""
        try:
            return replace(step, answer=getattr(self, step.call)(**step.arguments))
        except _Refused as refused:
            return replace(step, raises=str(refused))

    def allocate(self, seq: str, tokens: list[int], salt: bytes = b"") -> int:
        if seq in self.tokens:
            raise _Refused("ValueError")
        found = self.match_prefix(tokens, salt)
        need = len(range(0, len(tokens), self.size)) - len(found)
        if need > len([block for block in self.idle if block not in found]):
            raise _Refused("OutOfBlocks")
        self.idle = [block for block in self.idle if block not in found]
        self.tokens[seq], self.salts[seq] = list(tokens), salt
        self.tables[seq] = found + [self._take() for _ in range(need)]
        self.hits += len(found)
        self.committed[seq] = len(found) * self.size
        return self.committed[seq]

    def append(self, seq: str, token: int) -> tuple[int, int] | None:
        table, copy = self._table(seq), None
        if len(self.tokens[seq]) % self.size == 0:
            if not self.idle:
                raise _Refused("OutOfBlocks")
            table.append(self._take())
        elif sum(block == table[-1] for other in self.tables.values() for block in other) > 1:
            if not self.idle:
                raise _Refused("OutOfBlocks")
            copy = (table[-1], self._take())
            table[-1] = copy[1]
        else:
            self.holds.pop(table[-1], None)
        self.tokens[seq].append(token)
        return copy

    def commit(self, seq: str, n: int) -> None:
        table = self._table(seq)
        if not 0 <= n <= len(self.tokens[seq]):
            raise _Refused("ValueError")
        self.committed[seq] = max(self.committed[seq], n)
        for i in range(self.committed[seq] // self.size if self.caching else 0):
            content = (self.salts[seq], tuple(self.tokens[seq][: (i + 1) * self.size]))
            if content not in self.holds.values():
                self.holds[table[i]] = content

    def fork(self, parent: str, child: str) -> None:
        table = self._table(parent)
        if child in self.tokens:
            raise _Refused("ValueError")
        self.tokens[child], self.tables[child] = list(self.tokens[parent]), list(table)
        self.salts[child], self.committed[child] = self.salts[parent], self.committed[parent]

    def truncate(self, seq: str, n: int) -> None:
        table = self._table(seq)
        if not 0 <= n <= len(self.tokens[seq]):
            raise _Refused("ValueError")
        kept = len(range(0, n, self.size))
        gone = table[kept:]
        del table[kept:], self.tokens[seq][n:]
        self.committed[seq] = min(self.committed[seq], n)
        self._let_go(gone)

    def free(self, seq: str) -> None:
        gone = self._table(seq)
        del self.tables[seq], self.tokens[seq], self.salts[seq], self.committed[seq]
        self._let_go(gone)

    def table(self, seq: str) -> list[int]:
        return list(self._table(seq))

    def match_prefix(self, tokens: list[int], salt: bytes = b"") -> list[int]:
        found = []
        for end in range(self.size, len(tokens) + 1, self.size):
            blocks = [block for block, content in self.holds.items() if content == (salt, tuple(tokens[:end]))]
            if not blocks:
                break
            found.append(blocks[0])
        return found

    def evict(self, n: int) -> list[int]:
        blocks = [block for block in self.idle if block in self.holds][:n]
        for block in blocks:
            self._forget(block)
            self.idle.remove(block)
            self.idle.append(block)
        return blocks

    def stats(self) -> dict[str, int]:
        cached = len([block for block in self.idle if block in self.holds])
        return {"num_blocks": self.num_blocks, "used": self.num_blocks - len(self.idle), "cached": cached, "free": len(self.idle) - cached,
                "hits": self.hits, "evictions": self.evictions}  # fmt: skip

    def _table(self, seq: str) -> list[int]:
        if seq not in self.tables:
            raise _Refused("ValueError")
        return self.tables[seq]

    def _take(self) -> int:
        """Of the idle blocks one that holds nothing, else the one that fell idle first."""
        empty = [block for block in self.idle if block not in self.holds]
        block = (empty or self.idle)[0]
        if not empty:
            self._forget(block)
        self.idle.remove(block)
        return block

    def _forget(self, block: int) -> None:
        del self.holds[block]
        self.evictions += 1

    def _let_go(self, blocks: list[int]) -> None:
        self.idle += [block for block in reversed(blocks) if not any(block in table for table in self.tables.values())]
