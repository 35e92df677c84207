"""The decoder over dp x ep x cp x tp x pp simulated ranks: weights placed on them, the pipeline, and ZeRO's shares of the step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from . import arguments
from .arguments import Float64, Int64
from .collectives import all_reduce
from .parallel_experts import experts_layer
from .parallel_layers import clip_placed, synchronised
from .parallel_layout import ParallelLayout
from .parallel_pieces import Back, Gradients, Setting, embed, layer, logits, score
from .pipeline_parallel import run_schedule
from .pipeline_schedule import schedule
from .placed_arithmetic import transposed
from .placed_collectives import Ledger, reduced
from .placement import Partial, Placed, Placement, PlacementError, Placements, Replicated, Shard, partition, place, whole
from .sequence_shards import shard_positions
from .transformer import Decoder, Weights, checked_weights
from .zero import Zero

Named = dict[str, Float64]
# How a weight is cut over tp, by the last part of its name; those of experts are cut over ep too, on their first axis.
CUT: dict[str, int] = {"embedding": 0, "head": 1, "w_q": 1, "w_k": 1, "w_v": 1, "w_o": 0, "w_gate": 1, "w_up": 1, "w_down": 0}
EXPERTS = ("w_gate", "w_up", "w_down")


class ParallelStep(NamedTuple):
    """What a step gives: the mean loss, the norm of the whole gradient, the gradients and the new weights and moments by name."""

    loss: float
    norm: float
    gradients: Named
    weights: Named
    m: Named
    v: Named


class ParallelDecoder:
    """`train_step` of a decoder that is spread over ranks as a layout says: the same loss, gradients and weights, whatever it is.

        each stage of the pipeline has its layers, each rank of it its parts of them, its sequences and its tokens
        loss = sum over all tokens of all ranks / their number
        gradients: partial sums over tp are reduced where they arise, over dp, ep, cp by ZeRO's reduce_scatter or all_reduce

    ledger: what the layers sent. forget: the name of a layer (layers.0.w_o, layers.0.w_down, layers.0.experts) whose all-reduce
    over tp is left out, as a bug would: the next layer says so.

    >>> sizes = Decoder(vocabulary=4, width=2, layers=1, heads=2, kv_heads=2, head_size=2, hidden=2)
    >>> weights = {name: np.ones(shape) for name, shape in sizes.shapes().items()}
    >>> two = ParallelDecoder(sizes, ParallelLayout.read("tp2"))
    >>> round(two.gradients([[0, 1]], [[1, 2]], weights)[0], 6)
    1.386294

    Raises ValueError where layout, decoder and batch do not fit, PlacementError where an array is not what a layer takes.
    Error bound: `properties.bounds.decoder_bound`, in any order of the sums. Source: Narayanan et al. 2021 (arXiv 2104.04473),
    section 3, for how dp, tp and pp compose; Korthikanti et al. 2022 (arXiv 2205.05198) for sp.
    """

    def __init__(self, decoder: Decoder, layout: ParallelLayout, *, forget: str = "") -> None:
        self.decoder, self.layout = decoder, layout
        rows = [f"layers.{i}.{name}" for i in range(decoder.layers) for name in ("w_o", "experts" if decoder.experts else "w_down")]
        if forget and forget not in rows:
            raise ValueError(f"forget: got {forget!r}; want one of {', '.join(rows)}")
        self.setting = Setting(decoder, layout, Ledger(), forget)
        self._layers = [range(*ends) for ends in partition(decoder.layers, layout.pieces)]

    def gradients(self, tokens: ArrayLike, targets: ArrayLike, weights: Weights, *, ignore_index: int = -100) -> tuple[float, Named]:
        """The mean loss and its gradients by name, put together from all ranks."""
        total, counts, placed = self._run(tokens, targets, checked_weights(weights, self.decoder), ignore_index)
        N, found = max(sum(counts) // self.layout.tp, 1), {}
        for piece in placed:
            wanted: dict[str, Placements] = {name: self.placements(name) for name in piece}
            for name, gradient in synchronised(piece, wanted, layer="gradients", ledger=self.setting.ledger).items():
                found[name] = whole(gradient, layer="gradients") / N
        return total / N, {name: found[name] for name in self.decoder.shapes()}

    def step(
        self, tokens: ArrayLike, targets: ArrayLike, weights: Weights, m: Mapping[str, ArrayLike], v: Mapping[str, ArrayLike], *,
        step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float, max_norm: float | None = None,
        ignore_index: int = -100,
    ) -> ParallelStep:  # fmt: skip
        """One step of AdamW by `Zero` of the layout's stage, from the state of one rank; vectors are not decayed.

        The gradients, clipped where max_norm says so, are read off the first moments, (m' - beta1 m) / (1 - beta1): exactly, where
        m = 0 and beta1 = 1/2. The norm is that before the clip.
        """
        state = {name: checked_weights(x, self.decoder) for name, x in (("params", weights), ("m", m), ("v", v))}
        total, counts, placed = self._run(tokens, targets, state["params"], ignore_index)
        adam: dict[str, Any] = {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
        N, factor = max(sum(counts) // self.layout.tp, 1), 1.0
        if max_norm is not None:                                                # of all stages and parts together: no `Zero` sees it
            norm = self._norm(placed) / N
            factor = min(1.0, max_norm / norm) if norm > 0.0 else 1.0
            placed = [{name: g.with_arrays([factor * a for a in g.arrays]) for name, g in piece.items()} for piece in placed]
        after: dict[str, Named] = {"params": {}, "m": {}, "v": {}}
        squares = 0.0
        for piece in placed:
            for names in self._groups(piece):
                new, norm = _shared_step(self, {name: piece[name] for name in names}, state, counts, adam, step)
                squares += 0.0 if names[0] in after["params"] else norm**2      # a tied head is on two pieces, and counts once
                for kind, named in new.items():
                    _same_as_before(after[kind], named)
        gradients = {name: (after["m"][name] - beta1 * state["m"][name]) / (1.0 - beta1) for name in state["m"]}
        return ParallelStep(total / N, float(np.sqrt(squares)) / factor, gradients, after["params"], after["m"], after["v"])

    def _norm(self, placed: list[Gradients]) -> float:
        """The norm of the sums that the gradients are, each element once: copies over any axis, and a tied head, count once."""
        squares, seen = 0.0, set[str]()
        for piece in placed:
            fresh = {name: g for name, g in piece.items() if name not in seen}
            wanted: dict[str, Placements] = {name: self.placements(name) for name in fresh}
            sums = synchronised(fresh, wanted, layer="clip_grad_norm", ledger=self.setting.ledger)
            squares += clip_placed(list(sums.values()), max_norm=np.inf, ledger=self.setting.ledger)[1] ** 2
            seen |= set(fresh)
        return float(np.sqrt(squares))

    def placements(self, name: str) -> dict[str, Placement]:
        """How a weight is placed on the mesh of its stage."""
        part = name.rsplit(".", 1)[-1]
        found: dict[str, Placement] = dict.fromkeys(("dp", "ep", "cp", "tp"), Replicated())
        of_experts = self.decoder.experts is not None and part in EXPERTS
        if of_experts:
            found["ep"] = Shard(0)
        if part in CUT:
            found["tp"] = Shard(CUT[part] + of_experts)
        return found

    def _run(self, tokens: ArrayLike, targets: ArrayLike, w: Named, ignore_index: int) -> tuple[float, list[int], list[Gradients]]:
        """The sum of all token losses, how many each rank of a stage has, and the gradients of that sum for each piece of the pipeline."""
        ids = arguments.integers("tokens", tokens, least=0, most=self.decoder.vocabulary - 1)
        if ids.ndim != 2:
            raise ValueError(f"tokens: got shape {ids.shape}; want 2 axes")
        y = arguments.integers("targets", targets, ids.shape, least=min(ignore_index, 0), most=self.decoder.vocabulary - 1)
        self.layout.fit(self.decoder, *ids.shape)
        inputs, wanted = self._micro_batches("tokens", ids), self._micro_batches("targets", y)
        last = self.layout.pieces - 1
        pieces: list[Any] = [_Piece(self, w, own, first=i == 0, last=i == last) for i, own in enumerate(self._layers)]
        order = schedule(self.layout.schedule, stages=self.layout.pp, microbatches=len(inputs), chunks=self.layout.chunks)

        def loss(z: Any, microbatch: int) -> tuple[float, Any]:
            return score(self.setting, z, wanted[microbatch], ignore_index)

        messages: list[Any] = list(inputs)
        run = run_schedule(order, pieces, messages, loss)
        sums: list[Any] = [own[0] for own in run.gradients]
        gradients: list[Gradients] = [own.parts for own in sums]
        if self.decoder.tied:
            _tie(gradients)
        counts = [sum(int((one.arrays[r] != ignore_index).sum()) for one in wanted) for r in range(self.layout.mesh.ranks)]
        return sum(run.losses), counts, gradients

    def _micro_batches(self, name: str, x: Int64) -> list[Placed]:
        """The rows of each micro-batch on the mesh: sequences cut over dp and ep, tokens over cp, in the order of its parts."""
        order = np.concatenate(shard_positions(self.layout.cp, x.shape[1] // self.layout.cp, order=self.setting.order))
        parts = np.split(x[:, order], self.layout.steps)
        return [place(name, part, self.layout.mesh, dp=Shard(0), ep=Shard(0), cp=Shard(1)) for part in parts]

    def _groups(self, piece: Gradients) -> Iterator[list[str]]:
        """Weights that are placed and decayed alike, which share a flat buffer."""
        groups: dict[Any, list[str]] = {}
        for name, gradient in piece.items():
            tp, ep = (isinstance(self.placements(name)[axis], Shard) for axis in ("tp", "ep"))
            groups.setdefault((name == "embedding", tp, ep, gradient.arrays[0].ndim > 1), []).append(name)
        yield from groups.values()


def _shared_step(
    model: ParallelDecoder, gradients: Gradients, state: Mapping[str, Named], counts: list[int], adam: dict[str, Any], step: int
) -> tuple[dict[str, Named], float]:  # fmt: skip
    """The step of weights that are placed alike, by one `Zero` for each part of them: new weights and moments, and their norm."""
    mesh, names = model.layout.mesh, list(gradients)
    placements = model.placements(names[0])
    shared = [axis for axis in ("dp", "ep", "cp") if placements[axis] == Replicated()]              # over which the part is the same
    held = {kind: {name: place(name, named[name], mesh, **model.placements(name)) for name in names} for kind, named in state.items()}
    whole_over_tp = [reduced(g, "tp", layer="gradients", ledger=model.setting.ledger) if g.along("tp") == Partial() else g
                     for g in gradients.values()]  # fmt: skip
    decays = whole_over_tp[0].arrays[0].ndim > 1
    new: dict[str, dict[str, list[Any]]] = {kind: {name: [None] * mesh.ranks for name in names} for kind in state}
    squares = 0.0
    for ranks, twins in _parts(model, shared):
        zero = Zero(model.layout.zero, len(ranks), **{**adam, "weight_decay": adam["weight_decay"] if decays else 0.0})
        own = {kind: {name: x.arrays[ranks[0]] for name, x in named.items()} for kind, named in held.items()}
        zero.attach(own["params"])
        zero.load({"step": step - 1, **own})
        tokens = [sum(counts[r] for r in twin) for twin in twins]
        norm = float(zero.step([[g.arrays[r] for g in whole_over_tp] for r in ranks], tokens=tokens))
        copies = placements["tp"] == Replicated() and mesh.coordinate(ranks[0], "tp") > 0
        squares += 0.0 if copies else norm**2
        for kind, named in new.items():
            saved = zero.save()[kind]
            for name, arrays in named.items():
                for r in ranks:
                    arrays[r] = saved[name]
    together = {kind: {name: whole(Placed(name, arrays, mesh, model.placements(name)), layer="zero") for name, arrays in named.items()}
                for kind, named in new.items()}  # fmt: skip
    return together, float(np.sqrt(squares))


def _parts(model: ParallelDecoder, shared: list[str]) -> Iterator[tuple[list[int], list[list[int]]]]:
    """For each part of the weights the ranks that hold it, and with each of them the ranks whose tokens are in its gradient."""
    mesh = model.layout.mesh
    others = [axis for axis in mesh.axes if axis not in shared]
    at = [{axis: mesh.coordinate(rank, axis) for axis in mesh.axes} for rank in range(mesh.ranks)]
    for place_of_part in product(*(range(mesh.size(axis)) for axis in others)):
        here = dict(zip(others, place_of_part))
        ranks = [r for r in range(mesh.ranks) if all(at[r][axis] == i for axis, i in here.items())]
        same = [axis for axis in mesh.axes if axis in shared or axis == "tp"]
        yield ranks, [[t for t in range(mesh.ranks) if all(at[t][axis] == at[r][axis] for axis in same)] for r in ranks]


def _same_as_before(found: Named, new: Named) -> None:
    """Adds to what was found; what two pieces hold must be the same on both."""
    for name, x in new.items():
        if name in found and not np.array_equal(found[name], x):
            raise PlacementError(f"{name}: the first and the last stage hold it, and differ; an all_reduce between them is missing")
        found[name] = np.asarray(x)


def _tie(gradients: list[Gradients]) -> None:
    """The embedding's gradient is the sum of what the first piece and the head on the last one have of it, on both."""
    first, last = gradients[0], gradients[-1]
    of_head = transposed(last.pop("head"))
    sums = [all_reduce(pair)[0][0] for pair in zip(first["embedding"].arrays, of_head.arrays)]
    first["embedding"] = first["embedding"].with_arrays(sums)
    last["embedding"] = first["embedding"]


@dataclass(frozen=True)
class _Sum:
    """Gradients by name, which add up over micro-batches."""

    parts: Gradients

    def __add__(self, other: _Sum) -> _Sum:
        return _Sum({name: g.with_arrays([a + b for a, b in zip(g.arrays, other.parts[name].arrays)]) for name, g in self.parts.items()})


@dataclass
class _Saved:
    """What a piece keeps of a micro-batch: the way back through its layers, and then the gradients that it found there."""

    backs: list[tuple[str, Back]]
    table: Any = None
    found: Gradients = field(default_factory=dict)


class _Piece:
    """Some layers, with the embedding before the first and the head behind the last."""

    def __init__(self, model: ParallelDecoder, w: Named, own: range, *, first: bool, last: bool) -> None:
        self.setting, self.own, self.first, self.last = model.setting, own, first, last
        tied = last and model.decoder.tied
        names = [name for name in w if name.startswith(tuple(f"layers.{i}." for i in own))]
        names += ["embedding"] * (first or tied) + ["norm", "head"] * last
        mesh = model.layout.mesh
        self.weights = {name: place(name, w[name], mesh, **model.placements(name)) for name in names if name in w}
        if tied:
            self.weights["head"] = transposed(self.weights["embedding"])

    def forward(self, x: Placed, microbatch: int) -> tuple[Placed, _Saved]:
        saved = _Saved([])
        if self.first:
            x, saved.table = embed(self.setting, self.weights["embedding"], x)
        for i in self.own:
            named = {name.removeprefix(f"layers.{i}."): a for name, a in self.weights.items() if name.startswith(f"layers.{i}.")}
            x, back = layer(self.setting, named, x, i, None if self.setting.decoder.experts is None else experts_layer)
            saved.backs.append((f"layers.{i}.", back))
        if self.last:
            x, back = logits(self.setting, self.weights, x)
            saved.backs.append(("", back))
        return x, saved

    def backward_input(self, saved: _Saved, dy: Placed) -> Placed:
        for prefix, back in reversed(saved.backs):
            dy, own = back(dy)
            saved.found |= {f"{prefix}{name}": g for name, g in own.items()}
        if self.first:
            saved.found["embedding"] = saved.table(dy)
        return dy

    def backward_weight(self, saved: _Saved, dy: Placed) -> list[_Sum]:
        return [_Sum(saved.found)]
