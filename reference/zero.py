"""ZeRO: AdamW whose states, gradients and parameters are shared out over the data-parallel ranks, in stages. Bytes are measured here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Float64
from .collectives import Traffic, all_gather, all_reduce, no_traffic, reduce_scatter
from .optimizers import adamw_step, global_norm, not_negative
from .placement import Mesh, Placed, Replicated, Shard, whole
from .zero_state import FlatBuffer

ROLES = ("weights", "gradients", "first moment", "second moment")


@dataclass
class _Rank:
    """What one rank holds: flat arrays, each of all elements or of its own shard."""

    weights: Float64
    gradients: Float64
    m: Float64
    v: Float64


class Zero:
    """AdamW on `world` simulated ranks, each of which keeps its share of what the stage shares out.

        stage 0   nothing is: plain data parallelism       all_reduce of the gradients
        stage 1   moments                                  reduce_scatter of the gradients, all_gather of the parameters
        stage 2   and gradients                            the same, the gradients of each micro-batch as it comes
        stage 3   and parameters                           reduce_scatter of the gradients, two all_gathers of the parameters (forward
                                                           and backward of each micro-batch)

    `attach(params)`, then for every step: `accumulate(grads)` for all micro-batches but the last, `step(grads)`. grads: for each rank
    the list of its gradients, in the order of the parameters; the step is taken with their mean over ranks and micro-batches, or, where
    tokens are given, with the sum over all over the number of all tokens. The answer does not depend on stage or world. Attaching anew
    begins anew: moments 0, the next step the first. What one object saves, another loads, of any stage and world (`reload` below).

    >>> zero = Zero(2, 2, lr=0.125, beta1=0.5, beta2=0.75, eps=0.0, weight_decay=0.5)
    >>> zero.attach({"w": [1.0, 1.0, 1.0]})
    >>> float(zero.step([[[3.0, 0.0, 0.0]], [[3.0, 0.0, 8.0]]])), zero.params()["w"]
    (5.0, array([0.8125, 0.9375, 0.8125]))
    >>> zero.held()[1], zero.moved()["buffers"].sent
    ({'weights': 24, 'gradients': 16, 'first moment': 16, 'second moment': 16}, (32, 32))

    max_norm clips by the norm of the whole gradient, which `step` returns as it was before. Held: `training_bytes` of the stage with 8
    bytes a number and no masters. Moved a step of one micro-batch, in elements: 2 P (R - 1) / R, at stage 3 3 P (R - 1) / R, with P
    filled up to equal shards; two scalars a rank (tokens and norm) come on top. Raises ValueError naming the argument.
    Error bound: `properties.bounds.optimizers.adamw_step_bound`, with gradients known within g(R A + 1, u).
    Source: Rajbhandari et al. 2020 (arXiv 1910.02054), sections 5 and 7.
    """

    def __init__(self, stage: int, world: int, *, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float,
                 max_norm: float | None = None, alignment: int = 1) -> None:
        self.stage, self.world = arguments.whole_number("stage", stage, least=0), arguments.whole_number("world", world, least=1)
        if self.stage > 3:
            raise ValueError(f"stage: got {stage}; want 0, 1, 2 or 3")
        self._adam = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
        adamw_step(0.0, 0.0, 0.0, 0.0, step=1, **self._adam)                    # refuses what no step could be taken with
        self._max_norm = None if max_norm is None else not_negative("max_norm", max_norm)
        self._alignment = arguments.whole_number("alignment", alignment, least=1)
        self._buffer: FlatBuffer | None = None
        self._ranks: list[_Rank] = []
        self._steps, self._pending, self._tokens = 0, 0, [0] * world
        self._buffers, self._scalars = no_traffic(world), no_traffic(world)

    @property
    def buffer(self) -> FlatBuffer:
        if self._buffer is None:
            raise ValueError("params: nothing is attached; want attach(params) first")
        return self._buffer

    def attach(self, params: Mapping[str, ArrayLike] | Sequence[tuple[str, ArrayLike]]) -> None:
        """Take parameters by name, or as pairs of name and array; moments are 0, and the first step is step 1."""
        pairs = list(params.items() if isinstance(params, Mapping) else params)
        wide = {name: arguments.widen(name, x) for name, x in pairs}
        if len(wide) < len(pairs):
            raise ValueError(f"params: got {', '.join(name for name, _ in pairs)}; want every name once")
        self._buffer = FlatBuffer({name: x.shape for name, x in wide.items()}, world=self.world, alignment=self._alignment)
        zeros = np.zeros(self._buffer.elements)
        self._set(self._buffer.flatten(wide), zeros, zeros, step=0)

    def accumulate(self, grads: Sequence[Sequence[ArrayLike]], *, tokens: Sequence[int] | None = None) -> None:
        """Take one micro-batch: grads[r][k] of rank r, parameter k; tokens[r], if given, how many token losses it is the sum of."""
        flat = self._flat_gradients(grads)
        counts = [1] * self.world if tokens is None else [arguments.whole_number("tokens", n, least=0) for n in tokens]
        if len(counts) != self.world:
            raise ValueError(f"tokens: got {len(counts)}; want {self.world}, one for each rank")
        if self.stage == 3:
            for _ in ("forward", "backward"):                                   # each gathers the parameters, and lets them go
                self._gathered_weights()
        if self.stage >= 2:
            flat = self._scattered(flat)
        for rank, g, r in zip(self._ranks, flat, range(self.world)):
            rank.gradients = rank.gradients + g
            self._tokens[r] += counts[r]
        self._pending += 1

    def step(self, grads: Sequence[Sequence[ArrayLike]], *, tokens: Sequence[int] | None = None) -> Float64:
        """Take the last micro-batch and one step of AdamW: the norm of the whole gradient, as it was before it was clipped."""
        self.accumulate(grads, tokens=tokens)
        if self.stage == 0:
            reduced, traffic = all_reduce([rank.gradients for rank in self._ranks])
            self._buffers = self._buffers + traffic
        else:
            held = [rank.gradients for rank in self._ranks]
            reduced = held if self.stage >= 2 else self._scattered(held)
        totals = self._all_reduced([np.asarray(n) for n in self._tokens])
        reduced = [g / total if total else np.zeros_like(g) for g, total in zip(reduced, totals)]
        norms = self._norms(reduced)
        if self._max_norm is not None:
            reduced = [g * (self._max_norm / norm) if norm > self._max_norm else g for g, norm in zip(reduced, norms)]
        self._steps += 1
        for r, (rank, g) in enumerate(zip(self._ranks, reduced)):
            own = self.buffer.cut(rank.weights)[r] if self.stage in (1, 2) else rank.weights
            new, rank.m, rank.v = adamw_step(own, g, rank.m, rank.v, step=self._steps, **self._adam)
            rank.weights = new
        if self.stage in (1, 2):
            for rank, whole in zip(self._ranks, self._gathered_weights()):
                rank.weights = whole
        self._begin_step()
        return np.asarray(norms[0])

    def params(self) -> dict[str, Float64]:
        """The parameters by name, put together from what the ranks hold. It is a look from outside, and moves nothing."""
        return self.buffer.unflatten(self._whole([rank.weights for rank in self._ranks], sharded=self.stage == 3))

    def save(self) -> dict[str, Any]:
        """Step, parameters and moments by name, without a trace of stage and world: another layout may load it.

        Raises ValueError between the micro-batches of a step: what is accumulated would be lost.
        """
        if self._pending:
            raise ValueError(f"grads: {self._pending} micro-batches are accumulated; want save before or after a whole step")
        names = ("params", "m", "v")
        columns = ([rank.weights for rank in self._ranks], [rank.m for rank in self._ranks], [rank.v for rank in self._ranks])
        whole = (self._whole(column, sharded=self.stage >= (3 if name == "params" else 1)) for name, column in zip(names, columns))
        return {"step": self._steps, **{name: self.buffer.unflatten(flat) for name, flat in zip(names, whole)}}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what `save` gave, here or in another layout. Raises ValueError for other names or shapes than those attached."""
        flat = [self.buffer.flatten(state[name]) for name in ("params", "m", "v")]
        self._set(*flat, step=arguments.whole_number("step", state["step"], least=0))

    def held(self) -> list[dict[str, int]]:
        """Bytes that each rank holds, by role: the sizes of its arrays."""
        columns = [(rank.weights, rank.gradients, rank.m, rank.v) for rank in self._ranks]
        return [{role: x.nbytes for role, x in zip(ROLES, arrays)} for arrays in columns]

    def moved(self) -> dict[str, Traffic]:
        """What was sent in the last whole step: "buffers", gradients and parameters; "scalars", token counts and norms."""
        return {"buffers": self._last[0], "scalars": self._last[1]}

    def _set(self, weights: Float64, m: Float64, v: Float64, *, step: int) -> None:
        """Every rank's share of the whole."""
        share = [self.buffer.cut(x) for x in (weights, m, v)]                   # [3][R]
        self._ranks = [
            _Rank(share[0][r] if self.stage == 3 else weights.copy(), np.zeros(0),
                  *((share[1][r], share[2][r]) if self.stage >= 1 else (m.copy(), v.copy())))
            for r in range(self.world)
        ]  # fmt: skip
        self._steps = step
        self._buffers, self._scalars = no_traffic(self.world), no_traffic(self.world)
        self._begin_step()

    def _begin_step(self) -> None:
        self._last = (self._buffers, self._scalars)
        self._buffers, self._scalars = no_traffic(self.world), no_traffic(self.world)
        self._tokens, self._pending = [0] * self.world, 0
        for rank in self._ranks:
            rank.gradients = np.zeros(self.buffer.shard_elements if self.stage >= 2 else self.buffer.elements)

    def _flat_gradients(self, grads: Sequence[Sequence[ArrayLike]]) -> list[Float64]:
        names = list(self.buffer.shapes)
        for r, own in enumerate(grads):
            if len(own) != len(names):
                raise ValueError(f"grads[{r}]: got {len(own)} gradients; want {len(names)}, one for each parameter")
        if len(grads) != self.world:
            raise ValueError(f"grads: got {len(grads)} lists; want {self.world}, one for each rank")
        return [self.buffer.flatten(dict(zip(names, own))) for own in grads]

    def _scattered(self, flat: list[Float64]) -> list[Float64]:
        """Each rank's shard of the sum over ranks."""
        shards, traffic = reduce_scatter([self.buffer.fill_up(g) for g in flat])
        self._buffers = self._buffers + traffic
        return list(shards)

    def _gathered_weights(self) -> list[Float64]:
        """All parameters on every rank, from the shards."""
        whole, traffic = all_gather([rank.weights for rank in self._ranks])
        self._buffers = self._buffers + traffic
        return [x[: self.buffer.elements] for x in whole]

    def _norms(self, reduced: list[Float64]) -> list[float]:
        """The norm of the whole gradient, on every rank: of shards it takes an all_gather of their norms (RLinf/RLinf#1558)."""
        own = [global_norm([g]) for g in reduced]
        if self.stage == 0:
            return own
        everywhere, traffic = all_gather([np.array([norm]) for norm in own])
        self._scalars = self._scalars + traffic
        return [global_norm([norms]) for norms in everywhere]

    def _all_reduced(self, numbers: list[Any]) -> list[Any]:
        reduced, traffic = all_reduce(numbers)
        self._scalars = self._scalars + traffic
        return reduced

    def _whole(self, arrays: list[Float64], *, sharded: bool) -> Float64:
        """All elements; copies must be equal. Raises PlacementError where they are not."""
        placed = Placed("state", arrays, Mesh({"dp": self.world}), {"dp": Shard(0) if sharded else Replicated()})
        return np.asarray(whole(placed, layer="zero")[: self.buffer.elements])
