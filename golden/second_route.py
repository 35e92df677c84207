"""The second route to golden values: the textbook formula of one element at a time, in mpmath, on a sample of every case.

Nothing is arranged to keep digits: softmax is e^s over the sum of e^s, whatever the size of s, in numbers whose exponent has no end.
An element agrees where its value rounds to hi, and what is left of it to lo; computed to 400 bits, and where that is too little for a
cancellation to 4000. Needs mpmath, an extra: pip install 'oracles[certify]'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from oracles.properties.array_lists import whole_name
from oracles.properties.case import Case

from . import (
    draws,
    textbook_collectives,
    textbook_experts,
    textbook_losses,
    textbook_optimizers,
    textbook_pipeline,
    textbook_quantization,
    textbook_ring,
    textbook_shards,
)
from .certified import Limbs
from .textbook_attention import PackedRows, PagedRows, TextbookRows, latent_rows, mp

PRECISIONS = (400, 4000)                                                        # bits
ELEMENTS = 6                                                                    # of each result of a case
MOST_WORK = 200_000                                                             # products an element may take: larger cases have no sample

Place = tuple[str, tuple[int, ...]]
Element = Callable[[str, tuple[int, ...]], Any]


def sample(case: Case, limbs: Mapping[str, Limbs]) -> list[Place]:
    """The elements of a case that are computed again, drawn by its name; none where one of them takes too long."""
    if _work(case) > MOST_WORK:
        return []
    places = []
    for name, value in limbs.items():
        if value.hi.size:
            drawn = draws.whole(f"second route {case.operation} {case.origin} {name}", (ELEMENTS,), 0, value.hi.size).tolist()
            places += [(name, tuple(int(i) for i in np.unravel_index(n, value.hi.shape))) for n in sorted(set(drawn))]
    return places


def _work(case: Case) -> int:
    """How many products the dearest element takes, roughly: for a gradient all scores of a head."""
    if not case.operation.startswith(("attention", "paged", "mla", "ring")):
        return 0
    keys = max(_size(case, name) for name in ("k", "k_pages", "k_rope", "latent", "k_shards"))
    name = next(name for name in ("q", "q_nope", "q_shards") if _size(case, name, least=-1) >= 0)
    width = next(x.shape[-1] for one, x in case.arrays.items() if whole_name(one) == name)
    return int(keys * (max(_size(case, name) // max(width, 1), 1) if case.operation.endswith("backward") else 1))


def _size(case: Case, name: str, *, least: int = 0) -> int:
    """The elements of an argument, of all arrays of a list; `least` where it is not there."""
    sizes = [x.size for one, x in case.arrays.items() if whole_name(one) == name]
    return sum(sizes) if sizes else least


def disagreements(case: Case, limbs: Mapping[str, Limbs], places: list[Place]) -> list[str]:
    """The elements whose second route gives other limbs, for people."""
    left: list[Place] = list(places)
    got: dict[Place, tuple[float, float]] = {}
    for precision in PRECISIONS:
        with mp().workprec(precision):
            element = FORMULAS[case.operation](case.arguments())
            got |= {place: _limbs(element(*place)) for place in left}
        left = [(name, index) for name, index in left if got[name, index] != _held(limbs[name], index)]
    return [f"{name}{list(index)} is {_held(limbs[name], index)}; the textbook formula gives {got[name, index]}" for name, index in left]


def _held(value: Limbs, index: tuple[int, ...]) -> tuple[float, float]:
    return float(value.hi[index]), float(value.lo[index])


def _limbs(x: Any) -> tuple[float, float]:
    if not mp().isfinite(x):
        return float(x), 0.0
    hi = _nearest(x)
    return hi, _nearest(x - hi)


def _nearest(x: Any) -> float:
    """The nearest float64, by division of integers, which Python rounds correctly; mpmath's own conversion rounds subnormals twice."""
    sign, man, exponent, _ = x._mpf_
    n = -int(man) if sign else int(man)
    if n.bit_length() + exponent < -1075:                                       # below half of the smallest number, e^-10^38 for one
        return 0.0
    return float(n * 2**exponent if exponent >= 0 else n / 2**-exponent)


def _rows(arguments: Mapping[str, Any], name: str, axis: int) -> Any:
    return np.moveaxis(np.asarray(arguments[name]).astype(np.float64), axis, -1)


def _exp(x: float) -> Any:
    return mp().mpf(0) if np.isneginf(x) else mp().exp(mp().mpf(float(x)))


def _softmax(arguments: Mapping[str, Any]) -> Element:
    axis = int(arguments.get("axis", -1))
    x = np.asarray(arguments["x"]).astype(np.float64)

    def element(name: str, index: tuple[int, ...]) -> Any:
        row = np.moveaxis(x, axis, -1)[index[: axis % x.ndim] + index[axis % x.ndim + 1 :]]
        total = mp().fsum(_exp(one) for one in row)
        return _exp(x[index]) / total if total else total

    return element


def _log_sum_exp(arguments: Mapping[str, Any]) -> Element:
    x = _rows(arguments, "x", int(arguments.get("axis", -1)))
    return lambda name, index: _log(mp().fsum(_exp(one) for one in x[index]))


def _log(x: Any) -> Any:
    return mp().log(x) if x else -mp().inf


def _merge(arguments: Mapping[str, Any]) -> Element:
    out_a, lse_a, out_b, lse_b = (np.asarray(arguments[name]).astype(np.float64) for name in ("out_a", "lse_a", "out_b", "lse_b"))

    def element(name: str, index: tuple[int, ...]) -> Any:
        row = index if name == "lse" else index[:-1]
        a, b = _exp(lse_a[row]), _exp(lse_b[row])
        if name == "lse" or not a + b:
            return _log(a + b) if name == "lse" else mp().mpf(0)
        return (a * float(out_a[index]) + b * float(out_b[index])) / (a + b)

    return element


def _rope(arguments: Mapping[str, Any]) -> Element:
    x = np.asarray(arguments["x"]).astype(np.float64)
    R = int(arguments.get("rotary_dim") or x.shape[-1])
    positions = np.broadcast_to(np.asarray(arguments["positions"]), x.shape[:-1])
    half = arguments["pairing"] == "half"

    def element(name: str, index: tuple[int, ...]) -> Any:
        *row, d = index
        if d >= R:
            return mp().mpf(float(x[index]))
        i, second = (d % (R // 2), d >= R // 2) if half else (d // 2, d % 2 == 1)
        other = (d - R // 2 if second else d + R // 2) if half else (d - 1 if second else d + 1)
        f, m = _frequency(i, R, mp().mpf(float(arguments.get("base", 10000.0))), arguments.get("scaling"))
        turn = mp().expj(f * int(positions[tuple(row)]))                        # (a + i b) e^(i t)
        a, b = mp().mpf(float(x[index])), mp().mpf(float(x[(*row, other)]))
        return m * (b * turn.imag + a * turn.real if second else a * turn.real - b * turn.imag)

    return element


def _frequency(i: int, R: int, base: Any, scaling: Mapping[str, Any] | None) -> tuple[Any, Any]:
    m, s = mp(), {name: mp().mpf(float(v)) for name, v in (scaling or {}).items() if name not in ("kind", "truncate")}
    kind, one = (scaling or {}).get("kind"), mp().mpf(1)
    if kind == "ntk":
        base *= s["factor"] ** (m.mpf(R) / (R - 2))
    f = one / base ** (m.mpf(2 * i) / R)
    if kind == "linear":
        return f / s["factor"], one
    if kind == "llama3":
        wavelength = 2 * m.pi / f
        r = (s["original_max_position_embeddings"] / wavelength - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])
        r = min(max(r, m.mpf(0)), one)
        return (1 - r) * f / s["factor"] + r * f, one
    if kind == "yarn":
        edges = [R * m.log(s["original_max_position_embeddings"] / (s[beta] * 2 * m.pi)) / (2 * m.log(base))
                 for beta in ("beta_fast", "beta_slow")]  # fmt: skip
        low, high = (m.floor(edges[0]), m.ceil(edges[1])) if scaling and scaling["truncate"] else edges
        low, high = min(max(low, 0), R - 1), max(min(high, R - 1), 0)
        r = min(max((i - low) / (high - low if high != low else one / 1000), m.mpf(0)), one)
        grown = [1 if s["factor"] <= 1 else 1 + s[name] * m.log(s["factor"]) / 10 for name in ("mscale", "mscale_all_dim")]
        return f * (1 - r + r / s["factor"]), grown[0] / m.mpf(grown[1])
    return f, one


def _filter(arguments: Mapping[str, Any]) -> Element:
    z = np.asarray(arguments["logits"]).astype(np.float64)
    rows, V = z.shape[:-1], z.shape[-1]
    T, k, p, least = (np.broadcast_to(np.asarray(arguments.get(name, none)), rows) for name, none in
                      (("temperature", 1.0), ("top_k", V), ("top_p", 1.0), ("min_p", 0.0)))

    def element(name: str, index: tuple[int, ...]) -> Any:
        row, i = index[:-1], index[-1]
        order = sorted(range(V), key=lambda j: (-z[row][j], j))
        if T[row] == 0.0:
            return mp().mpf(int(i == order[0]))
        q = [mp().mpf(0) if np.isneginf(x) else mp().exp(mp().mpf(float(x)) / mp().mpf(float(T[row]))) for x in z[row]]
        largest = max(q)
        q = [x if j in order[: int(k[row])] else mp().mpf(0) for j, x in enumerate(q)]
        total, mass = mp().fsum(q), mp().mpf(0)
        kept: list[int] = []
        for j in order:
            if q[j] and (not kept or p[row] == 1.0 or mass < mp().mpf(float(p[row])) * total):
                kept.append(j)
            mass += q[j]
        kept = [j for j in kept if q[j] >= mp().mpf(float(least[row])) * largest]
        return q[i] / mp().fsum(q[j] for j in kept) if i in kept else mp().mpf(0)

    return element


def _mtp(arguments: Mapping[str, Any]) -> Element:
    z, ids = np.asarray(arguments["logits"]).astype(np.float64), np.asarray(arguments["tokens"]).tolist()
    K, T, _ = z.shape
    weights, segments = arguments.get("weights"), arguments.get("segments")

    def element(name: str, index: tuple[int, ...]) -> Any:
        loss = mp().mpf(0)
        for j in range(1, K + 1):
            terms = []
            for t in range(T - j):
                if ids[t + j] == -100 or (segments is not None and segments[t] != segments[t + j]):
                    continue
                terms.append(-mp().log(_exp(z[j - 1, t, ids[t + j]]) / mp().fsum(_exp(x) for x in z[j - 1, t])))
            if terms:
                loss += (1 if weights is None else mp().mpf(float(weights[j - 1]))) * mp().fsum(terms) / len(terms)
        return loss

    return element


FORMULAS: dict[str, Callable[[Mapping[str, Any]], Element]] = {
    "softmax": _softmax,
    "log_sum_exp": _log_sum_exp,
    "merge_attention": _merge,
    "attention": lambda arguments: TextbookRows(arguments).element,
    "attention_backward": lambda arguments: TextbookRows(arguments).element,
    "attention_packed": lambda arguments: PackedRows(arguments).element,
    "attention_packed_backward": lambda arguments: PackedRows(arguments).element,
    "paged_attention": lambda arguments: PagedRows(arguments).element,
    "mla_attention": lambda arguments: latent_rows(arguments).element,
    "rope": _rope,
    "filter_probabilities": _filter,
    "mtp_loss": _mtp,
    "cross_entropy": textbook_losses.cross_entropy,
    "cross_entropy_backward": textbook_losses.cross_entropy_backward,
    "vocab_parallel_cross_entropy": textbook_losses.vocab_parallel_cross_entropy,
    "distillation_loss": textbook_losses.distillation_loss,
    "distillation_loss_backward": textbook_losses.distillation_loss_backward,
    "quantize": textbook_quantization.quantize,
    "dequantize": textbook_quantization.dequantize,
    "dequantize_blockwise": textbook_quantization.dequantize_blockwise,
    "quantized_matmul": textbook_quantization.quantized_matmul,
    "adamw_step": textbook_optimizers.adamw_step,
    "master_weight_step": textbook_optimizers.master_weight_step,
    "clip_grad_norm": textbook_optimizers.clip_grad_norm,
    "all_reduce": textbook_collectives.all_reduce,
    "reduce_scatter": textbook_collectives.reduce_scatter,
    "all_gather": textbook_collectives.all_gather,
    "bucketed_all_reduce": textbook_collectives.bucketed_all_reduce,
    "accumulate_gradients": textbook_collectives.accumulate_gradients,
    "tied_gradients": textbook_collectives.tied_gradients,
    "column_parallel": textbook_shards.column_parallel,
    "row_parallel": textbook_shards.row_parallel,
    "shard_qkv": textbook_shards.shard_qkv,
    "vocab_parallel_embedding": textbook_shards.vocab_parallel_embedding,
    "vocab_parallel_cross_entropy_backward": textbook_shards.vocab_parallel_cross_entropy_backward,
    "norm_backward_sharded": textbook_shards.norm_backward_sharded,
    "clip_grad_norm_sharded": textbook_shards.clip_grad_norm_sharded,
    "ring_attention": textbook_ring.ring_attention,
    "ring_attention_backward": textbook_ring.ring_attention,
    "sharded_cache_attention": textbook_ring.sharded_cache_attention,
    "exchanged_norm_backward": textbook_ring.exchanged_norm_backward,
    "route": textbook_experts.route,
    "balance_loss": textbook_experts.balance_loss,
    "balance_loss_backward": textbook_experts.balance_loss_backward,
    "moe_layer": textbook_experts.moe_layer,
    "expert_parallel_backward": textbook_experts.expert_parallel_backward,
    "pipeline_loss": textbook_pipeline.pipeline_loss,
    "pipeline_step": textbook_pipeline.pipeline_step,
}
