"""Laws of a block allocator: what holds after every call, whatever blocks it gives and however it hashes, copies and evicts.

They need nothing but NumPy and their neighbours, so that a repro can carry a copy.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import Any

import numpy as np

from .allocator_moment import AllocatorMoment, Content
from .play import SILENT, Found, SequenceLaw, answers, sequence_law
from .sequence import RAISED

TAKING = ("allocate", "append", "fork")
HEAD = 4                                                                        # of the keys, values and queries that the model writes
QUERY = np.array([1.0, -0.5, 0.25, 0.5])


@sequence_law()
def a_wrong_call_is_refused(m: AllocatorMoment) -> Found:
    """ValueError for a sequence that is unknown, or known where a new one is wanted, and for a number of tokens out of range.

    A sequence that was freed, or whose making was refused, is unknown: its table too.
    """
    if m.wrong_call and m.returned:
        return Found(1, f"{m.call} returned {m.answer.value!r}, though {m.wrong_call}; want ValueError")
    return Found(1, f"{m.undead[0]!r} has a table after {m.call}; want ValueError, it is unknown" if m.undead else "")


@sequence_law()
def out_of_blocks_only_where_there_are_none(m: AllocatorMoment) -> Found:
    """OutOfBlocks is raised only where the call needs more blocks than no table names.

    Needed are the started blocks of tokens that have not to be found; for an appended token one where a new block begins, or where
    the last one is shared or published and would be copied. Cached blocks are there to be given.
    """
    if m.wrong_call or not m.answer.raised("OutOfBlocks"):
        return SILENT
    wrong = f"{m.call} raised OutOfBlocks with {m.room} blocks that no table names; it needs {m.need}"
    return Found(1, wrong if m.need <= m.room else "")


@sequence_law()
def what_raises_changes_nothing(m: AllocatorMoment) -> Found:
    """After a call that raised, all tables and counts are what they were before it."""
    if m.answer.kind != RAISED:
        return SILENT
    changed = [f"table({seq!r}) was {table} and is {m.tables.get(seq)}" for seq, table in m.tables_before.items()
               if m.tables.get(seq) != table]  # fmt: skip
    if m.stats_before and m.stats != m.stats_before:
        changed.append(f"stats were {m.stats_before} and are {m.stats}")
    return Found(len(m.tables_before) + 1, f"{m.call} raised {m.answer.classes[0]}; {changed[0]}" if changed else "")


@sequence_law()
def a_table_names_a_block_for_every_started_block_of_tokens(m: AllocatorMoment) -> Found:
    """len(table(seq)) = ceil(tokens / block_size): blocks come on demand, none ahead, and go when their last token goes."""
    size = m.model.size
    for seq, table in m.tables.items():
        n = len(m.model.sequences[seq].tokens) if seq in m.model.sequences else 0
        if len(table) != -(-n // size):
            return Found(1, f"table({seq!r}) is {table} after {m.call}, for {n} tokens in blocks of {size}")
    return Found(len(m.tables))


@sequence_law()
def a_call_changes_no_other_table(m: AllocatorMoment) -> Found:
    """A call on one sequence leaves the tables of all others as they were."""
    acting = m.call.args[1] if m.call.method == "fork" else m.call.args[0] if m.call.method != "evict" and m.call.args else None
    others = {seq: table for seq, table in m.tables_before.items() if seq != acting}
    changed = [f"{m.call} changed table({seq!r}) from {table} to {m.tables[seq]}" for seq, table in others.items()
               if m.tables.get(seq, table) != table]  # fmt: skip
    return Found(len(others), changed[0] if changed else "")


@sequence_law()
def no_block_is_owned_twice(m: AllocatorMoment) -> Found:
    """A block that is given to be filled is named by no table, and by its own only once."""
    for seq, table in m.tables.items():
        twice = [block for block in table if table.count(block) > 1]
        if twice:
            return Found(1, f"table({seq!r}) is {table} after {m.call}: block {twice[0]} twice")
    owned = [block for block in m.given if block in m.in_use]
    return Found(len(m.given) + 1, f"{m.call} gave block {owned[0]}, which a table names already: {m.tables_before}" if owned else "")


@sequence_law()
def shared_blocks_hold_equal_tokens(m: AllocatorMoment) -> Found:
    """Where several tables name a block, it is the same block of tokens behind the same tokens and salt, as far as both reach."""
    first: dict[int, tuple[str, int]] = {}
    compared = 0
    for seq, table in m.tables.items():
        for i, block in enumerate(table):
            other, j = first.setdefault(block, (seq, i))
            if other == seq:
                continue
            compared += 1
            a, b = m.model.sequences[other], m.model.sequences[seq]
            end = min((i + 1) * m.model.size, len(a.tokens), len(b.tokens))
            if i != j or a.content(end) != b.content(end):
                return Found(compared, f"block {block} is named at {j} by {other!r} of {a.tokens} and at {i} by {seq!r} of {b.tokens}"
                             f"{'' if a.salt == b.salt else ', of another salt'}, after {m.call}")  # fmt: skip
    return Found(compared)


@sequence_law()
def a_write_is_never_seen_by_a_sibling(m: AllocatorMoment) -> Found:
    """What a call's tokens and copies write changes no slot that another sequence reads: a shared block is copied first."""
    wrong = [f"{m.call} writes over {reader!r} in block {block} at offset {offset}" for reader, (block, offset) in m.overwritten]
    return Found(m.written, wrong[0] if wrong else "")


@sequence_law("stats")
def used_counts_the_blocks_in_tables(m: AllocatorMoment) -> Found:
    """stats()["used"] is the number of different blocks that tables name."""
    named = len({block for table in m.tables.values() for block in table})
    return Found(1, f"used is {m.stats['used']} after {m.call}, and tables name {named} blocks" if m.stats["used"] != named else "")


@sequence_law("stats")
def used_cached_and_free_are_all_blocks(m: AllocatorMoment) -> Found:
    """used + cached + free = num_blocks, none below 0; cached are no more than the unnamed blocks in which something was committed."""
    counts = [m.stats["used"], m.stats.get("cached", 0), m.stats["free"]]
    total = m.stats.get("num_blocks", m.model.num_blocks)
    if sum(counts) != m.model.num_blocks or min(counts) < 0 or total != m.model.num_blocks:
        return Found(1, f"used + cached + free = {counts[0]} + {counts[1]} + {counts[2]} after {m.call}; want {m.model.num_blocks}")
    named = m.model.named()
    kept = sum(bool(valid) and block not in named for block, valid in enumerate(m.model.valid))
    return Found(1, f"cached is {counts[1]} after {m.call}; only {kept} unnamed blocks hold what was committed" if counts[1] > kept else "")


@sequence_law("stats")
def hits_and_evictions_are_counted(m: AllocatorMoment) -> Found:
    """hits grow by the blocks that allocate found; evictions by those that lose their content, to evict or to be filled anew.

        evictions' - evictions = cached - cached' - (blocks found that no table named) + (blocks let go and kept)
    """
    if not m.stats_before or not m.returned:
        return SILENT
    compared = 0
    grown = {name: m.stats[name] - m.stats_before[name] for name in m.stats if name in m.stats_before}
    if "hits" in grown and m.call.method != "match_prefix":
        compared += 1
        want = (m.count or 0) // m.model.size if m.call.method == "allocate" else 0
        if grown["hits"] != want:
            return Found(compared, f"hits grew by {grown['hits']} in {m.call}, which found {want} blocks")
    if "evictions" in grown and "cached" in grown and m.call.method in (*TAKING, "evict"):
        compared += 1
        most = len(m.answer.value) if m.call.method == "evict" else -grown["cached"] - m.revived
        least = most - m.perhaps
        if not least <= grown["evictions"] <= most + m.released or (m.call.method == "evict" and -grown["cached"] != most):
            return Found(compared, f"evictions grew by {grown['evictions']}, cached by {grown['cached']} in {m.call}; want {most} more")
    return Found(compared)


@sequence_law()
def found_tokens_are_whole_blocks(m: AllocatorMoment) -> Found:
    """What allocate finds is a number of whole blocks, of no more tokens than it was given."""
    if not m.has("allocate"):
        return SILENT
    n, count = len(m.call.args[1]), m.count or 0
    wrong = count % m.model.size or not 0 <= count <= n
    return Found(1, f"{m.call} found {count} of {n} tokens, in blocks of {m.model.size}" if wrong else "")


def _never(m: AllocatorMoment, verdict: str, because: str) -> Found:
    """That no block was found for the wrong reason."""
    wrong = [block for block, _ in m.found if m.verdicts[block] == verdict]
    return Found(len(m.found), f"{m.call} found block {wrong[0]}, {because}" if wrong else "")


@sequence_law("commit")
def published_only_by_commit(m: AllocatorMoment) -> Found:
    """A block is found only once the data of all its tokens are committed: until then nobody wrote them."""
    return _never(m, "uncommitted", "of which not all tokens were committed")


@sequence_law("allocate.salt")
def the_salt_separates(m: AllocatorMoment) -> Found:
    """A block is found only under the salt that it was committed under: equal tokens under another are other keys and values."""
    return _never(m, "salt", "which was committed under another salt")


@sequence_law()
def an_equal_hash_with_other_tokens_is_never_a_hit(m: AllocatorMoment) -> Found:
    """A block is found only for the tokens that were committed in it, behind the very tokens before it: equal hashes are a hint."""
    return _never(m, "tokens", "which holds other tokens, or the same behind others")


@sequence_law()
def a_block_given_anew_is_found_no_more(m: AllocatorMoment) -> Found:
    """Once a block is evicted, filled anew or written into, what it held is not found in it (vllm-project/vllm#4764)."""
    return _never(m, "given anew", "which holds nothing that is committed any more")


@sequence_law("finds")
def what_was_committed_is_found(m: AllocatorMoment) -> Found:
    """Whole blocks that were committed, and neither evicted nor written into since, are found again.

    Not bound: the last block of a prompt, which some leave to be computed for its logits.
    """
    if not m.has("allocate", "match_prefix"):
        return SILENT
    found = len(m.found)
    return Found(m.fewest, f"{m.call} found {found} blocks; {m.fewest} are committed and kept" if found < m.fewest else "")


@sequence_law("new.prefix_caching")
def without_prefix_caching_nothing_is_found(m: AllocatorMoment) -> Found:
    """With prefix_caching=False nothing is found, and nothing is cached."""
    if m.model.new.option("prefix_caching", True):
        return SILENT
    return Found(1, f"{m.call} found {len(m.found)} blocks" if m.found else f"{m.stats['cached']} cached" if m.stats.get("cached") else "")


@sequence_law("evict")
def a_block_in_use_is_never_evicted(m: AllocatorMoment) -> Found:
    """evict(n) returns at most n blocks, each once, and none that a table names; fewer only where no more are cached."""
    if not m.has("evict"):
        return SILENT
    blocks, n = m.answer.value, m.call.args[0]
    named = [block for block in blocks if block in m.in_use]
    if named:
        return Found(len(blocks), f"{m.call} evicted block {named[0]}, which a table names: {m.tables_before}")
    if len(blocks) > n or len(set(blocks)) < len(blocks):
        return Found(len(blocks), f"{m.call} returned {blocks}; want at most {n} different blocks")
    left = len(blocks) < n and m.model.surely_cached()
    return Found(len(blocks) + 1, f"{m.call} returned {blocks}, and block {left[0]} is still cached" if left else "")


@sequence_law("finds")
def eviction_takes_the_least_recent(m: AllocatorMoment) -> Found:
    """A cached block is taken before all that were let go later. Of those let go together any may be first."""
    if not m.evicted:
        return SILENT
    wrong = [f"{m.call} took block {taken}, and block {stays}, unused for longer, stays" for taken, stays in m.too_recent]
    return Found(len(m.evicted), wrong[0] if wrong else "")


@sequence_law("stats", "finds")
def free_blocks_are_taken_before_cached_ones(m: AllocatorMoment) -> Found:
    """What is cached loses its content to a new token only where no block is free."""
    if not m.has(*TAKING) or not m.stats_before:
        return SILENT
    lost = m.stats_before.get("cached", 0) - m.stats.get("cached", 0) - m.revived - m.perhaps
    return Found(1, f"{m.call} took {lost} cached blocks while {m.stats['free']} are free" if lost > 0 and m.stats["free"] else "")


@sequence_law()
def everything_freed_is_the_initial_state(m: AllocatorMoment) -> Found:
    """With every sequence freed no block is used, all blocks can be forgotten, and one sequence can have them all."""
    model = m.model
    if m.tables_before and model.sequences:
        return SILENT
    if not model.sequences and m.stats and m.returned:
        free = m.stats["free"] + (0 if m.call.method == "evict" and m.call.args[0] >= model.num_blocks else m.stats.get("cached", 0))
        if m.stats["used"] or free != model.num_blocks:
            return Found(1, f"after {m.call} no sequence is left, and stats are {m.stats}; want all {model.num_blocks} blocks back")
    starved = not m.tables_before and not m.wrong_call and m.answer.raised("OutOfBlocks") and m.need <= model.num_blocks
    return Found(1, f"{m.call} raised OutOfBlocks in a pool of {model.num_blocks} blocks without any sequence" if starved else "")


@sequence_law()
def attention_through_the_table_is_attention_over_the_tokens(m: AllocatorMoment) -> Found:
    """Attention over what stands where the table leads equals attention over the sequence's own keys and values, bit for bit.

        softmax(q K[slots]^T) V[slots] = softmax(q K^T) V,   slots[t] = table[t // block_size] block_size + t % block_size

    Keys and values depend on all tokens before them and on the salt. Slots that nobody wrote hold NaN.
    """
    size, memory = m.model.size, m.model.memory
    compared = 0
    for seq, table in m.tables.items():
        s = m.model.sequences[seq]
        n = len(s.tokens)
        if not n or len(table) * size < n:
            continue
        through = _attention([memory[table[t // size]][t % size] for t in range(n)])
        wanted = _attention([s.content(t + 1) for t in range(n)])
        compared += HEAD
        if not np.array_equal(through, wanted):
            wrong = next((t for t in range(n) if memory[table[t // size]][t % size] != s.content(t + 1)), 0)
            return Found(compared, f"after {m.call} attention of {seq!r} through table {table} is {through}, not {wanted}: token {wrong} "
                         f"is {_told(memory[table[wrong // size]][wrong % size], s.content(wrong + 1))}")  # fmt: skip
    return Found(compared)


def _told(held: Content | None, wanted: Content) -> str:
    if held is None:
        return "in a slot that was never written"
    return f"in a slot that holds {list(held[1])} instead of {list(wanted[1])}" + (f", salt {held[0]!r}" if held[0] != wanted[0] else "")


def _attention(contents: list[Content | None]) -> Any:
    """softmax(q K^T) V of one query, as in `oracles.reference.paged_attention`; float64 (HEAD,)."""
    kv = np.array([_keys_and_values(content) for content in contents])
    s = kv[:, :HEAD] @ QUERY                                                    # (n,)
    p = np.exp(s - s.max())
    return p @ kv[:, HEAD:] / p.sum()


@lru_cache(maxsize=100_000)
def _keys_and_values(content: Content | None) -> tuple[float, ...]:
    """Small integers of the salt and all tokens: HEAD of a key, HEAD of a value; NaN where nothing was written."""
    if content is None:
        return (np.nan,) * (2 * HEAD)
    digits = zlib.crc32(repr(content).encode())
    return tuple(float((digits >> 4 * i) % 16 - 8) for i in range(2 * HEAD))


ALLOCATOR_LAWS: tuple[SequenceLaw, ...] = (
    answers, a_wrong_call_is_refused, out_of_blocks_only_where_there_are_none, what_raises_changes_nothing,
    a_table_names_a_block_for_every_started_block_of_tokens, a_call_changes_no_other_table, no_block_is_owned_twice,
    shared_blocks_hold_equal_tokens, a_write_is_never_seen_by_a_sibling, used_counts_the_blocks_in_tables,
    used_cached_and_free_are_all_blocks, found_tokens_are_whole_blocks, hits_and_evictions_are_counted, published_only_by_commit,
    the_salt_separates, an_equal_hash_with_other_tokens_is_never_a_hit, a_block_given_anew_is_found_no_more,
    what_was_committed_is_found, without_prefix_caching_nothing_is_found, a_block_in_use_is_never_evicted,
    eviction_takes_the_least_recent, free_blocks_are_taken_before_cached_ones, everything_freed_is_the_initial_state,
    attention_through_the_table_is_attention_over_the_tokens,
)  # fmt: skip
