"""Verification of one draft: led along every path of the exact algorithms, the reported faults, ragged batches, what a draft is worth."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oracles.properties.decoding_algorithms import by_block, token_by_token
from oracles.properties.enumeration import Algorithm, Path, paths
from oracles.properties.random_models import random_models
from oracles.reference import acceptance_rate, expected_tokens, speculative_verify, speed_up, typical_acceptance, verify_block
from oracles.reference.speculative import residual

U = 2.0**-53
SLIVER = Fraction(1, 2**40)                                                     # far above a decision's error bound, far below any piece
Verify = Callable[..., Any]
RULES: dict[str, tuple[Verify, Algorithm]] = {"token by token": (speculative_verify, token_by_token), "by block": (verify_block, by_block)}


def within(piece: tuple[Fraction, Fraction]) -> list[float]:
    """A uniform near the start of a piece of [0, 1), in its middle, near its end."""
    start, end = piece
    return [float(start + SLIVER), float((start + end) / 2), float(end - SLIVER)]


def led_along(taken: list[Path], k: int, draft: Any, target: Any) -> dict[str, np.ndarray]:
    """Arguments that lead an implementation along each path, three times: near both ends of each piece and in the middle."""
    rows = []
    for path in taken:
        x, tests, last = path.choices[:k], path.pieces[k:-1], path.pieces[-1]
        q = [[float(a) for a in draft(x[:j])] for j in range(k)]
        p = [[float(a) for a in target(x[:j])] for j in range(k + 1)]
        for place in range(3):
            u = [within(piece)[place] for piece in tests] + [0.5] * (k - len(tests))
            rows.append((x, q, p, u, within(last)[place]))
    names = ("draft_tokens", "draft_probs", "target_probs", "accept_u", "sample_u")
    return {name: np.array([row[i] for row in rows]) for i, name in enumerate(names)}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("V", "k"), [(2, 3), (3, 2), (5, 1)])
def test_every_path_of_the_exact_algorithm_is_taken_by_its_uniforms(rule: str, V: int, k: int) -> None:
    """So the law of the oracle is the exact law, but for slivers of 2^-40 at the ends of the pieces of [0, 1)."""
    verify, algorithm = RULES[rule]
    for seed in range(12):
        draft, target = random_models(V, seed)
        taken = list(paths(lambda d=draft, t=target: algorithm(d, t, k)))
        tokens, n_accepted = verify(**led_along(taken, k, draft, target))
        emitted = [path.emitted for path in taken for _ in range(3)]
        assert [tuple(int(x) for x in row if x >= 0) for row in tokens] == emitted
        assert (n_accepted + 1).tolist() == [len(y) for y in emitted]


def one(p: Any, q: Any, x: Any, u: Any, sample_u: float = 0.0, verify: Verify = speculative_verify, **more: Any) -> list[int]:
    """The tokens emitted for one row."""
    tokens, _ = verify([x], np.array([q], float).reshape(1, len(x), -1), [p], np.array([u], float).reshape(1, -1), [sample_u], **more)
    return [int(t) for t in tokens[0] if t >= 0]


@pytest.mark.parametrize("verify", [speculative_verify, verify_block])
@pytest.mark.parametrize(("case", "tokens"), [
    (([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], [[0.5, 0.5, 0.0]], [1], [0.75], 0.75), [1, 2]),         # SafeAILab/EAGLE#47
    (([[0.0, 1.0], [0.5, 0.5]], [[0.5, 0.5]], [0], [0.0], 0.0), [1]),                             # sgl-project/sglang#35771
    (([[0.5, 0.5], [0.0, 1.0]], [[0.5, 0.5]], [0], [1 - U], 0.0), [0, 1]),                        # equal: never rejected
    (([[0.5, 0.5], [0.0, 1.0]], [[0.0, 1.0]], [1], [0.5], 0.0), [0]),                             # u q = p is a rejection
    (([[0.5, 0.5], [0.0, 1.0]], [[0.0, 1.0]], [1], [0.5 - U], 0.0), [1, 1]),
    (([[0.25, 0.75], [1.0, 0.0]], [[1.0, 0.0]], [1], [0.5], 0.0), [1, 0]),                        # q = 0, p > 0
    (([[0.0, 1.0], [0.5, 0.5]], [[0.0, 1.0]], [0], [0.0], 0.0), [1]),                             # q = 0, p = 0
    (([[0.0, 1.0], [0.5, 0.5], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]], [0, 1], [0.0, 0.0], 0.0), [1]),
])
def test_a_row_at_the_borders_of_the_rule(case: Any, tokens: list[int], verify: Verify) -> None:
    assert one(*case, verify=verify) == tokens


def test_a_block_of_which_nothing_is_left_is_never_a_place_to_stop() -> None:
    p, q = [[0.25, 0.75], [0.5, 0.5], [0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]]     # w_1 = 1/2, s_1 = 0, w_2 = 1/2
    assert one(p, q, [0, 0], [0.0, 0.75], verify=verify_block) == [1]


@pytest.mark.parametrize("verify", [speculative_verify, verify_block])
def test_the_targets_array_stays_as_it_was(verify: Verify) -> None:
    row = np.array([0.5, 0.25, 0.25])                                           # vllm-project/vllm-ascend#2881
    p = np.broadcast_to(row, (1, 3, 3))                                         # all positions share the row
    q = np.array([[[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]])
    assert verify([[0, 0]], q, p, [[0.75, 0.75]], [0.0])[0].tolist() == [[1, -1, -1]]
    assert row.tolist() == [0.5, 0.25, 0.25]


def test_a_residual_of_nothing_is_p() -> None:
    p = np.array([0.25, 0.75])
    assert residual(p, np.array([0.5, 1.0])).tolist() == [0.25, 0.75]           # vllm-project/vllm#41834
    assert residual(p, p) is not p


def drawn(seed: int, B: int, K: int, V: int) -> tuple[np.ndarray, ...]:
    r = np.random.default_rng(seed)
    q, p = r.dirichlet(np.full(V, 0.5), (B, K)), r.dirichlet(np.full(V, 0.5), (B, K + 1))
    x = np.array([[r.choice(V, p=q[b, j]) for j in range(K)] for b in range(B)]).reshape(B, K)
    return x, q, p, r.random((B, K)), r.random(B)


@pytest.mark.parametrize("verify", [speculative_verify, verify_block])
def test_a_ragged_batch_is_each_row_alone(verify: Verify) -> None:
    x, q, p, u, last_u = drawn(0, 40, 4, 6)
    n = np.arange(40) % 5
    ended = np.where(np.arange(4) < n[:, None], x, -1)
    for tokens, n_accepted in (verify(x, q, p, u, last_u, draft_lengths=n), verify(ended, q, p, u, last_u)):
        for b in range(40):
            row = slice(b, b + 1)
            alone, accepted = verify(x[row, : n[b]], q[row, : n[b]], p[row, : n[b] + 1], u[row, : n[b]], last_u[row])
            assert tokens[b].tolist() == alone[0].tolist() + [-1] * (4 - n[b])
            assert n_accepted[b] == accepted[0]


@pytest.mark.parametrize("verify", [speculative_verify, verify_block])
def test_what_stands_behind_a_draft_never_matters(verify: Verify) -> None:
    x, q, p, u, last_u = drawn(1, 20, 3, 5)
    expected = verify(x, q, p, u, last_u, draft_lengths=np.full(20, 1))
    x[:, 1], q[:, 1:], p[:, 2:] = -1, np.nan, np.nan
    assert all((a == b).all() for a, b in zip(verify(x, q, p, u, last_u), expected))


def test_the_bonus_comes_from_the_row_of_the_drafts_length() -> None:
    p = np.eye(3)[None]
    for n in range(3):
        tokens, _ = speculative_verify([[0, 1]], p[:, :2], p, [[0.0, 0.0]], [0.0], draft_lengths=[n])
        assert tokens[0, n] == n


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_rows_that_sum_to_1_within_roundings_of_their_dtype_are_divided_by_their_sum(dtype: Any) -> None:
    p = np.full((1, 1, 3), 1 / 3).astype(dtype)
    total = float(p.astype(np.float64).sum())
    third = float(p[0, 0, 0]) / total
    no_draft = (np.zeros((1, 0), int), p[:, :0], p, np.zeros((1, 0)))
    tokens = [speculative_verify(*no_draft, [u])[0][0, 0] for u in (third - 2 * U, third + 2 * U)]
    assert tokens == [0, 1]


@pytest.mark.parametrize("shape", [(0, 2), (3, 0), (0, 0)])
def test_no_rows_and_no_drafts_are_legal(shape: tuple[int, int]) -> None:
    B, K = shape
    x, q, p, u, last_u = drawn(2, B, K, 4)
    tokens, n_accepted = speculative_verify(x.astype(np.int64), q.reshape(B, K, 4), p, u, last_u)
    assert tokens.shape == (B, K + 1)
    assert n_accepted.tolist() == [0] * B


def test_typical_acceptance_keeps_what_is_likely_enough() -> None:
    p = [[[0.08, 0.92], [0.5, 0.5], [1.0, 0.0]]]                                # exp(-H) of the first is 0.76: the threshold is 0.09
    assert typical_acceptance([[0, 1]], p, [0.0])[0].tolist() == [[0, -1, -1]]
    assert typical_acceptance([[1, 0]], p, [0.0])[0].tolist() == [[1, 0, 0]]


def test_typical_acceptance_asks_less_of_a_token_where_the_target_is_unsure() -> None:
    p = np.full((1, 2, 64), 1 / 64)                                             # delta e^-H = 0.3 / 64 < 1 / 64
    assert typical_acceptance([[5]], p, [0.0])[1].tolist() == [1]
    assert typical_acceptance([[5]], p, [0.0], delta=1.5)[1].tolist() == [0]


def test_expected_tokens_and_speed_up_are_those_of_their_formulas() -> None:
    for a in (Fraction(0), Fraction(1, 4), Fraction(3, 4)):
        exact = (1 - a**5) / (1 - a)
        assert expected_tokens(float(a), 4) == float(exact)
        assert speed_up(float(a), 4, draft_cost=0.25) == float(exact) / 2
    assert expected_tokens(1.0, 4) == 5.0


def test_acceptance_is_one_minus_the_total_variation() -> None:
    p, q = np.array([0.5, 0.25, 0.25, 0.0]), np.array([0.25, 0.25, 0.0, 0.5])
    assert acceptance_rate(p, q) == 1 - np.abs(p - q).sum() / 2 == 0.5


GOOD = {"draft_tokens": [[0]], "draft_probs": [[[0.5, 0.5]]], "target_probs": [[[0.5, 0.5], [1.0, 0.0]]], "accept_u": [[0.5]],
        "sample_u": [0.5]}


@pytest.mark.parametrize("verify", [speculative_verify, verify_block])
@pytest.mark.parametrize(("changed", "error", "words"), [
    ({"draft_tokens": [[2]]}, ValueError, "draft_tokens: got numbers from 2 to 2; want -1..1"),
    ({"draft_tokens": [[0.0]]}, TypeError, "draft_tokens: got dtype float64; want integers"),
    ({"draft_tokens": [[0, 0]]}, ValueError, r"draft_tokens: got shape \(1, 2\); want \(1, 1\)"),
    ({"draft_probs": [[[np.nan, 0.5]]]}, ValueError, "draft_probs: got a row with a NaN"),
    ({"draft_probs": [[[1.5, -0.5]]]}, ValueError, "draft_probs: got a row with a NaN, a negative number"),
    ({"draft_probs": [[[0.5, 0.25]]]}, ValueError, "draft_probs: got a row that sums to 0.75; want 1 within 2 roundings of float64"),
    ({"draft_probs": [[[1.0]]]}, ValueError, r"draft_probs: got shape \(1, 1, 1\); want \(1, 1, 2\)"),
    ({"target_probs": [[[0.5, 0.5], [2.0, 0.0]]]}, ValueError, "target_probs: got a row that sums to 2.0"),
    ({"target_probs": [[[1, 0], [1, 0]]]}, TypeError, "target_probs: got dtype int64"),
    ({"target_probs": np.zeros((1, 0, 2))}, ValueError, r"target_probs: got shape \(1, 0, 2\); want \(B, K \+ 1, V\)"),
    ({"accept_u": [[1.0]]}, ValueError, r"accept_u: got numbers outside \[0, 1\)"),
    ({"accept_u": [0.5]}, ValueError, r"accept_u: got shape \(1,\); want \(1, 1\)"),
    ({"sample_u": [-0.5]}, ValueError, r"sample_u: got numbers outside \[0, 1\)"),
    ({"draft_lengths": [2]}, ValueError, "draft_lengths: got numbers from 2 to 2; want 0..1"),
])
def test_bad_input_is_refused_by_name(verify: Verify, changed: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        verify(**{**GOOD, **changed})


@pytest.mark.parametrize(("call", "words"), [
    (lambda: expected_tokens(1.5, 2), "acceptance: got 1.5; want a probability"),
    (lambda: expected_tokens(0.5, -1), "k: got -1"),
    (lambda: speed_up(0.5, 1, draft_cost=-1.0), "draft_cost: got -1.0"),
    (lambda: acceptance_rate([0.5, 0.5], [1.0]), r"q: got shape \(1,\); want \(2,\)"),
    (lambda: typical_acceptance([[0]], GOOD["target_probs"], [0.5], epsilon=0.0), "epsilon: got 0.0"),
])
def test_bad_figures_are_refused_by_name(call: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
