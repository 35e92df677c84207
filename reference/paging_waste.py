"""What a cache reserves and does not use, counted: blocks on demand against one stretch of the greatest length for each sequence."""

from __future__ import annotations

from dataclasses import dataclass

from numpy.typing import ArrayLike

from . import arguments


@dataclass(frozen=True)
class PagingWaste:
    """Counts of slots, each for the keys and values of one token.

    tokens              slots that hold a token
    paged_slots         slots of all blocks that hold at least one: less than one block a sequence lies idle
    contiguous_slots    slots reserved when every sequence is given the greatest length at once
    table_entries       blocks named by all tables, what small blocks cost instead
    """

    tokens: int
    paged_slots: int
    contiguous_slots: int
    table_entries: int

    @property
    def paged_waste(self) -> float:
        """Share of the paged slots that hold nothing; 0 where there are none."""
        return 1.0 - self.tokens / self.paged_slots if self.paged_slots else 0.0

    @property
    def contiguous_waste(self) -> float:
        """Share of the contiguous slots that hold nothing; 0 where there are none."""
        return 1.0 - self.tokens / self.contiguous_slots if self.contiguous_slots else 0.0


def paging_waste(lengths: ArrayLike, *, block_size: int, max_length: int) -> PagingWaste:
    """Slots taken by sequences of these lengths, in blocks and in stretches of max_length; nothing shared.

        paged = sum ceil(n / block_size) block_size,   contiguous = number of sequences max_length

    >>> waste = paging_waste([100, 17, 1], block_size=16, max_length=2048)
    >>> waste.tokens, waste.paged_slots, waste.contiguous_slots, waste.table_entries
    (118, 160, 6144, 10)
    >>> round(waste.paged_waste, 3), round(waste.contiguous_waste, 3)
    (0.262, 0.981)

    Raises ValueError for a length outside 0..max_length. Exact integers.
    Source: Kwon et al. 2023 (arXiv 2309.06180), section 3 and figure 2.
    """
    block_size = arguments.whole_number("block_size", block_size, least=1)
    max_length = arguments.whole_number("max_length", max_length, least=0)
    n = arguments.integers("lengths", lengths, least=0, most=max_length)
    blocks = int((-(-n // block_size)).sum())
    return PagingWaste(tokens=int(n.sum()), paged_slots=blocks * block_size, contiguous_slots=n.size * max_length, table_entries=blocks)
