"""A feed-forward layer of experts on a mesh: experts shared out over ep, their hidden width over tp, tokens sent to them and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .arguments import Array, Float64, Int64
from .collectives import all_reduce, all_to_all
from .experts import combine, dispatch, dispatch_weighted, expert_slots, gathered
from .parallel_pieces import Back, Gradients, Setting, Weights, over_tokens
from .placed_arithmetic import added
from .placed_collectives import gathered as all_gathered
from .placed_collectives import reduce_scattered, reduced, sliced
from .placement import Partial, Placed, Replicated, Shard, want
from .routing import route, route_backward
from .swiglu_backward import silu_and_slope

MATRICES = ("w_gate", "w_up", "w_down")


def experts_layer(setting: Setting, w: Weights, x: Placed, name: str) -> tuple[Placed, Back]:
    """`moe_swiglu` of the tokens of all ranks of ep: x (b, n, E), tokens cut over dp, ep, cp, and over tp under sequence parallelism.

        every rank routes its tokens,   all_to_all over ep,   the experts it holds,   all_to_all back,   the sum over tp

    What the experts make is a partial sum over tp, and so are the gradients of the gates until they are reduced. The gradient of an
    expert has the tokens of all ranks of ep in it: it is a partial sum over dp and cp alone.

    >>> from .parallel_layout import ParallelLayout
    >>> from .placement import place
    >>> from .transformer import Decoder
    >>> sizes = Decoder(vocabulary=2, width=1, layers=1, heads=2, kv_heads=2, head_size=2, hidden=2, experts=2)
    >>> layout, one = ParallelLayout.read("tp2"), np.ones((2, 1, 2))
    >>> w = {"w_router": place("w_router", np.zeros((1, 2)), layout.mesh), "w_gate": place("g", one, layout.mesh, ep=Shard(0), tp=Shard(2))}
    >>> w |= {"w_up": w["w_gate"], "w_down": place("d", one.swapaxes(1, 2), layout.mesh, ep=Shard(0), tp=Shard(1))}
    >>> y, back = experts_layer(Setting(sizes, layout), w, place("x", np.ones((1, 1, 1)), layout.mesh), "layers.0")
    >>> y.arrays[0].round(4).tolist(), y.along("tp"), back(y)[1]["w_gate"].along("dp")
    ([[[1.4621]]], Replicated(), Partial())

    Raises PlacementError where an array is not what the layer takes. Error bound: as `moe_swiglu`.
    Source: Lepikhin et al. 2020 (arXiv 2006.16668), section 3.2; with tp: Singh et al. 2023 (arXiv 2303.06318).
    """
    layer = f"{name}.experts"
    want(layer, w["w_router"], tp=Replicated(), ep=Replicated())
    want(layer, w["w_gate"], ep=Shard(0), tp=Shard(2))
    want(layer, w["w_down"], ep=Shard(0), tp=Shard(1))
    ranks, ledger = x.mesh.ranks, setting.ledger
    whole = want(layer, x, tp=Replicated()) if setting.sequence is None else all_gathered(x, "tp", layer=layer, ledger=ledger)
    rows = [a.reshape(-1, a.shape[-1]) for a in whole.arrays]
    logits = [a @ r for a, r in zip(rows, w["w_router"].arrays)]
    normalize = setting.decoder.normalize_gates
    routed = [route(z, k=setting.decoder.active, normalize=normalize) for z in logits]
    trip = _Trip.of(setting, [ids for ids, _ in routed])
    gates = [g for _, g in routed]
    sent = trip.there([dispatch(a, *at, experts=trip.experts, places=trip.places) for a, at in zip(rows, trip.at)])
    inner = [_inside(sent[r], w["w_gate"].arrays[r], w["w_up"].arrays[r]) for r in range(ranks)]
    done = trip.back([s * a @ w["w_down"].arrays[r] for r, (s, a, _) in enumerate(inner)])
    out = [combine(y, *at, g).reshape(a.shape) for y, at, g, a in zip(done, trip.at, gates, whole.arrays)]
    summed = _together(setting, whole.with_arrays(out, {"tp": Partial()}, name=f"{layer}.out"), layer)

    def back(dy: Placed) -> tuple[Placed, Gradients]:
        all_dy = dy if setting.sequence is None else all_gathered(dy, "tp", layer=layer, ledger=ledger)
        d = [a.reshape(-1, a.shape[-1]) for a in want(layer, all_dy, tp=Replicated()).arrays]
        parts = [(gathered(y, *at) * a[:, None]).sum(axis=-1) for y, at, a in zip(done, trip.at, d)]
        dgates = reduced(whole.with_arrays(parts, {"tp": Partial()}, name=f"{layer}.dgates"), "tp", layer=layer, ledger=ledger)
        dlogits = [route_backward(z, at[0], g, normalize=normalize) for z, at, g in zip(logits, trip.at, dgates.arrays)]
        dsent = trip.there([dispatch_weighted(a, *at, g, experts=trip.experts, places=trip.places) for a, at, g in zip(d, trip.at, gates)])
        own = [_inside_backward(sent[r], inner[r], [w[n].arrays[r] for n in MATRICES], dsent[r]) for r in range(ranks)]
        home = [gathered(y, *at).sum(axis=1) for y, at in zip(trip.back([one[0] for one in own]), trip.at)]
        of_experts = whole.with_arrays([a.reshape(b.shape) for a, b in zip(home, whole.arrays)], {"tp": Partial()}, name=f"{layer}.dx")
        of_router = whole.with_arrays([(z @ r.T).reshape(b.shape) for z, r, b in zip(dlogits, w["w_router"].arrays, whole.arrays)])
        dx = added(reduced(of_experts, "tp", layer=layer, ledger=ledger), of_router, layer=layer, name=f"{layer}.dx")
        dx = dx if setting.sequence is None else sliced(dx, "tp", setting.sequence, layer=layer)
        gradients = {"w_router": w["w_router"].with_arrays([a.T @ z for a, z in zip(rows, dlogits)], over_tokens(), name="w_router")}
        for j, n in enumerate(MATRICES, start=1):
            gradients[n] = w[n].with_arrays([one[j] for one in own], {"dp": Partial(), "cp": Partial()}, name=n)
        return dx, gradients

    return summed, back


def _together(setting: Setting, y: Placed, layer: str) -> Placed:
    if setting.forget == layer:
        return y
    if setting.sequence is None:
        return reduced(y, "tp", layer=layer, ledger=setting.ledger)
    return reduce_scattered(y, "tp", setting.sequence, layer=layer, ledger=setting.ledger)


def _inside(x: Float64, w_gate: Float64, w_up: Float64) -> tuple[Float64, Float64, Float64]:
    """silu of the gate, the other factor, and silu's slope, (X, C, F / tp)."""
    s, slope = silu_and_slope(x @ w_gate)
    return s, x @ w_up, slope


def _inside_backward(
    x: Float64, inner: tuple[Float64, Float64, Float64], matrices: Sequence[Array], dy: Float64
) -> tuple[Float64, Float64, Float64, Float64]:  # fmt: skip
    """The gradients of a rank's experts: x, w_gate, w_up, w_down."""
    def up(y: Float64) -> Float64:
        return np.asarray(y.swapaxes(-1, -2))

    (s, a, slope), (w_gate, w_up, w_down) = inner, matrices
    dh = dy @ up(w_down)
    da, dg = dh * s, dh * a * slope
    return dg @ up(w_gate) + da @ up(w_up), up(x) @ dg, up(x) @ da, up(s * a) @ dy


@dataclass(frozen=True)
class _Trip:
    """The way of tokens to their experts over the ranks of ep, and back. at: experts and places of each rank's tokens."""

    setting: Setting
    experts: int
    places: int
    at: list[tuple[Int64, Int64]]

    @classmethod
    def of(cls, setting: Setting, ids: Sequence[Int64]) -> _Trip:
        experts = setting.decoder.experts or 1
        slots = [expert_slots(a, experts=experts) for a in ids]
        most = all_reduce([np.asarray(a.max(initial=-1)) for a in slots], op="max")[0][0]
        return cls(setting, experts, int(most) + 1, list(zip(ids, slots)))

    def there(self, buffers: Sequence[Array]) -> list[Array]:
        """(X, C, N) of each rank's tokens -> (X / ep, ep C, N) of each rank's experts."""
        ep, X, C = self.setting.layout.ep, self.experts, self.places
        return [a.reshape(ep, X // ep, C, a.shape[-1]).swapaxes(0, 1).reshape(X // ep, ep * C, a.shape[-1]) for a in self._over_ep(buffers)]

    def back(self, buffers: Sequence[Array]) -> list[Array]:
        """The way back."""
        ep, X, C = self.setting.layout.ep, self.experts, self.places
        return self._over_ep([a.reshape(X // ep, ep, C, a.shape[-1]).swapaxes(0, 1).reshape(X, C, a.shape[-1]) for a in buffers])

    def _over_ep(self, buffers: Sequence[Array]) -> list[Array]:
        found: list[Array] = [np.zeros(0)] * len(buffers)
        for group in self.setting.layout.mesh.groups("ep"):
            for r, a in zip(group, all_to_all([buffers[r] for r in group])[0]):
                found[r] = a
        return found


