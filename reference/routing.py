"""Routing: which experts a token goes to, with what gates, and the loss that keeps them equally busy. What experts do is experts's."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Bool, Float64, Int64
from .softmax import softmax


def route(logits: ArrayLike, *, k: int, normalize: bool, bias: ArrayLike | None = None) -> tuple[Int64, Float64]:
    """The k experts of each token and their gates: ids int64 (T, k), gates float64 (T, k).

        p = softmax(logits)
        ids = the k largest of p + bias, the largest first, of equals the lowest index
        gates = p[ids],   over their sum where normalize

    logits (T, E), bias (E,). The bias chooses and does nothing else: gates never hold it (MetaX-MACA/vLLM-metax#270). With
    normalize the gates of a token sum to 1, for k = 1 too, where they are then 1 whatever the logits, so that no gradient
    reaches the router (jingyaogong/minimind#858); without it they sum to less unless k = E. An expert of logit -inf has p = 0.
    Where all chosen have a logit of -inf the gates are 0. T = 0 is legal.

    >>> route([[0.0, np.log(2.0), 0.0, 0.0]], k=2, normalize=False)
    (array([[1, 0]]), array([[0.4, 0.2]]))
    >>> route([[0.0, np.log(2.0), 0.0, 0.0]], k=2, normalize=True, bias=[0.0, 0.0, 1.0, 0.0])
    (array([[2, 1]]), array([[0.33333333, 0.66666667]]))

    Raises ValueError for k outside 1..E and for NaN or +inf, which have no order; TypeError for integers.
    Error bound: of the gates `properties.bounds.route_bound`; ids are right where no rounding can turn a comparison.
    Source: Shazeer et al. 2017 (arXiv 1701.06538), section 2.1; the bias: DeepSeek-AI 2024 (arXiv 2412.19437), equation 16.
    """
    z = router_logits("logits", logits)
    k = chosen_experts(k, z.shape[1])
    _flag("normalize", normalize)
    p = softmax(z)                                                              # (T, E)
    s = p if bias is None else p + _selection_bias(bias, z.shape[1])
    ids = np.argsort(-s, axis=-1, kind="stable")[:, :k].astype(np.int64)        # stable: the lowest index of equals
    return ids, gates_of(z, ids, normalize=normalize)


def gates_of(logits: Float64, ids: Int64, *, normalize: bool) -> Float64:
    """The gates (T, k) of experts that are chosen already. Over their sum they are the softmax of the chosen logits alone.

    >>> gates_of(np.zeros((1, 4)), np.array([[0, 2]]), normalize=True)
    array([[0.5, 0.5]])

    Error bound: that of `softmax`. Source: as `route`.
    """
    if normalize:
        return softmax(np.take_along_axis(logits, ids, axis=-1))
    return np.take_along_axis(softmax(logits), ids, axis=-1)


def route_backward(logits: ArrayLike, ids: ArrayLike, dgates: ArrayLike, *, normalize: bool) -> Float64:
    """The gradient of sum(dgates * gates) with respect to the logits: float64 (T, E). The choice itself has none.

        with normalize:  dgates_j = (dgates_j - sum_i gates_i dgates_i) / sum_i p_ids_i
        dp = dgates at ids, 0 elsewhere
        dlogits = p (dp - sum_e p_e dp_e)

    ids (T, k) as `route` returned them. Each row sums to 0; with normalize only the chosen have a gradient, and with k = 1 none.

    >>> route_backward([[0.0, 0.0]], [[1]], [[1.0]], normalize=False), route_backward([[0.0, 0.0]], [[1]], [[1.0]], normalize=True)
    (array([[-0.25,  0.25]]), array([[0., 0.]]))

    Raises as `route`; ValueError for an expert given twice to a token.
    Error bound: (E + k + 12) u (|dp| + sum p |dp|) p without normalize, as far as that of `softmax` goes.
    Source: Shazeer et al. 2017 (arXiv 1701.06538), section 2.1.
    """
    z = router_logits("logits", logits)
    chosen = expert_ids(ids, z.shape[1], tokens=z.shape[0])
    d = arguments.widen("dgates", dgates, chosen.shape)
    _flag("normalize", normalize)
    if not normalize:
        p = softmax(z)
        dp = np.zeros_like(p)
        np.put_along_axis(dp, chosen, d, axis=-1)
        return np.asarray(p * (dp - (p * dp).sum(axis=-1, keepdims=True)))
    gates = gates_of(z, chosen, normalize=True)
    dz = np.zeros_like(z)
    np.put_along_axis(dz, chosen, gates * (d - (gates * d).sum(axis=-1, keepdims=True)), axis=-1)
    return dz


def balance_loss(probs: ArrayLike, ids: ArrayLike, *, mask: ArrayLike | None = None) -> Float64:
    """How unequally the experts are used: float64 (), 1 when balanced, E when one does everything.

        loss = E sum_e f_e P_e,   f_e = (assignments of e) / (T k),   P_e = mean over tokens of p_e

    probs (T, E), ids (T, k). f counts all T k assignments, the n-th choices too, so that it sums to 1 (over T alone it would
    sum to k: huggingface/transformers#43775), before any is dropped. mask (T,), True where a token is real: others, padding
    say, count in neither (NVIDIA/Megatron-LM#1617). No token: 0.

    >>> balance_loss([[0.5, 0.5], [0.5, 0.5]], [[0], [1]]), balance_loss([[1.0, 0.0], [1.0, 0.0]], [[0], [0]])
    (array(1.), array(2.))

    Raises ValueError or TypeError that names the argument, what came and what is wanted.
    Error bound: (T + E + 3) u loss: no term is negative. Source: Fedus et al. 2021 (arXiv 2101.03961), equations 4 to 6.
    """
    p, share, real = _balance(probs, ids, mask)
    return np.asarray(p.shape[1] * (share * p[real].sum(axis=0)).sum() / max(int(real.sum()), 1))


def balance_loss_backward(probs: ArrayLike, ids: ArrayLike, dloss: ArrayLike, *, mask: ArrayLike | None = None) -> Float64:
    """The gradient of dloss times `balance_loss` with respect to probs: float64 (T, E). f counts, and has none.

        dP_te = dloss E f_e / T for real tokens, 0 for others

    dloss (). It is the number that came with the loss, and not the gradient of something else: one that is thrown away, or
    taken for a switch, trains no router (NVIDIA-NeMo/Automodel#1408).

    >>> balance_loss_backward([[1.0, 0.0], [1.0, 0.0]], [[0], [0]], 1.0)
    array([[1., 0.],
           [1., 0.]])

    Raises as `balance_loss`. Error bound: 4 u of each element. Source: as `balance_loss`.
    """
    p, share, real = _balance(probs, ids, mask)
    d = arguments.widen("dloss", dloss, ())
    return np.asarray(np.where(real[:, None], d * p.shape[1] * share / max(int(real.sum()), 1), 0.0))


def balance_bias(bias: ArrayLike, counts: ArrayLike, *, rate: float) -> Float64:
    """The selection bias after one batch, without any loss: float64 (E,).

        bias_e + rate sign(mean(counts) - counts_e)

    counts (E,): the assignments of the batch. Experts above the mean lose, those below gain, at the mean nothing moves.

    >>> balance_bias([0.0, 0.0, 0.0], [4, 2, 0], rate=0.5)
    array([-0.5,  0. ,  0.5])

    Raises ValueError or TypeError that names the argument. Error bound: u |result|: one addition.
    Source: Wang et al. 2024 (arXiv 2408.15664), algorithm 1; DeepSeek-AI 2024 (arXiv 2412.19437), section 2.1.2.
    """
    b = arguments.widen("bias", bias, ndim=1)
    n = arguments.integers("counts", counts, b.shape, least=0, most=2**53)
    r = arguments.real_number("rate", rate)
    if r < 0.0:
        raise ValueError(f"rate: got {r}; want a finite number >= 0")
    return b + r * np.sign(int(n.sum()) - n * len(n))                           # whole numbers: the mean is never rounded


def expert_counts(ids: ArrayLike, *, experts: int, mask: ArrayLike | None = None) -> Int64:
    """The assignments of each expert: int64 (E,), T k of them in all, those of real tokens only where a mask says which are.

    >>> expert_counts([[0, 2], [2, 1]], experts=4)
    array([1, 1, 2, 0])

    Exact. Raises ValueError or TypeError that names the argument. Source: as `balance_loss`.
    """
    chosen = expert_ids(ids, arguments.whole_number("experts", experts, least=1))
    return np.bincount(chosen[_real(mask, len(chosen))].ravel(), minlength=experts).astype(np.int64)


def router_logits(name: str, logits: ArrayLike) -> Float64:
    """Logits (T, E) that have an order: finite or -inf, at least one expert."""
    z = arguments.widen(name, logits, ndim=2)
    if z.shape[1] == 0:
        raise ValueError(f"{name}: got shape {z.shape}; want at least one expert")
    if np.isnan(z).any() or np.isposinf(z).any():
        raise ValueError(f"{name}: got NaN or inf; want finite numbers or -inf")
    return z


def chosen_experts(k: int, experts: int) -> int:
    """k as a whole number in 1..E."""
    k = arguments.whole_number("k", k, least=1)
    if k > experts:
        raise ValueError(f"k: got {k} for {experts} experts; want at most {experts}")
    return k


def expert_ids(ids: ArrayLike, experts: int, *, tokens: int | None = None) -> Int64:
    """Experts (T, k) in 0..E-1, each at most once for a token."""
    chosen = arguments.integers("ids", ids, least=0, most=experts - 1)
    if chosen.ndim != 2 or chosen.shape[1] == 0 or (tokens is not None and len(chosen) != tokens):
        raise ValueError(f"ids: got shape {chosen.shape}; want ({'T' if tokens is None else tokens}, k), k at least 1")
    twice = np.flatnonzero((np.diff(np.sort(chosen, axis=-1), axis=-1) == 0).any(axis=-1))
    if twice.size:
        raise ValueError(f"ids: got {chosen[twice[0]].tolist()} for token {twice[0]}; want no expert twice")
    return chosen


def _selection_bias(bias: ArrayLike, experts: int) -> Float64:
    b = arguments.widen("bias", bias, (experts,))
    if not np.isfinite(b).all():
        raise ValueError("bias: got NaN or inf; want finite numbers")
    return b


def _flag(name: str, value: bool) -> None:
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}: got {value!r}; want True or False")


def _real(mask: ArrayLike | None, tokens: int) -> Bool:
    """Which tokens are real: (T,)."""
    if mask is None:
        return np.ones(tokens, dtype=np.bool_)
    if np.shape(mask) != (tokens,):
        raise ValueError(f"mask: got shape {np.shape(mask)}; want ({tokens},)")
    return arguments.boolean_mask("mask", mask, (tokens,))


def _balance(probs: ArrayLike, ids: ArrayLike, mask: ArrayLike | None) -> tuple[Float64, Float64, Bool]:
    """Probabilities (T, E), each expert's share of the assignments (E,), and which tokens are real (T,)."""
    p = arguments.widen("probs", probs, ndim=2)
    if p.shape[1] == 0:
        raise ValueError(f"probs: got shape {p.shape}; want at least one expert")
    chosen = expert_ids(ids, p.shape[1], tokens=len(p))
    real = _real(mask, len(p))
    counts = expert_counts(chosen, experts=p.shape[1], mask=real)
    return p, counts / max(int(counts.sum()), 1), real
