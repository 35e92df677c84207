"""Textbook form of the generation loops, in float32 (float64 for float64): no cache, every law looked up from the whole text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .textbook_decoding import Array, accepts, drawn, residual, working

# Text so far, drafts of this pass, whether the pass before accepted all of its drafts -> the law of the next draft.
Draft = Callable[[list[int], list[int], bool], Array]


def last_two(text: list[int]) -> tuple[int, int]:
    """Where a table has the law of the next token."""
    return (text[-2] if len(text) > 1 else 0), text[-1]


def processed(law: Array, forbidden: Any, last: int) -> Array:
    """The law without the tokens that may not follow the last one; as it is where nothing is left."""
    if forbidden is None:
        return law
    left = np.where(forbidden[last], 0, law)
    return np.asarray(left / left.sum()) if left.any() else law


def last_token(text: list[int]) -> int:
    """The token that decides what is forbidden next."""
    return text[-1]


def after_drafts(p: list[Array], q: list[Array], n: int) -> Array:
    """The weights of the token after n accepted drafts."""
    return p[n] if n == len(q) else residual(p[n], q[n])


def looped(
    draft: Draft, target: Any, prompt: Any, uniforms: Any, *, eos: Any = None, forbidden: Any = None, silent_first: bool = False,
    accept: Callable[..., bool] = accepts, draw: Callable[[Array, Any], int] = drawn,
    weights: Callable[[list[Array], list[Array], int], Array] = after_drafts, last: Callable[[list[int]], int] = last_token,
) -> tuple[Array, Array]:  # fmt: skip
    """Row by row and pass by pass, the steps exchangeable. last: of draft steps; silent_first: the first pass drafts nothing."""
    p, (B, N, width) = working(target), uniforms.shape
    k = (width - 1) // 2
    tokens, n_accepted = (np.full((B, N), -1, dtype=np.int64) for _ in range(2))
    for b in range(B):
        text, start, passes, whole = [*map(int, prompt[b])], len(prompt[b]), 0, False
        while len(text) - start < N and eos not in text[start:]:
            u = uniforms[b, passes]
            x: list[int] = []
            q: list[Array] = []
            for j in range(0 if silent_first and passes == 0 else k):
                q.append(processed(draft(text, x, whole), forbidden, last([*text, *x])))
                x.append(draw(q[j], u[j]))
            rows = [processed(p[last_two([*text, *x[:j]])], forbidden, [*text, *x[:j]][-1]) for j in range(len(x) + 1)]
            n = 0
            while n < len(x) and accept(u[k + n], q[n][x[n]], rows[n][x[n]]):
                n += 1
            text += [*x[:n], draw(weights(rows, q, n), u[2 * k])]
            n_accepted[b, passes], passes, whole = n, passes + 1, 0 < len(x) == n
        new = text[start : start + N]
        new = new[: new.index(eos) + 1] if eos in new else new
        tokens[b, : len(new)] = new
    return tokens, n_accepted


def from_table(draft: Any) -> Draft:
    """Drafts of a second model."""
    q = working(draft)
    return lambda text, x, whole: np.asarray(q[last_two([*text, *x])])


def from_heads(heads: Any) -> Draft:
    """Drafts of own heads, each from the state of the one before: the token that that one was given."""
    q = working(heads)
    return lambda text, x, whole: np.asarray(q[(len(x), *last_two([*text, *x]))])


def speculative_loop(target: Any, draft: Any, prompt: Any, uniforms: Any, *, eos: Any = None, forbidden: Any = None,
                     **steps: Any) -> tuple[Array, Array]:
    """The loop with a draft model."""
    return looped(from_table(draft), target, prompt, uniforms, eos=eos, forbidden=forbidden, **steps)


def mtp_loop(target: Any, heads: Any, prompt: Any, uniforms: Any, *, eos: Any = None, forbidden: Any = None,
             **steps: Any) -> tuple[Array, Array]:
    """The loop with own heads."""
    return looped(from_heads(heads), target, prompt, uniforms, eos=eos, forbidden=forbidden, silent_first=True, **steps)
