"""Exact laws: what a decoding algorithm emits, and with what probability, as fractions; the law of tokens, and that of their number.

How paths are followed is left to enumeration, what the algorithms do to decoding_algorithms.
"""

from __future__ import annotations

from fractions import Fraction

from .decoding_algorithms import token_by_token
from .enumeration import Algorithm, Law, Model, Tokens, enumerated_law


def exact_law(draft: Model, target: Model, *, k: int, algorithm: Algorithm = token_by_token) -> Law:
    """The law of what one round of an algorithm emits, k drafts ahead.

        P(y) = sum over the paths that emit y of the product of their probabilities

    >>> half = lambda context: [Fraction(1, 2), Fraction(1, 2)]
    >>> first = lambda context: [Fraction(1), Fraction(0)]
    >>> {y: str(p) for y, p in sorted(exact_law(first, half, k=1).items())}
    {(0, 0): '1/4', (0, 1): '1/4', (1,): '1/2'}

    Exact. Cost: one replay a path, about V^k (k V + V) of them.
    """
    return enumerated_law(lambda: algorithm(draft, target, k))


def emission_law(draft: Model, target: Model, *, k: int) -> Law:
    """The law of `speculative_verify` from its formula alone, tokens and their number together.

        P(h x, ending there) = prod_{j < |h|} min(p, q)(h_j) * [p - q]+(x)       |h| < k
                               prod_{j < k} min(p, q)(h_j) * p(x)                |h| = k

    p and q at the context before each token.
    """
    law: Law = {}

    def extend(h: Tokens, reached: Fraction) -> None:
        p, q = target(h), draft(h) if len(h) < k else [Fraction(0)] * len(target(h))
        for x in range(len(p)):
            if p[x] > q[x]:
                law[(*h, x)] = reached * (p[x] - q[x])
            if len(h) < k and min(p[x], q[x]) > 0:
                extend((*h, x), reached * min(p[x], q[x]))

    extend((), Fraction(1))
    return law


def chain(target: Model, n: int) -> Law:
    """The law of n tokens drawn from the target one after another."""
    return completed({(): Fraction(1)}, target, n)


def completed(law: Law, target: Model, n: int) -> Law:
    """The law of the first n tokens where the target goes on after what `law` emits: the token law.

    An algorithm is lossless iff this is `chain(target, n)` for n the longest emission, as fractions.
    """
    whole: Law = {}
    for emitted, probability in law.items():
        if len(emitted) >= n:
            whole[emitted[:n]] = whole.get(emitted[:n], Fraction(0)) + probability
            continue
        longer = {(*emitted, x): probability * p for x, p in enumerate(target(emitted)) if p > 0}
        for y, p in completed(longer, target, n).items():
            whole[y] = whole.get(y, Fraction(0)) + p
    return whole


def distance(a: Law, b: Law) -> Fraction:
    """Total variation: the largest difference that the two give to any set of outcomes."""
    return sum((abs(a.get(y, Fraction(0)) - b.get(y, Fraction(0))) for y in a.keys() | b.keys()), Fraction(0)) / 2


def token_distance(law: Law, target: Model) -> Fraction:
    """The total variation between the token law and the target's: 0 iff lossless."""
    n = max(map(len, law))
    return distance(completed(law, target, n), chain(target, n))


def length_law(law: Law) -> dict[int, Fraction]:
    """The law of the number of tokens emitted. A missing bonus keeps the token law and breaks this one."""
    by_length: dict[int, Fraction] = {}
    for emitted, probability in law.items():
        by_length[len(emitted)] = by_length.get(len(emitted), Fraction(0)) + probability
    return by_length


def mean_length(law: Law) -> Fraction:
    """How many tokens one round emits on average."""
    return sum((n * probability for n, probability in length_law(law).items()), Fraction(0))
