"""Golden sequences of calls on a cache of keys and values: chunks, windows, drafts rolled back, beams selected, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import draws
from .draws import Array
from .traces import Step, Trace

Calls = tuple[tuple[Any, ...], ...]

# name: (window, (B, Hkv, D, Dv), calls); ("append", n) appends n tokens drawn, (…, shape) tokens of another shape; `view` and `length`
# follow every call but `view`.
CACHES: dict[str, tuple[int | None, tuple[int, int, int, int], Calls]] = {
    "one-token": (None, (1, 1, 1, 1), (("append", 1),)),
    "nothing-appended": (None, (1, 1, 1, 1), (("view",), ("crop", 0), ("select", [0]))),
    "no-tokens": (None, (2, 1, 2, 3), (("append", 0), ("append", 2))),
    "token-by-token": (None, (1, 2, 2, 2), (("append", 1),) * 4),
    "chunks": (None, (2, 2, 2, 1), (("append", 3), ("append", 1), ("append", 2))),
    "window": (2, (1, 2, 2, 2), (("append", 1), ("append", 1), ("append", 1), ("append", 4))),
    "window-of-none": (0, (1, 1, 2, 2), (("append", 2), ("append", 1))),
    "rolled-back": (None, (1, 2, 2, 2), (("append", 3), ("append", 2), ("crop", 3), ("append", 1))),
    "rolled-back-to-nothing": (None, (2, 1, 2, 2), (("append", 3), ("crop", 0), ("append", 2))),
    "a-window-after-rolling-back": (3, (1, 1, 2, 2), (("append", 6), ("crop", 4), ("crop", 2), ("append", 1))),
    "beams": (None, (3, 1, 2, 2), (("append", 2), ("select", [2, 0, 2]), ("append", 1), ("select", [1]), ("append", 1))),
    "no-beam-left": (None, (2, 1, 2, 2), (("append", 2), ("select", []))),
    "beams-in-a-window": (2, (2, 2, 1, 1), (("append", 3), ("select", [1, 1, 0]), ("crop", 1), ("append", 2))),
    "refused": (None, (2, 2, 2, 2), (("append", 2), ("append", 1, (2, 1, 2, 2)), ("append", 1, (3, 2, 2, 2)), ("crop", 3), ("select", [2]),
                                     ("append", 1))),
}  # fmt: skip


def kv_cache_traces() -> list[Trace]:
    """The questions of all caches."""
    return [Trace("kv_cache", name, {"window": window}, tuple(_steps(name, shape, calls)))
            for name, (window, shape, calls) in CACHES.items()]  # fmt: skip


def _steps(name: str, shape: tuple[int, int, int, int], calls: Calls) -> list[Step]:
    steps, B = list[Step](), shape[0]
    for number, (call, *given) in enumerate(calls):
        if call == "append":
            rows, heads, D, Dv = given[1] if len(given) > 1 else (B, *shape[1:])
            key = f"kv cache {name} {number}"
            steps.append(Step("append", {letter: _tokens(f"{key} {letter}", (rows, heads, given[0], width))
                                         for letter, width in (("k", D), ("v", Dv))}))  # fmt: skip
        else:
            steps.append(Step(call, {"crop": {"n": given[0]}, "select": {"rows": given[0]}}[call] if given else {}))
        if call == "select" and all(row < B for row in given[0]):
            B = len(given[0])
        if call != "view":
            steps += [Step("length", {}), Step("view", {})]
    return steps


def _tokens(key: str, shape: tuple[int, ...]) -> Array:
    """Eighths, short to write."""
    return np.asarray(np.ldexp(draws.whole(key, shape, -64, 65).astype(np.float64), -3))
