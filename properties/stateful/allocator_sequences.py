"""Allocator sequences: the designed ones, at least one for each known kind of fault, and the rules by which random ones are drawn."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles.reference import prefix_salt

from .allocator_model import AllocatorModel
from .sequence import NEW, Call, Numbers, Sequence

# Pairs of tokens that one hash or another takes for each other: Python's own, its modulus, narrow integers, order, joined text.
EQUAL_HASHES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((5, -1), (5, -2)), ((5, 0), (5, 2**61 - 1)), ((5, 7), (5, 7 + 2**32)), ((5, 7), (5, 7 + 2**16)), ((5, 7), (5, 7 + 2**8)),
    ((5, 7), (7, 5)), ((1, 23), (12, 3)), ((0, 5), (5, 0)), ((3, 4), (2, 5)), ((0, 0), (1, 0)),
)  # fmt: skip
# Salts that are told apart only by some of their bytes, their length, or their kind.
SALTS: tuple[tuple[bytes, bytes], ...] = (
    (b"", b"x"), (b"x", b"y"), (b"same beginning, 1", b"same beginning, 2"), (b"1, same end", b"2, same end"), (b"a", b"a\0"),
    (b"\0", b""), (b"ab", b"ba"), (b"one 1 middle", b"one 2 middle"),
    (prefix_salt(adapter="a", id=1), prefix_salt(adapter="a", id=2)), (prefix_salt(adapter="a"), prefix_salt(tenant="a")),
    (prefix_salt(image=0x1_5A5A), prefix_salt(image=0x2_5A5A)), (prefix_salt(image=b"1...."), prefix_salt(image=b"2....")),
)  # fmt: skip


def new(num_blocks: int, block_size: int, **named: Any) -> Call:
    return Call(NEW, (num_blocks, block_size), tuple(named.items()))


def allocate(seq: str, *tokens: int, salt: bytes = b"") -> Call:
    return Call("allocate", (seq, tokens), (("salt", salt),) if salt else ())


def match(*tokens: int, salt: bytes = b"") -> Call:
    return Call("match_prefix", (tokens,), (("salt", salt),) if salt else ())


def append(seq: str, token: int) -> Call:
    return Call("append", (seq, token))


def commit(seq: str, n: int) -> Call:
    return Call("commit", (seq, n))


def fork(parent: str, child: str) -> Call:
    return Call("fork", (parent, child))


def truncate(seq: str, n: int) -> Call:
    return Call("truncate", (seq, n))


def free(seq: str) -> Call:
    return Call("free", (seq,))


def evict(n: int) -> Call:
    return Call("evict", (n,))


def kept(seq: str, *tokens: int, salt: bytes = b"") -> tuple[Call, ...]:
    """A sequence that leaves its blocks cached."""
    return allocate(seq, *tokens, salt=salt), commit(seq, len(tokens)), free(seq)


# What it is about: the calls.
DESIGNED: dict[str, Sequence] = {
    "the whole pool, twice": (new(3, 2), allocate("a", 1, 2, 3, 4, 5, 6), free("a"), allocate("b", 7, 8, 9, 10, 11, 12), free("b")),
    "block by block": (new(3, 1), *(allocate(s, t) for s, t in zip("abc", (1, 2, 3))), free("b"), allocate("d", 4), free("a"), free("c"),
                       allocate("e", 5, 6), allocate("f", 7), free("d"), allocate("f", 8)),
    "decoding": (new(4, 2), allocate("a", 1), *(append("a", t) for t in range(2, 9)), append("a", 9), free("a"), allocate("b", 1, 2)),
    "decoding, committed on the way": (new(5, 2), allocate("a", 1, 2, 3), commit("a", 2), append("a", 4), append("a", 5), commit("a", 5),
                                       free("a"), match(1, 2, 3, 4, 5, 6), allocate("b", 1, 2, 3, 4, 5), free("b")),
    "a full hit": (new(6, 4), *kept("a", 1, 2, 3, 4, 5, 6, 7, 8), allocate("b", 1, 2, 3, 4, 5, 6, 7, 8), commit("b", 8), append("b", 9),
                   free("b"), allocate("c", 1, 2, 3, 4, 5, 6, 7, 8), append("c", 10), commit("c", 9), free("c")),
    "a full hit beside its owner": (new(6, 2), allocate("a", 1, 2, 3, 4), commit("a", 4), allocate("b", 1, 2, 3, 4), append("b", 5),
                                    append("a", 6), free("a"), append("b", 7), free("b"), allocate("c", 1, 2, 3, 4, 5)),
    "a hit of the first block": (new(6, 2), *kept("a", 1, 2, 3, 4), allocate("b", 1, 2, 9, 9, 9), commit("b", 5), free("b"),
                                 match(1, 2, 3, 4), match(1, 2, 9, 9), match(3, 4), match(9, 9)),
    "nothing is found before commit": (new(6, 2), allocate("a", 1, 2, 3, 4), match(1, 2, 3, 4), allocate("b", 1, 2, 3, 4), commit("a", 3),
                                       match(1, 2, 3, 4), append("a", 5), append("a", 6), match(1, 2, 3, 4, 5, 6), commit("a", 4),
                                       match(1, 2, 3, 4, 5, 6), free("a"), free("b"), match(1, 2, 3, 4, 5, 6)),
    "freed before commit": (new(2, 2), allocate("a", 1, 2, 3, 4), free("a"), allocate("b", 1, 2, 3, 4), free("b"), match(1, 2, 3, 4)),
    "commit after free": (new(2, 2), allocate("a", 1, 2), free("a"), commit("a", 2), allocate("b", 5, 6), match(1, 2), match(5, 6)),
    "commit again, and of less": (new(3, 2), allocate("a", 1, 2, 3, 4), commit("a", 4), commit("a", 4), commit("a", 1), free("a"),
                                  match(1, 2, 3, 4, 5)),
    "fork, then both go on": (new(6, 4), allocate("a", 1, 2), fork("a", "b"), append("b", 3), append("a", 4), append("b", 5), free("a"),
                              allocate("c", 8, 9), append("b", 6), free("b"), free("c")),
    "fork, then the parent goes on": (new(6, 4), allocate("a", 1, 2), fork("a", "b"), append("a", 3), append("b", 4), free("b"), free("a")),
    "fork, then the child ends": (new(3, 4), allocate("a", 1, 2), fork("a", "b"), append("b", 3), free("b"), allocate("c", *range(20, 32)),
                                  allocate("c", *range(20, 28))),
    "fork of full blocks": (new(6, 2), allocate("a", 1, 2, 3, 4), fork("a", "b"), append("b", 5), append("a", 6), free("a"), free("b")),
    "a fork outlives its parent": (new(3, 2), allocate("a", 1, 2, 3), fork("a", "pin"), free("a"), allocate("b", 7, 8), free("pin"),
                                   allocate("c", 9, 9, 9)),
    "three of one": (new(8, 2), allocate("a", 1, 2, 3), fork("a", "b"), fork("b", "c"), append("b", 4), free("a"), append("c", 5),
                     free("b"), append("c", 6), free("c")),
    "fork of a fork, committed": (new(8, 2), allocate("a", 1, 2, 3), commit("a", 3), fork("a", "b"), append("a", 4), append("b", 5),
                                  commit("a", 4), commit("b", 4), free("a"), free("b"), match(1, 2, 3, 4, 0), match(1, 2, 3, 5, 0)),
    "a copy without a block to copy to": (new(2, 4), allocate("a", 1, 2), fork("a", "b"), allocate("c", 9), append("b", 3), append("a", 3),
                                          free("c"), append("b", 3), append("a", 4)),
    "exhausted in the middle": (new(3, 2), allocate("a", 1, 2), allocate("b", 1, 2, 3, 4, 5, 6), allocate("b", 1, 2, 3, 4), append("a", 3),
                                free("a"), allocate("c", 5, 6)),
    "exhausted behind a hit": (new(3, 2), *kept("a", 1, 2), allocate("b", 8, 8, 9), allocate("c", 1, 2, 3, 4, 5), match(1, 2, 0),
                               allocate("c", 1, 2), free("b"), free("c")),
    "what is found is not to be given": (new(4, 1), *kept("a", 1, 2, 3), allocate("b", 7), allocate("c", 1, 2, 3, 4), match(1, 2, 3, 0),
                                         allocate("d", 1, 2, 3)),
    "a pool of cached blocks alone": (new(4, 1), *kept("a", 1, 2), *kept("b", 3, 4), allocate("c", 1, 2, 3, 4, 5),
                                      allocate("c", 1, 2, 5, 6), match(3, 4, 0), match(1, 2, 0)),
    "append until it is full": (new(2, 2), allocate("a", 1), append("a", 2), append("a", 3), append("a", 4), append("a", 5),
                                truncate("a", 3), append("a", 6), free("a")),
    "truncate to a border": (new(4, 2), allocate("a", 1, 2, 3, 4, 5), truncate("a", 4), truncate("a", 2), append("a", 9), free("a"),
                             allocate("b", *range(20, 28))),
    "truncate to nothing": (new(2, 2), allocate("a", 1, 2, 3), truncate("a", 0), append("a", 5), truncate("a", 0), free("a")),
    "truncate what is shared": (new(6, 4), allocate("a", 1, 2, 3, 4, 5, 6), fork("a", "b"), truncate("b", 5), append("b", 9),
                                append("a", 7), truncate("a", 2), append("a", 8), free("b"), free("a")),
    "truncate into a hit": (new(6, 4), *kept("a", 1, 2, 3, 4), allocate("b", 1, 2, 3, 4, 5), allocate("c", 1, 2, 3, 4, 6), truncate("b", 2),
                            append("b", 7), append("b", 8), commit("b", 4), match(1, 2, 3, 4, 0), match(1, 2, 7, 8, 0), free("b"),
                            free("c")),
    "truncate into a published block": (new(4, 2), allocate("a", 1, 2, 3, 4), commit("a", 4), truncate("a", 3), match(1, 2, 3, 4, 0),
                                        append("a", 9), match(1, 2, 3, 4, 0), allocate("b", 1, 2, 3, 4), commit("a", 4),
                                        match(1, 2, 3, 9, 0), free("a"), free("b"), match(1, 2, 3, 4, 0), match(1, 2, 3, 9, 0)),
    "truncate, then commit": (new(4, 2), allocate("a", 1, 2, 3, 4), commit("a", 2), truncate("a", 1), append("a", 5), match(1, 2),
                              match(1, 5), commit("a", 2), match(1, 5, 0), free("a"), match(1, 2), match(1, 5, 0)),
    "given anew": (new(2, 2), *kept("a", 1, 2, 3, 4), allocate("b", 5, 6, 7, 8), match(1, 2, 3, 4), allocate("c", 1, 2), free("b"),
                   match(1, 2, 3, 4), allocate("c", 1, 2, 3, 4), free("c")),
    "given anew to an appended token": (new(2, 1), *kept("a", 1, 2), allocate("b", 3), append("b", 4), match(1, 2, 0), append("b", 5),
                                        free("b"), match(1, 2, 0)),
    "evict, the oldest first": (new(4, 1), *kept("a", 1), *kept("b", 2), *kept("c", 3), match(2), evict(1), evict(1), match(3, 0), evict(5),
                                evict(1)),
    "used again is recent again": (new(3, 1), *kept("a", 1), *kept("b", 2), *kept("c", 3), allocate("d", 1), free("d"), allocate("e", 8),
                                   match(1, 0), match(3, 0), match(2, 0)),
    "a free block before a cached one": (new(4, 1), *kept("a", 1, 2), allocate("b", 5), match(1, 2, 0), allocate("c", 6), match(1, 2, 0)),
    "evict the tail of a chain": (new(4, 2), *kept("a", 1, 2, 3, 4, 5, 6), evict(1), match(1, 2, 3, 4, 5, 6),
                                  allocate("b", 1, 2, 3, 4, 5, 6), commit("b", 6), free("b"), evict(2), match(1, 2, 3, 4, 5, 6)),
    "evict what is partly in use": (new(6, 2), *kept("a", 1, 2, 3, 4, 5, 6), allocate("b", 1, 2, 3, 4, 9), evict(6), append("b", 8),
                                    free("b"), evict(6)),
    "evict with a branch": (new(6, 2), *kept("a", 1, 2, 3, 4), *kept("b", 1, 2, 5, 6), allocate("c", 1, 2, 5, 6, 7), evict(4),
                            match(1, 2, 5, 6, 0), free("c")),
    "equal blocks of two": (new(4, 2), allocate("a", 1, 2), allocate("b", 1, 2), commit("b", 2), commit("a", 2), free("b"), match(1, 2, 0),
                            allocate("c", 1, 2, 3), free("a"), free("c"), allocate("d", *range(20, 28)), match(1, 2, 0)),
    "equal blocks, each with a branch": (new(6, 2), allocate("a", 1, 2, 3, 4), allocate("b", 1, 2, 5, 6), commit("a", 4), commit("b", 4),
                                         free("a"), match(1, 2, 5, 6, 0), free("b"), evict(1), match(1, 2, 3, 4, 0)),
    "re-used after its blocks were published": (new(3, 2), *kept("a", 1, 2, 3, 4), *kept("a", 1, 2, 3, 4), *kept("a", 1, 2, 5, 6),
                                                allocate("a", 1, 2, 3, 4), free("a"), allocate("a", 1, 2, 5, 6), free("a")),
    "blocks of one token": (new(4, 1), *kept("a", 1, 2), allocate("b", 1, 2, 3), fork("b", "c"), append("c", 4), append("b", 5), free("b"),
                            free("c"), match(1, 2, 3, 4)),
    "a last block exactly full": (new(4, 4), allocate("a", 1, 2, 3, 4, 5, 6, 7, 8), commit("a", 8), match(*range(1, 10)), free("a"),
                                  allocate("b", *range(1, 10)), free("b")),
    "no tokens": (new(2, 2), allocate("a"), commit("a", 0), fork("a", "b"), append("a", 1), append("b", 2), free("a"), free("b"), match()),
    "no blocks": (new(0, 2), allocate("a"), allocate("b", 1), append("a", 1), evict(1), free("a")),
    "wrong calls": (new(3, 2), append("a", 1), free("a"), commit("a", 0), truncate("a", 0), fork("a", "b"), allocate("a", 1, 2, 3),
                    allocate("a", 4), fork("a", "a"), commit("a", 4), truncate("a", 4), free("a"), free("a"), append("a", 1)),
    "a wrong call after a fork": (new(3, 2), allocate("a", 1), allocate("b", 2), fork("a", "b"), append("b", 3), free("b"), free("a")),
    "other tokens before": (new(8, 2), *kept("a", 1, 2, 3, 4), *kept("b", 9, 9), match(9, 9, 3, 4), match(3, 4),
                            allocate("c", 9, 9, 3, 4, 5), *kept("d", 3, 4), match(3, 4, 3, 4, 0)),
    "without prefix caching": (new(4, 2, prefix_caching=False), *kept("a", 1, 2, 3, 4), allocate("b", 1, 2, 3, 4), free("b"), match(1, 2)),
    "salt of a fork": (new(6, 2), allocate("a", 1, 2, salt=b"x"), fork("a", "b"), append("b", 3), append("b", 4), commit("b", 4), free("a"),
                       free("b"), match(1, 2, 3, 4), match(1, 2, 3, 4, salt=b"x"), allocate("c", 1, 2, 3, 4, 5)),
}  # fmt: skip


def _equal_hashes(a: tuple[int, ...], b: tuple[int, ...]) -> Sequence:
    return (new(8, 2), allocate("a", *a, 1, 2), commit("a", 4), match(*b, 1, 2), allocate("b", *b, 1, 2), commit("b", 4), free("a"),
            free("b"), match(*a, 1, 2, 0), match(*b, 1, 2, 0))  # fmt: skip


def _salts(a: bytes, b: bytes) -> Sequence:
    return (new(8, 2), allocate("a", 1, 2, 3, salt=a), commit("a", 3), match(1, 2, salt=b), allocate("b", 1, 2, 3, salt=b), commit("b", 3),
            match(1, 2, 0, salt=b), match(1, 2, 0, salt=a), free("a"), free("b"), match(1, 2, 0, salt=a))  # fmt: skip


def _salt_for_tokens(salt: bytes) -> Sequence:
    """A salt that reads like the tokens 5, 6: without domain separation 7, 8 behind it are 5, 6, 7, 8 behind none."""
    return (new(8, 2), *kept("a", 5, 6, 7, 8), match(7, 8, salt=salt), allocate("b", 7, 8, 9, salt=salt))


def designed_sequences() -> dict[str, Sequence]:
    """All designed sequences by what they are about."""
    found = dict(DESIGNED)
    found |= {f"equal hashes of {a} and {b}": _equal_hashes(a, b) for a, b in EQUAL_HASHES}
    found |= {f"salts {a!r} and {b!r}": _salts(a, b) for a, b in SALTS}
    tokens = np.array([5, 6])
    spelt = [*(tokens.astype(kind).tobytes() for kind in ("<i8", ">i8", "<i4", ">i4", "u1")), b"56", b"5,6", b"5 6", b"(5, 6)", b"[5, 6]"]
    return found | {f"a salt {salt!r} for tokens": _salt_for_tokens(salt) for salt in spelt}


def drawn_new(numbers: Numbers, abilities: frozenset[str]) -> Call:
    """A small pool: the smaller, the sooner everything happens in it."""
    named = {"prefix_caching": False} if "new.prefix_caching" in abilities and numbers[2] % 10 == 9 else {}
    return new(1 + numbers[0] % 8, 1 + numbers[1] % 4, **named)


# How often each call is drawn, beside the others.
WEIGHTS = {"allocate": 4, "append": 4, "commit": 3, "fork": 2, "truncate": 1, "free": 2, "evict": 1, "match_prefix": 1}
NAMES = "abcdef"


def drawn_call(method: str, numbers: Numbers, model: AllocatorModel, abilities: frozenset[str]) -> Call:
    """A call of a method: mostly one that can succeed, on few tokens, so that prefixes meet. numbers choose; 0 is the plainest."""
    live = list(model.sequences)
    unused = [name for name in NAMES if name not in live] or list(NAMES)
    which, amount, rest = numbers
    if method == "allocate" or (not live and method not in ("evict", "match_prefix")):
        return allocate(_one(unused, which), *_tokens(numbers, model), salt=_salt(numbers, abilities))
    if method == "match_prefix":
        return match(*_tokens(numbers, model), salt=_salt(numbers, abilities))
    if method == "evict":
        return evict(amount % 4)
    wrong = rest % 20 == 19                                                     # now and then a name that may be unknown, or in use
    seq = _one(list(NAMES) if wrong else live, which)
    n = len(model.sequences[seq].tokens) if seq in live else 0
    if method == "append":
        return append(seq, amount % 3)
    if method == "fork":
        return fork(seq, _one(list(NAMES) if wrong else unused, amount))
    if method == "commit":
        return commit(seq, n - amount % (n + 1) if rest % 2 else n)
    return truncate(seq, amount % (n + 1 + wrong)) if method == "truncate" else free(seq)


def in_bounds(call: Call) -> bool:
    """Whether a call is one that the contract speaks of: a shrunk sequence must be."""
    if call.method == NEW:
        return bool(call.args[0] >= 0 and call.args[1] >= 1)
    return call.method != "evict" or bool(call.args[0] >= 0)


def _tokens(numbers: Numbers, model: AllocatorModel) -> tuple[int, ...]:
    """Of two different tokens; often those of a sequence, or of its beginning and something else."""
    which, amount, rest = numbers
    tokens = tuple(amount >> i & 1 for i in range(rest % (3 * model.size + 2)))
    known = [tuple(s.tokens) for s in model.sequences.values() if s.tokens] + [held for valid in model.valid for _, held in sorted(valid)]
    if known and rest // 64 % 2:
        whole: tuple[int, ...] = _one(known, which // 8)
        return whole[: len(whole) - (amount // 16 % (len(whole) + 1) if rest // 128 % 2 else 0)] + tokens[: rest // 256 % 3]
    return tokens


def _salt(numbers: Numbers, abilities: frozenset[str]) -> bytes:
    return b"x" if "allocate.salt" in abilities and numbers[2] // 1024 % 6 == 5 else b""


def _one(choices: list[Any], number: int) -> Any:
    return choices[number % len(choices)]
