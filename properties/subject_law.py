"""Subject law: the exact law of a subject that takes its uniforms as arguments, from the subject itself.

What it answers is constant on boxes of uniforms. Their faces are found by bisection on a grid, one call of the subject for many
uniforms; then the law is a sum of volumes, as fractions, and random uniforms test that no box was missed. What law it should have
is left to the laws.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

GRID = 2**24                                                                    # uniforms are multiples of 1 / GRID: exact in float32
Int64 = NDArray[np.int64]
# Scenario of each row (n,), its uniforms as multiples of 1 / GRID (n, d) -> what the subject answers, as rows of integers (n, m).
Evaluate = Callable[[Int64, Int64], Int64]

EVENLY = 16                                                                     # intervals a line is cut into before any bisection
FACES = 48                                                                      # more along one axis: not a piecewise constant answer
PROBES = 512
ROWS = 2**15                                                                    # of one call


@dataclass(frozen=True)
class SubjectLaw:
    """What a subject emits and with what probability, its uniforms drawn from the grid.

    law     outcome -> probability, exact on the grid
    faces   how many faces of boxes were found
    strays  how many of the random probes answered otherwise than their box; with one of them, `law` is not the subject's
    """

    law: dict[tuple[int, ...], Fraction]
    faces: int
    strays: int
    calls: int


class _Counted:
    """Calls of the subject in pieces of at most ROWS."""

    def __init__(self, evaluate: Evaluate) -> None:
        self.evaluate, self.calls = evaluate, 0

    def __call__(self, scenario: Int64, u: Int64) -> Int64:
        parts = [self.evaluate(scenario[i : i + ROWS], u[i : i + ROWS]) for i in range(0, len(scenario), ROWS)]
        self.calls += len(parts)
        return np.concatenate(parts)


def subject_law(
    evaluate: Evaluate, weights: Sequence[Fraction], d: int, expected: Sequence[Sequence[Sequence[int]]], seed: int
) -> SubjectLaw:  # fmt: skip
    """The law of what a subject answers when a scenario is drawn by its weight and d uniforms from the grid.

    expected[s][i]: where the faces of scenario s along uniform i should lie, which saves bisection where they do. Lines along
    each uniform are cut, with the others at either end of [0, 1).

    >>> below = lambda scenario, u: (u[:, :1] < GRID // 4).astype(np.int64)
    >>> {outcome: str(p) for outcome, p in subject_law(below, [Fraction(1)], 1, [[[]]], seed=0).law.items()}
    {(1,): '1/4', (0,): '3/4'}
    """
    call = _Counted(evaluate)
    faces = _faces(call, len(weights), d, expected)
    count = sum(len(edges) for scenario in faces for edges in scenario)
    if max((len(edges) for scenario in faces for edges in scenario), default=0) > FACES:
        return SubjectLaw({}, count, PROBES, call.calls)
    law: dict[tuple[int, ...], Fraction] = {}
    scenario, middle, volume = _boxes(faces, d)
    answers = call(scenario, middle)
    known: list[dict[tuple[int, ...], bytes]] = [{} for _ in weights]
    for s, u, part, answer in zip(scenario.tolist(), middle, volume, answers):
        outcome = tuple(answer.tolist())
        law[outcome] = law.get(outcome, Fraction(0)) + weights[s] * part
        known[s][_box_of(faces[s], u)] = answer.tobytes()
    generator = np.random.default_rng(seed)
    probes = generator.integers(0, GRID, (PROBES, d))
    of = generator.integers(0, len(weights), PROBES)
    found = call(of, probes)
    strays = sum(known[s][_box_of(faces[s], u)] != answer.tobytes() for s, u, answer in zip(of.tolist(), probes, found))
    return SubjectLaw(law, count, strays, call.calls)


def _faces(call: _Counted, scenarios: int, d: int, expected: Sequence[Sequence[Sequence[int]]]) -> list[list[list[int]]]:
    """For each scenario and uniform, the grid points from which on the answer differs from that just before."""
    corners = np.array([*itertools.product((0, GRID - 1), repeat=d - 1)], dtype=np.int64)                  # (2^(d-1), d-1)
    spread = [round(i * (GRID - 1) / EVENLY) for i in range(EVENLY + 1)]
    scenario, axis, base, at, line = [], [], [], [], []
    lines = 0
    for s, i in itertools.product(range(scenarios), range(d)):
        points = sorted({*spread, *(n for e in expected[s][i] for n in (e - 1, e) if 0 <= n < GRID)})
        for corner in corners:
            base += [np.insert(corner, i, n) for n in points]
            scenario += [s] * len(points)
            axis += [i] * len(points)
            at += points
            line += [lines] * len(points)
            lines += 1
    S, I, U, X, L = (np.array(x, dtype=np.int64) for x in (scenario, axis, base, at, line))
    answers = call(S, U)
    next_to = np.flatnonzero((L[1:] == L[:-1]) & (answers[1:] != answers[:-1]).any(axis=1))
    low, high, a, b = X[next_to], X[next_to + 1], answers[next_to], answers[next_to + 1]
    S, I, U = S[next_to], I[next_to], U[next_to]
    found: list[list[set[int]]] = [[set() for _ in range(d)] for _ in range(scenarios)]
    while len(low):
        done = high - low == 1
        for s, i, n in zip(S[done].tolist(), I[done].tolist(), high[done].tolist()):
            found[s][i].add(n)
        low, high, a, b, S, I, U = (x[~done] for x in (low, high, a, b, S, I, U))
        if not len(low) or len(low) > FACES * d * scenarios * len(corners):
            break
        middle = (low + high) // 2
        U = U.copy()
        U[np.arange(len(U)), I] = middle
        m = call(S, U)
        left, right = (a != m).any(axis=1), (m != b).any(axis=1)
        low, high = np.concatenate([low[left], middle[right]]), np.concatenate([middle[left], high[right]])
        a, b = np.concatenate([a[left], m[right]]), np.concatenate([m[left], b[right]])
        S, I, U = (np.concatenate([x[left], x[right]]) for x in (S, I, U))
    return [[sorted(edges) for edges in scenario] for scenario in found]


def _boxes(faces: list[list[list[int]]], d: int) -> tuple[Int64, Int64, list[Fraction]]:
    """Every box of every scenario: whose it is (n,), a point inside it (n, d), its volume."""
    scenario: list[int] = []
    middle: list[Any] = []
    volume: list[Fraction] = []
    for s, axes in enumerate(faces):
        pieces = [[*itertools.pairwise([0, *edges, GRID])] for edges in axes]
        for box in itertools.product(*pieces):
            scenario.append(s)
            middle.append([(a + b - 1) // 2 for a, b in box])
            part = Fraction(1)
            for a, b in box:
                part *= Fraction(b - a, GRID)
            volume.append(part)
    return np.array(scenario, dtype=np.int64), np.array(middle, dtype=np.int64).reshape(-1, d), volume


def _box_of(axes: list[list[int]], u: Int64) -> tuple[int, ...]:
    return tuple(int(np.searchsorted(edges, n, side="right")) for edges, n in zip(axes, u.tolist()))
