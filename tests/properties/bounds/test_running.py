"""Running errors: each operation in float32 stays within what it says, in any order of its sums, and not by an idle margin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracles.properties.bounds.running import Running, running_softmax
from oracles.properties.bounds.sums import Rounding

R = Rounding(u=2.0**-24 + 2.0**-53, eta=2.0**-149, largest=2.0**127)
F = np.float32


def drawn(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


# name -> (with running errors, in float32); a and b (20, 30), positive c
OPERATIONS: dict[str, tuple[Callable[..., Running], Callable[..., Any]]] = {
    "+": (lambda a, b, c: a + b, lambda a, b, c: a + b),
    "-": (lambda a, b, c: a - b, lambda a, b, c: a - b),
    "*": (lambda a, b, c: a * b, lambda a, b, c: a * b),
    "/": (lambda a, b, c: a / c, lambda a, b, c: a / c),
    "@": (lambda a, b, c: a @ b.shaped(np.transpose), lambda a, b, c: a @ b.T),
    "sum forwards": (lambda a, b, c: a.sum(-1), lambda a, b, c: np.cumsum(a, axis=-1, dtype=F)[:, -1:]),
    "sum backwards": (lambda a, b, c: a.sum(-1), lambda a, b, c: np.cumsum(a[:, ::-1], axis=-1, dtype=F)[:, -1:]),
    "exp": (lambda a, b, c: a.exp(), lambda a, b, c: np.exp(a)),
    "log": (lambda a, b, c: c.log(), lambda a, b, c: np.log(c)),
    "root": (lambda a, b, c: c.root(), lambda a, b, c: np.sqrt(c)),
    "times": (lambda a, b, c: a.times(0.3), lambda a, b, c: a * F(0.3)),
    "softmax": (lambda a, b, c: running_softmax(a)[0], lambda a, b, c: _softmax(a)[0]),
    "softmax by the lse": (lambda a, b, c: running_softmax(a)[0], lambda a, b, c: np.exp(a - _softmax(a)[1])),
    "lse": (lambda a, b, c: running_softmax(a)[1], lambda a, b, c: _softmax(a)[1]),
}


def _softmax(a: Any) -> tuple[Any, Any]:
    m = a.max(-1, keepdims=True)
    e = np.exp(a - m)
    l = e.sum(-1, keepdims=True, dtype=F)
    return e / l, m + np.log(l)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_an_operation_in_float32_stays_within_its_error(name: str, scale: float) -> None:
    with_errors, plain = OPERATIONS[name]
    worst = 0.0
    for seed in range(20):
        a, b = F(1.0 if name == "exp" else scale) * drawn(20, 30, seed=seed), drawn(20, 30, seed=seed + 100)
        c = np.abs(b) + F(0.1)
        wanted = with_errors(*(Running.exact(x, R) for x in (a, b, c)))
        got = plain(a, b, c).astype(np.float64)
        off = np.abs(got - wanted.x)
        assert (off <= wanted.e + (name == "times") * 2.0**-24 * np.abs(wanted.x)).all()           # 0.3 itself is rounded there
        worst = max(worst, float((off / np.maximum(wanted.e, 1e-300)).max()))
    assert worst > (0.1 if name in ("+", "-", "*", "/", "exp", "log", "root", "times") else 0.01)


@pytest.mark.parametrize("seed", range(5))
def test_errors_that_come_in_are_carried_on(seed: int) -> None:
    """Inputs moved by what they may be off: the result moves by no more than is said."""
    r = np.random.default_rng(seed)
    x, y = r.standard_normal((4, 6)), r.standard_normal((4, 6))
    ex, ey = 2.0**-20 * r.random((4, 6)), 2.0**-20 * r.random((4, 6))
    a, b = Running(x, ex, R), Running(y, ey, R)
    c = Running(np.abs(y) + 1.0, ey, R)
    moved = [x + ex * r.choice((-1, 1), x.shape), y + ey * r.choice((-1, 1), y.shape)]
    other = np.abs(y) + 1.0 + ey * r.choice((-1, 1), y.shape)
    pairs = [(a * b, moved[0] * moved[1]), (a @ b.shaped(np.transpose), moved[0] @ moved[1].T), (a / c, moved[0] / other),
             (c.log(), np.log(other)), (c.root(), np.sqrt(other)), (a.exp(), np.exp(moved[0])), (a - b, moved[0] - moved[1]),
             (running_softmax(a)[0], np.exp(moved[0]) / np.exp(moved[0]).sum(-1, keepdims=True))]  # fmt: skip
    assert all((np.abs(got - wanted.x) <= wanted.e).all() for wanted, got in pairs)


def test_a_divisor_that_may_be_nothing_promises_nothing() -> None:
    one, small = Running.exact([1.0, 1.0], R), Running(np.array([1e-3, 0.0]), np.array([1e-2, 0.0]), R)
    assert np.isinf((one / small).e).all()
    assert np.isinf(Running(np.array([1e-3]), np.array([1e-2]), R).log().e).all()


def test_what_is_hidden_has_no_weight_and_no_error_to_speak_of() -> None:
    seen = np.array([[True, False, True]])
    p, _ = running_softmax(Running.exact([[0.0, 1e30, 0.0]], R), seen)
    assert p.x.tolist() == [[0.5, 0.0, 0.5]]
    assert p.e[0, 1] == 0.0
