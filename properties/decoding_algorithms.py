"""Decoding algorithms in fractions, for `exact_law`: each yields the distributions it draws from and returns what it emits.

A test with probability a is a draw from (a, 1 - a): index 0 accepts, as a uniform below a does. Draws come in the order in
which an implementation's uniforms stand: the drafts, the tests, the last token.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from .enumeration import Decoding, Distribution, Model, Tokens

ZERO, ONE = Fraction(0), Fraction(1)


def trial(a: Fraction) -> Distribution:
    """The distribution of a test that holds with probability a: index 0 where it holds."""
    return (a, 1 - a)


def normalised(w: Sequence[Fraction]) -> Distribution:
    """Weights over their sum."""
    total = sum(w)
    return tuple(x / total for x in w)


def residual(p: Distribution, q: Distribution) -> Distribution:
    """[p - q]+ over its sum; p where that is 0 everywhere."""
    left = [max(ZERO, a - b) for a, b in zip(p, q)]
    return normalised(left if any(left) else p)


def ratio(p: Fraction, q: Fraction) -> Fraction:
    """min(1, p / q) for a token that can be drafted, q > 0."""
    return min(ONE, p / q)


def drafted(draft: Model, k: int, context: Tokens = ()) -> Decoding:
    """k tokens of the draft."""
    x: Tokens = ()
    for _ in range(k):
        x = (*x, (yield draft((*context, *x))))
    return x


def token_by_token(draft: Model, target: Model, k: int) -> Decoding:
    """`speculative_verify`: Leviathan et al. 2023 (arXiv 2211.17192), algorithm 1."""
    x = yield from drafted(draft, k)
    for j in range(k):
        p, q = target(x[:j]), draft(x[:j])
        if (yield trial(ratio(p[x[j]], q[x[j]]))) == 1:
            return (*x[:j], (yield residual(p, q)))
    return (*x, (yield target(x)))


def by_block(draft: Model, target: Model, k: int) -> Decoding:
    """`verify_block`: Sun et al. 2024 (arXiv 2403.10444), algorithm 2."""
    x = yield from drafted(draft, k)
    w = [ONE]
    for j in range(k):
        w.append(min(ONE, w[j] * target(x[:j])[x[j]] / draft(x[:j])[x[j]]))
    t = 0
    for j in range(1, k + 1):
        if j < k:
            s = sum(max(ZERO, w[j] * p - q) for p, q in zip(target(x[:j]), draft(x[:j])))
            h = s / (s + 1 - w[j]) if s else ZERO
        if (yield trial(h if j < k else w[k])) == 0:
            t = j
    if t == k:
        return (*x, (yield target(x)))
    return (*x[:t], (yield residual([w[t] * a for a in target(x[:t])], draft(x[:t]))))


def tree(draft: Model, target: Model, k: int, *, siblings: int, replace: bool) -> Decoding:
    """`verify_tree` on `siblings` candidates at each of k levels, drawn with or without replacement, as far as it is walked.

    Siblings are tried in order, the target becomes its residual after each rejection (SpecInfer, Miao et al. 2023, arXiv
    2305.09781, algorithm 2). Without replacement, a candidate's distribution is the draft's without those before it.
    """
    y: Tokens = ()
    for _ in range(k):
        p, q = target(y), draft(y)
        x: list[int] = []
        proposals: list[Distribution] = []
        while len(x) < siblings and any(q):
            proposals.append(normalised(q))
            x.append((yield proposals[-1]))
            q = q if replace else [ZERO if i == x[-1] else a for i, a in enumerate(q)]
        for token, q in zip(x, proposals):
            if (yield trial(ratio(p[token], q[token]))) == 0:
                y = (*y, token)
                break
            p = residual(p, q)
        else:
            return (*y, (yield p))
    return (*y, (yield target(y)))


def typical(draft: Model, target: Model, k: int, *, threshold: Fraction = Fraction(9, 100)) -> Decoding:
    """`typical_acceptance` with a fixed threshold, what its rule comes to where delta e^-H >= epsilon. Lossy."""
    x = yield from drafted(draft, k)
    for j in range(k):
        if not target(x[:j])[x[j]] > threshold:
            return (*x[:j], (yield target(x[:j])))
    return (*x, (yield target(x)))
