"""A mixture of experts: routing, places, dispatch, one product an expert, combine (kernels/experts.cu)."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import arguments
from .launching import DEFAULT_SHARED, Backend, Launcher, ceil_div, cpp_type

WARPS, COLUMNS, TILE = 4, 128, 16
MOST_EXPERTS = DEFAULT_SHARED // (4 * WARPS)                                    # whose scores fit into the shared memory of a block
NO_LIMIT = 2**62


def route(logits: Any, *, k: int, normalize: bool, bias: Any = None, backend: str | Backend = "cuda") -> tuple[Any, Any]:
    """The k experts of each token and their gates: ids int64 (T, k), gates float32 (T, k).

        p = softmax(logits),   ids = the k largest of p + bias, of equals the lowest index,   gates = p[ids], over their sum where normalize

    logits (T, E) in float32, float16 or bfloat16, bias (E,) in whatever float, used in float32.

    >>> ids, gates = route(np.zeros((1, 4), np.float32), k=2, normalize=True, bias=[0.0, 0.0, 1.0, 0.0], backend="emulated")
    >>> ids.tolist(), gates.tolist()
    ([[2, 0]], [[0.5, 0.5]])

    Raises ValueError for NaN, +inf and k outside 1..E, NotImplementedError for very many experts, RuntimeError where there is no device.
    Error bound: `properties.bounds.route_bound` under the default Arithmetic. Source: Shazeer et al. 2017 (arXiv 1701.06538).
    """
    logits = arguments.floats("logits", logits, ndim=2)
    run = Launcher(backend, logits=logits)
    ids, gates = _route(run, logits, k, normalize, bias)
    return run.give(ids, "int64"), run.give(gates, "float32")


def expert_slots(ids: Any, *, experts: int, capacity: int | None = None, backend: str | Backend = "cuda") -> Any:
    """The place of each assignment among those of its expert: int64 (T, k), -1 where the expert is full.

    The first choices of all tokens in their order, then the second ones, and so on. Exact.

    >>> expert_slots(np.array([[0, 1], [0, 1], [1, 0]]), experts=2, capacity=2, backend="emulated").tolist()
    [[0, 1], [1, -1], [0, -1]]

    Source: Lepikhin et al. 2020 (arXiv 2006.16668), algorithm 1.
    """
    experts = arguments.whole_number("experts", experts, least=1)
    run, chosen = Launcher(backend, ids=ids), _assignments("ids", ids, least=0, most=experts - 1)
    return run.give(_slots(run, run.take(chosen), experts, capacity)[0], "int64")


def dispatch(x: Any, ids: Any, slots: Any, *, experts: int, places: int | None = None, backend: str | Backend = "cuda") -> Any:
    """The tokens x (T, D) at their places: (E, C, D) in their format, zeros where nobody is. places: C, None: as many as are taken.

        buffer[ids_tj, slots_tj] = x_t   for slots_tj >= 0

    >>> dispatch(np.array([[1], [2]], np.float32), [[0], [0]], [[1], [-1]], experts=1, backend="emulated").tolist()
    [[[0.0], [1.0]]]

    Exact. Raises ValueError where two assignments share a place. Source: as `expert_slots`.
    """
    x = arguments.floats("x", x, ndim=2)
    experts = arguments.whole_number("experts", experts, least=1)
    at = _assignments("slots", slots, least=-1, most=2**31 - 1)
    ids = _assignments("ids", ids, least=0, most=experts - 1, shape=at.shape)
    if len(at) != len(x):
        raise ValueError(f"slots: got shape {at.shape} for {len(x)} tokens; want ({len(x)}, k)")
    least = int(at.max(initial=-1)) + 1
    C = least if places is None else arguments.whole_number("places", places, least=least)
    kept = (ids * max(C, 1) + at)[at >= 0]
    if len(np.unique(kept)) != len(kept):
        raise ValueError("slots: got one place of an expert twice; want each at most once")
    run = Launcher(backend, x=x)
    return run.give(_dispatch(run, x, run.take(ids), run.take(at), experts, C), x.dtype.name)


def combine(buffer: Any, ids: Any, slots: Any, gates: Any, *, backend: str | Backend = "cuda") -> Any:
    """What the experts made of the tokens, back at the tokens and weighted: (T, F) in the format of the buffer (E, C, F).

        out_t = sum over j with slots_tj >= 0 of gates_tj buffer[ids_tj, slots_tj]

    gates (T, k) in whatever float, used in float32; those of other experts are not raised for what was dropped.

    >>> combine(np.array([[[2], [4]]], np.float32), [[0], [0]], [[1], [-1]], [[0.5], [1.0]], backend="emulated").tolist()
    [[2.0], [0.0]]

    Error bound: k u sum |gates| |buffer|. Source: Lepikhin et al. 2020 (arXiv 2006.16668), equation 3.
    """
    buffer = arguments.floats("buffer", buffer, ndim=3)
    E, C, F = buffer.shape
    at = _assignments("slots", slots, least=-1, most=C - 1)
    ids = _assignments("ids", ids, least=0, most=E - 1, shape=at.shape)
    gates = np.asarray(gates.get() if hasattr(gates, "get") else gates)
    if gates.shape != at.shape:
        raise ValueError(f"gates: got shape {gates.shape}; want {at.shape}")
    run = Launcher(backend, buffer=buffer)
    y, kept = run.take(buffer, "float32"), run.take(gates, "float32")
    return run.give(_combine(run, y, run.take(ids), run.take(at), kept, F, buffer), buffer.dtype.name)


def moe_layer(
    x: Any, logits: Any, weights: Any, *, k: int, normalize: bool, bias: Any = None, capacity: int | None = None,
    backend: str | Backend = "cuda",
) -> tuple[Any, Any]:  # fmt: skip
    """The layer whose experts are one matrix each: out (T, F) in the format of x, slots int64 (T, k), -1 where a token was dropped.

        ids, gates = route(logits),   slots = expert_slots(ids),   out = combine(dispatch(x) weights)

    x (T, D), logits (T, E), weights (E, D, F) in one format; products and sums in float32. The host waits once, for the number of places.

    >>> one = np.ones((1, 1), np.float32)
    >>> moe_layer(one, one, np.full((1, 1, 1), 3, np.float32), k=1, normalize=True, backend="emulated")
    (array([[3.]], dtype=float32), array([[0]]))

    Raises as `route`, and ValueError for shapes that do not fit.
    Error bound: `properties.bounds.moe_layer_bound` under the default Arithmetic. Source: as `route` and `expert_slots`.
    """
    x = arguments.floats("x", x, ndim=2)
    logits = arguments.floats("logits", logits, ndim=2, like=x)
    weights = arguments.floats("weights", weights, ndim=3, like=x)
    (T, D), (E, _, F) = x.shape, weights.shape
    if weights.shape[1] != D:
        raise ValueError(f"weights: got shape {tuple(weights.shape)} for x {tuple(x.shape)}; want (E, {D}, F)")
    if tuple(logits.shape) != (T, E):
        raise ValueError(f"logits: got shape {tuple(logits.shape)}; want ({T}, {E}), tokens of x and experts of weights")
    run = Launcher(backend, x=x, logits=logits, weights=weights)
    ids, gates = _route(run, logits, k, normalize, bias)
    slots, counts = _slots(run, ids, E, capacity)
    C = int(counts.max()) if T else 0
    buffer = _dispatch(run, x, ids, slots, E, C)
    y = run.new((E, C, F), "float32")
    run.launch("experts.cu", f"expert_matmul<{cpp_type(x)}>", (ceil_div(F, TILE), ceil_div(C, TILE), E), (TILE, TILE),
               [buffer, run.take(weights), counts, y, C, D, F], outputs=("y",))
    return run.give(_combine(run, y, ids, slots, gates, F, x), x.dtype.name), run.give(slots, "int64")


def _route(run: Launcher, logits: Any, k: int, normalize: bool, bias: Any) -> tuple[Any, Any]:
    T, E = logits.shape
    if E == 0:
        raise ValueError(f"logits: got shape {tuple(logits.shape)}; want (T, E) with at least one expert")
    if E > MOST_EXPERTS:
        raise NotImplementedError(f"logits: got {E:,} experts; the kernel takes at most {MOST_EXPERTS:,}")
    k = arguments.whole_number("k", k, least=1)
    if k > E:
        raise ValueError(f"k: got {k} for {E} experts; want 1..{E}")
    if not isinstance(normalize, bool | np.bool_):
        raise TypeError(f"normalize: got {normalize!r}; want True or False")
    wide = logits.astype("float32")
    if bool((wide != wide).any()) or bool((wide == np.inf).any()):
        raise ValueError("logits: got NaN or +inf; want numbers that have an order")
    ids, gates = run.new((T, k), "int64"), run.new((T, k), "float32")
    run.launch("experts.cu", f"route<{cpp_type(logits)}>", (ceil_div(T, WARPS),), (32, WARPS),
               [run.take(logits), None if bias is None else run.take(_bias(bias, E)), ids, gates, T, E, k, bool(normalize)],
               shared_mem=4 * WARPS * E, outputs=("ids", "gates"))
    return ids, gates


def _bias(bias: Any, E: int) -> Any:
    bias = np.asarray(bias.get() if hasattr(bias, "get") else bias).astype(np.float32)
    if bias.shape != (E,):
        raise ValueError(f"bias: got shape {bias.shape}; want ({E},)")
    if not np.isfinite(bias).all():
        raise ValueError(f"bias: got {bias[~np.isfinite(bias)][0]}; want finite numbers")
    return bias


def _slots(run: Launcher, ids: Any, experts: int, capacity: int | None) -> tuple[Any, Any]:
    limit = NO_LIMIT if capacity is None else arguments.whole_number("capacity", capacity, least=0)
    slots, counts = run.new(ids.shape, "int64"), run.new((experts,), "int32")
    run.launch("experts.cu", "slots_of", (experts,), (32,), [ids, slots, counts, *ids.shape, limit], outputs=("slots", "counts"))
    return slots, counts


def _dispatch(run: Launcher, x: Any, ids: Any, slots: Any, experts: int, C: int) -> Any:
    (T, D), k = x.shape, ids.shape[1]
    buffer = run.new((experts, C, D), x.dtype.name, fill=0)
    run.launch("experts.cu", f"dispatch<{cpp_type(x)}>", (T * k,), (COLUMNS,), [run.take(x), ids, slots, buffer, k, C, D])
    return buffer


def _combine(run: Launcher, y: Any, ids: Any, slots: Any, gates: Any, F: int, like: Any) -> Any:
    T, k = ids.shape
    out = run.new((T, F), like.dtype.name)
    run.launch("experts.cu", f"combine<{cpp_type(like)}>", (T, ceil_div(F, COLUMNS)), (COLUMNS,),
               [y, ids, slots, gates, out, k, y.shape[1], F], outputs=("out",))
    return out


def _assignments(name: str, x: Any, *, least: int, most: int, shape: tuple[int, ...] | None = None) -> Any:
    whole = arguments.integers(name, x, least=least, most=most, shape=shape)
    if whole.ndim != 2 or whole.shape[1] == 0:
        raise ValueError(f"{name}: got shape {whole.shape}; want (T, k) with k at least 1")
    return whole.astype(np.int64)
