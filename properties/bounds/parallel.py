"""Error bounds of simulated ranks: sums over ranks in any order, products cut by columns and rows, norms, and what is only moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.arithmetic import ResolvedArithmetic
from oracles.reference import FloatFormat, arguments
from oracles.reference.arguments import Float64

from .losses import cross_entropy_backward_bound
from .optimizers import clip_grad_norm_bound
from .sums import Roundings, checked, g, holds, roundings

_OWN = 2.0**-53


def reduced_bound(arithmetic: ResolvedArithmetic, x: Float64, *, terms: int, divided: bool = False, weigh: Float64 | float = 1.0,
                  stored: int = 1) -> Float64:
    """How far a sum of `terms` arrays may be from the exact one: x (terms, ...), in any order and tree, then one rounding of `out`.

        (1 + stored u_out) g(terms + 2, u) S + stored u_out S + 2 terms eta,   S = sum |x| weigh

    u the coarser of accumulation and elementwise work. divided: by a number, before or after the sum. stored: how often a partial
    sum may be kept in the format of `out` on its way, as ranks that reduce 16-bit buffers do; inf where a sum may overflow.

    >>> from oracles.properties import Arithmetic
    >>> bool(reduced_bound(Arithmetic().resolve("float32"), np.ones((2, 1)), terms=2).max() < 2e-6)
    True
    """
    r = roundings(arithmetic)
    u = _coarser(r)
    size = np.abs(x).sum(axis=0) * weigh
    growth = g(float(terms + (4 if divided else 2)), u) + stored * r.out.u * (1.0 + g(float(terms + 4), u))
    eta = max(r.accumulate.eta, r.elementwise.eta, r.out.eta if stored else 0.0)
    lost = np.minimum(2.0 * terms * eta, size) if not divided else 2.0 * terms * eta * (size > 0.0)
    error = growth * size + lost
    largest = min(r.accumulate.largest, r.out.largest)
    error = np.where(np.abs(x).sum(axis=0) * (1.0 + growth) > largest, np.inf, error)
    return np.asarray(r.out.bound(x.sum(axis=0) * weigh, error))


def moved_bound(arithmetic: ResolvedArithmetic, x: Float64) -> Float64:
    """What is only moved is not rounded: 0, or one rounding of `out` where that format does not hold every number of the inputs.

    >>> from oracles.properties import Arithmetic
    >>> moved_bound(Arithmetic().resolve("float32"), np.ones(2))
    array([0., 0.])
    """
    if holds(FloatFormat(arithmetic.out), FloatFormat(arithmetic.inputs)):
        return np.zeros(x.shape)
    return roundings(arithmetic).out.bound(x)


def all_reduce_bound(arithmetic: ResolvedArithmetic, arrays: Sequence[ArrayLike], *, op: str = "sum", algorithm: str = "ring"
                     ) -> dict[str, Float64]:
    """`reduced_bound` of R arrays, the partial sums stored on every hop; 0 for a maximum or minimum, which is moved: {"out.0", …}.

    >>> from oracles.properties import Arithmetic
    >>> all_reduce_bound(Arithmetic().resolve("float32"), [[1.0], [2.0]], op="max")
    {'out.0': array([0.]), 'out.1': array([0.])}
    """
    x = np.stack([arguments.widen("arrays", a) for a in arrays])
    R = len(x)
    if op in ("max", "min"):
        bound = moved_bound(arithmetic, x.max(axis=0) if op == "max" else x.min(axis=0))
    else:
        mean = op == "mean"
        bound = reduced_bound(arithmetic, x, terms=R, divided=mean, weigh=1.0 / R if mean else 1.0, stored=max(R - 1, 0))
    return checked({f"out.{r}": bound for r in range(R)})


def reduce_scatter_bound(arithmetic: ResolvedArithmetic, arrays: Sequence[ArrayLike], *, op: str = "sum") -> dict[str, Float64]:
    """How far each rank's part of a reduction may be from the exact one: {"out.0", …}, the parts of `all_reduce_bound`.

    >>> from oracles.properties import Arithmetic
    >>> bool(reduce_scatter_bound(Arithmetic().resolve("float32"), [[1.0, 0.0], [2.0, 0.0]])["out.0"].max() < 2e-6)
    True
    """
    parts = np.split(all_reduce_bound(arithmetic, arrays, op=op)["out.0"], len(arrays))
    return {f"out.{r}": part for r, part in enumerate(parts)}


def all_gather_bound(arithmetic: ResolvedArithmetic, arrays: Sequence[ArrayLike]) -> dict[str, Float64]:
    """How far what is gathered may be from what was held: {"out.0", …}, 0 but where the format of `out` is a narrower one.

    >>> from oracles.properties import Arithmetic
    >>> all_gather_bound(Arithmetic().resolve("float32"), [[1.0], [2.0, 3.0]])["out.1"]
    array([0., 0., 0.])
    """
    whole = moved_bound(arithmetic, np.concatenate([arguments.widen("arrays", a) for a in arrays]))
    return {f"out.{r}": whole for r in range(len(arrays))}


def bucketed_all_reduce_bound(arithmetic: ResolvedArithmetic, grads: Sequence[ArrayLike], arrival: ArrayLike, *, bucket_elements: int
                              ) -> dict[str, Float64]:
    """How far averaged gradients may be from the exact ones: {"grads.0", …}, each (R, ...), whatever the buckets and the arrival.

        the bound of a mean of R arrays, in any order and tree, with R partial sums stored in the format of `out`

    >>> from oracles.properties import Arithmetic
    >>> a = Arithmetic().resolve("float32")
    >>> bool(bucketed_all_reduce_bound(a, [[[1.0], [2.0]]], [[0], [0]], bucket_elements=1)["grads.0"].max() < 2e-6)
    True
    """
    bounds = {}
    for k, grad in enumerate(grads):
        x = arguments.widen("grads", grad)
        one = reduced_bound(arithmetic, x, terms=len(x), divided=True, weigh=1.0 / len(x), stored=len(x))
        bounds[f"grads.{k}"] = np.broadcast_to(one, x.shape).copy()
    return checked(bounds)


def accumulate_gradients_bound(arithmetic: ResolvedArithmetic, grads: ArrayLike, tokens: ArrayLike) -> dict[str, Float64]:
    """How far gradients per token may be from the exact ones: {"grads"} (R, ...), of sums over R ranks and A micro-batches.

        the bound of a sum of R A arrays, in any order and tree, each partial sum stored, divided by the number of tokens

    >>> from oracles.properties import Arithmetic
    >>> a = Arithmetic().resolve("float32")
    >>> bool(accumulate_gradients_bound(a, [[[1.0], [2.0]]], [[1, 1]])["grads"].max() < 2e-6)
    True
    """
    x = arguments.widen("grads", grads)
    total = int(np.asarray(tokens).sum())
    flat = x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])
    if total == 0 or not len(flat):
        return {"grads": np.zeros((x.shape[0], *x.shape[2:]))}
    one = reduced_bound(arithmetic, flat, terms=len(flat), divided=True, weigh=1.0 / total, stored=len(flat))
    return checked({"grads": np.broadcast_to(one, (x.shape[0], *x.shape[2:])).copy()})


def tied_gradients_bound(arithmetic: ResolvedArithmetic, grads: ArrayLike) -> dict[str, Float64]:
    """How far the gradient of a tied weight may be from the exact one: {"grads"} (S, R, ...), of a sum over S copies and R ranks.

        the bound of a sum of S R arrays, in any order and tree, each partial sum stored, divided by R

    >>> from oracles.properties import Arithmetic
    >>> bool(tied_gradients_bound(Arithmetic().resolve("float32"), [[[1.0], [2.0]]])["grads"].max() < 2e-6)
    True
    """
    x = arguments.widen("grads", grads)
    flat = x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])
    one = reduced_bound(arithmetic, flat, terms=len(flat), divided=True, weigh=1.0 / x.shape[1], stored=len(flat))
    return checked({"grads": np.broadcast_to(one, x.shape).copy()})


def flat_layout_bound(arithmetic: ResolvedArithmetic, sizes: ArrayLike, *, alignment: int = 1, world: int = 1) -> dict[str, Float64]:
    """How far offsets and the total may be from the exact ones: {"offsets", "total"}, 0 everywhere, whatever the arithmetic: integers.

        |error| = 0

    >>> from oracles.properties import Arithmetic
    >>> flat_layout_bound(Arithmetic().resolve("float32"), [6, 3], alignment=4)["offsets"]
    array([0., 0.])
    """
    return {"offsets": np.zeros(np.shape(sizes)), "total": np.zeros(())}


def column_parallel_bound(arithmetic: ResolvedArithmetic, x: ArrayLike, w_shards: Sequence[ArrayLike], bias_shards: Sequence[ArrayLike]
                          ) -> dict[str, Float64]:
    """How far outputs may be from the exact ones: {"out.0", …}.

        g(C + 2, u) (|x| |w_r| + |b_r|) + u_out |x w_r|,  then one rounding of `out`

    The product may be stored before the bias is added.

    >>> from oracles.properties import Arithmetic
    >>> a = Arithmetic().resolve("float32")
    >>> bool(column_parallel_bound(a, np.ones((1, 2)), [np.ones((2, 1))], [np.ones(1)])["out.0"].max() < 2e-6)
    True
    """
    x = arguments.widen("x", x)
    parts = [(arguments.widen("w_shards", w), arguments.widen("bias_shards", b)) for w, b in zip(w_shards, bias_shards)]
    return checked({f"out.{r}": _linear(arithmetic, [(x, w)], b) for r, (w, b) in enumerate(parts)})


def row_parallel_bound(arithmetic: ResolvedArithmetic, x_shards: Sequence[ArrayLike], w_shards: Sequence[ArrayLike], bias: ArrayLike
                       ) -> dict[str, Float64]:
    """As `column_parallel_bound`, over all C rows and R ranks, whose partial products may be stored in `out`: {"out.0", …}.

        g(C + R + 2, u) (|x| |w| + |b|) + (R + 1) u_out |x| |w|,  then one rounding of `out`
    """
    pairs = [(arguments.widen("x_shards", x), arguments.widen("w_shards", w)) for x, w in zip(x_shards, w_shards)]
    bound = _linear(arithmetic, pairs, arguments.widen("bias", bias))
    return checked({f"out.{r}": bound for r in range(len(pairs))})


def _linear(arithmetic: ResolvedArithmetic, pairs: list[tuple[Float64, Float64]], bias: Float64) -> Float64:
    """The bound of sum_r x_r w_r + bias."""
    r, R = roundings(arithmetic), len(pairs)
    u, terms = _coarser(r), sum(x.shape[1] for x, _ in pairs)
    product = np.sum([np.abs(x) @ np.abs(w) for x, w in pairs], axis=0)
    size, exact = product + np.abs(bias), np.sum([x @ w for x, w in pairs], axis=0) + bias
    eta = max(r.accumulate.eta, r.elementwise.eta)
    growth = g(float(terms + R + 2), u)
    stored = (R + 1.0) * (r.out.u * product * (1.0 + growth) + np.minimum(r.out.eta, product))
    error = growth * size + stored + np.minimum(2.0 * (terms + R) * eta, 2.0 * size + 2.0 * (terms + R) * eta * (product > 0.0))
    error = np.where(size * (1.0 + growth) > min(r.accumulate.largest, r.out.largest), np.inf, error)
    return np.asarray(r.out.bound(exact, error))


def shard_qkv_bound(arithmetic: ResolvedArithmetic, shards: tuple[list[Any], ...]) -> dict[str, Float64]:
    """How far shards may be from the columns of the whole: {"q.0", …, "k.0", …, "v.0", …}, 0 but where `out` is a narrower format.

    >>> from oracles.properties import Arithmetic
    >>> shard_qkv_bound(Arithmetic().resolve("float32"), ([np.ones((1, 2))], [np.ones((1, 1))], [np.ones((1, 1))]))["q.0"]
    array([[0., 0.]])
    """
    return {f"{name}.{r}": moved_bound(arithmetic, arguments.widen(name, a)) for name, own in zip("qkv", shards) for r, a in enumerate(own)}


def vocab_parallel_embedding_bound(arithmetic: ResolvedArithmetic, tokens: ArrayLike, table: ArrayLike, *, world: int
                                   ) -> dict[str, Float64]:
    """How far rows may be from those of the table: {"out.0", …}, 0 but where `out` is a narrower format: zeros are added exactly.

    >>> from oracles.properties import Arithmetic
    >>> vocab_parallel_embedding_bound(Arithmetic().resolve("float32"), [0], [[1.0]], world=1)["out.0"]
    array([[0.]])
    """
    rows = moved_bound(arithmetic, arguments.widen("table", table)[np.asarray(tokens)])
    return {f"out.{r}": rows for r in range(world)}


def vocab_parallel_cross_entropy_backward_bound(
    arithmetic: ResolvedArithmetic, shards: ArrayLike, targets: ArrayLike, dloss: ArrayLike, **options: Any
) -> dict[str, Float64]:  # fmt: skip
    """`cross_entropy_backward_bound` of the whole vocabulary, where every shard may rescale and be merged: {"dshards"} (R, ..., V/R).

    >>> from oracles.properties import Arithmetic
    >>> a = Arithmetic().resolve("float32")
    >>> bound = vocab_parallel_cross_entropy_backward_bound(a, np.zeros((2, 1, 2)), [0], 1.0, reduction="mean")["dshards"]
    >>> bound.shape, bool(bound.max() < 4e-6)
    ((2, 1, 2), True)
    """
    parts = arguments.widen("shards", shards)
    whole = cross_entropy_backward_bound(replace(arithmetic, tile_min=1), np.concatenate(list(parts), axis=-1), targets, dloss, **options)
    return {"dshards": np.stack(np.split(whole["dlogits"], len(parts), axis=-1))}


def norm_backward_sharded_bound(
    arithmetic: ResolvedArithmetic, x_shards: Sequence[ArrayLike], weight: ArrayLike, dout_shards: Sequence[ArrayLike], *,
    eps: float = 1e-6, sharded: str,
) -> dict[str, Float64]:  # fmt: skip
    """How far gradients of a sharded `rms_norm` may be from the exact ones: {"dx.0", …, "dweight.0", …}.

        dx        g(3 D + 20, u) (|w dy| + |n| mean |w dy n|) / r,  then one rounding of `out`
        dweight   g(M + D / 2 + 8, u) sum |dy n| + (R + 1) u_out sum |dy n|,  then one rounding of `out`;  M vectors in all

    1 / r has at most D / 2 + 4 roundings, as long as no square overflows or underflows: inf where one may.

    >>> from oracles.properties import Arithmetic
    >>> a, ones = Arithmetic().resolve("float32"), np.ones((1, 1, 2))
    >>> bool(norm_backward_sharded_bound(a, [ones], np.ones(2), [ones], sharded="heads")["dweight.0"].max() < 4e-6)
    True
    """
    r = roundings(arithmetic)
    u, eta, w = _coarser(r), max(r.accumulate.eta, r.elementwise.eta), arguments.widen("weight", weight)
    bounds: dict[str, Float64] = {}
    terms, total, exact, open_sum = 0, np.zeros(w.shape), np.zeros(w.shape), False
    for i, (x, d) in enumerate((arguments.widen("x", a), arguments.widen("dout", b)) for a, b in zip(x_shards, dout_shards)):
        D = x.shape[-1]
        mean = (x * x).mean(axis=-1, keepdims=True)
        root = np.sqrt(mean + eps)
        n = x / root
        wide = (mean * D > r.accumulate.largest) | (mean * D > r.elementwise.largest) | (D * eta > u * (mean + eps))
        spread = (np.abs(w * d * n)).mean(axis=-1, keepdims=True)
        size = (np.abs(w * d) + np.abs(n) * spread) / root
        dx = (w * d - n * (w * d * n).mean(axis=-1, keepdims=True)) / root
        error = g(3.0 * D + 20.0, u) * size + (4.0 * D + 8.0) * eta * (1.0 + np.abs(n)) * (1.0 + 1.0 / root) * (size > 0.0)
        bounds[f"dx.{i}"] = r.out.bound(dx, np.where(wide, np.inf, error))
        terms += x.shape[0] * x.shape[1]
        total, exact = total + np.abs(d * n).sum(axis=(0, 1)), exact + (d * n).sum(axis=(0, 1))
        open_sum = open_sum or bool(wide.any())
    R = len(x_shards)
    growth = g(terms + w.size / 2.0 + 8.0, u)
    error = growth * total + (R + 1.0) * r.out.u * total * (1.0 + growth) + (4.0 * terms + R) * max(eta, r.out.eta) * (total > 0.0)
    dweight = r.out.bound(exact, np.where(open_sum | (total * 2.0 > r.accumulate.largest), np.inf, error))
    return checked({**bounds, **{f"dweight.{i}": dweight for i in range(R)}})


def clip_grad_norm_sharded_bound(arithmetic: ResolvedArithmetic, grads: Sequence[ArrayLike], placement: ArrayLike, *, max_norm: float,
                                 added: float = 0.0) -> dict[str, Float64]:
    """`clip_grad_norm_bound` of every element once, with R + 2 more roundings of the norm: {"grads.0", …, "norm"}.

    added: what a declared convention adds to the norm it divides by.

    >>> from oracles.properties import Arithmetic
    >>> a = Arithmetic().resolve("float32")
    >>> clip_grad_norm_sharded_bound(a, [np.ones((2, 1))], [0], max_norm=4.0)["grads.0"].tolist()
    [[0.0], [0.0]]
    """
    wide = [arguments.widen("grads", x) for x in grads]
    R, kinds = wide[0].shape[0], np.asarray(placement).tolist()
    # Zeros beside the elements stand for the sums over ranks: each adds a rounding, and nothing to the norm.
    once = [x if kind else x[:1] for x, kind in zip(wide, kinds)] + [np.zeros(2 * R + 4)]
    bounds = clip_grad_norm_bound(arithmetic, once, max_norm=max_norm, added=added)
    rows = {f"grads.{k}": np.broadcast_to(bounds[f"grads.{k}"], x.shape).copy() for k, x in enumerate(wide)}
    return {**rows, "norm": bounds["norm"]}


def _coarser(r: Roundings) -> float:
    return max(r.accumulate.u, r.elementwise.u) + _OWN
