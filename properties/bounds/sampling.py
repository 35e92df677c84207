"""Error bounds of sampling: which filter decisions a rounding may turn, what is kept once renormalised, penalties, and draws.

A decision that a rounding may turn is left open: the bound of everything that follows from it is inf. What a subject makes of
an open decision is judged by the laws, under the subject's own decision.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.arithmetic import ResolvedArithmetic
from oracles.reference import arguments, distributions
from oracles.reference.arguments import Array, Bool, Float64

from ..conventions import declared
from .sums import checked, g, roundings, underflow

U64 = 2.0**-53


@dataclass(frozen=True)
class FilterParameters:
    """The parameters of one row; None filters nothing."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None


@dataclass(frozen=True)
class Weights:
    """e^((z - m) / T) of one row, with all that may be wrong with it: w in [low, high], an error of d in the exponent."""

    z: Float64
    w: Float64
    d: Float64
    low: Float64
    high: Float64

    @property
    def error(self) -> float:
        """The largest error of the sum of all weights before any sum is rounded."""
        return float(np.sum(np.maximum(self.high - self.w, self.w - self.low)))


def parameters_of_rows(
    rows: tuple[int, ...], *, temperature: ArrayLike = 1.0, top_k: ArrayLike | None = None, top_p: ArrayLike | None = None,
    min_p: ArrayLike | None = None,
) -> list[FilterParameters]:  # fmt: skip
    """The parameters of every row, in C order.

    >>> parameters_of_rows((2,), top_k=[1, 3])[1].top_k
    3
    """
    def column(name: str, x: ArrayLike | None) -> list[float | None]:
        n = math.prod(rows)
        return [None] * n if x is None else [float(value) for value in distributions.per_row(name, x, rows).reshape(-1)]

    columns = zip(column("temperature", temperature), column("top_k", top_k), column("top_p", top_p), column("min_p", min_p))
    return [FilterParameters(1.0 if t is None else t, None if k is None else int(k), p, m) for t, k, p, m in columns]


def weights_of_row(arithmetic: ResolvedArithmetic, z: Float64, temperature: float) -> Weights:
    """The weights of one row of logits, and how far a legal computation of them may be off.

        d = 5 u (|z| + |m|) / T + the error of exp,   w e^-d - eta <= computed w <= w e^d + eta

    Five roundings of numbers no larger than |z| / T and |m| / T: the temperature in its format, the two quotients, the difference,
    and one that is stored in between. Equal logits have equal weights, and the largest has e^0 = 1 exactly.
    """
    r = roundings(arithmetic)
    m = z.max()
    if temperature == 0.0:
        one = np.where(z == m, 1.0, 0.0)
        return Weights(z, one, np.zeros_like(z), one, one)
    finite = np.isfinite(z)
    u = max(r.elementwise.u, r.scores.u) + U64
    with np.errstate(over="ignore"):
        w = np.where(finite, np.exp(np.where(finite, z - m, 0.0) / temperature), 0.0)
    d = np.where(finite & (z < m), 5.0 * u * (np.abs(np.where(finite, z, 0.0)) + abs(m)) / temperature + r.exp_cost, 0.0)
    eta = np.where(finite & (z < m), r.elementwise.eta, 0.0)
    low = np.maximum(w * np.exp(-d) - eta, 0.0)
    return Weights(z, w, d, low, np.minimum(w * np.exp(d) + eta, np.where(finite, 1.0, 0.0)))


def decisions_of_row(
    arithmetic: ResolvedArithmetic, z: Float64, row: FilterParameters, conventions: Mapping[str, str]
) -> tuple[Bool, Bool]:  # fmt: skip
    """Which tokens every legal computation keeps, and which it drops; the others are left open.

    Token i comes before j for certain where its least weight is above the largest of j. Its rank, and the mass before it, lie
    between what comes before it for certain and what may; the mass may be off by

        E = sum of the errors of the weights + (g(V + 6, u_accumulate) + 6 u) of the total

    in each of the two numbers compared. Equal logits are told apart by the declared convention.
    """
    r, x = roundings(arithmetic), weights_of_row(arithmetic, z, row.temperature)
    V, drawable = len(z), x.high > 0.0
    if row.temperature == 0.0:
        first, last = _ranks(x, conventions["argmax_ties"])
        return (last == 0) & drawable, (first > 0) | ~drawable
    kept, dropped = drawable.copy(), ~drawable
    total = float(x.w.sum())
    E = x.error + (float(g(V + 6.0, r.accumulate.u + U64)) + 6.0 * (r.elementwise.u + U64)) * total
    if row.top_k is not None and row.top_k < V:
        first, last = _ranks(x, conventions["top_k_ties"])
        kept &= last < row.top_k
        dropped |= first >= row.top_k
    surely, not_at_all = np.ones(V, dtype=bool), np.zeros(V, dtype=bool)
    if row.min_p is not None:
        slack = 4.0 * (r.elementwise.u + U64)
        surely = (z == z.max()) | (x.low >= row.min_p * (1.0 + slack))
        not_at_all = x.high < row.min_p * (1.0 - slack)
    if row.top_p is not None:
        before_top_p = conventions["min_p_order"] == "before_top_p"
        least_total = _total(x.w[surely if before_top_p else drawable], row, conventions)
        most_total = _total(x.w[~not_at_all if before_top_p else drawable], row, conventions)
        own = x.w if conventions["top_p_crossing"] == "dropped" else np.zeros(V)
        left = x if conventions["top_p_of"] == "all" else _without(x, dropped)
        least, most = _masses(left, conventions["top_p_ties"])
        first, last = _ranks(left, conventions["top_p_ties"])
        kept &= (most + own + 2.0 * E < row.top_p * least_total) | (last == 0)
        dropped |= (least + own - 2.0 * E > row.top_p * most_total) & (first > 0)
    return kept & surely & ~dropped & ~not_at_all, dropped | not_at_all


def _without(x: Weights, dropped: Bool) -> Weights:
    """The weights with what was dropped at -inf: it comes before nothing, and ties with nothing that is left."""
    w, d, low, high = (np.where(dropped, 0.0, part) for part in (x.w, x.d, x.low, x.high))
    return Weights(np.where(dropped, -np.inf, x.z), w, d, low, high)


def _total(w: Float64, row: FilterParameters, conventions: Mapping[str, str]) -> float:
    """The mass that top_p is a share of: of all these weights, or of what top-k left of them."""
    if row.top_k is None or row.top_k >= len(w) or conventions["top_p_of"] == "all":
        return float(w.sum())
    descending = np.sort(w)[::-1]
    kept = descending >= descending[row.top_k - 1] if conventions["top_k_ties"] == "all" else np.arange(len(w)) < row.top_k
    return float(descending[kept].sum())


def _equals(x: Weights) -> tuple[Array, Array]:
    """For each token the number of equal logits before it in the row, and of all equal to it, itself included."""
    _, group, size = np.unique(x.z, return_inverse=True, return_counts=True)
    order = np.argsort(group, kind="stable")
    start = np.concatenate([[0], np.cumsum(size)[:-1]])
    before = np.empty(len(x.z), dtype=np.int64)
    before[order] = np.arange(len(x.z)) - np.repeat(start, size)
    return before, size[group]


def _tied(x: Weights, ties: str) -> tuple[Array, Array]:
    """How many equal logits come before each token, at least and at most: by lowest index, highest, any order, or none (all)."""
    before, size = _equals(x)
    none, most = np.zeros_like(before), size - 1
    return {"lowest": (before, before), "highest": (most - before, most - before), "any": (none, most), "all": (none, none)}[ties]


def _ranks(x: Weights, ties: str) -> tuple[Array, Array]:
    """The least and the largest number of tokens that may come before each."""
    least, most = _tied(x, ties)
    _, size = _equals(x)
    V = len(x.z)
    surely = V - np.searchsorted(np.sort(x.low), x.high, side="right")
    maybe = V - np.searchsorted(np.sort(x.high), x.low, side="left") - size
    return surely + least, np.maximum(maybe, surely) + most


def _masses(x: Weights, ties: str) -> tuple[Float64, Float64]:
    """The least and the largest mass that may come before each token."""
    least, most = _tied(x, ties)
    _, size = _equals(x)
    by_low, by_high = np.argsort(x.low), np.argsort(x.high)
    surely = _tail(x.w[by_low])[np.searchsorted(x.low[by_low], x.high, side="right")]
    maybe = _tail(x.w[by_high])[np.searchsorted(x.high[by_high], x.low, side="left")] - size * x.w
    return surely + least * x.w, np.maximum(maybe, surely) + most * x.w


def _tail(w: Float64) -> Float64:
    """The sums of the entries from each on, and 0 behind the last."""
    return np.append(np.cumsum(w[::-1])[::-1], 0.0)


def renormalised(arithmetic: ResolvedArithmetic, z: Float64, temperature: float, kept: Bool) -> tuple[Float64, Float64]:
    """The probabilities of one row given what is kept, and how far a legal computation of them may be off.

        p_i = w_i / sum of the kept w
        |error of p_i| <= p_i (e^d_i (1 + g(3 V + 6, u_accumulate)) (1 + u)^12 / (1 - sum p_j d_j - g) - 1), then one rounding of `out`

    Three sums and quotients, for those who renormalise after every filter.
    """
    r, x = roundings(arithmetic), weights_of_row(arithmetic, z, temperature)
    w = np.where(kept, x.w, 0.0)
    total = w.sum()
    if total == 0.0:
        return w, np.zeros_like(w)
    p, growth = w / total, float(g(3.0 * len(z) + 6.0, r.accumulate.u + U64))
    lost = float(np.sum(p * -np.expm1(-x.d))) + growth + len(z) * r.elementwise.eta
    ratio = np.exp(x.d) * (1.0 + growth) * (1.0 + r.elementwise.u + U64) ** 12 / max(1.0 - lost, 2.0**-60)
    error = p * (ratio - 1.0) + np.where(kept, underflow(p, r.elementwise.eta, r.elementwise.eta), 0.0)
    alone = bool(np.sum(kept & (x.high > 0.0)) == 1)                            # 1 / 1, and so in every format
    return p, np.zeros_like(p) if alone else np.where(kept, r.out.bound(p, error), 0.0)


def filter_probabilities_bound(
    arithmetic: ResolvedArithmetic, logits: ArrayLike, *, temperature: ArrayLike = 1.0, top_k: ArrayLike | None = None,
    top_p: ArrayLike | None = None, min_p: ArrayLike | None = None, conventions: Mapping[str, str] | None = None,
) -> dict[str, Float64]:  # fmt: skip
    """How far legal filtered probabilities may be from the oracle's: {"probabilities"}, the shape of logits.

        |error of p_i| <= p_i (e^d_i (1 + g(3 V + 6, u_accumulate)) (1 + u)^12 / (1 - sum p_j d_j - g) - 1), then one rounding of `out`
        d_i = 5 u (|z_i| + |m|) / T + the error of exp

    given what is kept; inf for a row in which a rounding may keep or drop another token: where the weights of two tokens at a
    border, or a mass and the border it is held against, lie within their errors. A dropped token has a bound of 0.

    >>> from oracles.properties import Arithmetic
    >>> float32 = Arithmetic().resolve("float32")
    >>> filter_probabilities_bound(float32, [[1.0, 0.0], [1.0, 1.0 - 1e-9]], top_k=1)["probabilities"]
    array([[ 0.,  0.],
           [inf, inf]])
    """
    z = arguments.widen("logits", logits)
    rows = parameters_of_rows(z.shape[:-1], temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    conventions = declared({}, "filter_probabilities") if conventions is None else conventions
    flat, bound = z.reshape(len(rows), z.shape[-1]), np.empty((len(rows), z.shape[-1]))
    for i, row in enumerate(rows):
        kept, dropped = decisions_of_row(arithmetic, flat[i], row, conventions)
        bound[i] = renormalised(arithmetic, flat[i], row.temperature, kept)[1] if (kept | dropped).all() else np.inf
    return checked({"probabilities": bound.reshape(z.shape)})


def apply_penalties_bound(arithmetic: ResolvedArithmetic, logits: ArrayLike, tokens: ArrayLike, *, prompt_lengths: ArrayLike | None = None,
                          repetition: ArrayLike = 1.0, frequency: ArrayLike = 0.0, presence: ArrayLike = 0.0) -> dict[str, Float64]:
    """How far legal penalised logits may be from the oracle's: {"logits"}, the shape of logits.

        6 u (|z_i| max(r, 1 / r) + |frequency| n_i + |presence|), n_i <= T, then one rounding of `out`

    The parameters in their format, the quotient, the product with the count, two differences. inf where the output may overflow,
    exactly 0 for a token that no penalty concerns, of a logit that the output format holds.

    >>> from oracles.properties import Arithmetic
    >>> apply_penalties_bound(Arithmetic().resolve("float32"), [1.0, 1.0], [0], repetition=2.0)["logits"][1]
    np.float64(0.0)
    """
    r = roundings(arithmetic)
    z = arguments.widen("logits", logits)
    ids = arguments.integers("tokens", tokens, least=-1, most=z.shape[-1] - 1)
    rows, n = z.shape[:-1], np.zeros_like(z)
    flat = n.reshape(math.prod(rows), z.shape[-1])
    for i, row in enumerate(ids.reshape(len(flat), ids.shape[-1])):
        np.add.at(flat[i], row[row >= 0], 1.0)
    size = distributions.per_row("repetition", repetition, rows, above=0.0)
    f, once = (np.abs(distributions.per_row(name, x, rows)) for name, x in (("frequency", frequency), ("presence", presence)))
    finite = np.where(np.isfinite(z), np.abs(z), 0.0)
    most = finite * np.maximum(size, 1.0 / size) + f * n + once
    u = max(r.elementwise.u, r.scores.u) + U64
    touched = r.out.bound(most, 6.0 * u * most + 3.0 * r.elementwise.eta)
    return checked({"logits": np.where((n > 0) & np.isfinite(z), touched, 0.0)})


def sample_bound(arithmetic: ResolvedArithmetic, probabilities: ArrayLike, u: ArrayLike) -> dict[str, Float64]:
    """Where a legal draw is the oracle's: {"token"}, 0 there, and inf where u S lies within the error of a sum of weights.

        |u S - (p_0 + … + p_i)| <= 2 (g(V + 6, u_accumulate) + 6 u) S + 3 V eta

    The sums in any order, of weights divided by their sum or not, the product u S rounded or not. Tokens of weight 0 add no border
    of their own.

    >>> from oracles.properties import Arithmetic
    >>> sample_bound(Arithmetic().resolve("float32"), [[0.5, 0.5], [0.5, 0.5]], [0.25, 0.5])["token"]
    array([ 0., inf])
    """
    r = roundings(arithmetic)
    p = arguments.widen("probabilities", probabilities)
    c = np.cumsum(p, axis=-1)
    S = c[..., -1:]
    near = 2.0 * (g(p.shape[-1] + 6.0, r.accumulate.u + U64) + 6.0 * (r.elementwise.u + U64)) * S + 3.0 * p.shape[-1] * r.elementwise.eta
    inner = (c > 0.0) & (c < S)                                                 # neither end is a border between two tokens
    open_ = ((np.abs(arguments.widen("u", u)[..., None] * S - c) <= near) & inner).any(axis=-1)
    return {"token": np.where(open_, np.inf, 0.0)}
