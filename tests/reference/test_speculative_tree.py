"""Verification of a tree of drafts: led along every path of the exact algorithm, equal to one draft where it is a chain."""

from __future__ import annotations

import functools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from oracles.properties.decoding_algorithms import normalised, tree
from oracles.properties.enumeration import Path, paths
from oracles.properties.random_models import random_models
from oracles.reference import attention, speculative_verify, tree_mask, tree_positions, verify_tree

SLIVER = Fraction(1, 2**40)


def within(piece: tuple[Fraction, Fraction], place: int) -> float:
    start, end = piece
    return float([start + SLIVER, (start + end) / 2, end - SLIVER][place])


def as_a_tree(path: Path, draft: Any, target: Any, k: int, m: int, replace: bool, place: int) -> tuple[Any, ...]:
    """The branch a path walks with the siblings beside it, one level after another, the uniforms that lead along, what is emitted."""
    V = len(target(()))
    x, parents = np.full(k * m, -1), np.full(k * m, -1)
    q, p, u = np.full((k * m, V), np.nan), np.full((k * m + 1, V), np.nan), np.full(k * m, 0.5)
    p[0] = [float(a) for a in target(())]
    steps, y, node = iter(zip(path.choices, path.pieces)), (), -1
    for level in range(k):
        law, here = list(draft(y)), node
        nodes = range(level * m, level * m + min(m, m if replace else sum(a > 0 for a in law)))
        for i in nodes:
            x[i], parents[i], q[i] = next(steps)[0], here, [float(a) for a in normalised(law)]
            p[i + 1] = np.eye(V)[0]                                             # of a node that is not walked through, anything
            law = law if replace else [Fraction(0) if j == x[i] else a for j, a in enumerate(law)]
        for i in nodes:
            choice, piece = next(steps)
            u[i] = within(piece, place)
            if choice == 0:
                node, y = i, (*y, int(x[i]))
                p[i + 1] = [float(a) for a in target(y)]
                break
        if node == here:
            break
    return x, q, p, u, within(path.pieces[-1], place), parents


@pytest.mark.parametrize(("V", "k", "m", "replace"), [(2, 2, 2, True), (3, 1, 2, True), (3, 2, 2, False), (4, 1, 3, False)])
def test_every_path_of_the_exact_algorithm_is_taken_by_its_uniforms(V: int, k: int, m: int, replace: bool) -> None:
    algorithm = functools.partial(tree, siblings=m, replace=replace)
    for seed in range(6):
        draft, target = random_models(V, seed)
        taken = list(paths(lambda d=draft, t=target: algorithm(d, t, k)))
        rows = [as_a_tree(path, draft, target, k, m, replace, place) for path in taken for place in range(3)]
        *arrays, parents = (np.array(column) for column in zip(*rows))
        tokens, n_accepted, nodes = verify_tree(*arrays, parents=parents)
        emitted = [path.emitted for path in taken for _ in range(3)]
        assert [tuple(int(x) for x in row if x >= 0) for row in tokens] == emitted
        assert (n_accepted + 1).tolist() == [len(y) for y in emitted]
        for b, n in enumerate(n_accepted):
            assert arrays[0][b, nodes[b, :n]].tolist() == tokens[b, :n].tolist()
            assert (nodes[b, n:] == -1).all()


def test_a_chain_is_one_draft() -> None:
    r = np.random.default_rng(0)
    B, K, V = 60, 4, 3
    q, p, u, last_u = r.dirichlet(np.ones(V), (B, K)), r.dirichlet(np.ones(V), (B, K + 1)), r.random((B, K)), r.random(B)
    x = r.integers(-1, V, (B, K))
    tokens, n_accepted, nodes = verify_tree(x, q, p, u, last_u, parents=np.arange(K) - 1)
    expected, n_expected = speculative_verify(x, q, p, u, last_u)
    assert tokens.tolist() == expected.tolist()
    assert n_accepted.tolist() == n_expected.tolist()
    assert all(nodes[b, :n].tolist() == list(range(n)) for b, n in enumerate(n_accepted))


def test_the_targets_array_stays_as_it_was() -> None:
    p, q = np.full((1, 3, 2), 0.5), np.array([[[1.0, 0.0], [1.0, 0.0]]])        # the first is rejected, then no 0 is left
    assert verify_tree([[0, 0]], q, p, [[0.75, 0.0]], [0.0], parents=[-1, -1])[0].tolist() == [[1, -1, -1]]
    assert (p == 0.5).all()


def test_children_of_a_missing_node_are_missing() -> None:
    p, q = np.full((1, 3, 2), 0.5), np.full((1, 2, 2), 0.5)
    p[0, 1:], q[0, :] = np.nan, np.nan
    tokens, n_accepted, _ = verify_tree([[-1, 0]], q, p, [[0.0, 0.0]], [0.75], parents=[-1, 0])
    assert (tokens.tolist(), n_accepted.tolist()) == ([[1, -1, -1]], [0])


def test_a_node_sees_its_branch_alone() -> None:
    parents = [-1, -1, 0, 2, 1]
    branches = [{0}, {1}, {0, 2}, {0, 2, 3}, {1, 4}]
    assert [set(np.flatnonzero(row).tolist()) for row in tree_mask(parents)] == branches


def test_attention_of_a_node_is_that_of_its_branch_run_by_itself() -> None:
    """lablup/mlxcel#1214: with positions by depth, a branch in a tree is the branch alone. ALiBi stands for the positions."""
    r = np.random.default_rng(1)
    parents, n_past = [-1, -1, 0], 2
    q, k, v = (r.normal(size=(1, 1, n_past + 3, 4)) for _ in range(3))
    position = np.append(np.arange(n_past), tree_positions(parents, n_past=n_past))
    sees = np.block([[np.tri(n_past, dtype=bool), np.zeros((n_past, 3), bool)], [np.ones((3, n_past), bool), tree_mask(parents)]])
    bias = -0.5 * np.abs(position[:, None] - position[None, :])
    whole = attention(q, k, v, causal=None, mask=sees, bias=bias)[0]
    branch = [0, 1, 2, 4]                                                       # the past, the first child, the grandchild
    alone = attention(q[:, :, branch], k[:, :, branch], v[:, :, branch], causal="bottom_right", alibi_slopes=[0.5])[0]
    scale = np.abs(v).max() * (np.abs(q).max() * np.abs(k).max() * 4 + 4)
    assert np.abs(whole[:, :, 4] - alone[:, :, 3]).max() <= 64 * 2.0**-53 * scale


GOOD = {"draft_tokens": [[0]], "draft_probs": [[[0.5, 0.5]]], "target_probs": [[[0.5, 0.5], [1.0, 0.0]]], "accept_u": [[0.5]],
        "sample_u": [0.5], "parents": [-1]}


@pytest.mark.parametrize(("changed", "error", "words"), [
    ({"parents": [0]}, ValueError, r"parents: got \[0\]; want 1 numbers, -1 or the index of a node that stands before"),
    ({"parents": [-1, 0]}, ValueError, r"parents: got \[-1, 0\]; want 1 numbers"),
    ({"parents": [-2]}, ValueError, "parents: got numbers from -2"),
    ({"parents": [-1.0]}, TypeError, "parents: got dtype float64"),
    ({"draft_tokens": [[2]]}, ValueError, "draft_tokens: got numbers from 2"),
    ({"draft_probs": [[[np.nan, 0.5]]]}, ValueError, "draft_probs: got a row with a NaN"),
    ({"target_probs": [[[0.5, 0.5], [0.5, 0.0]]]}, ValueError, "target_probs: got a row that sums to 0.5"),
    ({"target_probs": np.zeros((1, 0, 2))}, ValueError, r"want \(B, N \+ 1, V\)"),
    ({"accept_u": [[1.0]]}, ValueError, "accept_u: got numbers outside"),
    ({"sample_u": [1.0]}, ValueError, "sample_u: got numbers outside"),
])
def test_bad_input_is_refused_by_name(changed: dict[str, Any], error: type[Exception], words: str) -> None:
    call: Callable[..., Any] = verify_tree
    with pytest.raises(error, match=words):
        call(**{**GOOD, **changed})
