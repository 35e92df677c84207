"""The second route to the answers of traces: plain Python, exact fractions, lists; nothing of NumPy's arithmetic or of the oracles.

Slow and literal on purpose. What it answers has to be what the oracles answer, to the last bit.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from . import trace_compression, trace_counts, trace_loops, trace_schedule, trace_training
from .trace_kv_cache import Cache
from .trace_pool import Pool
from .trace_stream import Stream
from .traces import Step, Trace


def second_answers(trace: Trace) -> list[Step]:
    """The steps of a trace, answered anew."""
    if trace.operation == "block_allocator":
        pool = Pool(**trace.arguments)
        return [pool.answered(step) for step in trace.steps]
    if trace.operation == "token_mask":
        return _guide(trace)
    if trace.operation == "torch_stream":
        stream = Stream(**trace.arguments)
        return [stream.answered(step) for step in trace.steps]
    if trace.operation == "kv_cache":
        cache = Cache(**trace.arguments)
        return [cache.answered(step) for step in trace.steps]
    if trace.operation in trace_training.OBJECTS:
        trained = trace_training.OBJECTS[trace.operation](**trace.arguments)
        return [trained.answered(step) for step in trace.steps]
    return [Step(step.call, step.arguments, _FUNCTIONS[step.call](**step.arguments)) for step in trace.steps]


def _write_kv(k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any) -> dict[str, Any]:
    results = {}
    for name, cache, new in (("k_cache", k_cache, k), ("v_cache", v_cache, v)):
        last = {int(slot): t for t, slot in enumerate(slots)}                   # a later token takes an earlier one's place
        rows = [new[last[s]] if s in last else cache[s] for s in range(len(cache))]
        results[name] = np.asarray([row.astype(np.float64) for row in rows], dtype=np.float64).reshape(cache.shape)
    return results


def _visible_keys(B: int, Hq: int, Lq: int, Lk: int, causal: str | None, window: Any = None, kv_lengths: Any = None,
                  mask: Any = None) -> dict[str, Any]:
    left, right = window or (None, None)
    seen = []
    for b, h, i, j in product(range(B), range(Hq), range(Lq), range(Lk)):
        n = Lk if kv_lengths is None else int(kv_lengths[b])
        p = i if causal == "top_left" else i + n - Lq
        first = float("-inf") if left is None else p - left
        last = min(n - 1, p if causal else n - 1, float("inf") if right is None else p + right)
        seen.append(first <= j <= last and (mask is None or bool(mask[b, h, i, j])))
    return {"visible": np.asarray(seen, dtype=bool).reshape(B, Hq, Lq, Lk)}


def _slot_mapping(table: Any, positions: Any, block_size: int) -> dict[str, Any]:
    slots = {block * block_size + offset: int(page) * block_size + offset for block, page in enumerate(table) if page >= 0
             for offset in range(block_size)}  # fmt: skip
    return {"slots": np.asarray([slots.get(int(t), -1) for t in positions], dtype=np.int64)}


def _paging_waste(lengths: Any, block_size: int, max_length: int) -> dict[str, int]:
    blocks = 0
    for n in lengths:
        blocks += len(range(0, int(n), block_size))
    return {"tokens": sum(int(n) for n in lengths), "paged_slots": blocks * block_size, "contiguous_slots": max_length * len(lengths),
            "table_entries": blocks}  # fmt: skip


def _tree_positions(parents: Any, n_past: int) -> dict[str, Any]:
    def depth(i: int) -> int:
        return 0 if parents[i] < 0 else 1 + depth(int(parents[i]))

    return {"positions": np.asarray([n_past + depth(i) for i in range(len(parents))], dtype=np.int64)}


def _apply_penalties(logits: Any, tokens: Any, prompt_lengths: Any = None, repetition: Any = 1.0, frequency: Any = 0.0,
                     presence: Any = 0.0) -> dict[str, Any]:
    rows = len(logits)
    r, f, once = ([Fraction(float(x)) for x in np.broadcast_to(np.asarray(value), (rows,))] for value in (repetition, frequency, presence))
    result = np.zeros(logits.shape)
    for b in range(rows):
        history = [int(t) for t in tokens[b]]
        prompt = 0 if prompt_lengths is None else int(prompt_lengths[b])
        for i in range(logits.shape[1]):
            z, n = Fraction(float(logits[b, i])), history[prompt:].count(i)
            if i in history:
                z = z / r[b] if z > 0 else z * r[b]
            z = z - f[b] * n - (once[b] if n else 0)
            result[b, i] = float(z)
            assert Fraction(result[b, i]) == z, "a penalty that is not exact belongs in no trace"
    return {"logits": result}


def _drawn(weights: list[Fraction], u: Fraction) -> int:
    """The first token at which the running sum passes u times the sum of all."""
    aim, running = u * sum(weights), Fraction(0)
    for i, w in enumerate(weights):
        running += w
        if aim < running:
            return i
    raise AssertionError("u below 1 and a weight above 0")


def _left(p: list[Fraction], q: list[Fraction]) -> list[Fraction]:
    """[p - q]+ renormalised, or p where nothing is left."""
    rest = [max(a - b, Fraction(0)) for a, b in zip(p, q)]
    return [w / sum(rest) for w in rest] if any(rest) else p


def _fractions(row: Any) -> list[Fraction]:
    exact = [Fraction(float(x)) for x in row]
    assert sum(exact) == 1, "a distribution that does not sum to 1 exactly belongs in no trace"
    return exact


def _sample(probabilities: Any, u: Any) -> dict[str, Any]:
    tokens = [_drawn(_fractions(row), Fraction(float(one))) for row, one in zip(probabilities, u)]
    return {"token": np.asarray(tokens, dtype=np.int64)}


def _speculative_verify(draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any,
                        draft_lengths: Any = None) -> dict[str, Any]:
    B, K = draft_tokens.shape
    tokens, accepted = np.full((B, K + 1), -1, dtype=np.int64), np.zeros(B, dtype=np.int64)
    for b in range(B):
        n = K if draft_lengths is None else int(draft_lengths[b])
        kept, weights = 0, None
        while kept < n and weights is None:
            x, q, p = int(draft_tokens[b, kept]), _fractions(draft_probs[b, kept]), _fractions(target_probs[b, kept])
            if Fraction(float(accept_u[b, kept])) * q[x] < p[x]:
                tokens[b, kept] = x
                kept += 1
            else:
                weights = _left(p, q)
        tokens[b, kept] = _drawn(weights or _fractions(target_probs[b, n]), Fraction(float(sample_u[b])))
        accepted[b] = kept
    return {"tokens": tokens, "n_accepted": accepted}


def _verify_tree(draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, parents: Any) -> dict[str, Any]:
    B, N = draft_tokens.shape
    tokens, nodes = np.full((B, N + 1), -1, dtype=np.int64), np.full((B, N), -1, dtype=np.int64)
    accepted = np.zeros(B, dtype=np.int64)
    for b in range(B):
        node, path = -1, []
        weights = _fractions(target_probs[b, 0])
        for child in range(N):                                                  # children stand behind their parents, elder siblings first
            if int(parents[child]) != node:
                continue
            x, q = int(draft_tokens[b, child]), _fractions(draft_probs[b, child])
            if Fraction(float(accept_u[b, child])) * q[x] < weights[x]:
                node, weights = child, _fractions(target_probs[b, child + 1])
                path.append(child)
            else:
                weights = _left(weights, q)
        for t, one in enumerate(path):
            tokens[b, t], nodes[b, t] = draft_tokens[b, one], one
        tokens[b, len(path)] = _drawn(weights, Fraction(float(sample_u[b])))
        accepted[b] = len(path)
    return {"tokens": tokens, "n_accepted": accepted, "nodes": nodes}


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "write_kv": _write_kv, "visible_keys": _visible_keys, "slot_mapping": _slot_mapping, "paging_waste": _paging_waste,
    "tree_positions": _tree_positions, "apply_penalties": _apply_penalties, "sample": _sample,
    "speculative_verify": _speculative_verify, "verify_tree": _verify_tree,
    "prune_magnitude": trace_compression.prune_magnitude, "prune_2_4": trace_compression.prune_2_4,
    "prune_units": trace_compression.prune_units, "gradual_masks": trace_compression.gradual_masks,
    "padded_positions": trace_counts.padded_positions, "next_token_targets": trace_counts.next_token_targets,
    "token_accuracy": trace_counts.token_accuracy, "kv_bytes": trace_counts.kv_bytes, "model_flops": trace_counts.model_flops,
    "training_bytes": trace_counts.training_bytes, "speculative_loop": trace_loops.speculative_loop, "mtp_loop": trace_loops.mtp_loop,
    "flat_layout": trace_counts.flat_layout, "schedule_timeline": trace_schedule.schedule_timeline,
}  # fmt: skip

MOST_TOKENS = 3                                                                 # by which every text of a trace's language can be completed


def _guide(trace: Trace) -> list[Step]:
    """By Python's own regular expressions, over every way to go on for three tokens. A state is the tokens that led to it."""
    vocabulary, eos = trace.arguments["vocabulary"], trace.arguments["eos"]
    language = re.compile(trace.arguments["pattern"])
    texts = [text if i != eos else "" for i, text in enumerate(vocabulary)]
    ways = {"".join(way) for n in range(MOST_TOKENS + 1) for way in product([text for text in texts if text], repeat=n)}

    def mask(tokens: tuple[int, ...]) -> list[bool]:
        if eos in tokens:
            return [i == eos for i in range(len(vocabulary))]
        so_far = "".join(texts[i] for i in tokens)
        seen = [bool(text) and any(language.fullmatch(so_far + text + way) for way in ways) for text in texts]
        seen[eos] = language.fullmatch(so_far) is not None
        return seen

    states: list[tuple[int, ...]] = [()]
    steps = []
    for step in trace.steps:
        at = states[step.arguments["state"]]
        if step.call == "token_mask":
            steps.append(Step(step.call, step.arguments, np.asarray(mask(at))))
        elif mask(at)[step.arguments["token"]]:
            states.append((*at, step.arguments["token"]))
            answer = {"state": len(states) - 1, "mask": np.asarray(mask(states[-1]))}
            steps.append(Step(step.call, step.arguments, answer))
        else:
            steps.append(Step(step.call, step.arguments, raises="ValueError"))
    return steps
