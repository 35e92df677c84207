"""Loops over tables: examples run, what differs from the loops over models is nothing, and bad input is refused by name."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest

from oracles.reference import mtp_loop, self_speculate, speculative_generate, speculative_loop, speculative_tables
from oracles.reference.speculative_tables import TableModel, TableModelWithHidden, head_of


def tables(V: int, n: int, seed: int) -> list[Any]:
    w = np.random.default_rng(seed).integers(1, 9, (n, V, V, V)).astype(np.float64)
    return list(w / w.sum(axis=-1, keepdims=True))


def test_the_examples_run() -> None:
    result = doctest.testmod(speculative_tables, extraglobs={"np": np})
    assert (result.failed, result.attempted > 5) == (0, True)


@pytest.mark.parametrize("seed", range(5))
def test_each_row_is_what_the_loop_over_models_gives(seed: int) -> None:
    g, (p, q) = np.random.default_rng(seed), tables(4, 2, seed)
    prompt, u = g.integers(0, 4, (3, 2)), g.random((3, 6, 5))
    tokens, accepted = speculative_loop(p, q, prompt, u)
    own, own_accepted = mtp_loop(p, [q, p], prompt, u)
    for b in range(3):
        text, n = speculative_generate(TableModel(q), TableModel(p), prompt[b].tolist(), k=2, length=6, uniforms=u[b])
        assert (tokens[b].tolist(), accepted[b, : len(n)].tolist()) == (text.tolist(), n.tolist())
        assert (accepted[b, len(n) :] == -1).all()
        text, n = self_speculate(TableModelWithHidden(p), [head_of(q), head_of(p)], prompt[b].tolist(), length=6, uniforms=u[b])
        assert (own[b].tolist(), own_accepted[b, : len(n)].tolist()) == (text.tolist(), n.tolist())


def test_a_cache_cropped_and_fed_again_gives_the_same_laws() -> None:
    (p,) = tables(3, 1, 0)
    model = TableModel(p)
    rows = model.extend([2, 1, 0, 1])
    model.crop(2)
    assert (len(model), model.extend([0, 1]).tolist()) == (2, rows[2:].tolist())


def test_a_head_gets_the_state_of_the_head_before() -> None:
    """vllm-project/vllm#36531."""
    heads = tables(3, 2, 1)
    first, second = head_of(heads[0]), head_of(heads[1])
    _, h = first(np.asarray(2), 1)
    assert second(h, 0)[0].tolist() == heads[1][1, 0].tolist()


def test_a_law_of_which_nothing_is_left_stays_as_it_is() -> None:
    p = np.eye(2)[[[0, 0], [1, 1]]]                                             # after a token, that before it, for certain
    forbidden = np.ones((2, 2), dtype=bool)
    u = np.full((1, 4, 3), 0.5)
    assert speculative_loop(p, p, [[0, 1]], u, forbidden=forbidden)[0].tolist() == speculative_loop(p, p, [[0, 1]], u)[0].tolist()


HALF = np.full((2, 2, 2), 0.5)
U = np.full((1, 3, 3), 0.5)


@pytest.mark.parametrize(("change", "message"), [
    ({"target": np.full((2, 2), 0.5)}, "target: got shape"),
    ({"target": np.zeros((0, 0, 0))}, "target: got"),
    ({"draft": np.full((3, 3, 3), 1 / 3)}, r"draft: got \(3, 3, 3\); want \(2, 2, 2\)"),
    ({"draft": HALF * 0.5}, "draft: got a row that sums to 0.5"),
    ({"prompt": np.zeros((1, 0), dtype=np.int64)}, r"prompt: got shape \(1, 0\)"),
    ({"prompt": [[2]]}, "prompt: got"),
    ({"uniforms": U[:, :, :2]}, r"uniforms: got shape \(1, 3, 2\); want \(1, N, 2 k \+ 1\)"),
    ({"uniforms": U + 0.5}, "uniforms: got numbers outside"),
    ({"forbidden": np.zeros((3, 3), dtype=bool)}, "forbidden: got shape"),
])  # fmt: skip
def test_bad_input_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"target": HALF, "draft": HALF, "prompt": [[0]], "uniforms": U, **change}
    with pytest.raises(ValueError, match=message):
        speculative_loop(**given)


def test_uniforms_of_another_number_of_heads_are_refused() -> None:
    with pytest.raises(ValueError, match=r"uniforms: got shape \(1, 3, 3\); want \(B, N, 5\) for 2 heads"):
        mtp_loop(HALF, [HALF, HALF], [[0]], U)
