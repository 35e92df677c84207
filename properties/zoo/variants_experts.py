"""Legal variants of the expert-parallel family: other ways to choose, to give out places, to add up, and other numbers of ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arithmetic import Arithmetic
from . import textbook_experts as textbook
from .specimen import variant
from .textbook_decoding import working
from .textbook_experts import Array

FAMILY = "expert-parallel"
FORMATS = ("float32", "float64", "float16", "bfloat16")
IN_FLOAT64 = Arithmetic(accumulate="float64", elementwise="float64")


@variant("route", id="route-textbook", family=FAMILY, dtypes=FORMATS)
def route_as_in_the_book(logits: Any, *, k: int, normalize: bool, bias: Any = None) -> tuple[Array, Array]:
    """The softmax of all, a stable sort, quotients of probabilities."""
    return textbook.route(logits, k=k, normalize=normalize, bias=bias)


@variant("route", id="route-softmax-of-the-chosen", family=FAMILY, dtypes=FORMATS, only={"normalize": ["yes"]},
         source="https://github.com/mistralai/mistral-inference/blob/main/src/mistral_inference/moe.py")
def route_of_logits(logits: Any, *, k: int, normalize: bool) -> tuple[Array, Array]:
    """The k largest logits, and the softmax of these alone: no bias is taken."""
    z = working(logits)
    ids = np.argsort(-z, axis=-1, kind="stable")[:, :k]
    return ids, textbook.softmax(np.take_along_axis(z, ids, axis=-1)).astype(logits.dtype)


@variant("route", id="route-one-after-another", family=FAMILY)
def route_by_maxima(logits: Any, *, k: int, normalize: bool, bias: Any = None) -> tuple[Array, Array]:
    """k times the first of the largest, which is then taken out; gates from e^z over a running sum."""
    p, _ = textbook.choose(logits, k, bias)
    s = p.copy() if bias is None else p + working(bias).astype(p.dtype)
    ids = np.zeros((len(p), k), np.int64)
    for j in range(k):
        ids[:, j] = s.argmax(axis=-1)
        np.put_along_axis(s, ids[:, j : j + 1], -np.inf, axis=-1)
    return ids, textbook.plain_gates(p, bias, ids, normalize).astype(logits.dtype)


@variant("route", id="route-in-float64", family=FAMILY, arithmetic=IN_FLOAT64, dtypes=FORMATS)
def route_in_float64(logits: Any, *, k: int, normalize: bool, bias: Any = None) -> tuple[Array, Array]:
    """Computed in float64, gates rounded once."""
    ids, gates = textbook.route(np.asarray(logits, np.float64), k=k, normalize=normalize,
                                bias=None if bias is None else np.asarray(bias, np.float64))
    return ids, gates.astype(logits.dtype)


@variant("route", id="route-last-of-equals", family=FAMILY, conventions={"route_ties": "any"})
def route_to_the_last(logits: Any, *, k: int, normalize: bool, bias: Any = None) -> tuple[Array, Array]:
    """Of equal experts the highest index, as a sort from the other end has it, and this says so."""
    E = logits.shape[1]
    ids, gates = textbook.route(np.ascontiguousarray(logits[:, ::-1]), k=k, normalize=normalize,
                                bias=None if bias is None else np.ascontiguousarray(bias[::-1]))
    return E - 1 - ids, gates


@variant("balance_loss", id="balance-of-token-shares", family=FAMILY, conventions={"balance_share": "of_tokens", "all_ignored": "nan"},
         source="https://github.com/huggingface/transformers/blob/main/src/transformers/models/mixtral/modeling_mixtral.py")
def balance_of_token_shares(probs: Any, ids: Any, *, mask: Any = None) -> Array:
    """f is a share of tokens, so that balance costs k, and nothing is over nothing, as transformers has it, and this says so."""
    if not textbook.real_tokens(mask, len(probs)).any():
        return np.asarray(np.nan).astype(probs.dtype)
    return np.asarray(ids.shape[1] * working(textbook.balance_loss(probs, ids, mask=mask))).astype(probs.dtype)


@variant("balance_loss", id="balance-textbook", family=FAMILY, dtypes=FORMATS)
def balance_as_in_the_book(probs: Any, ids: Any, *, mask: Any = None) -> Array:
    """Counts, means, E times their product."""
    return textbook.balance_loss(probs, ids, mask=mask)


@variant("balance_loss", id="balance-token-by-token", family=FAMILY)
def balance_along_tokens(probs: Any, ids: Any, *, mask: Any = None) -> Array:
    """Each token's probabilities times all counts, added up over tokens and divided once at the end; padding left out beforehand."""
    p, real = working(probs), textbook.real_tokens(mask, len(probs))
    p, chosen = p[real], ids[real]
    counts = np.bincount(chosen.ravel(), minlength=p.shape[1]).astype(p.dtype)
    total = (p * counts).sum(axis=-1, dtype=p.dtype).sum(dtype=p.dtype)
    return np.asarray(total * p.dtype.type(p.shape[1]) / p.dtype.type(max(chosen.size * len(p), 1))).astype(probs.dtype)


@variant("balance_loss_backward", id="balance-gradient-textbook", family=FAMILY, dtypes=FORMATS)
def balance_gradient_as_in_the_book(probs: Any, ids: Any, dloss: Any, *, mask: Any = None) -> Array:
    """The gradient as the paper's formula gives it: dloss E f / T."""
    return textbook.balance_loss_backward(probs, ids, dloss, mask=mask)


@variant("balance_loss_backward", id="balance-gradient-of-counts", family=FAMILY)
def balance_gradient_of_counts(probs: Any, ids: Any, dloss: Any, *, mask: Any = None) -> Array:
    """Counts times one factor, and the mask at the end."""
    p, real = working(probs), textbook.real_tokens(mask, len(probs))
    T = max(int(real.sum()), 1)
    factor = working(dloss).astype(p.dtype) * p.dtype.type(p.shape[1] / (T * T * ids.shape[1]))
    row = np.bincount(ids[real].ravel(), minlength=p.shape[1]).astype(p.dtype) * factor
    return np.asarray(real[:, None] * row).astype(probs.dtype)


@variant("moe_layer", id="moe-textbook", family=FAMILY, dtypes=FORMATS)
def moe_as_in_the_book(x: Any, logits: Any, weights: Any, *, k: int, normalize: bool, bias: Any = None,
                       capacity: int | None = None) -> tuple[Array, Array]:
    """Buffers of places, a product for each expert."""
    return textbook.moe_layer(x, logits, weights, k=k, normalize=normalize, bias=bias, capacity=capacity)


@variant("moe_layer", id="moe-sorted-by-expert", family=FAMILY, source="https://arxiv.org/abs/2211.15841")
def moe_of_sorted_tokens(x: Any, logits: Any, weights: Any, *, k: int, normalize: bool, bias: Any = None) -> Array:
    """Assignments sorted by expert, one product for each run of them, gates before the product; dropless, and slots are not told."""
    p, ids = textbook.choose(logits, k, bias)
    g, a, w = textbook.plain_gates(p, bias, ids, normalize), working(x), working(weights)
    order = np.argsort(ids.ravel(), kind="stable")
    token = order // k
    rows = a[token] * g.ravel()[order][:, None]
    ends = np.searchsorted(ids.ravel()[order], np.arange(len(w) + 1))
    out = np.zeros((len(a), w.shape[2]), a.dtype)
    for e in range(len(w)):
        run = slice(ends[e], ends[e + 1])
        np.add.at(out, token[run], rows[run] @ w[e])
    return out.astype(x.dtype)


@variant("moe_layer", id="moe-every-expert-for-every-token", family=FAMILY)
def moe_dense(x: Any, logits: Any, weights: Any, *, k: int, normalize: bool, bias: Any = None,
              capacity: int | None = None) -> tuple[Array, Array]:
    """All experts see all tokens; gates are 0 for those not chosen and for what was dropped."""
    p, ids = textbook.choose(logits, k, bias)
    slots = textbook.within(textbook.places_by_choice(ids, p.shape[1]), capacity)
    gates = np.zeros_like(p)
    np.put_along_axis(gates, ids, np.where(slots >= 0, textbook.plain_gates(p, bias, ids, normalize), 0).astype(p.dtype), axis=-1)
    a, w = working(x), working(weights)
    out = np.zeros((len(a), w.shape[2]), a.dtype)
    for e in reversed(range(len(w))):
        out += gates[:, e : e + 1] * (a @ w[e])
    return out.astype(x.dtype), slots


@variant("expert_parallel_backward", id="experts-backward-textbook", family=FAMILY, dtypes=FORMATS)
def gradients_as_in_the_book(x: Any, logits: Any, weights: Any, dout: Any, *, k: int, normalize: bool, bias: Any = None,
                             capacity: int | None = None) -> tuple[Array, Array, Array]:
    """All ranks' tokens in one, expert by expert."""
    return textbook.expert_parallel_backward(x, logits, weights, dout, k=k, normalize=normalize, bias=bias, capacity=capacity)


@variant("expert_parallel_backward", id="experts-backward-rank-by-rank", family=FAMILY)
def gradients_rank_by_rank(x: Any, logits: Any, weights: Any, dout: Any, *, k: int, normalize: bool,
                           bias: Any = None) -> tuple[Array, Array, Array]:
    """Each rank's tokens against all experts, the experts' gradients added up over ranks, the last first; dropless."""
    every = weights.reshape(1, -1, *weights.shape[2:])
    each = [textbook.expert_parallel_backward(x[r : r + 1], logits[r : r + 1], every, dout[r : r + 1], k=k, normalize=normalize, bias=bias)
            for r in reversed(range(len(x)))]
    total = working(each[0][2])
    for one in each[1:]:
        total = total + working(one[2])
    dx, dz = (np.concatenate([one[i] for one in reversed(each)]) for i in (0, 1))
    return dx, dz, total.reshape(weights.shape).astype(x.dtype)


@variant("expert_parallel_backward", id="experts-backward-through-all-probabilities", family=FAMILY, dtypes=("float64",))
def gradients_through_the_softmax(x: Any, logits: Any, weights: Any, dout: Any, *, k: int, normalize: bool, bias: Any = None,
                                  capacity: int | None = None) -> tuple[Array, Array, Array]:
    """The quotient of probabilities is differentiated as it stands, and then the softmax of all experts."""
    a, z, d, w = (y.reshape(-1, *y.shape[2:]) for y in (x, logits, dout, weights))
    p, ids = textbook.choose(z, k, bias)
    dx, _, dw = textbook.expert_parallel_backward(x, logits, weights, dout, k=k, normalize=normalize, bias=bias, capacity=capacity)
    kept = textbook.within(textbook.places_by_choice(ids, p.shape[1]), capacity) >= 0
    dg = np.where(kept, np.einsum("td,tkdf,tf->tk", a, w[ids], d), 0.0)
    if normalize:
        mine = np.take_along_axis(p, ids, axis=-1)
        S = mine.sum(axis=-1, keepdims=True)
        dg = dg / S - (mine * dg).sum(axis=-1, keepdims=True) / (S * S)
    return dx, textbook.router_gradient(p, ids, dg, False).reshape(logits.shape), dw
