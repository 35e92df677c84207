"""Bounds of pipelines: a loss summed in parts, and a step of a model of tanh pieces, error after error. Schedules have no numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from oracles.reference import arguments
from oracles.reference.pipeline_parallel import token_mask_of
from oracles.reference.pipeline_schedule import schedule

from ..arithmetic import ResolvedArithmetic
from ..array_lists import spread
from ..comparison import Float64
from .sums import Roundings, checked, dot_bound, g, roundings


def schedule_bound(arithmetic: ResolvedArithmetic, kind: str, *, stages: int, microbatches: int, chunks: int = 1) -> dict[str, Float64]:
    """{"actions"}: inf. No two legal schedules of a kind need be equal; the laws judge what a schedule must keep."""
    return {"actions": np.full(schedule(kind, stages=stages, microbatches=microbatches, chunks=chunks).actions.shape, np.inf)}


def pipeline_loss_bound(arithmetic: ResolvedArithmetic, token_losses: ArrayLike, lengths: ArrayLike, *,
                        microbatch_size: int) -> dict[str, Float64]:
    """How far a legal mean over all tokens may be from the exact one: {"loss"}.

        |error| <= (g(N + 2, u_a) + 4 u) mean |loss|,  then one rounding of `out`

    N tokens added up in any order and cut, N or 1 / N rounded once, divided early or late. inf where the sum may overflow.

    >>> from oracles.properties import Arithmetic
    >>> bool(pipeline_loss_bound(Arithmetic().resolve("float32"), [[1.0]], [1], microbatch_size=1)["loss"] < 1e-6)
    True
    """
    r, losses = roundings(arithmetic), arguments.widen("token_losses", token_losses, ndim=2)
    counted = token_mask_of(lengths, *losses.shape)
    n, kept = int(counted.sum()), np.where(counted, losses, 0.0)
    if n == 0:
        return {"loss": np.zeros(())}
    total = float(np.abs(kept).sum())
    relative, lost = float(g(n + 2.0, r.accumulate.u)) + 4.0 * r.elementwise.u, 4.0 * n * (r.accumulate.eta + r.elementwise.eta)
    error = np.asarray(relative * total / n + lost)
    open_sum = not np.isfinite(total) or 2.0 * total > min(r.accumulate.largest, r.elementwise.largest)
    return checked({"loss": np.asarray(np.inf) if open_sum else r.out.bound(np.asarray(float(kept.sum()) / n), error)})


@dataclass(frozen=True)
class Known:
    """A value and how far the computed one may be."""

    x: Float64
    error: Float64

    @property
    def most(self) -> Float64:
        return np.abs(self.x) + self.error


def pipeline_step_bound(arithmetic: ResolvedArithmetic, x: ArrayLike, targets: ArrayLike, lengths: ArrayLike,
                        weights: Sequence[ArrayLike], *, microbatch_size: int, accumulation: int = 1, dropout_mask: ArrayLike | None = None,
                        dropout_p: float = 0.0, **options: Any) -> dict[str, Float64]:
    """How far a legal pipeline's loss and gradients may be from the exact ones: {"loss", "dx", "dweights.0", …}.

    Error after error, each value known to within what came before (y +- E):

        x W            E |W| + g(D, u_a) (|x| + E) |W|, then u of it         the same of dz W^T
        tanh           E + tanh_ulps u (|h| + E);   dropout 3 u;             what goes from stage to stage is rounded to `out`
        1 - h^2        E (2 |h| + E) + 4 u (1 + E)^2
        products       E_a |b| + |a| E_b + E_a E_b + u |a b|
        dW = x^T dz    sums over the tokens, and one rounding of `gradient` for each micro-batch
        loss           sums over all elements, division by N early or late: 6 u

    inf where a sum may overflow.

    >>> from oracles.properties import Arithmetic
    >>> one = np.ones((1, 1, 1), np.float32)
    >>> list(pipeline_step_bound(Arithmetic().resolve("float32"), one, one, [1], [one[0]], microbatch_size=1))
    ['loss', 'dx', 'dweights.0']

    Source: derived here, after Higham 2002, Accuracy and Stability of Numerical Algorithms, chapter 3.
    """
    r, wide = roundings(arithmetic), arguments.widen("x", x, ndim=3)
    (B, T, D), targets = wide.shape, arguments.widen("targets", targets, wide.shape)
    counted = token_mask_of(lengths, B, T)[..., None]
    w = [arguments.widen(f"weights[{i}]", one, (D, D)) for i, one in enumerate(weights)]
    kept, factor = arguments.dropout(dropout_mask, dropout_p, (len(w), B, T, D))
    n, u = float(max(counted.sum(), 1)), r.elementwise.u
    inputs, hidden, factors = [Known(np.where(counted, wide, 0.0), np.zeros(wide.shape))], [], []
    for i, weight in enumerate(w):
        h = _tanh(r, _product(r, inputs[-1], weight))
        z = np.ones(()) if kept is None else kept[i] * factor
        hidden.append(h)
        factors.append(z)
        inputs.append(_sent(r, _times(r, h, Known(z, 2.0 * u * z))))
    y = inputs[-1]
    error = Known(np.where(counted, y.x - targets, 0.0), np.where(counted, y.error + u * (np.abs(y.x - targets) + y.error), 0.0))
    loss, loss_error = _mean_square(r, error, n)
    dy, dweights, spoilt = _sent(r, Known(error.x / n, error.error / n + 3.0 * u * error.most / n)), [], False
    microbatches = float(-(-B // microbatch_size) + accumulation)
    for i in reversed(range(len(w))):
        slope = Known((1.0 - hidden[i].x) * (1.0 + hidden[i].x), _slope_error(r, hidden[i]))
        dz = _times(r, _times(r, dy, Known(factors[i], 2.0 * u * factors[i])), slope)
        dweights.append(_weight_bound(r, inputs[i], dz, microbatches))
        spoilt = spoilt or float(dz.most.sum() * max(1.0, float(inputs[i].most.max(initial=0.0)))) > r.accumulate.largest / 4.0
        dy = _sent(r, _product(r, dz, w[i].T))
    bounds = {"loss": r.out.bound(loss, loss_error), "dx": np.where(counted, dy.error, 0.0), **spread("dweights", dweights[::-1])}
    return checked({name: np.full(bound.shape, np.inf) if spoilt else bound for name, bound in bounds.items()})


def _product(r: Roundings, a: Known, w: Float64) -> Known:
    """a W, W exact."""
    size = np.abs(w)
    exact, error = a.x @ w, a.error @ size + dot_bound(r.accumulate, a.most @ size, len(w))
    return Known(exact, error + r.elementwise.u * (np.abs(exact) + error))


def _times(r: Roundings, a: Known, b: Known) -> Known:
    """a b, element by element."""
    error = a.error * np.abs(b.x) + np.abs(a.x) * b.error + a.error * b.error
    exact = a.x * b.x
    return Known(exact, error + r.elementwise.u * (np.abs(exact) + error) + np.minimum(r.elementwise.eta, np.abs(exact) + error))


def _tanh(r: Roundings, z: Known) -> Known:
    h = np.tanh(z.x)
    return Known(h, z.error + r.declared.tanh_ulps * r.elementwise.u * (np.abs(h) + z.error) + np.minimum(r.elementwise.eta, z.most))


def _slope_error(r: Roundings, h: Known) -> Float64:
    return np.asarray(h.error * (2.0 * np.abs(h.x) + h.error) + 4.0 * r.elementwise.u * (1.0 + h.error) ** 2)


def _sent(r: Roundings, a: Known) -> Known:
    """What goes to another stage may be stored in the format of the results."""
    return Known(a.x, r.out.bound(a.x, a.error))


def _mean_square(r: Roundings, error: Known, n: float) -> tuple[Float64, Float64]:
    """The loss, and its error before it is stored."""
    square = error.most**2
    own = (2.0 * np.abs(error.x) * error.error + error.error**2).sum()
    size = float(square.sum())
    total = own + float(g(square.size + 2.0, r.accumulate.u)) * size + 6.0 * r.elementwise.u * size
    lost = 2.0 * square.size * (r.accumulate.eta + r.elementwise.eta) if size else 0.0
    return np.asarray((error.x**2).sum() / (2.0 * n)), np.asarray(total / (2.0 * n) + lost)


def _weight_bound(r: Roundings, x: Known, dz: Known, microbatches: float) -> Float64:
    """The bound of x^T dz over all tokens."""
    D = x.x.shape[-1]
    a, a_error, b, b_error = (part.reshape(-1, D) for part in (np.abs(x.x), x.error, np.abs(dz.x), dz.error))
    size = (a + a_error).T @ (b + b_error)
    error = a.T @ b_error + a_error.T @ (b + b_error) + dot_bound(r.accumulate, size, len(a) + microbatches)
    error = error + float(g(microbatches, r.gradient.u)) * (size + error) + np.where(size > 0.0, microbatches * r.gradient.eta, 0.0)
    exact = x.x.reshape(-1, D).T @ dz.x.reshape(-1, D)
    return r.out.bound(exact, error + 2.0 * r.elementwise.u * (np.abs(exact) + error))
