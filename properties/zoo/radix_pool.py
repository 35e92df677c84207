"""Radix pool: a legal allocator whose published blocks hang in a tree, a child behind the block before it, and not in a map of hashes.

After commit a sequence names the blocks of the tree: an equal block of its own is given back, as in SGLang's RadixCache
(https://github.com/sgl-project/sglang). A block leaves the tree with everything behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .textbook_pool import Pool, Record


@dataclass
class Node:
    """A published block; that of a root is -1."""

    block: int
    parent: Node | None = None
    edge: tuple[int, ...] = ()
    children: dict[tuple[int, ...], Node] = field(default_factory=dict)


class RadixPool(Pool):
    """See the module."""

    def __init__(self, num_blocks: int, block_size: int, *, prefix_caching: bool = True) -> None:
        super().__init__(num_blocks, block_size, prefix_caching=prefix_caching)
        self.roots: dict[bytes, Node] = {}
        self.nodes: dict[int, Node] = {}

    def find(self, tokens: list[int], salt: bytes) -> list[int]:
        return [node.block for node in self.path(tokens, salt)]

    def path(self, tokens: list[int], salt: bytes) -> list[Node]:
        node, found = self.roots.setdefault(salt, Node(-1)), []
        for start in range(0, len(tokens) - self.size + 1, self.size):
            child = node.children.get(tuple(tokens[start : start + self.size]))
            if child is None:
                break
            node = child
            found.append(node)
        return found

    def publish(self, record: Record, i: int) -> None:
        path = self.path(record.tokens[: (i + 1) * self.size], record.salt)
        own = record.blocks[i]
        if len(path) == i + 1:
            if path[i].block != own:                                            # the tree has it: the table names the tree's
                self.hold(path[i].block)
                record.blocks[i] = path[i].block
                self.let_go([own])
            return
        parent = path[-1] if path else self.roots[record.salt]
        edge = tuple(record.tokens[i * self.size : (i + 1) * self.size])
        parent.children[edge] = self.nodes[own] = Node(own, parent, edge)
        self.keys[own] = own

    def take(self) -> int:
        block = self.free_blocks.pop(0) if self.free_blocks else self.drop(self.oldest_leaf())
        self.references[block] = 1
        return block

    def evict(self, n: int) -> list[int]:
        gone = [self.drop(self.oldest_leaf()) for _ in range(min(n, len(self.cached)))]
        self.free_blocks += gone
        return gone

    def oldest_leaf(self) -> int:
        return next(block for block in self.cached if not self.nodes[block].children)

    def forget(self, block: int) -> None:
        node = self.nodes.pop(block, None)
        if node is None or node.parent is None:
            return
        del node.parent.children[node.edge]
        self.keys[block] = None
        for child in list(node.children.values()):                              # nothing behind it can be found any more
            self.drop(child.block)
            self.free_blocks.append(child.block)
