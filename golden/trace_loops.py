"""The second route of generation loops: no cache, no batch; every law is looked up anew, in exact fractions."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

Law = list[Fraction]
Drafter = Callable[[int, list[int]], Law | None]                                # of the j-th draft, given all tokens so far


def speculative_loop(target: Any, draft: Any, prompt: Any, uniforms: Any, eos: int | None = None, forbidden: Any = None) -> dict[str, Any]:
    def drafter(first: bool) -> Drafter:
        return lambda j, text: _law(draft, text)

    return _batch(target, drafter, prompt, uniforms, eos, forbidden)


def mtp_loop(target: Any, heads: Any, prompt: Any, uniforms: Any, eos: int | None = None, forbidden: Any = None) -> dict[str, Any]:
    """Head j reads the token before last as its state and the last: chained states are the tokens themselves. Nothing in the first pass."""
    def drafter(first: bool) -> Drafter:
        return lambda j, text: None if first else _row(heads[j][text[-2], text[-1]])

    return _batch(target, drafter, prompt, uniforms, eos, forbidden)


def _batch(target: Any, drafter: Callable[[bool], Drafter], prompt: Any, uniforms: Any, eos: int | None,
           forbidden: Any) -> dict[str, Any]:
    tokens, accepted = (np.full(uniforms.shape[:2], -1, dtype=np.int64) for _ in range(2))
    for b in range(len(prompt)):
        new, passes = _row_of_batch(target, drafter, [int(t) for t in prompt[b]], uniforms[b], eos, forbidden)
        tokens[b, : len(new)], accepted[b, : len(passes)] = new, passes
    return {"tokens": tokens, "n_accepted": accepted}


def _row_of_batch(target: Any, drafter: Callable[[bool], Drafter], text: list[int], uniforms: Any, eos: int | None,
                  forbidden: Any) -> tuple[list[int], list[int]]:
    start, wanted = len(text), len(uniforms)
    passes: list[int] = []
    k = (uniforms.shape[1] - 1) // 2 if uniforms.ndim == 2 else 0
    while len(text) - start < wanted and eos not in text[start:]:
        u = [Fraction(float(x)) for x in uniforms[len(passes)]]
        drafts: list[int] = []
        laws: list[Law] = []
        for j in range(k):
            law = drafter(not passes)(j, [*text, *drafts])
            if law is None:
                break
            laws.append(_allowed(law, [*text, *drafts], forbidden))
            drafts.append(_drawn(laws[-1], u[j]))
        kept, rest = 0, None
        for x, q in zip(drafts, laws):
            p = _allowed(_law(target, text), text, forbidden)
            if u[k + kept] * q[x] < p[x]:
                text, kept = [*text, x], kept + 1
                continue
            rest = [max(a - b, Fraction(0)) for a, b in zip(p, q)]
            rest = rest if any(rest) else p
            break
        last = rest or _allowed(_law(target, text), text, forbidden)
        text = [*text, _drawn(last, u[2 * k])]
        passes.append(kept)
    new = text[start : start + wanted]
    return new[: new.index(eos) + 1] if eos in new else new, passes


def _law(table: Any, text: list[int]) -> Law:
    """After the last two tokens, the one before the first being 0."""
    return _row(table[text[-2] if len(text) > 1 else 0, text[-1]])


def _row(row: Any) -> Law:
    law = [Fraction(float(x)) for x in row]
    assert sum(law) == 1, "a law that does not sum to 1 exactly belongs in no trace"
    return law


def _allowed(law: Law, text: list[int], forbidden: Any) -> Law:
    if forbidden is None:
        return law
    left = [Fraction(0) if forbidden[text[-1], x] else p for x, p in enumerate(law)]
    return [p / sum(left) for p in left] if any(left) else law


def _drawn(weights: Law, u: Fraction) -> int:
    """The first token at which the running sum passes u times the sum of all."""
    aim, running = u * sum(weights), Fraction(0)
    for x, w in enumerate(weights):
        running += w
        if aim < running:
            return x
    raise AssertionError("u below 1 and a weight above 0")
