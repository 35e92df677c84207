"""Speculative decoding, a tree of drafts: verification along one branch, who sees whom, and how deep. One draft is speculative's."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from . import arguments, distributions
from .arguments import Bool, Float64, Int64
from .sampling import sample
from .speculative import residual


def verify_tree(draft_tokens: ArrayLike, draft_probs: ArrayLike, target_probs: ArrayLike, accept_u: ArrayLike, sample_u: ArrayLike,
                *, parents: ArrayLike) -> tuple[Int64, Int64, Int64]:
    """Keep one branch of a tree of drafts from its root and add one token, so that what comes out has the law of the target.

        at a node with target p, for each of its children i in order:
            accept x_i if u_i q_i(x_i) < p(x_i), and go on from there
            else p = [p - q_i]+ / sum                           a residual of 0 leaves p as it is
        no child accepted: one token from p, and stop

    Node i holds draft token x_i and hangs on node parents[i] < i, -1 for the root; -1 as a token: this node is not there,
    nor are those that hang on it. draft_tokens (B, N), draft_probs q (B, N, V), target_probs p (B, N+1, V): row 0 at the
    root, row i + 1 after node i; accept_u (B, N), sample_u (B,), in [0, 1); parents (N,) or (B, N). q_i must be the
    distribution that x_i was drawn from *given its elder siblings*: the draft's where they are drawn independently, the
    draft's without their tokens, renormalised, where they are drawn without replacement.

    >>> p, q = [[[0.5, 0.5], [0.5, 0.5], [0.0, 1.0]]], [[[1.0, 0.0], [0.0, 1.0]]]
    >>> verify_tree([[0, 1]], q, p, [[0.75, 0.75]], [0.0], parents=[-1, -1])
    (array([[ 1,  1, -1]]), array([1]), array([[ 1, -1]]))

    Returns int64 tokens (B, N+1), n_accepted + 1 of them in each row and -1 behind, n_accepted (B,) and the accepted nodes
    (B, N), whose keys and values a cache keeps, -1 behind.
    Raises ValueError or TypeError that names the argument, what came and what is wanted.
    Error bound: a decision is right where its two sides lie further apart than (3 V + 4) c u_roundoff / r, c the children
    tried and r the smallest sum of a residual.
    Source: Miao et al. 2023 (arXiv 2305.09781), algorithm 2; Chen et al. 2024 (arXiv 2402.12374) without replacement.
    """
    p = arguments.float_array("target_probs", target_probs, ndim=3)
    B, N, V = p.shape[0], p.shape[1] - 1, p.shape[2]
    if N < 0 or V == 0:
        raise ValueError(f"target_probs: got shape {p.shape}; want (B, N + 1, V), N at least 0 and V at least 1")
    x = arguments.integers("draft_tokens", draft_tokens, (B, N), least=-1, most=V - 1)
    q = arguments.float_array("draft_probs", draft_probs, (B, N, V))
    u, last_u = distributions.uniforms("accept_u", accept_u, (B, N)), distributions.uniforms("sample_u", sample_u, (B,))
    hangs_on = arguments.broadcast("parents", _parents(parents, N), (B, N))
    tokens, nodes = np.full((B, N + 1), -1, dtype=np.int64), np.full((B, N), -1, dtype=np.int64)
    n_accepted = np.zeros(B, dtype=np.int64)
    for b in range(B):
        there = _there(x[b], hangs_on[b])
        row_q, row_p = np.zeros((N, V)), np.zeros((N + 1, V))                   # what stands at a missing node never matters
        row_q[there] = distributions.normalised("draft_probs", q[b, there])
        at = np.append(True, there)
        row_p[at] = distributions.normalised("target_probs", p[b, at])
        branch, last = _branch(x[b], np.where(there, hangs_on[b], N), row_q, row_p, u[b], last_u[b])
        n_accepted[b] = len(branch)
        nodes[b, : len(branch)] = branch
        tokens[b, : len(branch) + 1] = [*x[b, branch], last]
    return tokens, n_accepted, nodes


def _branch(x: Int64, parents: Int64, q: Float64, p: Float64, u: Float64, sample_u: float) -> tuple[list[int], int]:
    """The accepted nodes from the root on, and the token after them."""
    branch: list[int] = []
    while True:
        node = branch[-1] if branch else -1
        weights = p[node + 1]
        for child in np.flatnonzero(parents == node):
            if u[child] * q[child, x[child]] < weights[x[child]]:
                branch.append(int(child))
                break
            weights = residual(weights, q[child])
            weights = weights / weights.sum()                                   # the next sibling's target
        else:
            return branch, int(sample(weights, sample_u))


def tree_mask(parents: ArrayLike) -> Bool:
    """Which nodes each node sees when all are verified in one pass, itself and its ancestors: bool (N, N).

    What came before the tree is seen by all. The row sums less one are the depths.

    >>> tree_mask([-1, -1, 0]).astype(int)
    array([[1, 0, 0],
           [0, 1, 0],
           [1, 0, 1]])

    Raises ValueError for a parent that does not stand before its node. Exact.
    Source: Miao et al. 2023 (arXiv 2305.09781), section 4.2.
    """
    parents = np.asarray(parents)
    hangs_on = _parents(parents, parents.size)
    sees: Bool = np.eye(parents.size, dtype=bool)
    for i, parent in enumerate(hangs_on):
        if parent >= 0:
            sees[i] |= sees[parent]
    return sees


def tree_positions(parents: ArrayLike, *, n_past: int) -> Int64:
    """Where each node stands in its sequence, for rotary positions: n_past + its depth, never its index: int64 (N,).

    >>> tree_positions([-1, -1, 0], n_past=10)
    array([10, 10, 11])

    Raises as `tree_mask`. Exact. Source: the depth, not the flat index: lablup/mlxcel#1214.
    """
    return np.asarray(arguments.whole_number("n_past", n_past, least=0) + tree_mask(parents).sum(axis=1) - 1)


def _parents(parents: ArrayLike, N: int) -> Int64:
    """(…, N) indices of parents, each before its node."""
    hangs_on = arguments.integers("parents", parents, least=-1, most=max(N - 1, -1))
    if hangs_on.ndim == 0 or hangs_on.shape[-1] != N or (hangs_on >= np.arange(N)).any():
        raise ValueError(f"parents: got {hangs_on.tolist()}; want {N} numbers, -1 or the index of a node that stands before")
    return hangs_on


def _there(x: Int64, parents: Int64) -> Bool:
    """Which nodes have a token, and all their ancestors too: (N,)."""
    there: Bool = x != -1
    for i, parent in enumerate(parents):
        there[i] = there[i] and (parent == -1 or there[parent])
    return there
