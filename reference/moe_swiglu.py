"""A feed-forward layer of experts: routing, a SwiGLU for each expert, and the weighted sum. Forward and backward."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Float64
from .experts import combine, dispatch, dispatch_weighted, expert_slots, gathered
from .routing import balance_loss, balance_loss_backward, route, route_backward
from .softmax import softmax
from .swiglu import swiglu
from .swiglu_backward import swiglu_backward


def moe_swiglu(
    x: ArrayLike, w_router: ArrayLike, w_gate: ArrayLike, w_up: ArrayLike, w_down: ArrayLike, *, k: int, normalize: bool
) -> Float64:  # fmt: skip
    """The layer of a decoder with X experts, of which each token takes k: float64, the shape of x.

        ids, gates = route(x w_router)
        y = sum over j of gates_j swiglu of expert ids_j (x)

    x (..., E), w_router (E, X), w_gate and w_up (X, E, F), w_down (X, F, E). No token is dropped, so that each depends on
    itself alone, however the batch is cut.

    >>> one = np.ones((2, 1, 1))
    >>> moe_swiglu([[1.0]], np.zeros((1, 2)), one, one, np.array([[[1.0]], [[3.0]]]), k=2, normalize=True).round(4).tolist()
    [[1.4621]]

    Raises ValueError or TypeError that names the argument, what came and what is wanted.
    Error bound: those of `route`, `swiglu` and `combine`, each carried through the one behind it.
    Source: Jiang et al. 2024 (arXiv 2401.04088), section 2.1.
    """
    x, w = arguments.widen("x", x), _experts(w_gate, w_up, w_down)
    rows, router = x.reshape(-1, x.shape[-1]), arguments.widen("w_router", w_router, (x.shape[-1], len(w[0])))
    ids, gates = route(rows @ router, k=k, normalize=normalize)
    slots = expert_slots(ids, experts=len(w[0]))
    sent = dispatch(rows, ids, slots, experts=len(w[0]))                        # (X, C, E)
    done = np.stack([swiglu(*one) for one in zip(sent, *w)])
    return combine(done, ids, slots, gates).reshape(x.shape)


def moe_swiglu_backward(
    x: ArrayLike, w_router: ArrayLike, w_gate: ArrayLike, w_up: ArrayLike, w_down: ArrayLike, dy: ArrayLike, *, k: int, normalize: bool,
    balance: float = 0.0,
) -> dict[str, Float64]:  # fmt: skip
    """The gradients of sum(dy * moe_swiglu(x, …)) + balance * moe_balance(x, …): "dx", "dw_router", "dw_gate", "dw_up", "dw_down".

        dgates_j = dy . swiglu of expert ids_j (x)
        dexpert  = swiglu_backward of the tokens it has, with gates_j dy
        dlogits  = route_backward(dgates) + the gradient of the balance loss through the softmax
        dx = the experts' dx, summed over j, + dlogits w_router^T,   dw_router = x^T dlogits

    Each of the shape of what it is the gradient of. An expert that no token takes has a gradient of 0.

    >>> one = np.ones((2, 1, 1))
    >>> got = moe_swiglu_backward([[1.0]], np.zeros((1, 2)), one, one, one, [[1.0]], k=1, normalize=True)
    >>> got["dw_router"].tolist(), got["dw_down"].round(4).tolist()
    ([[0.0, 0.0]], [[[0.7311]], [[0.0]]])

    Raises as `moe_swiglu`. Error bound: as there. Source: as `moe_swiglu`; balance: `balance_loss`.
    """
    x, w = arguments.widen("x", x), _experts(w_gate, w_up, w_down)
    X, rows, router = len(w[0]), x.reshape(-1, x.shape[-1]), arguments.widen("w_router", w_router, (x.shape[-1], len(w[0])))
    d = arguments.widen("dy", dy, x.shape).reshape(rows.shape)
    logits = rows @ router
    ids, gates = route(logits, k=k, normalize=normalize)
    slots = expert_slots(ids, experts=X)
    sent, dsent = dispatch(rows, ids, slots, experts=X), dispatch_weighted(d, ids, slots, gates, experts=X)
    done = np.stack([swiglu(*one) for one in zip(sent, *w)])
    each = [swiglu_backward(*one) for one in zip(sent, *w, dsent)]
    dgates = (gathered(done, ids, slots) * d[:, None]).sum(axis=-1)             # (T, k)
    dlogits = route_backward(logits, ids, dgates, normalize=normalize)
    if balance:
        p = softmax(logits)
        dp = balance_loss_backward(p, ids, np.float64(balance))
        dlogits = dlogits + p * (dp - (p * dp).sum(axis=-1, keepdims=True))
    dx = gathered(np.stack([one["dx"] for one in each]), ids, slots).sum(axis=1) + dlogits @ router.T
    return {"dx": dx.reshape(x.shape), "dw_router": rows.T @ dlogits,
            **{name: np.stack([one[name] for one in each]) for name in ("dw_gate", "dw_up", "dw_down")}}


def moe_balance(x: ArrayLike, w_router: ArrayLike, *, k: int) -> Float64:
    """`balance_loss` of the layer for these tokens: float64 ().

    >>> moe_balance([[1.0], [1.0]], np.zeros((1, 2)), k=1)
    array(1.)

    Error bound: as `balance_loss`, and 2 E times that of the logits. Source: as `balance_loss`.
    """
    x = arguments.widen("x", x)
    logits = x.reshape(-1, x.shape[-1]) @ arguments.widen("w_router", w_router, ndim=2)
    return balance_loss(softmax(logits), route(logits, k=k, normalize=False)[0])


def _experts(w_gate: ArrayLike, w_up: ArrayLike, w_down: ArrayLike) -> tuple[Float64, Float64, Float64]:
    """The matrices of X experts, as many of each."""
    gate, up, down = (arguments.widen(name, w, ndim=3) for name, w in (("w_gate", w_gate), ("w_up", w_up), ("w_down", w_down)))
    if not len(gate) == len(up) == len(down) or not len(gate):
        raise ValueError(f"w_gate: got {len(gate)} experts, w_up {len(up)}, w_down {len(down)}; want as many of each, at least one")
    return gate, up, down
