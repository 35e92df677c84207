"""Any layout is one rank: a norm and two linear layers on data x tensor parallel ranks, with ZeRO, and with sequence parallelism."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oracles.reference.parallel_layers import ColumnLinear, Norm, RowLinear, synchronised
from oracles.reference.placed_arithmetic import applied
from oracles.reference.placed_collectives import Ledger, reduced
from oracles.reference.placement import Mesh, Partial, Placed, PlacementError, Replicated, Shard, place, want, whole
from oracles.reference.zero import Zero

T, C, F = 12, 5, 12
U = 2.0**-53
LAYOUTS = [(dp, tp, sp) for dp in (1, 2, 3, 4) for tp in (1, 2, 3, 4) for sp in (False, True)]
# Where each parameter lies along tp.
WHERE = {"norm": {}, "up.w": {"tp": Shard(1)}, "up.bias": {"tp": Shard(0)}, "down.w": {"tp": Shard(0)}, "down.bias": {}}


def problem(grid: bool, seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Parameters, inputs (T, C), and what the outputs are weighed with in the loss sum(out * weigh)."""
    g = np.random.default_rng(seed)

    def draw(*shape: int) -> np.ndarray:
        return g.integers(-4, 5, shape).astype(float) if grid else g.standard_normal(shape)

    params = {"norm": draw(C), "up.w": draw(C, F), "up.bias": draw(F), "down.w": draw(F, C), "down.bias": draw(C)}
    return params, draw(T, C), draw(T, C)


class Block:
    """norm, up, a square in between, down; with the norm left out the block is exact on integers."""

    def __init__(self, params: dict[str, np.ndarray], mesh: Mesh, sp: bool, normed: bool, ledger: Ledger | None = None) -> None:
        self.placed = {name: place(name, x, mesh, **WHERE[name]) for name, x in params.items()}
        sequence = 0 if sp else None
        self.norm = Norm("norm", self.placed["norm"])
        self.up = ColumnLinear("up", self.placed["up.w"], self.placed["up.bias"], sequence=sequence, ledger=ledger)
        self.down = RowLinear("down", self.placed["down.w"], self.placed["down.bias"], sequence=sequence, ledger=ledger)
        self.normed, self.mesh, self.sp = normed, mesh, sp

    def entered(self, x: np.ndarray) -> Placed:
        """Tokens over dp, and under sequence parallelism each rank's over tp."""
        return place("x", x, self.mesh, dp=Shard(0), **({"tp": Shard(0)} if self.sp else {}))

    def run(self, x: Placed, weigh: Placed) -> tuple[Placed, dict[str, Placed]]:
        """Outputs, and all gradients of sum(out * weigh) as they come."""
        return self.forward(x), dict(self.backward(x, weigh))

    def use(self, placed: dict[str, Placed]) -> None:
        """Other parameters."""
        self.norm = replace(self.norm, weight=placed["norm"])
        self.up = replace(self.up, w=placed["up.w"], bias=placed["up.bias"])
        self.down = replace(self.down, w=placed["down.w"], bias=placed["down.bias"])

    def forward(self, x: Placed) -> Placed:
        self.n = self.norm.forward(x) if self.normed else x
        self.h = self.up.forward(self.n)
        self.a = applied(np.square, self.h, layer="square", name="a")
        return self.down.forward(self.a)

    def backward(self, x: Placed, weigh: Placed) -> list[tuple[str, Placed]]:
        """All gradients of sum(out * weigh) as they come, after a forward pass of x."""
        n, h, a = self.n, self.h, self.a
        da, g_down = self.down.backward(a, weigh)
        dh = applied(lambda d, y: 2.0 * d * y, da, h, layer="square", name="dh")
        dn, g_up = self.up.backward(n, dh)
        gradients = {"down.w": g_down["w"], "down.bias": g_down["bias"], "up.w": g_up["w"], "up.bias": g_up["bias"]}
        if self.normed:
            gradients["norm"] = self.norm.backward(x, dn)[1]["weight"]
        return list(gradients.items())


def outcome(dp: int, tp: int, sp: bool, *, grid: bool, normed: bool) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    params, x, weigh = problem(grid)
    block = Block(params, Mesh({"dp": dp, "tp": tp}), sp, normed)
    out, gradients = block.run(block.entered(x), block.entered(weigh))
    done = synchronised(gradients, WHERE, layer="synchronise")
    return whole(out, layer="out"), {name: whole(g, layer="gradient") for name, g in done.items()}


@pytest.mark.parametrize(("dp", "tp", "sp"), LAYOUTS)
def test_every_layout_is_one_rank_to_the_last_bit_on_integers(dp: int, tp: int, sp: bool) -> None:
    want, wanted = outcome(1, 1, False, grid=True, normed=False)
    out, gradients = outcome(dp, tp, sp, grid=True, normed=False)
    assert np.array_equal(out, want)
    assert all(np.array_equal(gradients[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize(("dp", "tp", "sp"), LAYOUTS)
def test_every_layout_is_one_rank_within_the_roundings_of_its_sums(dp: int, tp: int, sp: bool) -> None:
    want, wanted = outcome(1, 1, False, grid=False, normed=True)
    out, gradients = outcome(dp, tp, sp, grid=False, normed=True)
    # The same sums of products in another order, of absolute values: every chain has at most C + F + C + T + 40 roundings.
    sizes = absolute()
    growth = 2.0 * np.expm1((2 * C + 2 * F + T + 40) * np.log1p(U))
    assert (np.abs(out - want) <= growth * sizes["out"]).all()
    assert all((np.abs(gradients[name] - wanted[name]) <= growth * sizes[name]).all() for name in wanted)


def absolute() -> dict[str, np.ndarray]:
    """Outputs and gradients with every product and every sum of absolute values: what roundings are relative to."""
    params, x, weigh = problem(False)
    p, d = {name: np.abs(a) for name, a in params.items()}, np.abs(weigh)
    n = np.abs(x) / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6)
    h = (n * p["norm"]) @ p["up.w"] + p["up.bias"]
    dh = 2.0 * (d @ p["down.w"].T) * h
    return {"out": h * h @ p["down.w"] + p["down.bias"], "down.w": (h * h).T @ d, "down.bias": d.sum(axis=0),
            "up.w": (n * p["norm"]).T @ dh, "up.bias": dh.sum(axis=0), "norm": ((dh @ p["up.w"].T) * n).sum(axis=0)}  # fmt: skip


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize(("dp", "tp", "sp"), [(1, 2, True), (2, 1, False), (2, 2, False), (2, 2, True), (3, 2, True), (4, 3, False)])
def test_a_step_of_zero_on_any_layout_is_the_one_rank_step_to_the_last_bit(stage: int, dp: int, tp: int, sp: bool) -> None:
    """Each rank of tp has a ZeRO of its own over dp; the loss is the mean over dp. AdamW of equal gradients is equal."""
    params, x, weigh = problem(True)
    options = {"lr": 0.125, "beta1": 0.5, "beta2": 0.75, "eps": 1e-3, "weight_decay": 0.25}
    _, gradients = outcome(1, 1, False, grid=True, normed=False)
    one = Zero(0, 1, **options)
    one.attach({name: params[name] for name in gradients})
    one.step([[g / dp for g in gradients.values()]])

    mesh = Mesh({"dp": dp, "tp": tp})
    block = Block(params, mesh, sp, normed=False)
    _, raw = block.run(block.entered(x), block.entered(weigh))
    parts = {name: only_tp(g) for name, g in raw.items()}
    stepped = {name: [None] * mesh.ranks for name in parts}
    for group in mesh.groups("dp"):
        zero = Zero(stage, dp, **options)
        zero.attach({name: block.placed[name].arrays[group[0]] for name in parts})
        zero.step([[g.arrays[rank] for g in parts.values()] for rank in group])
        for name, new in zero.params().items():
            for rank in group:
                stepped[name][rank] = new
    for name, arrays in stepped.items():
        assert np.array_equal(whole(Placed(name, arrays, mesh, WHERE[name])), one.params()[name])


def only_tp(g: Placed) -> Placed:
    """Reduced along tp, still a partial sum along dp: what ZeRO reduces."""
    return reduced(g, "tp", layer="sequence parallel") if g.along("tp") == Partial() else g


def test_a_forgotten_all_reduce_is_named_by_who_takes_the_partial_sum() -> None:
    params, x, _ = problem(True)
    block = Block(params, Mesh({"dp": 2, "tp": 2}), False, normed=False)
    down = replace(block.down, reduces=False)
    a = applied(np.square, block.up.forward(block.entered(x)), layer="square", name="a")
    with pytest.raises(PlacementError, match=r"down: down\.out partial sum over tp \+ down\.bias replicated .*: it would count 2 times"):
        down.forward(a)
    without_bias = replace(down, bias=None)
    with pytest.raises(PlacementError, match=r"next: down\.out: partial sum over tp, wanted replicated; an all_reduce over tp is missing"):
        replace(block.up, name="next").forward(without_bias.forward(a))


def test_a_norm_whose_gradient_is_not_reduced_is_named() -> None:
    """NVIDIA/Megatron-LM#1446: the norm's weight under sequence parallelism."""
    params, x, weigh = problem(False)
    block = Block(params, Mesh({"dp": 1, "tp": 2}), True, normed=True)
    _, gradients = block.run(block.entered(x), block.entered(weigh))
    with pytest.raises(PlacementError, match=r"optimizer: norm\.weight: partial sum over tp, wanted replicated; an all_reduce over tp is"):
        want("optimizer", gradients["norm"], tp=Replicated())


def test_inputs_that_are_not_gathered_are_named() -> None:
    params, x, _ = problem(True)
    block = Block(params, Mesh({"dp": 1, "tp": 2}), True, normed=False)
    with pytest.raises(PlacementError, match="up: x: sharded on axis 0 over tp, wanted replicated; an all_gather over tp is missing"):
        replace(block.up, sequence=None).forward(block.entered(x))


def test_sequence_parallelism_moves_what_tensor_parallelism_moves() -> None:
    """A reduce_scatter and an all_gather are an all_reduce: Korthikanti et al. 2022, section 4.2."""
    params, x, _ = problem(True)
    sent = {}
    for sp in (False, True):
        ledger = Ledger()
        block = Block(params, Mesh({"dp": 1, "tp": 2}), sp, normed=False, ledger=ledger)
        h = block.up.forward(block.entered(x))
        block.down.forward(applied(np.square, h, layer="square"))
        sent[sp] = ledger.total(block.mesh).sent
    assert sent[True] == sent[False] == (2 * T * C // 2 * 8,) * 2


def losses(stage: int, dp: int, tp: int, sp: bool, steps: int) -> list[float]:
    """Half the mean square of what the block misses a target by, over `steps` steps of AdamW under ZeRO, each tp rank with its own."""
    params, x, target = problem(False)
    mesh = Mesh({"dp": dp, "tp": tp})
    options = {"lr": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.01}
    zeros, told = [Zero(stage, dp, **options) for _ in range(tp)], []
    placed = {name: place(name, p, mesh, **WHERE[name]) for name, p in params.items()}
    for zero, group in zip(zeros, mesh.groups("dp")):
        zero.attach({name: p.arrays[group[0]] for name, p in placed.items()})
    for _ in range(steps):
        block = Block(params, mesh, sp, normed=True)
        block.use(placed)
        entered = block.entered(x)
        out = block.forward(entered)
        goal = block.entered(target)
        miss = applied(np.subtract, out, goal, layer="loss")
        told.append(float((whole(miss) ** 2).sum() / (2 * target.size)))
        gradients = {name: only_tp(g) for name, g in block.backward(entered, applied(lambda m: m * (dp / target.size), miss, layer="loss"))}
        ordered = [gradients[name] for name in placed]
        for zero, group in zip(zeros, mesh.groups("dp")):
            zero.step([[g.arrays[rank] for g in ordered] for rank in group])
        new = [zero.params() for zero in zeros]
        placed = {name: p.with_arrays([new[mesh.coordinate(rank, "tp")][name] for rank in range(mesh.ranks)]) for name, p in placed.items()}
        for p in placed.values():
            whole(p, layer="after the step")                                    # raises where copies have drifted apart
    return told


@pytest.mark.parametrize(("stage", "dp", "tp", "sp"), [(1, 2, 1, False), (2, 3, 2, True), (3, 2, 2, False), (3, 4, 3, True)])
def test_loss_curves_of_fifty_steps_agree_to_the_six_digits_that_are_printed(stage: int, dp: int, tp: int, sp: bool) -> None:
    want = losses(0, 1, 1, False, 50)
    assert want[-1] < want[0] / 2
    assert [f"{x:.6g}" for x in losses(stage, dp, tp, sp, 50)] == [f"{x:.6g}" for x in want]


def test_copies_that_drift_apart_are_named_after_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The norm's gradient not reduced over tp, though every token counts: each rank of tp steps alone."""
    monkeypatch.setitem(globals(), "only_tp", lambda g: g)
    with pytest.raises(PlacementError, match=r"after the step: norm: said to be replicated over tp, but .* one rank stepped alone"):
        losses(1, 2, 2, True, 2)
