"""Trace cases: what is asked. Inputs are dyadic, and no decision stands near a tie. Sequences of calls are in pool_cases."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles.reference import FloatFormat

from . import draws
from .draws import Array
from .pool_cases import pool_traces
from .traces import Step, Trace

# name: (format, (slots, heads, D, Dv), slots of the tokens)
WRITES: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {
    "smallest": ("float64", (1, 1, 1, 1), (0,)), "no-tokens": ("float32", (3, 1, 2, 2), ()),
    "no-slots": ("float32", (0, 1, 2, 2), (-1, -1)),
    "in-order": ("float32", (6, 2, 3, 3), (0, 1, 2)), "backwards": ("bfloat16", (6, 2, 3, 3), (5, 4, 3)),
    "skipped": ("float16", (6, 1, 2, 2), (-1, 2, -1)), "all-skipped": ("float32", (4, 1, 2, 2), (-1, -1)),
    "twice": ("float32", (6, 1, 2, 2), (3, 1, 3)), "three-times-in-a-row": ("bfloat16", (4, 1, 2, 2), (2, 2, 2)),
    "last-slot-and-skip": ("float32", (4, 1, 2, 2), (3, -1)), "other-values": ("float64", (5, 2, 4, 1), (4, 0)),
    "whole-cache": ("float16", (8, 1, 2, 2), (7, 0, 6, 1, 5, 2, 4, 3)),
}  # fmt: skip

# name: (B, Hq, Lq, Lk), options; kv_lengths given as a tuple, mask by name
MASKS: dict[str, tuple[tuple[int, int, int, int], dict[str, Any]]] = {
    "smallest": ((1, 1, 1, 1), {"causal": None}), "no-keys": ((1, 1, 2, 0), {"causal": "bottom_right"}),
    "no-queries": ((1, 1, 0, 3), {"causal": "bottom_right"}), "bottom-right": ((1, 1, 3, 5), {"causal": "bottom_right"}),
    "top-left": ((1, 1, 3, 5), {"causal": "top_left"}), "more-queries": ((1, 1, 5, 3), {"causal": "bottom_right"}),
    "more-queries-top-left": ((1, 1, 5, 3), {"causal": "top_left"}),
    "window-of-one": ((1, 1, 4, 6), {"causal": None, "window": (0, 0)}),
    "window-left": ((1, 1, 6, 6), {"causal": "bottom_right", "window": (2, None)}),
    "window-right": ((1, 1, 4, 6), {"causal": None, "window": (None, 1)}),
    "window-top-left": ((1, 1, 4, 6), {"causal": "top_left", "window": (1, 0)}),
    "lengths": ((3, 1, 2, 5), {"causal": "bottom_right", "kv_lengths": (0, 3, 5)}),
    "lengths-shorter-than-queries": ((2, 1, 4, 6), {"causal": "bottom_right", "kv_lengths": (2, 1)}),
    "lengths-and-window": ((2, 1, 3, 7), {"causal": None, "window": (1, 1), "kv_lengths": (4, 7)}),
    "mask": ((2, 2, 3, 4), {"causal": "bottom_right", "mask": "drawn"}),
}  # fmt: skip

# name: (table, positions, block size)
SLOTS: dict[str, tuple[tuple[int, ...], tuple[int, ...], int]] = {
    "smallest": ((0,), (0,), 1), "nothing": ((), (), 4), "in-order": ((0, 1), (0, 1, 2, 3), 2),
    "out-of-order": ((4, 2, 7), (0, 3, 4, 5, 8, 11), 4),
    "none-of-it": ((3, 1), (-1, -1), 4), "some-nothing": ((3, 1), (0, -1, 5), 4), "past-the-table": ((4, 2, -1), (0, 9), 4),
    "hole": ((4, -1, 2), (0, 4, 8), 4), "block-of-one": ((5, 3, 9), (2, 0, 1), 1), "last-slot": ((0, 1), (7,), 4),
    "repeated": ((6,), (1, 1, 1), 2), "long": ((2, 0, 1, 3), tuple(range(0, 64, 7)), 16),
}  # fmt: skip

# name: (lengths, block size, largest length)
WASTES: dict[str, tuple[tuple[int, ...], int, int]] = {
    "nobody": ((), 16, 2048), "empty-sequences": ((0, 0), 16, 2048), "smallest": ((1,), 1, 1), "full-block": ((16,), 16, 16),
    "one-more": ((17,), 16, 32), "one-less": ((15,), 16, 32), "several": ((100, 17, 1), 16, 2048), "block-of-one": ((100, 17, 1), 1, 2048),
    "block-of-256": ((100, 17, 1), 256, 2048), "longest": ((2048, 2048), 16, 2048), "many": (tuple(range(0, 400, 7)), 32, 400),
    "one-token-each": ((1,) * 9, 8, 64),
}  # fmt: skip

# name: (parents, n_past)
TREES: dict[str, tuple[tuple[int, ...], int]] = {
    "nothing": ((), 3), "one": ((-1,), 0), "chain": ((-1, 0, 1, 2), 7), "roots": ((-1, -1, -1), 2), "two-levels": ((-1, -1, 0, 0, 1), 10),
    "binary": ((-1, 0, 0, 1, 1, 2, 2), 0), "comb": ((-1, 0, 0, 2, 2, 4, 4), 5), "two-chains": ((-1, -1, 0, 1, 2, 3), 1),
    "late-child-of-the-first": ((-1, 0, 1, 0), 4), "long-past": ((-1, 0), 2**40), "bushy": ((-1, 0, 0, 0, 3, 3), 9),
    "forest": ((-1, 0, -1, 2, -1, 4), 6),
}  # fmt: skip

# name: (pattern, vocabulary, eos, walk: (number of the state that goes on, token)). State 0 is the start; each walk step that is
# allowed makes the next number. Every text of the language can be completed within three tokens.
GUIDES: dict[str, tuple[str, tuple[str, ...], int, tuple[tuple[int, int], ...]]] = {
    "one-letter": ("a", ("a", "b", "<eos>"), 2, ((0, 0), (1, 2))), "nothing-but-empty": ("", ("a", "<eos>"), 1, ((0, 1), (1, 1))),
    "repeat": ("a+b?", ("a", "b", "ab", "", "<eos>"), 4, ((0, 0), (1, 1), (1, 2), (3, 4), (0, 1))),
    "choice": ("yes|no", ("yes", "no", "y", "es", "<eos>"), 4, ((0, 0), (0, 2), (2, 3), (3, 4), (0, 3))),
    "dead-end": ("ab|ac", ("a", "b", "x", "<eos>"), 3, ((0, 0), (1, 1), (1, 2))),
    "no-way-on": ("ax|b", ("a", "b", "<eos>"), 2, ((0, 0), (0, 1), (1, 2))),
    "same-text-twice": ("aa?", ("a", "a", "aa", "<eos>"), 3, ((0, 0), (0, 1), (0, 2), (1, 1))),
    "digits": ("[0-9]{1,2}", ("1", "2", "34", "x", "<eos>"), 4, ((0, 0), (1, 1), (0, 2), (2, 4), (3, 0))),
    "eos-as-text": ("(<eos>)?a", ("a", "<eos>", "<"), 1, ((0, 0), (1, 1), (0, 1))),
    "class": ("[^a]b", ("a", "b", "bb", "<eos>"), 3, ((0, 1), (1, 1), (0, 2), (0, 0))),
    "optional-end": ("a(bc)?", ("a", "b", "c", "bc", "<eos>"), 4, ((0, 0), (1, 1), (2, 2), (1, 3), (1, 4))),
    "after-eos": ("a*", ("a", "aa", "<eos>"), 2, ((0, 2), (1, 2), (1, 0), (0, 1))),
}  # fmt: skip

# name: (format, (rows, V, T), options); an option given as a list is an array over the rows
PENALTIES: dict[str, tuple[str, tuple[int, int, int], dict[str, Any]]] = {
    "smallest": ("float64", (1, 1, 1), {"repetition": 2.0}), "no-history": ("float32", (2, 5, 0), {"repetition": 2.0, "presence": 0.5}),
    "nothing-asked": ("float32", (2, 5, 4), {}), "repetition": ("float32", (2, 5, 4), {"repetition": 2.0}),
    "repetition-below-one": ("bfloat16", (2, 5, 4), {"repetition": 0.5}), "frequency": ("float32", (2, 5, 9), {"frequency": 0.25}),
    "presence": ("float16", (2, 5, 9), {"presence": 0.5}), "negative-frequency": ("float32", (2, 5, 9), {"frequency": -0.25}),
    "all": ("float64", (3, 7, 12), {"repetition": 4.0, "frequency": 0.125, "presence": 0.5}),
    "prompt": ("float32", (3, 7, 12), {"prompt_lengths": [0, 5, 12], "frequency": 0.5, "presence": 0.25}),
    "prompt-and-repetition": ("float32", (3, 7, 12), {"prompt_lengths": [4, 4, 4], "repetition": 2.0, "presence": 1.0}),
    "of-a-row": ("float32", (3, 5, 6), {"repetition": [1.0, 2.0, 0.25], "frequency": [0.0, 1.0, 0.5], "presence": [0.5, 0.0, 2.0]}),
    "padding": ("float32", (2, 5, 8), {"repetition": 2.0, "frequency": 0.5, "padded": 3}),
}  # fmt: skip

# (V, rows)
SAMPLES = ((1, 1), (2, 1), (3, 2), (5, 4), (9, 3), (17, 3), (33, 2), (64, 2), (8, 5), (4, 9), (2, 9), (12, 6))
# (B, K, V)
DRAFTS = ((1, 0, 2), (1, 1, 2), (2, 1, 3), (2, 2, 4), (3, 2, 5), (2, 3, 4), (4, 3, 8), (3, 4, 9), (2, 5, 3), (5, 2, 17), (2, 6, 8),
          (6, 1, 4))  # fmt: skip
DRAFT_TREES = (*(name for name in TREES if name not in ("nothing", "long-past")), "chain", "bushy")


def function_traces() -> list[Trace]:
    """The questions of all functions: a trace of one call each."""
    return [*_writes(), *_masks(), *_slots(), *_wastes(), *_tree_positions(), *_penalties(), *_samples(), *_verifications(), *_trees()]


def object_traces() -> list[Trace]:
    """The questions to block allocators and guides."""
    return [*pool_traces(), *(_guide(name) for name in GUIDES)]


def _guide(name: str) -> Trace:
    pattern, vocabulary, eos, walk = GUIDES[name]
    steps = [Step("token_mask", {"state": 0})]
    for state, token in walk:
        steps += [Step("advance", {"state": state, "token": token})]
    return Trace("token_mask", name, {"pattern": pattern, "vocabulary": list(vocabulary), "eos": eos}, tuple(steps))


def _call(operation: str, case: str, **arguments: Any) -> Trace:
    return Trace(operation, case, {}, (Step(operation, arguments),))


def _writes() -> list[Trace]:
    traces = []
    for name, (dtype, (S, heads, D, Dv), slots) in WRITES.items():
        shapes = {"k_cache": (S, heads, D), "v_cache": (S, heads, Dv), "k": (len(slots), heads, D), "v": (len(slots), heads, Dv)}
        arrays: dict[str, Array] = {letter: draws.normal(f"write {name} {letter}", shape, dtype) for letter, shape in shapes.items()}
        if name == "skipped":                                                   # what is not written may be anything
            arrays["k_cache"][-1] = np.nan
        traces.append(_call("write_kv", name, **arrays, slots=np.asarray(slots, dtype=np.int64)))
    return traces


def _masks() -> list[Trace]:
    traces = []
    for name, (shape, options) in MASKS.items():
        given = dict(options)
        if "kv_lengths" in given:
            given["kv_lengths"] = np.asarray(given["kv_lengths"], dtype=np.int64)
        if "mask" in given:
            given["mask"] = draws.whole(f"mask {name}", shape, 0, 3) > 0
        if "window" in given:
            given["window"] = list(given["window"])
        traces.append(_call("visible_keys", name, **dict(zip(("B", "Hq", "Lq", "Lk"), shape)), **given))
    return traces


def _slots() -> list[Trace]:
    return [_call("slot_mapping", name, table=np.asarray(table, dtype=np.int64), positions=np.asarray(positions, dtype=np.int64),
                  block_size=size) for name, (table, positions, size) in SLOTS.items()]  # fmt: skip


def _wastes() -> list[Trace]:
    return [_call("paging_waste", name, lengths=np.asarray(lengths, dtype=np.int64), block_size=size, max_length=most)
            for name, (lengths, size, most) in WASTES.items()]  # fmt: skip


def _tree_positions() -> list[Trace]:
    return [_call("tree_positions", name, parents=np.asarray(parents, dtype=np.int64), n_past=past)
            for name, (parents, past) in TREES.items()]  # fmt: skip


def _penalties() -> list[Trace]:
    traces = []
    for name, (dtype, (rows, V, T), options) in PENALTIES.items():
        given = {option: np.asarray(value) if isinstance(value, list) else value for option, value in options.items() if option != "padded"}
        logits = np.ldexp(draws.whole(f"penalty {name} logits", (rows, V), -64, 65).astype(np.float64), -3)
        tokens = draws.whole(f"penalty {name} tokens", (rows, T), 0, V)
        tokens[:, T - options.get("padded", 0) :] = -1
        traces.append(_call("apply_penalties", name, logits=np.asarray(FloatFormat(dtype).cast(logits)), tokens=tokens, **given))
    return traces


def distribution(key: str, shape: tuple[int, ...], V: int) -> Array:
    """Rows of V multiples of 1/64 that sum to 1, some of them 0: the gaps between drawn marks on 0 … 64."""
    marks = np.sort(draws.whole(key, (*shape, V - 1), 0, 65), axis=-1)
    edges = np.concatenate([np.zeros((*shape, 1), np.int64), marks, np.full((*shape, 1), 64)], axis=-1)
    return np.asarray(np.ldexp(np.diff(edges, axis=-1).astype(np.float32), -6), dtype=np.float32)


def uniforms(key: str, shape: tuple[int, ...]) -> Array:
    """Odd multiples of 1/2048: no product with a multiple of 1/64 is another such multiple."""
    return np.asarray(np.ldexp((2 * draws.whole(key, shape, 0, 1024) + 1).astype(np.float32), -11), dtype=np.float32)


def _drawn_tokens(key: str, q: Array) -> Array:
    """A token of each row's distribution, by a uniform of its own: no draft proposes what it gives no probability."""
    u = uniforms(key, q.shape[:-1])
    return np.asarray((u[..., None] >= np.cumsum(q, axis=-1)).sum(axis=-1), dtype=np.int64)


def _samples() -> list[Trace]:
    return [_call("sample", f"{V}-tokens-{rows}-rows", probabilities=distribution(f"sample {V} {rows}", (rows,), V),
                  u=uniforms(f"sample {V} {rows} u", (rows,))) for V, rows in SAMPLES]  # fmt: skip


def _verifications() -> list[Trace]:
    traces = []
    for B, K, V in DRAFTS:
        key = f"verify {B} {K} {V}"
        q, p = distribution(f"{key} q", (B, K), V), distribution(f"{key} p", (B, K + 1), V)
        given: dict[str, Any] = {"draft_lengths": draws.whole(f"{key} lengths", (B,), 0, K + 1)} if B == 2 and K > 2 else {}
        traces.append(_call("speculative_verify", f"{B}-rows-{K}-drafts-{V}-tokens", draft_tokens=_drawn_tokens(f"{key} x", q),
                            draft_probs=q, target_probs=p, accept_u=uniforms(f"{key} u", (B, K)), sample_u=uniforms(f"{key} last", (B,)),
                            **given))  # fmt: skip
    return traces


def _trees() -> list[Trace]:
    traces = []
    for number, name in enumerate(DRAFT_TREES):
        parents, B, V, key = np.asarray(TREES[name][0], dtype=np.int64), 3, 3 + number % 4, f"tree {number} {name}"
        N = len(parents)
        q, p = distribution(f"{key} q", (B, N), V), distribution(f"{key} p", (B, N + 1), V)
        traces.append(_call("verify_tree", f"{name}-{V}-tokens", draft_tokens=_drawn_tokens(f"{key} x", q), draft_probs=q, target_probs=p,
                            accept_u=uniforms(f"{key} u", (B, N)), sample_u=uniforms(f"{key} last", (B,)), parents=parents))  # fmt: skip
    return traces
