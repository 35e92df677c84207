"""Which outcomes of a verification legal rounding allows: a decision within its error of a tie may go either way, and no other."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.arithmetic import ResolvedArithmetic
from oracles.reference import arguments
from oracles.reference.arguments import Float64
from oracles.reference.speculative import lengths

from ..conventions import declared
from .block_verification import block_outcomes
from .sampling import U64
from .sums import Roundings, g, roundings

Outcomes = set[tuple[int, int]]                                                 # (drafts accepted, token after them)


def admissible_outcomes(
    arithmetic: ResolvedArithmetic, draft_tokens: ArrayLike, draft_probs: ArrayLike, target_probs: ArrayLike, accept_u: ArrayLike,
    sample_u: ArrayLike, *, draft_lengths: ArrayLike | None = None, conventions: Mapping[str, str] | None = None, row_error: float = 0.0,
) -> list[Outcomes]:  # fmt: skip
    """For each row every (number accepted, token after it) that a legal verification may answer.

        accepted for certain    u q(x) (1 + e) + eta < p(x)
        rejected for certain    u q(x) (1 - e) - eta >= p(x),   e = |sum q - 1| + |sum p - 1| + 8 u
        token i may be drawn    u S in [c_{i-1} - 2 E, c_i + 2 E),   c the sums of the weights w, S all of them
        E = sum of the errors of the weights + (g(V + 6, u_accumulate) + 6 u) S + V eta,   error of w: (|sum - 1| + 4 u)(p + q)

    Rows are divided by their sum or not; the ratio is a quotient or a product. Where nothing may be left of a residual, every
    token of the target is allowed; where nothing is left exactly, the draw is from the target, or left open by convention.
    By the rule "block" the outcomes are those of `block_outcomes`.
    row_error: how far each row may already be off, relatively, where it was computed; it is added to |sum - 1|.
    """
    r = roundings(arithmetic)
    x = np.asarray(draft_tokens)
    n, chosen = lengths(x, draft_lengths), declared({}, "speculative_verify") if conventions is None else conventions
    q, p = arguments.widen("draft_probs", draft_probs), arguments.widen("target_probs", target_probs)
    u, last = arguments.widen("accept_u", accept_u), arguments.widen("sample_u", sample_u)
    return [_of_row(r, x[b, : n[b]], q[b, : n[b]], p[b, : n[b] + 1], u[b, : n[b]], float(last[b]), chosen, row_error)
            for b in range(len(x))]


def admissible_draws(arithmetic: ResolvedArithmetic, p: Float64, row_error: float, u: float) -> list[int]:
    """The tokens that a draw from one row may give where the row is off by row_error, relatively, and by what its sum is off 1."""
    r = roundings(arithmetic)
    return _drawn(r, p, (abs(float(p.sum()) - 1.0) + row_error + 4.0 * r.elementwise.u) * p, u)


def _of_row(r: Roundings, x: arguments.Int64, q: Float64, p: Float64, u: Float64, last: float, conventions: Mapping[str, str],
            row_error: float) -> Outcomes:
    if conventions["rule"] == "block":
        return block_outcomes(r, x, q, p, u, lambda w, error: _drawn(r, w, error, last), conventions, row_error)
    outcomes: Outcomes = set()
    off_q, off_p = np.abs(q.sum(axis=-1) - 1.0) + row_error, np.abs(p.sum(axis=-1) - 1.0) + row_error
    for j in range(len(x)):
        e = off_q[j] + off_p[j] + 8.0 * (r.elementwise.u + U64)
        scaled, eta = u[j] * q[j, x[j]], r.elementwise.eta if u[j] * q[j, x[j]] > 0.0 else 0.0
        if not scaled * (1.0 + e) + eta < p[j, x[j]]:
            outcomes |= {(j, token) for token in _after_rejection(r, q[j], p[j], off_q[j], off_p[j], last, conventions)}
        if scaled * (1.0 - e) - eta >= p[j, x[j]]:
            return outcomes
    n = len(x)
    return outcomes | {(n, token) for token in _drawn(r, p[n], (off_p[n] + 4.0 * r.elementwise.u) * p[n], last)}


def _after_rejection(
    r: Roundings, q: Float64, p: Float64, off_q: float, off_p: float, last: float, conventions: Mapping[str, str]
) -> list[int]:  # fmt: skip
    if off_q == off_p == 0.0 and (q >= p).all():                                # nothing is left, and no rounding brings it back
        if conventions["zero_residual"] == "any":
            return np.flatnonzero(p > 0.0).tolist()
        return _drawn(r, p, 4.0 * r.elementwise.u * p, last)
    left = np.maximum(p / p.sum() - q / q.sum(), 0.0)
    error = np.where(p > 0.0, (off_p + 4.0 * (r.elementwise.u + U64)) * p + (off_q + 4.0 * (r.elementwise.u + U64)) * q, 0.0)
    error = np.where((left == 0.0) & (p + error < q), 0.0, error)
    if left.sum() <= 4.0 * error.sum():
        return np.flatnonzero(p > 0.0).tolist()
    return _drawn(r, left, error, last)


def _drawn(r: Roundings, w: Float64, error: Float64, last: float) -> list[int]:
    """The tokens that a draw from weights of these errors may give."""
    V, S, c = len(w), w.sum(), np.cumsum(w)
    E = error.sum() + (float(g(V + 6.0, r.accumulate.u + U64)) + 6.0 * (r.elementwise.u + U64)) * S
    E += V * r.elementwise.eta if (w > 0.0).sum() > 1 else 0.0
    near = (c - w - 2.0 * E <= last * S) & (last * S < c + 2.0 * E) & ((w > 0.0) | (error > 0.0))
    return np.flatnonzero(near).tolist()


def speculative_verify_bound(
    arithmetic: ResolvedArithmetic, draft_tokens: ArrayLike, draft_probs: ArrayLike, target_probs: ArrayLike, accept_u: ArrayLike,
    sample_u: ArrayLike, *, draft_lengths: ArrayLike | None = None, conventions: Mapping[str, str] | None = None,
) -> dict[str, Float64]:  # fmt: skip
    """Where legal rounding leaves a verification one outcome: {"tokens", "n_accepted"}, 0 in such rows and inf in the others.

        accepted for certain    u q(x) (1 + e) + eta < p(x)
        rejected for certain    u q(x) (1 - e) - eta >= p(x),   e = |sum q - 1| + |sum p - 1| + 8 u
        token i for certain     u S in [c_{i-1} + 2 E, c_i - 2 E),   c the sums of the weights w, S all of them
        E = sum of the errors of the weights + (g(V + 6, u_accumulate) + 6 u) S + V eta,   error of w: (|sum - 1| + 4 u)(p + q)

    Rows whose decisions are open are judged by the law `every_decision_is_right`, under the subject's own decisions.

    >>> from oracles.properties import Arithmetic
    >>> p, q = [[[0.25, 0.75], [0.5, 0.5]]] * 2, [[[0.5, 0.5]]] * 2
    >>> float32 = Arithmetic().resolve("float32")
    >>> speculative_verify_bound(float32, [[0], [0]], q, p, [[0.25], [0.5]], [0.25, 0.25])["n_accepted"]
    array([ 0., inf])
    """
    sets = admissible_outcomes(arithmetic, draft_tokens, draft_probs, target_probs, accept_u, sample_u, draft_lengths=draft_lengths,
                               conventions=conventions)  # fmt: skip
    rows = np.array([0.0 if len(outcomes) == 1 else np.inf for outcomes in sets])
    K = np.asarray(draft_tokens).shape[1]
    return {"tokens": np.tile(rows[:, None], (1, K + 1)), "n_accepted": rows}


def tree_positions_bound(arithmetic: ResolvedArithmetic, parents: ArrayLike, *, n_past: int) -> dict[str, Float64]:
    """Exact: {"positions"}, 0 everywhere. Positions are whole numbers, sums of n_past and a depth, and nothing of them is rounded."""
    return {"positions": np.zeros(np.asarray(parents).shape)}
