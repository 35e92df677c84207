"""Bounds of what is done on ranks: legal roundings stay inside and come near, one rounding too many or a coarser format is outside."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from oracles.properties import Arithmetic
from oracles.properties.bounds import all_reduce_bound, clip_grad_norm_sharded_bound, norm_backward_sharded_bound, row_parallel_bound
from oracles.properties.zoo import textbook_ranks
from oracles.reference import clip_grad_norm_sharded, norm_backward_sharded, row_parallel

F32 = Arithmetic().resolve("float32")
F64 = Arithmetic().resolve("float64")
RANKS = (2, 3, 8)


def worst(got: list[np.ndarray], want: list[np.ndarray], bound: list[np.ndarray]) -> float:
    return max(float((np.abs(np.asarray(g, np.float64) - w) / b).max()) for g, w, b in zip(got, want, bound))


def sums(R: int, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    x = np.random.default_rng(seed).standard_normal((R, 400)).astype(np.float32)
    return list(x), x.astype(np.float64).sum(axis=0)


ORDERS: dict[str, Callable[[list[np.ndarray]], np.ndarray]] = {
    "in order": lambda x: textbook_ranks.in_order(x), "from the last": lambda x: textbook_ranks.in_order(x[::-1]),
    "by halves": lambda x: np.add.reduce(np.array(x), axis=0),
}  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("R", RANKS)
def test_every_order_of_a_sum_is_inside_and_comes_near(R: int, order: str) -> None:
    x, want = sums(R, R)
    bound = all_reduce_bound(F32, x)["out.0"]
    assert 0.02 < worst([ORDERS[order](x)], [want], [bound]) <= 1.0


@pytest.mark.parametrize("R", RANKS)
def test_sixteen_bit_buffers_are_legal_for_sixteen_bit_arrays_alone(R: int) -> None:
    x, _ = sums(R, 10 + R)
    half = [a.astype(ml_dtypes.bfloat16) for a in x]
    want = np.sum([a.astype(np.float64) for a in half], axis=0)
    total = half[0]
    for a in half[1:]:
        total = (total.astype(np.float32) + a.astype(np.float32)).astype(ml_dtypes.bfloat16)
    assert worst([total], [want], [all_reduce_bound(Arithmetic().resolve("bfloat16"), half)["out.0"]]) <= 1.0
    assert worst([total], [want], [all_reduce_bound(F32, [a.astype(np.float32) for a in half])["out.0"]]) > 1.0


def test_a_maximum_and_what_is_moved_may_not_change_a_bit() -> None:
    assert not all_reduce_bound(F32, [[1.0], [2.0]], op="max")["out.0"].any()
    assert not clip_grad_norm_sharded_bound(F32, [np.ones((2, 3))], [1], max_norm=9.0)["grads.0"].any()


@pytest.mark.parametrize("R", RANKS)
def test_a_float32_product_of_rows_is_inside_and_a_lost_bit_of_the_inputs_is_not(R: int) -> None:
    g = np.random.default_rng(R)
    x, w = ([g.standard_normal(shape).astype(np.float32) for _ in range(R)] for shape in ((6, 20), (20, 7)))
    bias = g.standard_normal(7).astype(np.float32)
    want, bound = row_parallel(x, w, bias), row_parallel_bound(F32, x, w, bias)
    bounds = [bound[f"out.{r}"] for r in range(R)]
    assert 0.001 < worst(textbook_ranks.row_parallel(x, w, bias), want, bounds) <= 1.0    # 160 terms: a root of them is used
    cut = [a.astype(ml_dtypes.bfloat16).astype(np.float32) for a in x]
    assert worst(textbook_ranks.row_parallel(cut, w, bias), want, bounds) > 1.0


@pytest.mark.parametrize("sharded", ["tokens", "heads"])
def test_the_gradients_of_a_norm_are_inside_and_a_forgotten_eps_is_not(sharded: str) -> None:
    g = np.random.default_rng(3)
    x, d = ([g.standard_normal((3, 2, 8)).astype(np.float32) for _ in range(4)] for _ in "xd")
    w = g.standard_normal(8).astype(np.float32)
    options = {"eps": 1e-4, "sharded": sharded}
    bound = norm_backward_sharded_bound(F32, x, w, d, **options)
    for place, name in ((0, "dx"), (1, "dweight")):
        bounds = [bound[f"{name}.{r}"] for r in range(4)]
        want = norm_backward_sharded(x, w, d, **options)[place]
        assert 0.005 < worst(textbook_ranks.norm_backward_sharded(x, w, d, **options)[place], want, bounds) <= 1.0
        without = textbook_ranks.norm_backward_sharded(x, w, d, eps=0.0, sharded=sharded)[place]
        assert worst(without, want, bounds) > 1.0


def test_the_gradients_of_the_oracle_are_those_of_the_complex_step_within_the_bound_of_float64() -> None:
    g = np.random.default_rng(4)
    x, d, w = g.standard_normal((2, 3, 5)), g.standard_normal((2, 3, 5)), g.standard_normal(5)
    dx, dw = norm_backward_sharded([x], w, [d], eps=1e-6, sharded="tokens")
    bound = norm_backward_sharded_bound(F64, [x], w, [d], eps=1e-6, sharded="tokens")

    def loss(a: np.ndarray, weight: np.ndarray) -> complex:
        return (d * a / np.sqrt((a * a).mean(axis=-1, keepdims=True) + 1e-6) * weight).sum()

    def derivative(array: np.ndarray, other: Callable[[np.ndarray], complex]) -> np.ndarray:
        step, out = 1e-30, np.zeros(array.shape)
        for index in np.ndindex(array.shape):
            h = np.zeros(array.shape, complex)
            h[index] = step * 1j
            out[index] = other(array + h).imag / step
        return out

    # The complex step rounds as often as a gradient by hand does: it is allowed the same bound once more.
    assert (np.abs(derivative(x, lambda a: loss(a, w)) - dx[0]) <= 2.0 * bound["dx.0"]).all()
    assert (np.abs(derivative(w, lambda weight: loss(x, weight)) - dw[0]) <= 2.0 * bound["dweight.0"]).all()


def test_a_float32_clip_is_inside_and_copies_counted_twice_are_not() -> None:
    g = np.random.default_rng(6)
    grads = [g.standard_normal((4, 30)).astype(np.float32), np.repeat(g.standard_normal((1, 9)).astype(np.float32), 4, axis=0)]
    want, norm = clip_grad_norm_sharded(grads, [1, 0], max_norm=1.0)
    bound = clip_grad_norm_sharded_bound(F32, grads, [1, 0], max_norm=1.0)
    names = ("grads.0", "grads.1", "norm")
    got, got_norm = textbook_ranks.clip_grad_norm_sharded(grads, [1, 0], max_norm=1.0)
    assert worst([*got, got_norm], [*want, norm], [bound[name] for name in names]) <= 1.0
    wrong, _ = textbook_ranks.clip_grad_norm_sharded(grads, [1, 0], max_norm=1.0, weigh=float)
    assert worst(wrong, want, [bound["grads.0"], bound["grads.1"]]) > 1.0
