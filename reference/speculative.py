"""Speculative decoding, one draft: verification token by token and by block, the lossy rule beside them, and what a draft is worth.

Trees of drafts are left to speculative_tree, the loop around a verification to speculative_generate.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from . import arguments, distributions
from .arguments import Array, Float64, Int64
from .sampling import sample

# One row: draft tokens (n,), draft and target distributions (n, V), (n + 1, V), uniforms (n,), () -> the tokens emitted.
Rule = Callable[[Int64, Float64, Float64, Float64, float], list[int]]


def speculative_verify(draft_tokens: ArrayLike, draft_probs: ArrayLike, target_probs: ArrayLike, accept_u: ArrayLike, sample_u: ArrayLike,
                       *, draft_lengths: ArrayLike | None = None) -> tuple[Int64, Int64]:
    """Keep a prefix of each draft and add one token, so that what comes out has the law of the target alone.

        accept x_j while u_j q_j(x_j) < p_j(x_j)                  with probability min(1, p / q)
        first rejection, at j: one token from [p_j - q_j]+ / sum, and stop
        all n accepted: one more token, the bonus, from p_n

    draft_tokens (B, K), draft_probs q (B, K, V), target_probs p (B, K+1, V), accept_u u (B, K), sample_u (B,), both in
    [0, 1); q_j must be the distribution that x_j was drawn from. n = draft_lengths[b] where given, else K; a token of -1
    ends its row's draft there. What stands behind a row's draft never matters. Rows of p and q that sum to 1 within V
    roundings are legal and divided by their sum. A residual that sums to 0 (p = q but for rounding) gives way to p. A
    token the draft could not have drawn, q = 0, is accepted iff p > 0.

    >>> p, q = [[[0.5, 0.5], [0.0, 1.0]]], [[[1.0, 0.0]]]
    >>> speculative_verify([[0]], q, p, [[0.25]], [0.0])
    (array([[0, 1]]), array([1]))
    >>> speculative_verify([[0]], q, p, [[0.5]], [0.0])
    (array([[ 1, -1]]), array([0]))

    Returns int64 tokens (B, K+1), n_accepted + 1 of them in each row and -1 behind, and n_accepted (B,), the bonus not counted.
    Raises ValueError or TypeError that names the argument, what came and what is wanted, a NaN in q among them.
    Error bound: a decision is right where u q(x) and p(x), or the uniform and each sum, lie further apart than (3 V + 4) u_roundoff.
    Source: Leviathan, Kalman and Matias 2023 (arXiv 2211.17192), algorithm 1; Chen et al. 2023 (arXiv 2302.01318), algorithm 2.
    """
    return _each_row(_token_by_token, draft_tokens, draft_probs, target_probs, accept_u, sample_u, draft_lengths)


def _token_by_token(x: Int64, q: Float64, p: Float64, u: Float64, sample_u: float) -> list[int]:
    for j in range(len(x)):
        if not u[j] * q[j, x[j]] < p[j, x[j]]:                                  # strict: u = 0 rejects p = 0, sgl-project/sglang#35771
            return [*x[:j], int(sample(residual(p[j], q[j]), sample_u))]
    return [*x, int(sample(p[len(x)], sample_u))]                               # p of the bonus, no residual: SafeAILab/EAGLE#47


def residual(p: Float64, q: Float64) -> Float64:
    """What q leaves of p, the weights to draw from after a rejection; p itself where it leaves nothing: a new array (V,).

        [p - q]+,   or p where that is 0 everywhere

    >>> residual(np.array([0.75, 0.25]), np.array([0.5, 0.5])), residual(np.array([1.0]), np.array([1.0]))
    (array([0.25, 0.  ]), array([1.]))

    p stays as it was (vllm-project/vllm-ascend#2881), and no token with p = 0 has a weight (vllm-project/vllm#41834).
    Error bound: u p_i, where p and q are exact.
    """
    left = np.maximum(p - q, 0.0)
    return left if left.any() else p.copy()


def verify_block(draft_tokens: ArrayLike, draft_probs: ArrayLike, target_probs: ArrayLike, accept_u: ArrayLike, sample_u: ArrayLike,
                 *, draft_lengths: ArrayLike | None = None) -> tuple[Int64, Int64]:
    """Verification of a whole draft at once: the law of the target, and on average at least as many tokens as token by token.

        w_0 = 1,   w_j = min(1, w_{j-1} p_{j-1}(x_j) / q_{j-1}(x_j))          j = 1 … n
        s_j = sum_x [w_j p_j(x) - q_j(x)]+                                    j < n
        h_j = s_j / (s_j + 1 - w_j),   h_n = w_n
        accept the first t tokens, t the last j with u_j < h_j, 0 where there is none
        t < n: one token from [w_t p_t - q_t]+ / s_t;   t = n: one more token, the bonus, from p_n

    Arguments, results and conventions as in `speculative_verify`; accept_u[:, j - 1] is u_j.

    >>> p, q = [[[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]]], [[[0.5, 0.5], [0.5, 0.5]]]
    >>> verify_block([[0, 0]], q, p, [[0.75, 0.75]], [0.0])                     # token by token, the first 0 is rejected
    (array([[0, 0, 0]]), array([2]))

    Error bound: a decision is right where its two sides lie further apart than (4 V + 8) (n + 1) u_roundoff.
    Source: Sun et al. 2024 (arXiv 2403.10444), algorithm 2.
    """
    return _each_row(_by_block, draft_tokens, draft_probs, target_probs, accept_u, sample_u, draft_lengths)


def _by_block(x: Int64, q: Float64, p: Float64, u: Float64, sample_u: float) -> list[int]:
    n, t, w = len(x), 0, 1.0
    weights = residual(p[0], q[0]) if n else p[0]                               # what is drawn from where nothing is accepted
    for j in range(1, n + 1):
        ratio = w * p[j - 1, x[j - 1]]
        w = 1.0 if ratio >= q[j - 1, x[j - 1]] and ratio > 0.0 else float(ratio / (q[j - 1, x[j - 1]] or 1.0))   # p = q = 0: rejected
        if j == n:
            accepted, left = u[j - 1] < w, p[n]
        else:
            s = float(np.maximum(w * p[j] - q[j], 0.0).sum())
            accepted, left = u[j - 1] * (s + 1.0 - w) < s, residual(w * p[j], q[j])     # s = 0: never stop where nothing is left
        if accepted:
            t, weights = j, left
    return [*x[:t], int(sample(weights, sample_u))]


def typical_acceptance(draft_tokens: ArrayLike, target_probs: ArrayLike, sample_u: ArrayLike, *, epsilon: float = 0.09, delta: float = 0.3,
                       draft_lengths: ArrayLike | None = None) -> tuple[Int64, Int64]:
    """LOSSY: keep draft tokens that the target finds likely enough. What comes out does not have the target's law.

        accept x_j while p_j(x_j) > min(epsilon, delta e^(-H(p_j))),   H(p) = -sum_i p_i ln p_i
        then one token from p_n, n the number accepted

    The draft's distribution plays no part, which is why no rule of this kind can be lossless. Arguments and results as in
    `speculative_verify`.

    >>> typical_acceptance([[1]], [[[0.875, 0.125], [0.0, 1.0]]], [0.0])        # the target draws this token once in 8 times
    (array([[1, 1]]), array([1]))

    Raises ValueError or TypeError as `speculative_verify`, and for an epsilon or delta that is not above 0.
    Error bound: a decision is right where its two sides lie further apart than (V + 4) (1 + H) u_roundoff of the larger.
    Source: Cai et al. 2024 (arXiv 2401.10774), section 3.3.1, and the values of its published code.
    """
    epsilon, delta = (arguments.real_number(name, x, positive=True) for name, x in (("epsilon", epsilon), ("delta", delta)))

    p, x, n, last_u = _target_and_drafts(target_probs, draft_tokens, sample_u, draft_lengths)
    rows = []
    for b in range(len(x)):
        row_p, row_x = distributions.normalised("target_probs", p[b, : n[b] + 1]), x[b, : n[b]]
        H = -np.sum(row_p * np.log(np.where(row_p > 0.0, row_p, 1.0)), axis=-1)     # (n + 1,)
        likely = row_p[np.arange(n[b]), row_x] > np.minimum(epsilon, delta * np.exp(-H[:-1]))
        accepted = int(np.argmin(np.append(likely, False)))
        rows.append([*row_x[:accepted], int(sample(row_p[accepted], last_u[b]))])
    return _padded(rows, x.shape[1])


def acceptance_rate(p: ArrayLike, q: ArrayLike) -> Float64:
    """The probability that one draft token is accepted: float64, the shape of p and q without the last axis.

        sum_i min(p_i, q_i) = 1 - TV(p, q),   TV = sum_i |p_i - q_i| / 2

    No lossless rule accepts more often: a token i is emitted through its draft no more often than it is emitted, p_i, or
    proposed, q_i.

    >>> acceptance_rate([[0.5, 0.5], [1.0, 0.0]], [[0.25, 0.75], [0.0, 1.0]])
    array([0.75, 0.  ])

    Raises ValueError for rows that are no distributions and shapes that differ. Error bound: 3 V u.
    Source: Leviathan et al. 2023 (arXiv 2211.17192), theorem 3.5 and corollary 3.6.
    """
    p = distributions.normalised("p", p)
    q = distributions.normalised("q", q, p.shape)
    return np.asarray(np.minimum(p, q).sum(axis=-1))


def expected_tokens(acceptance: float, k: int) -> float:
    """Tokens that one pass of the target yields on average, with k drafts accepted each with the same probability a.

        1 + a + a^2 + … + a^k = (1 - a^(k+1)) / (1 - a)

    >>> expected_tokens(0.5, 2), expected_tokens(1.0, 4)
    (1.75, 5.0)

    Raises ValueError for an acceptance outside [0, 1] and a k below 0. Error bound: 2 (k + 1) u of the value.
    Source: Leviathan et al. 2023 (arXiv 2211.17192), equation 1.
    """
    a = arguments.real_number("acceptance", acceptance)
    if not 0.0 <= a <= 1.0:
        raise ValueError(f"acceptance: got {a}; want a probability")
    total = 0.0
    for _ in range(arguments.whole_number("k", k, least=0) + 1):
        total = total * a + 1.0                                                 # Horner: no 0 / 0 at a = 1
    return total


def speed_up(acceptance: float, k: int, *, draft_cost: float) -> float:
    """How many times faster than the target alone: expected tokens of a pass over its time, both in passes of the target.

        expected_tokens(a, k) / (1 + k c),   c = time of a pass of the draft / time of a pass of the target

    A pass over k + 1 tokens is taken to cost the target what one token costs, as it does while reading the weights
    takes the time.

    >>> speed_up(0.5, 2, draft_cost=0.375)
    1.0

    Raises ValueError as `expected_tokens`, and for a negative cost. Source: Leviathan et al. 2023 (arXiv 2211.17192), theorem 3.8.
    """
    c = arguments.real_number("draft_cost", draft_cost)
    if c < 0.0:
        raise ValueError(f"draft_cost: got {c}; want a time >= 0")
    return expected_tokens(acceptance, k) / (1.0 + k * c)


def _each_row(rule: Rule, draft_tokens: ArrayLike, draft_probs: ArrayLike, target_probs: ArrayLike, accept_u: ArrayLike,
              sample_u: ArrayLike, draft_lengths: ArrayLike | None) -> tuple[Int64, Int64]:
    """The arguments checked, the rule applied to each row's own draft, tokens (B, K+1) and n_accepted (B,)."""
    p, x, n, last_u = _target_and_drafts(target_probs, draft_tokens, sample_u, draft_lengths)
    q = arguments.float_array("draft_probs", draft_probs, (*x.shape, p.shape[2]))
    u = distributions.uniforms("accept_u", accept_u, x.shape)
    rows = []
    for b in range(len(x)):                                                     # row by row: what is read stays in the cache
        row_q = distributions.normalised("draft_probs", q[b, : n[b]])
        row_p = distributions.normalised("target_probs", p[b, : n[b] + 1])
        rows.append(rule(x[b, : n[b]], row_q, row_p, u[b, : n[b]], float(last_u[b])))
    return _padded(rows, x.shape[1])


def _target_and_drafts(target_probs: ArrayLike, draft_tokens: ArrayLike, sample_u: ArrayLike,
                       draft_lengths: ArrayLike | None) -> tuple[Array, Int64, Int64, Float64]:
    """p (B, K+1, V) in its own dtype, draft tokens (B, K), the length of each row's draft (B,), sample_u (B,)."""
    p = arguments.float_array("target_probs", target_probs, ndim=3)
    B, K, V = p.shape[0], p.shape[1] - 1, p.shape[2]
    if K < 0 or V == 0:
        raise ValueError(f"target_probs: got shape {p.shape}; want (B, K + 1, V), K at least 0 and V at least 1")
    x = arguments.integers("draft_tokens", draft_tokens, (B, K), least=-1, most=V - 1)
    return p, x, lengths(x, draft_lengths), distributions.uniforms("sample_u", sample_u, (B,))


def _padded(rows: list[list[int]], K: int) -> tuple[Int64, Int64]:
    tokens = np.full((len(rows), K + 1), -1, dtype=np.int64)
    for b, row in enumerate(rows):
        tokens[b, : len(row)] = row
    return tokens, np.array([len(row) - 1 for row in rows], dtype=np.int64)


def lengths(draft_tokens: Int64, draft_lengths: ArrayLike | None) -> Int64:
    """How long each row's draft is: to the first -1, and no longer than draft_lengths says: (B,).

    >>> lengths(np.array([[3, -1, 3], [3, 3, 3]]), [3, 2])
    array([1, 2])
    """
    B, K = draft_tokens.shape
    n = np.argmax(np.concatenate([draft_tokens == -1, np.ones((B, 1), bool)], axis=1), axis=1)
    most = np.full(B, K) if draft_lengths is None else arguments.integers("draft_lengths", draft_lengths, (B,), least=0, most=K)
    return np.asarray(np.minimum(n, most))

