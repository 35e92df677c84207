"""Losses over rows of logits in ball arithmetic: cross-entropy and distillation, their gradients, the form over a cut vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .balls import exact
from .certified import Balls, flint


def cross_entropy(logits: ArrayLike, targets: ArrayLike, *, reduction: str, **options: Any) -> dict[str, Balls]:
    """loss: of each row sum_c a_c (lse - z_c) + z_loss w_y lse^2, of ignored rows 0; their sum, or that over sum w_y."""
    arb, z_loss = flint().arb, flint().arb(float(options.pop("z_loss", 0.0)))
    loss, weight = exact(np.zeros(np.shape(targets))), arb(0)
    for place, z, a, w in _scored(logits, targets, **options):
        row = _Row(z)
        terms = [a_c * (row.rest - d) for a_c, d in zip(a, row.above) if not a_c.is_zero()]
        loss[place] = sum(terms, arb(0)) + z_loss * w * row.lse**2
        weight = weight + w
    if reduction == "none":
        return {"loss": loss}
    total = sum(loss.reshape(-1).tolist(), arb(0))
    if reduction == "mean":
        total = arb(0) if weight == 0 else total / weight
    return {"loss": np.asarray(total, dtype=object)}


def cross_entropy_backward(logits: ArrayLike, targets: ArrayLike, dloss: ArrayLike, *, reduction: str, **options: Any) -> dict[str, Balls]:
    """dlogits: g (p_c (sum_c a_c + 2 z_loss w_y lse) - a_c), g the row's dloss, for "mean" over sum w_y; 0 in ignored rows."""
    arb, z_loss = flint().arb, flint().arb(float(options.pop("z_loss", 0.0)))
    result = exact(np.zeros(np.shape(logits)))
    scored = list(_scored(logits, targets, **options))
    weight = sum((w for _, _, _, w in scored), arb(0)) if reduction == "mean" else arb(1)
    if weight == 0:
        return {"dlogits": result}
    upstream = np.broadcast_to(np.asarray(dloss).astype(np.float64), np.shape(targets))
    for place, z, a, w in scored:
        row, g = _Row(z), arb(float(upstream[place])) / weight
        pull = sum(a, arb(0)) + 2 * z_loss * w * row.lse
        result[place] = [g * (p * pull - a_c) for p, a_c in zip(row.p, a)]
    return {"dlogits": result}


def vocab_parallel_cross_entropy(shards: ArrayLike, targets: ArrayLike, **options: Any) -> dict[str, Balls]:
    """loss: that of the classes of all shards in a row, shard r holding V/R classes from r V/R on."""
    whole = np.concatenate([np.asarray(shard).astype(np.float64) for shard in np.asarray(shards)], axis=-1)
    return cross_entropy(whole, targets, **options)


def distillation_loss(student: ArrayLike, teacher: ArrayLike, targets: ArrayLike, *, temperature: float, alpha: float, divergence: str,
                      beta: float = 0.5, ignore_index: int = -100) -> dict[str, Balls]:
    """loss: alpha T^2 times the mean divergence of the rows that count, and (1 - alpha) times their mean cross-entropy."""
    arb = flint().arb
    T, share, b = arb(float(temperature)), arb(float(alpha)), arb(float(beta))
    z, zt = (np.asarray(x).astype(np.float64) for x in (student, teacher))
    hard = cross_entropy(z, targets, reduction="mean", ignore_index=ignore_index)["loss"].item()
    rows = [place for place, _, _, _ in _scored(z, targets, ignore_index=ignore_index)]
    divergences = [_divergence(_Row(zt[place], T), _Row(z[place], T), divergence, b) for place in rows]
    soft = sum(divergences, arb(0)) / max(len(rows), 1)
    return {"loss": np.asarray(share * T**2 * soft + (1 - share) * hard, dtype=object)}


def distillation_loss_backward(
    student: ArrayLike, teacher: ArrayLike, targets: ArrayLike, dloss: ArrayLike, *, temperature: float, alpha: float, divergence: str,
    beta: float = 0.5, ignore_index: int = -100,
) -> dict[str, Balls]:  # fmt: skip
    """dstudent: dloss / n (alpha T times the slope of the divergence, and (1 - alpha) (p_c - [c = y])); 0 in ignored rows."""
    arb = flint().arb
    T, share, b = arb(float(temperature)), arb(float(alpha)), arb(float(beta))
    z, zt = (np.asarray(x).astype(np.float64) for x in (student, teacher))
    result = cross_entropy_backward(z, targets, dloss, reduction="mean", ignore_index=ignore_index)["dlogits"] * (1 - share)
    rows = [place for place, _, _, _ in _scored(z, targets, ignore_index=ignore_index)]
    each = arb(float(np.asarray(dloss).astype(np.float64))) / max(len(rows), 1) * share * T
    for place in rows:
        slopes = _slopes(_Row(zt[place], T), _Row(z[place], T), divergence, b)
        result[place] = [hard + each * slope for hard, slope in zip(result[place], slopes)]
    return {"dstudent": result}


def _slopes(t: _Row, s: _Row, divergence: str, beta: Any) -> list[Any]:
    """The derivative of the divergence with respect to each of the student's logits over T; the ends of beta as in `_divergence`."""
    if divergence == "forward_kl" or (divergence == "jsd" and beta == 0):
        return [own - theirs for own, theirs in zip(s.p, t.p)]
    mixed = divergence == "jsd" and beta != 1
    log_q = [(beta * a + (1 - beta) * b).log() for a, b in zip(t.p, s.p)] if mixed else t.log_p
    mean = _kl(s.p, s.log_p, log_q)
    return [(1 - beta if mixed else 1) * own * (a - b - mean) for own, a, b in zip(s.p, s.log_p, log_q)]


def _divergence(t: _Row, s: _Row, divergence: str, beta: Any) -> Any:
    """Of teacher and student. The ends of beta, where the formula is 0, mean the divergences it tends to there, over beta, 1 - beta."""
    if divergence == "forward_kl" or (divergence == "jsd" and beta == 0):
        return _kl(t.p, t.log_p, s.log_p)
    if divergence == "reverse_kl" or (divergence == "jsd" and beta == 1):
        return _kl(s.p, s.log_p, t.log_p)
    log_m = [(beta * a + (1 - beta) * b).log() for a, b in zip(t.p, s.p)]
    return beta * _kl(t.p, t.log_p, log_m) + (1 - beta) * _kl(s.p, s.log_p, log_m)


def _kl(p: list[Any], log_p: list[Any], log_q: list[Any]) -> Any:
    return sum((one * (a - b) for one, a, b in zip(p, log_p, log_q) if not one.is_zero()), flint().arb(0))


class _Row:
    """A row of logits z / T: above = (z - m) / T of each class, rest = lse - m, exactly 0 for one class; p and ln p. -inf has p = 0."""

    def __init__(self, z: Any, T: Any = 1) -> None:
        arb, top = flint().arb, int(np.argmax(z))
        m = arb(float(z[top]))
        self.above = [arb("-inf") if np.isneginf(x) else (arb(float(x)) - m) / T for x in z]
        e = [arb(0) if np.isneginf(x) else d.exp() for x, d in zip(z, self.above)]
        others = sum((one for c, one in enumerate(e) if c != top), arb(0))
        self.rest = others.log1p()
        self.lse = m / T + self.rest
        self.p = [one / (1 + others) for one in e]
        self.log_p = [d - self.rest for d in self.above]


def _scored(logits: ArrayLike, targets: ArrayLike, *, weights: ArrayLike | None = None, ignore_index: int = -100,
            label_smoothing: float = 0.0) -> Iterator[tuple[tuple[int, ...], Any, list[Any], Any]]:
    """The rows that count: place, logits, a_c = w_c ((1 - e) [c = y] + e / V), w_y."""
    arb = flint().arb
    z, y = np.asarray(logits).astype(np.float64), np.asarray(targets)
    V, e = z.shape[-1], arb(float(label_smoothing))
    w = exact(np.ones(V) if weights is None else weights)
    for place in np.ndindex(*y.shape):
        target = int(y[place])
        if target != ignore_index:
            yield place, z[place], [w[c] * (((1 - e) if c == target else 0) + e / V) for c in range(V)], w[target]
