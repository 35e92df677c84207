"""Parallel layouts under the checker: loss, gradients and step of a decoder over simulated ranks against those of one rank.

Every layout is held to the same laws; `SWEEP` lists those that a sweep goes through. How a decoder is spread is the reference's business.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from oracles.reference import Decoder, adamw_step, train_step
from oracles.reference.arguments import Float64, Int64
from oracles.reference.parallel_decoder import ParallelDecoder
from oracles.reference.parallel_layout import ParallelLayout
from oracles.reference.placement import PlacementError

from .arithmetic import Arithmetic
from .bounds.decoder import decoder_with_errors
from .report import FAILED, HELD

Named = dict[str, Float64]
_SIZES: dict[str, Any] = {"vocabulary": 13, "width": 8, "layers": 4, "heads": 8, "kv_heads": 4, "head_size": 2, "hidden": 8}
# Grouped heads throughout; a vocabulary that no number of ranks divides.
MODELS: dict[str, Decoder] = {
    "dense": Decoder(**_SIZES),
    "tied": Decoder(**_SIZES, tied=True),
    "experts": Decoder(**_SIZES, experts=4, active=2),
    "plain-gates": Decoder(**_SIZES, experts=4, active=2, normalize_gates=False),
    "two-layers": Decoder(**{**_SIZES, "layers": 2}),
}
BATCH, LENGTH, IGNORED = 16, 8, -100
# beta1 = 1/2: from moments of 0 the gradient is twice the new one, exactly.
ADAM: dict[str, Any] = {"lr": 2.0**-6, "beta1": 0.5, "beta2": 0.875, "eps": 2.0**-26, "weight_decay": 0.125}
U = 2.0**-53
# Below most norms of a training run, so that the clip is at work.
CLIP = 0.25

SWEEP: tuple[tuple[str, str], ...] = (
    ("dp1", "dense"), ("dp2", "dense"), ("dp4", "dense"), ("tp2", "dense"), ("tp4", "dense"), ("tp2.sp", "dense"), ("tp4.sp", "dense"),
    ("cp2", "dense"), ("cp4", "dense"), ("cp2:zigzag", "dense"), ("cp4:zigzag", "dense"), ("cp2:all_to_all", "dense"),
    ("cp4:all_to_all", "dense"), ("pp2", "dense"), ("pp4", "dense"), ("pp2:gpipe", "dense"), ("pp2:interleaved", "dense"),
    ("pp2:zero_bubble", "dense"), ("pp4:zero_bubble", "dense"), ("mb4", "dense"), ("dp2.mb8", "dense"), ("dp2.zero1", "dense"),
    ("dp2.zero2", "dense"), ("dp4.zero3", "dense"), ("dp2.tp2", "dense"), ("dp2.tp2.zero3", "dense"),
    ("dp2.tp2.pp2", "dense"), ("dp2.tp2.pp2.zero1", "dense"), ("dp2.tp2.pp2.zero3", "dense"), ("dp2.tp2.sp.pp2:interleaved.zero2", "dense"),
    ("cp2.tp2", "dense"), ("cp2:zigzag.tp2.sp", "dense"), ("cp2:all_to_all.tp2.zero2", "dense"), ("dp2.cp2.tp2.zero3", "dense"),
    ("dp2.cp2:zigzag.tp2.sp.pp2.zero3", "dense"), ("pp2", "tied"), ("tp2", "tied"), ("tp2.sp.pp2:gpipe", "tied"),
    ("dp2.tp2.pp2.zero3", "tied"), ("cp2.pp4.zero1", "tied"), ("dp1", "experts"), ("ep2", "experts"), ("ep4", "experts"),
    ("dp2.ep2", "experts"), ("tp2", "experts"), ("ep2.tp2", "experts"), ("ep2.tp2.sp", "experts"), ("ep2.cp2", "experts"),
    ("dp2.ep2.zero3", "experts"), ("ep2.pp2.zero2", "experts"), ("dp2.ep2.cp2.tp2.zero3", "experts"),
    ("dp2.ep2.tp2.sp.pp2:zero_bubble.zero1", "experts"), ("ep2.tp2", "plain-gates"), ("dp2.ep4.zero2", "plain-gates"),
)  # fmt: skip


@dataclass(frozen=True)
class LayoutVerdict:
    """What one law found: elements compared, the largest error over what is allowed, and where."""

    law: str
    status: str
    reason: str = ""
    compared: int = 0
    worst_ratio: float = 0.0
    worst_at: str = ""


@dataclass(frozen=True)
class LayoutReport:
    """One layout of one model. finest: the largest bound of a gradient over its largest element: a relative fault above it is seen.

    bytes_sent: by one rank in collectives of layers and gradients; what ring, pipeline and ZeRO send is counted where they are checked.
    """

    layout: str
    model: str
    ranks: int
    steps: int
    seed: int
    seconds: float
    losses: tuple[float, ...]
    one_rank_losses: tuple[float, ...]
    finest: float
    bytes_sent: int
    verdicts: tuple[LayoutVerdict, ...]

    @property
    def held(self) -> bool:
        return all(verdict.status == HELD for verdict in self.verdicts)

    def to_json(self) -> dict[str, Any]:
        verdicts = [{**vars(verdict), "worst_ratio": _number(verdict.worst_ratio)} for verdict in self.verdicts]
        return {"operation": "parallel", **{name: value for name, value in vars(self).items() if name != "verdicts"}, "held": self.held,
                "losses": list(self.losses), "one_rank_losses": list(self.one_rank_losses), "verdicts": verdicts}  # fmt: skip


def model_for(layout: ParallelLayout) -> str:
    """The model that a layout is checked with where none is named: experts where there is expert parallelism."""
    return "experts" if layout.ep > 1 else "dense"


def check_layout(layout: ParallelLayout, *, model: str | None = None, steps: int = 1, seed: int = 0, forget: str = "") -> LayoutReport:
    """Hold a layout to its laws for some steps, each of which starts from the parameters that one rank has by then.

    forget: a layer whose all-reduce is left out: the check must fail by its name. Raises ValueError where the layout does not fit,
    and for a seed with which a rounding may turn a choice of experts.
    """
    name, start = model or model_for(layout), time.monotonic()
    if name not in MODELS:
        raise ValueError(f"model: got {name!r}; want one of {', '.join(MODELS)}")
    decoder = MODELS[name]
    layout.fit(decoder, BATCH, LENGTH)
    spread, seen = ParallelDecoder(decoder, layout, forget=forget), _Seen()
    losses, alone = [], []
    for step in _one_rank(name, steps, seed):
        alone.append(float(step.errors["loss"].x))
        try:
            losses.append(seen.judge(spread, step))
        except PlacementError as error:
            return _report(layout, name, steps, seed, start, losses, alone, spread, (
                LayoutVerdict("every_layer_gets_what_it_takes", FAILED, str(error), 1, np.inf),))
    return _report(layout, name, steps, seed, start, losses, alone, spread, seen.verdicts(), seen.finest)


@dataclass(frozen=True)
class _Step:
    """One batch, the weights one rank has before it, and loss and gradients with what any legal computation may be off."""

    tokens: Int64
    targets: Int64
    weights: Named
    errors: Mapping[str, Any]


@lru_cache(maxsize=16)
def _one_rank(model: str, steps: int, seed: int) -> tuple[_Step, ...]:
    """The steps of one rank: the same for every layout."""
    decoder, found = MODELS[model], []
    weights, m, v = initial_state(decoder, seed)
    for step in range(1, steps + 1):
        tokens, targets = batch(decoder, seed + step)
        errors = decoder_with_errors(Arithmetic().resolve("float64"), tokens, targets, weights, decoder, ignore_index=IGNORED)
        found.append(_Step(tokens, targets, weights, errors))
        after = train_step(tokens, targets, weights, m, v, decoder, step=step, **ADAM, max_norm=np.finfo(float).max, ignore_index=IGNORED)
        weights, m, v = after.weights, after.m, after.v
    return tuple(found)


def initial_state(decoder: Decoder, seed: int) -> tuple[Named, Named, Named]:
    """Weights small enough that errors do not grow from layer to layer, and moments of 0."""
    r, weights = np.random.default_rng(seed), {}
    for name, shape in decoder.shapes().items():
        size = 1.0 if name == "embedding" else 0.125 if len(shape) == 1 else 0.25 / np.sqrt(shape[-2])
        weights[name] = (len(shape) == 1) + size * r.standard_normal(shape)
    zeros = {name: np.zeros(shape) for name, shape in decoder.shapes().items()}
    return weights, zeros, zeros


def batch(decoder: Decoder, seed: int) -> tuple[Int64, Int64]:
    """Sequences of tokens and their successors, of which each sequence ignores another number, and one all."""
    r = np.random.default_rng(1000 + seed)
    text = r.integers(0, decoder.vocabulary, (BATCH, LENGTH + 1))
    tokens, targets = text[:, :-1], text[:, 1:].copy()
    targets[np.arange(LENGTH) < r.integers(0, LENGTH - 1, BATCH)[:, None]] = IGNORED
    targets[-1] = IGNORED
    return tokens, targets


class _Seen:
    """What the laws have found so far."""

    def __init__(self) -> None:
        self.finest = 0.0
        self._found: dict[str, LayoutVerdict] = {}

    def judge(self, spread: ParallelDecoder, step: _Step) -> float:
        """Judge one step, by the layout's own collectives and by its ZeRO; its loss."""
        zeros = {name: np.zeros_like(w) for name, w in step.weights.items()}
        given = (step.tokens, step.targets, step.weights)
        loss, gradients = spread.gradients(*given, ignore_index=IGNORED)
        taken = spread.step(*given, zeros, zeros, step=1, **ADAM, ignore_index=IGNORED)
        e = {name: value.e for name, value in step.errors.items()}
        x = {name: value.x for name, value in step.errors.items()}
        self._within("loss_is_that_of_one_rank", {"loss": np.asarray(loss)}, x, e)
        self._within("gradients_are_those_of_one_rank", gradients, x, e)
        self._within("gradients_by_zero_are_those_of_one_rank", taken.gradients, x, e)
        norm = np.sqrt(sum((x[name] ** 2).sum() for name in gradients))
        size = sum(g.size for g in gradients.values())
        off = np.sqrt(sum((e[name] ** 2).sum() for name in gradients)) + size * U * norm
        self._within("the_norm_counts_every_element_once", {"norm": np.asarray(taken.norm)}, {"norm": norm}, {"norm": off})
        stepped = {name: adamw_step(w, taken.gradients[name], zeros[name], zeros[name], step=1, **{
            **ADAM, "weight_decay": ADAM["weight_decay"] if w.ndim > 1 else 0.0})[0] for name, w in step.weights.items()}  # fmt: skip
        nothing = {name: np.zeros(w.shape) for name, w in stepped.items()}
        self._within("adamw_of_these_gradients_bit_for_bit", taken.weights, stepped, nothing)
        self.finest = max([self.finest, *(float((2.0 * e[name]).max() / np.abs(x[name]).max()) for name in gradients)])
        return loss

    def verdicts(self) -> tuple[LayoutVerdict, ...]:
        """All laws, and that no layer refused what it got."""
        return (*self._found.values(), LayoutVerdict("every_layer_gets_what_it_takes", HELD, compared=1))

    def _within(self, law: str, got: Mapping[str, Any], wanted: Mapping[str, Any], error: Mapping[str, Any]) -> None:
        """|got - wanted| <= error of both evaluations; a NaN is outside."""
        worst, at, compared = 0.0, "", 0
        for name, value in got.items():
            difference, allowed = np.abs(value - wanted[name]), 2.0 * np.asarray(error[name])
            if np.isinf(allowed).any():
                raise ValueError("seed: got one whose weights leave a choice of experts to a rounding; want another")
            with np.errstate(invalid="ignore", divide="ignore"):
                ratio = np.where(difference == 0.0, 0.0, np.where(np.isnan(difference), np.inf, difference / allowed))
            compared += ratio.size
            if ratio.max() >= worst:
                worst, at = float(ratio.max()), f"{name}[{','.join(map(str, np.unravel_index(int(ratio.argmax()), ratio.shape)))}]"
        before = self._found.get(law)
        total = compared + (before.compared if before else 0)
        if before and before.worst_ratio > worst:
            worst, at = before.worst_ratio, before.worst_at
        reason = "" if worst <= 1.0 else f"{at}: {worst:.3g} of what is allowed of any order of the sums"
        self._found[law] = LayoutVerdict(law, HELD if worst <= 1.0 else FAILED, reason, total, worst, at)


@dataclass(frozen=True)
class TrainingReport:
    """The loss curves of one rank and of a layout, each with its own weights, as they are printed."""

    layout: str
    model: str
    ranks: int
    seed: int
    seconds: float
    losses: tuple[str, ...]
    one_rank_losses: tuple[str, ...]

    @property
    def held(self) -> bool:
        return bool(self.losses) and self.losses == self.one_rank_losses

    def to_json(self) -> dict[str, Any]:
        return {"operation": "parallel", **vars(self), "held": self.held, "losses": list(self.losses),
                "one_rank_losses": list(self.one_rank_losses)}  # fmt: skip


def train(layout: ParallelLayout, *, model: str = "two-layers", steps: int = 50, seed: int = 0) -> TrainingReport:
    """Train from the same weights on the same batches, over the layout and on one rank, and print each loss to 6 digits."""
    if model not in MODELS:
        raise ValueError(f"model: got {model!r}; want one of {', '.join(MODELS)}")
    decoder, start = MODELS[model], time.monotonic()
    layout.fit(decoder, BATCH, LENGTH)
    spread, one, many = ParallelDecoder(decoder, layout), initial_state(decoder, seed), initial_state(decoder, seed)
    curves: tuple[list[str], list[str]] = ([], [])
    for step in range(1, steps + 1):
        tokens, targets = batch(decoder, seed)                                  # one batch, learnt by heart: the loss moves far
        alone = train_step(tokens, targets, *one, decoder, step=step, **ADAM, max_norm=CLIP, ignore_index=IGNORED)
        taken = spread.step(tokens, targets, *many, step=step, **ADAM, max_norm=CLIP, ignore_index=IGNORED)
        one, many = (alone.weights, alone.m, alone.v), (taken.weights, taken.m, taken.v)
        curves[0].append(f"{taken.loss:.6f}")
        curves[1].append(f"{float(alone.loss):.6f}")
    return TrainingReport(str(layout), model, layout.ranks, seed, time.monotonic() - start, tuple(curves[0]), tuple(curves[1]))


def _report(layout: ParallelLayout, model: str, steps: int, seed: int, start: float, losses: list[float], alone: list[float],
            spread: ParallelDecoder, verdicts: tuple[LayoutVerdict, ...], finest: float = 0.0) -> LayoutReport:
    sent = max(spread.setting.ledger.total(layout.mesh).sent, default=0)
    return LayoutReport(str(layout), model, layout.ranks, steps, seed, time.monotonic() - start, tuple(losses), tuple(alone), finest, sent,
                        verdicts)  # fmt: skip


def _number(x: float) -> float | None:
    return x if np.isfinite(x) else None
