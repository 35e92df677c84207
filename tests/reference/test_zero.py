"""ZeRO: every stage and world takes the one-rank step, holds what the formula says and moves what the formula says."""

from __future__ import annotations

import numpy as np
import pytest

from oracles.reference import adamw_step, clip_grad_norm, training_bytes, zero_traffic
from oracles.reference.placement import PlacementError
from oracles.reference.zero import Zero
from oracles.reference.zero_state import FlatBuffer, flat_layout

ADAM = {"lr": 0.1, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.01}
STAGES, WORLDS = (0, 1, 2, 3), (1, 2, 3, 5)
LAYOUTS = [(stage, world) for stage in STAGES for world in WORLDS]
SHAPES = {"a": (2, 3), "none": (0, 4), "b": (5,), "c": (1,), "d": (7,)}


def params(seed: int = 0) -> dict[str, np.ndarray]:
    g = np.random.default_rng(seed)
    return {name: g.standard_normal(shape) for name, shape in SHAPES.items()}


def gradients(world: int, seed: int) -> list[list[np.ndarray]]:
    """Integers, of which `world` make one sum exactly; the mean divides once."""
    g = np.random.default_rng(seed)
    return [[g.integers(-9, 9, shape).astype(float) for shape in SHAPES.values()] for _ in range(world)]


def one_rank(steps: int, world: int, micro: int, max_norm: float | None = None) -> tuple[dict[str, np.ndarray], list[float]]:
    """The same steps by adamw_step on whole arrays: the parameters, and the norms."""
    state = {name: (x, np.zeros_like(x), np.zeros_like(x)) for name, x in params().items()}
    norms = []
    for step in range(steps):
        parts = [gradients(world, 100 * step + a) for a in range(micro)]
        mean = [sum(own[k] for batch in parts for own in batch) / (world * micro) for k in range(len(SHAPES))]
        clipped, norm = clip_grad_norm(mean, max_norm=np.finfo(float).max if max_norm is None else max_norm)
        norms.append(float(norm))
        for (name, (p, m, v)), g in zip(state.items(), clipped):
            state[name] = adamw_step(p, g, m, v, step=step + 1, **ADAM)
    return {name: x[0] for name, x in state.items()}, norms


def stepped(zero: Zero, steps: int, micro: int, first: int = 0) -> list[float]:
    norms = []
    for step in range(first, first + steps):
        for a in range(micro - 1):
            zero.accumulate(gradients(zero.world, 100 * step + a))
        norms.append(float(zero.step(gradients(zero.world, 100 * step + micro - 1))))
    return norms


def of_sum(n: int, x: float) -> float:
    """The most that two ways to add up n squares and take the root may differ: g(n + 4, u) each."""
    return 2.0 * np.expm1((n + 4) * np.log1p(2.0**-53)) * x


@pytest.mark.parametrize(("stage", "world"), LAYOUTS)
@pytest.mark.parametrize("micro", [1, 3])
def test_every_layout_takes_the_one_rank_steps_to_the_last_bit(stage: int, world: int, micro: int) -> None:
    zero = Zero(stage, world, **ADAM)
    zero.attach(params())
    norms = stepped(zero, 3, micro)
    want, wanted_norms = one_rank(3, world, micro)
    assert all(np.array_equal(zero.params()[name], want[name]) for name in SHAPES)
    assert all(abs(a - b) <= of_sum(19, b) for a, b in zip(norms, wanted_norms))


@pytest.mark.parametrize(("stage", "world"), LAYOUTS)
def test_the_norm_is_that_of_the_whole_gradient_and_clips_it(stage: int, world: int) -> None:
    """The published trigger, with a limit that halves exactly: [3, 4] in two shards has norm 5, and is clipped to 1.5 and 2."""
    zero = Zero(stage, world, **ADAM, max_norm=2.5)
    zero.attach({"w": [0.0, 0.0]})
    assert float(zero.step([[[3.0, 4.0]]] * world)) == 5.0
    want, _, _ = adamw_step([0.0, 0.0], [1.5, 2.0], [0.0, 0.0], [0.0, 0.0], step=1, **ADAM)
    assert np.array_equal(zero.params()["w"], want)


@pytest.mark.parametrize(("stage", "world"), LAYOUTS)
def test_bytes_held_are_the_formula(stage: int, world: int) -> None:
    zero = Zero(stage, world, **ADAM)
    zero.attach(params())
    stepped(zero, 1, 2)
    want = int(training_bytes(19, stage=stage, world=world, weight_bytes=8, gradient_bytes=8, optimizer_bytes=16))
    assert [sum(own.values()) for own in zero.held()] == [want] * world


@pytest.mark.parametrize(("stage", "world"), LAYOUTS)
def test_bytes_moved_are_the_formula(stage: int, world: int) -> None:
    zero = Zero(stage, world, **ADAM)
    zero.attach({"w": np.ones(30)})                                             # a multiple of every world
    zero.step([[np.ones(30)]] * world)
    assert set(zero.moved()["buffers"].sent) == {8 * zero_traffic(30, stage=stage, world=world)}


@pytest.mark.parametrize(("stage", "gathers", "scatters"), [(1, 1, 1), (2, 1, 3), (3, 6, 3)])
def test_three_micro_batches_move_what_their_stage_moves(stage: int, gathers: int, scatters: int) -> None:
    zero = Zero(stage, 2, **ADAM)
    zero.attach({"w": np.ones(30)})
    for _ in range(2):
        zero.accumulate([[np.ones(30)]] * 2)
    zero.step([[np.ones(30)]] * 2)
    assert zero.moved()["buffers"].sent == ((gathers + scatters) * 15 * 8,) * 2


@pytest.mark.parametrize(("stage", "world"), LAYOUTS)
def test_what_one_layout_saves_every_other_loads(stage: int, world: int) -> None:
    first = Zero(1, 2, **ADAM)
    first.attach(params())
    for step in range(2):
        first.step([gradients(1, step)[0]] * 2)
    other = Zero(stage, world, **ADAM)
    other.attach(params(seed=9))
    other.load(first.save())
    first.step([gradients(1, 7)[0]] * 2)
    other.step([gradients(1, 7)[0]] * world)
    assert all(np.array_equal(a, b) for a, b in zip(first.params().values(), other.params().values()))


@pytest.mark.parametrize("stage", STAGES)
def test_tokens_weigh_the_gradients(stage: int) -> None:
    zero = Zero(stage, 2, lr=1.0, beta1=0.0, beta2=0.0, eps=1.0, weight_decay=0.0)
    zero.attach({"w": [0.0]})
    assert float(zero.step([[[1.0]], [[12.0]]], tokens=[1, 3])) == 3.25


@pytest.mark.parametrize("n", range(10))
@pytest.mark.parametrize("world", range(1, 6))
def test_cut_and_put_together_is_the_identity(n: int, world: int) -> None:
    buffer = FlatBuffer({"a": (n,), "b": (7,)}, world=world, alignment=4)
    arrays = {"a": np.arange(1.0, n + 1), "b": -np.arange(1.0, 8)}
    whole = buffer.unflatten(np.concatenate(buffer.cut(buffer.flatten(arrays))))
    assert all(np.array_equal(whole[name], arrays[name]) for name in arrays)


@pytest.mark.parametrize("sizes", [[], [0], [6, 3], [5, 7, 0, 11, 1], [2, 2, 2]], ids=str)
@pytest.mark.parametrize("alignment", [1, 3, 4])
@pytest.mark.parametrize("world", [1, 2, 5])
def test_arrays_never_overlap(sizes: list[int], alignment: int, world: int) -> None:
    offsets, total = flat_layout(sizes, alignment=alignment, world=world)
    taken = [i for start, size in zip(offsets.tolist(), sizes) for i in range(start, start + size)]
    assert taken == sorted(set(taken))
    assert total % world == 0
    assert max(taken, default=-1) < total
    assert not (offsets % alignment).any()


def test_saving_between_micro_batches_is_refused() -> None:
    zero = Zero(2, 2, **ADAM)
    zero.attach({"w": [1.0]})
    zero.accumulate([[[1.0]]] * 2)
    with pytest.raises(ValueError, match="grads: 1 micro-batches are accumulated; want save before or after a whole step"):
        zero.save()


def test_a_rank_that_steps_alone_is_named() -> None:
    zero = Zero(1, 2, **ADAM)
    zero.attach({"w": [1.0, 2.0]})
    zero._ranks[1].weights[0] += 1.0
    with pytest.raises(PlacementError, match=r"zero: state: said to be replicated over dp, but 1\.0 on rank 0 and 2\.0 on rank 1"):
        zero.params()


WRONG = {
    "a stage that is none": (lambda: Zero(4, 1, **ADAM), "stage: got 4; want 0, 1, 2 or 3"),
    "nothing attached": (lambda: Zero(1, 1, **ADAM).step([[]]), "params: nothing is attached"),
    "too few ranks": (lambda: attached().step([[[1.0]]]), "grads: got 1 lists; want 2"),
    "too few gradients": (lambda: attached().step([[], []]), r"grads\[0\]: got 0 gradients; want 1"),
    "another shape": (lambda: attached().step([[[1.0, 2.0]]] * 2), r"w: got shape \(2,\); want \(1,\)"),
    "a name twice": (lambda: Zero(1, 1, **ADAM).attach([("w", [1.0]), ("w", [2.0])]), "params: got w, w; want every name once"),
    "tokens of one rank": (lambda: attached().step([[[1.0]]] * 2, tokens=[1]), "tokens: got 1; want 2"),
}


def attached() -> Zero:
    zero = Zero(1, 2, **ADAM)
    zero.attach({"w": [1.0]})
    return zero


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused(name: str) -> None:
    call, message = WRONG[name]
    with pytest.raises(ValueError, match=message):
        call()
