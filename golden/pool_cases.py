"""Golden sequences of calls on a block allocator: sharing, copies on write, publication, eviction, exhaustion, refusals."""

from __future__ import annotations

from typing import Any

from .traces import Step, Trace

# What each call is given, in order; a salt may follow the tokens.
NAMES = {"allocate": ("seq", "tokens", "salt"), "append": ("seq", "token"), "commit": ("seq", "n"), "fork": ("parent", "child"),
         "truncate": ("seq", "n"), "free": ("seq",), "match_prefix": ("tokens", "salt"), "evict": ("n",)}  # fmt: skip

Calls = tuple[tuple[Any, ...], ...]


def _kept(seq: str, tokens: list[int], *salt: bytes) -> Calls:
    """A sequence that leaves its blocks cached."""
    return ("allocate", seq, tokens, *salt), ("commit", seq, len(tokens)), ("free", seq)


# name: (num_blocks, block_size, calls); ("table", seq) follows each call on a sequence, ("stats",) closes.
POOLS: dict[str, tuple[int, int, Calls]] = {
    "empty-pool": (0, 4, (("allocate", "a", [1]), ("allocate", "b", []), ("append", "b", 1), ("free", "b"), ("match_prefix", [1]))),
    "whole-pool-twice": (3, 2, (("allocate", "a", [1, 2, 3, 4, 5, 6]), ("free", "a"), ("allocate", "b", [7, 8, 9, 10, 11, 12]))),
    "block-by-block": (3, 1, (("allocate", "a", [1]), ("allocate", "b", [2]), ("allocate", "c", [3]), ("free", "b"), ("allocate", "d", [4]),
                              ("free", "a"), ("free", "c"), ("allocate", "e", [5, 6]), ("allocate", "f", [7]))),
    "decoding": (4, 2, (("allocate", "a", [1]), *(("append", "a", t) for t in range(2, 10)), ("free", "a"))),
    "nothing-is-found-before-commit": (6, 2, (("allocate", "a", [1, 2, 3, 4]), ("match_prefix", [1, 2, 3, 4]), ("commit", "a", 3),
                                              ("match_prefix", [1, 2, 3, 4]), ("allocate", "b", [1, 2, 3, 4]), ("commit", "a", 4),
                                              ("match_prefix", [1, 2, 3, 4, 5]))),
    "full-hit": (6, 4, (*_kept("a", [1, 2, 3, 4, 5, 6, 7, 8]), ("allocate", "b", [1, 2, 3, 4, 5, 6, 7, 8]), ("append", "b", 9),
                        ("free", "b"), ("match_prefix", [1, 2, 3, 4, 9, 9, 9, 9]))),
    "salted": (6, 2, (*_kept("a", [1, 2, 3, 4], b"x"), ("match_prefix", [1, 2, 3, 4]), ("match_prefix", [1, 2, 3, 4], b"x"),
                      ("allocate", "b", [1, 2, 3, 4], b"y"), ("allocate", "c", [1, 2, 3, 4], b"x"))),
    "equal-first-block-other-second": (8, 2, (*_kept("a", [1, 2, 3, 4]), *_kept("b", [1, 2, 5, 6]), ("match_prefix", [3, 4]),
                                              ("match_prefix", [1, 2, 5, 6, 7]), ("allocate", "c", [1, 2, 3, 4, 5]))),
    "fork-and-copy": (6, 4, (("allocate", "a", [1, 2]), ("fork", "a", "b"), ("append", "b", 3), ("append", "a", 4), ("append", "b", 5),
                             ("free", "a"), ("allocate", "c", [8, 9]), ("free", "b"))),
    "fork-of-full-blocks": (6, 2, (("allocate", "a", [1, 2, 3, 4]), ("fork", "a", "b"), ("append", "b", 5), ("append", "a", 6),
                                   ("free", "a"))),
    "copy-without-a-block": (2, 4, (("allocate", "a", [1, 2]), ("fork", "a", "b"), ("allocate", "c", [9]), ("append", "b", 3),
                                    ("free", "c"), ("append", "b", 3), ("append", "a", 4))),
    "exhausted-in-the-middle": (3, 2, (("allocate", "a", [1, 2]), ("allocate", "b", [1, 2, 3, 4, 5, 6]), ("allocate", "b", [1, 2, 3, 4]),
                                       ("append", "a", 3), ("free", "a"), ("allocate", "c", [5, 6]))),
    "found-is-not-given": (4, 1, (*_kept("a", [1, 2, 3]), ("allocate", "b", [7]), ("allocate", "c", [1, 2, 3, 4]),
                                  ("match_prefix", [1, 2, 3]))),
    "least-recently-used-first": (3, 1, (*_kept("a", [1]), *_kept("b", [2]), *_kept("c", [3]), ("allocate", "d", [1]), ("free", "d"),
                                         ("allocate", "e", [8]), ("match_prefix", [1]), ("match_prefix", [2]), ("match_prefix", [3]))),
    "tail-of-a-chain-first": (4, 2, (*_kept("a", [1, 2, 3, 4, 5, 6]), ("evict", 1), ("match_prefix", [1, 2, 3, 4, 5, 6]), ("evict", 9),
                                     ("evict", 1), ("match_prefix", [1, 2]))),
    "free-before-cached": (4, 1, (*_kept("a", [1, 2]), ("allocate", "b", [5]), ("match_prefix", [1, 2]), ("allocate", "c", [6, 7]),
                                  ("match_prefix", [1, 2]))),
    "truncate-and-go-on": (6, 4, (("allocate", "a", [1, 2, 3, 4, 5, 6]), ("fork", "a", "b"), ("truncate", "b", 5), ("append", "b", 9),
                                  ("truncate", "a", 2), ("append", "a", 8), ("truncate", "a", 0), ("append", "a", 7))),
    "truncate-into-a-published-block": (4, 2, (("allocate", "a", [1, 2, 3, 4]), ("commit", "a", 4), ("truncate", "a", 3),
                                               ("match_prefix", [1, 2, 3, 4]), ("append", "a", 9), ("match_prefix", [1, 2, 3, 4]),
                                               ("commit", "a", 4), ("match_prefix", [1, 2, 3, 9]))),
    "refused": (3, 2, (("allocate", "a", [1, 2, 3]), ("allocate", "a", [4]), ("append", "b", 1), ("commit", "a", 4), ("truncate", "a", 4),
                       ("fork", "b", "c"), ("fork", "a", "a"), ("free", "b"), ("free", "a"), ("free", "a"))),
}  # fmt: skip


def pool_traces() -> list[Trace]:
    """The sequences of `POOLS`."""
    traces = []
    for name, (num_blocks, block_size, calls) in POOLS.items():
        steps = []
        for call, *given in calls:
            arguments = dict(zip(NAMES[call], given))
            steps.append(Step(call, arguments))
            seq = arguments.get("child", arguments.get("seq"))
            if seq is not None and call != "free":
                steps.append(Step("table", {"seq": seq}))
        steps.append(Step("stats", {}))
        traces.append(Trace("block_allocator", name, {"num_blocks": num_blocks, "block_size": block_size}, tuple(steps)))
    return traces
