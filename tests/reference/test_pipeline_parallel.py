"""Pipelines that run: whatever schedule and cut, the result is that of the whole batch; gradients by complex step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.reference import cross_entropy, pipeline_loss, pipeline_step, run_schedule, schedule
from oracles.reference.pipeline_parallel import TanhStage

B, T, D, P = 8, 3, 4, 4
CUTS = [("gpipe", 3, 1, 1), ("gpipe", 8, 2, 1), ("1f1b", 1, 1, 1), ("1f1b", 2, 3, 1), ("1f1b", 1, 9, 1), ("zero_bubble", 1, 1, 1),
        ("zero_bubble", 2, 2, 1), ("interleaved", 1, 1, 2), ("interleaved", 2, 2, 2), ("interleaved", 2, 1, 4)]  # fmt: skip
U = 2.0**-53


def problem(seed: int = 0) -> dict[str, Any]:
    g = np.random.default_rng(seed)
    x, targets = g.standard_normal((2, B, T, D))
    weights = [g.standard_normal((D, D)) / 2 for _ in range(P)]
    return {"x": x, "targets": targets, "lengths": g.integers(0, T + 1, B), "weights": weights,
            "dropout_mask": g.uniform(size=(P, B, T, D)) < 0.7, "dropout_p": 0.3}  # fmt: skip


def loss_at_once(x: Any, targets: Any, lengths: Any, weights: Any, dropout_mask: Any, dropout_p: float) -> Any:
    """The formula of the docstring, of the whole batch, for complex numbers too."""
    counted = (np.arange(T) < lengths[:, None])[..., None]
    y = np.where(counted, x, 0.0)
    for w, kept in zip(weights, dropout_mask):
        y = np.tanh(y @ w) * kept / (1.0 - dropout_p)
    error = np.where(counted, y - targets, 0.0)
    return (error * error).sum() / 2.0 / lengths.sum()


@pytest.mark.parametrize(("kind", "size", "accumulation", "chunks"), CUTS)
def test_no_schedule_and_no_cut_changes_the_result(kind: str, size: int, accumulation: int, chunks: int) -> None:
    given = problem()
    loss, dx, dweights = pipeline_step(**given, kind=kind, microbatch_size=size, accumulation=accumulation, chunks=chunks)
    whole = pipeline_step(**given, kind="gpipe", microbatch_size=B)
    assert abs(loss - loss_at_once(**given)) <= 64 * U * loss
    assert np.abs(dx - whole[1]).max() <= 4 * U
    assert max(np.abs(a - b).max() for a, b in zip(dweights, whole[2])) <= 64 * U


def test_gradients_are_those_of_a_complex_step() -> None:
    given, h = problem(1), 2.0**-100
    _, dx, dweights = pipeline_step(**given, kind="1f1b", microbatch_size=2)
    for name, gradients in (("x", dx), *((i, dw) for i, dw in enumerate(dweights))):
        for place in np.ndindex(*gradients.shape):
            changed = {**given, "x": given["x"].astype(complex), "weights": [w.astype(complex) for w in given["weights"]]}
            (changed["x"] if name == "x" else changed["weights"][name])[place] += 1j * h
            assert abs(loss_at_once(**changed).imag / h - gradients[place]) <= 2.0**-44, (name, place)


def test_what_stands_behind_a_length_neither_matters_nor_gets_a_gradient() -> None:
    given = problem(2)
    behind = np.arange(T) >= given["lengths"][:, None]
    poisoned = {**given, **{name: np.where(behind[..., None], odd, given[name]) for name, odd in (("x", np.nan), ("targets", np.inf))}}
    (loss, dx, dweights), clean = (pipeline_step(**one, kind="1f1b", microbatch_size=3) for one in (poisoned, given))
    assert (loss, dx.tobytes(), [w.tobytes() for w in dweights]) == (clean[0], clean[1].tobytes(), [w.tobytes() for w in clean[2]])
    assert not dx[behind].any()


def test_no_tokens_are_no_loss_and_no_gradient() -> None:
    given = {**problem(), "lengths": np.zeros(B, dtype=np.int64)}
    loss, dx, dweights = pipeline_step(**given, kind="zero_bubble", microbatch_size=1)
    assert (float(loss), dx.any(), [w.any() for w in dweights]) == (0.0, False, [False] * P)


def test_an_empty_batch_is_legal() -> None:
    nothing = np.zeros((0, T, D))
    loss, dx, (dw,) = pipeline_step(nothing, nothing, [], [np.eye(D)], kind="gpipe", microbatch_size=1)
    assert (float(loss), dx.shape, dw.any()) == (0.0, (0, T, D), False)


@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "zero_bubble"])
def test_the_activations_really_held_are_those_of_the_schedule(kind: str) -> None:
    order = schedule(kind, stages=3, microbatches=7)
    inputs = list(np.random.default_rng(0).standard_normal((7, 2, D)))
    run = run_schedule(order, [TanhStage(np.eye(D))] * 3, inputs, lambda y, i: (0.0, y))
    assert run.peak == order.peak_activations().tolist()


def test_pieces_that_are_not_those_of_the_schedule_are_refused() -> None:
    with pytest.raises(ValueError, match="pieces: got 2; want 3, 1 on each of 3 stages"):
        run_schedule(schedule("gpipe", stages=3, microbatches=1), [TanhStage(np.eye(D))] * 2, [np.zeros((1, D))], lambda y, i: (0.0, y))


# The loss ---------------------------------------------------------------------------------------------------------------


def test_the_mean_is_over_tokens_and_not_over_micro_batches() -> None:
    """The trigger of ml-explore/mlx-lm#1413: [1] and [4, 4, 4] give 3.25, not 2.5."""
    losses, lengths = [[1.0, 0.0, 0.0], [4.0, 4.0, 4.0]], [1, 3]
    assert [float(pipeline_loss(losses, lengths, microbatch_size=size)) for size in (1, 2, 3)] == [3.25] * 3


@pytest.mark.parametrize("size", [1, 2, 3, 4, 16])
def test_accumulation_is_the_big_batch_with_ragged_token_counts(size: int) -> None:
    g = np.random.default_rng(size)
    logits, targets, lengths = g.standard_normal((5, 6, 7)), g.integers(0, 7, (5, 6)), g.integers(0, 7, 5)
    labels = np.where(np.arange(6) < lengths[:, None], targets, -100)
    token_losses = cross_entropy(logits, targets, reduction="none")
    whole = float(cross_entropy(logits, labels, reduction="mean"))
    assert abs(float(pipeline_loss(token_losses, lengths, microbatch_size=size)) - whole) <= 64 * U * whole


def test_a_batch_without_tokens_has_no_loss_whatever_stands_there() -> None:
    assert float(pipeline_loss([[np.nan, np.inf]], [0], microbatch_size=1)) == 0.0


@pytest.mark.parametrize(("losses", "lengths", "size", "error", "message"), [
    ([1.0], [1], 1, ValueError, r"token_losses: got shape \(1,\); want 2 axes"),
    ([[1.0]], [2], 1, ValueError, r"lengths: got numbers from 2 to 2; want 0\.\.1"),
    ([[1.0]], [1, 1], 1, ValueError, r"lengths: got shape \(2,\); want \(1,\)"),
    ([[1.0]], [1], 0, ValueError, "microbatch_size: got 0; want a whole number >= 1"),
    ([[1]], [1], 1, TypeError, "token_losses: got dtype int64"),
])  # fmt: skip
def test_bad_input_is_refused_by_name(losses: Any, lengths: Any, size: int, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        pipeline_loss(losses, lengths, microbatch_size=size)


def test_pieces_that_do_not_fill_the_chunks_are_refused() -> None:
    given = problem()
    with pytest.raises(ValueError, match="weights: got 4 pieces for 3 chunks on each stage; want a multiple of 3"):
        pipeline_step(**given, kind="interleaved", microbatch_size=1, chunks=3)
