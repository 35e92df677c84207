"""Cross-entropy, whole and sharded, its gradient, the shift of targets: decimal arithmetic, complex steps, published triggers."""

from __future__ import annotations

import decimal
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from oracles.reference import cross_entropy, cross_entropy_backward, next_token_targets, perplexity, vocab_parallel_cross_entropy

U = 2.0**-53
EXACT = decimal.Context(prec=60)
STEP = 1e-30                                                                    # of a complex step: its error is STEP^2


def log_sum(z: np.ndarray) -> Decimal:
    total = Decimal(0)
    for x in z:
        total = EXACT.add(total, EXACT.exp(Decimal(float(x))))
    return EXACT.ln(total)


def exact_row(z: np.ndarray, y: int, w: np.ndarray, e: float, z_loss: float) -> Decimal:
    """The loss of a row as the docstring writes it, in decimal arithmetic."""
    lse, V = log_sum(z), len(z)
    loss = Decimal(float(z_loss)) * Decimal(float(w[y])) * lse * lse
    for c in range(V):
        a = Decimal(float(w[c])) * ((1 - Decimal(e)) * (c == y) + Decimal(e) / V)
        loss += a * (lse - Decimal(float(z[c])))
    return loss


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    r = np.random.default_rng(seed)
    n, V = 5, int(r.integers(1, 7))
    options = {"weights": r.random(V) if seed % 2 else None, "label_smoothing": (0.0, 0.1, 1.0)[seed % 3],
               "z_loss": (0.0, 1e-3)[seed // 2 % 2]}  # fmt: skip
    y = np.where(r.random(n) < 0.3, -100, r.integers(0, V, n))
    y[0] = 0
    return r.normal(size=(n, V)) * 3, y, options


def complex_loss(z: Any, y: Any, *, weights: Any, label_smoothing: float, z_loss: float, reduction: str) -> Any:
    """The loss of complex logits, written by another hand: log-probabilities, a smoothed one-hot, a masked mean."""
    V = z.shape[-1]
    w = np.ones(V) if weights is None else weights
    lse = np.log(np.exp(z).sum(-1))
    keep = y != -100
    target = np.where(keep, y, 0)
    hard = w[target] * (lse - np.take_along_axis(z, target[:, None], -1)[:, 0])
    soft = (w * (lse[:, None] - z)).sum(-1) / V
    rows = ((1 - label_smoothing) * hard + label_smoothing * soft + z_loss * w[target] * lse**2) * keep
    return {"none": rows, "sum": rows.sum(), "mean": rows.sum() / (w[target] * keep).sum()}[reduction]


@pytest.mark.parametrize("seed", range(12))
def test_the_loss_is_that_of_decimal_arithmetic(seed: int) -> None:
    z, y, options = drawn(seed)
    w = np.ones(z.shape[1]) if options["weights"] is None else options["weights"]
    exact = [exact_row(z[i], y[i], w, options["label_smoothing"], options["z_loss"]) if y[i] >= 0 else Decimal(0) for i in range(5)]
    got = cross_entropy(z, y, reduction="none", **options)
    bound = (z.shape[1] + 16) * U * (np.array([float(abs(x)) for x in exact]) + 2 * abs(options["z_loss"]) * np.abs(z).max() ** 2)
    assert all(abs(float(Decimal(float(g)) - x)) <= b for g, x, b in zip(got, exact, bound))
    total = sum(Decimal(float(w[c])) for c in y if c >= 0)
    mean = cross_entropy(z, y, reduction="mean", **options)
    assert abs(float(Decimal(float(mean)) - sum(exact) / total)) <= 2 * (bound.sum() + 8 * U * float(sum(exact))) / float(total)
    assert abs(float(cross_entropy(z, y, reduction="sum", **options)) - float(sum(exact))) <= bound.sum() + 8 * U * float(sum(exact))


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("seed", range(12))
def test_the_gradient_is_that_of_a_complex_step(seed: int, reduction: str) -> None:
    z, y, options = drawn(seed)
    dloss = np.random.default_rng(seed).normal(size=5 if reduction == "none" else ())
    got = cross_entropy_backward(z, y, dloss, reduction=reduction, **options)
    for i, c in np.ndindex(z.shape):
        moved = z.astype(complex)
        moved[i, c] += 1j * STEP
        slope = (np.imag(complex_loss(moved, y, reduction=reduction, **options)) / STEP * dloss).sum()
        size = np.abs(dloss).max() * (1 + 2 * options["z_loss"] * np.abs(z).max())
        if reduction == "mean":
            w = np.ones(z.shape[1]) if options["weights"] is None else options["weights"]
            size /= sum(w[c] for c in y if c >= 0)
        assert abs(got[i, c] - slope) <= 64 * U * size * (1 + np.abs(z).max())


def test_a_leading_target_loses_no_digit() -> None:
    assert cross_entropy([[40.0, 0.0]], [0], reduction="mean") == np.log1p(np.exp(-40.0))
    assert cross_entropy_backward([[40.0, 0.0]], [0], 1.0, reduction="mean")[0].tolist() == [-np.exp(-40.0), np.exp(-40.0)]


def test_ignored_rows_count_nowhere_whatever_they_hold() -> None:
    z = np.array([[1.0, 2.0], [np.nan, np.inf]])
    assert cross_entropy(z, [0, -100], reduction="mean") == cross_entropy(z[:1], [0], reduction="mean")
    assert cross_entropy(z, [0, -100], reduction="none")[1] == 0.0
    assert cross_entropy_backward(z, [0, -100], 1.0, reduction="mean")[1].tolist() == [0.0, 0.0]


def test_ignored_rows_add_no_weight_to_the_mean() -> None:
    """pytorch/pytorch#69339: weights [.2, .3], targets [-1, 1] with -1 ignored. The denominator is .3, so the mean is ln 2."""
    loss = cross_entropy(np.zeros((2, 2)), [-1, 1], weights=np.array([0.2, 0.3]), ignore_index=-1, reduction="mean")
    assert abs(loss - np.log(2.0)) <= 4 * U


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_nothing_to_score_is_no_loss(reduction: str) -> None:
    z = np.full((2, 3), np.nan)
    assert cross_entropy(z, [-100, -100], reduction=reduction) == 0.0
    assert (cross_entropy_backward(z, [-100, -100], 1.0, reduction=reduction) == 0.0).all()
    assert vocab_parallel_cross_entropy([z, z], [-100, -100], reduction=reduction) == 0.0
    assert perplexity(z, [-100, -100]) == 1.0


def test_a_class_of_probability_0_costs_infinity_only_where_it_has_weight() -> None:
    z = [[0.0, -np.inf]]
    assert cross_entropy(z, [0], reduction="mean") == 0.0
    assert cross_entropy(z, [1], reduction="mean") == np.inf
    assert cross_entropy(z, [0], label_smoothing=0.1, reduction="mean") == np.inf
    assert cross_entropy(z, [0], label_smoothing=0.1, weights=np.array([1.0, 0.0]), reduction="mean") == 0.0


@pytest.mark.parametrize("row", [[np.nan, 0.0], [np.inf, 0.0], [-np.inf, -np.inf]])
def test_rows_without_a_softmax_are_nan(row: list[float]) -> None:
    assert np.isnan(cross_entropy([row], [1], reduction="mean"))
    assert np.isnan(cross_entropy_backward([row], [1], 1.0, reduction="mean")).all()


@pytest.mark.parametrize("R", [1, 2, 4])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_shards_of_the_vocabulary_have_the_loss_of_the_whole(R: int, reduction: str) -> None:
    r = np.random.default_rng(R)
    z, y = r.normal(size=(2, 3, 8)), r.integers(0, 8, (2, 3))
    y[0, 0] = -100
    options = {"label_smoothing": 0.1, "z_loss": 1e-3, "reduction": reduction}
    whole, parts = cross_entropy(z, y, **options), vocab_parallel_cross_entropy(np.split(z, R, axis=-1), y, **options)
    assert np.abs(whole - parts).max() <= 6 * 40 * U * (np.abs(z).max() + np.log(8.0)) ** 2


def test_the_smoothing_term_is_over_the_whole_vocabulary() -> None:
    """NVIDIA/Megatron-LM#737 and #7452: logits 0, 1, 2, 3, label 3, two shards."""
    z = np.arange(4.0)[None]
    assert abs(vocab_parallel_cross_entropy(np.split(z, 2, axis=-1), [3], reduction="mean") - 0.44018969856119533) <= 8 * U
    smoothed = 0.44018969856119533 + 0.1 * 1.5
    assert abs(vocab_parallel_cross_entropy(np.split(z, 2, axis=-1), [3], label_smoothing=0.1, reduction="mean") - smoothed) <= 16 * U


def test_perplexity_is_that_of_all_tokens_at_once() -> None:
    z = np.log([[0.5, 0.5], [0.125, 0.875]])
    assert abs(perplexity(z, [0, 0]) - 4.0) <= 64 * U                           # of 2 and 8 the geometric mean, not 5


@pytest.mark.parametrize(("given", "told"), [
    ({"targets": [2]}, "targets: got numbers from 2 to 2; want 0..1 or ignore_index = -100"),
    ({"targets": [-1]}, "targets: got numbers from -1"),
    ({"targets": [0, 1]}, r"targets: got shape \(2,\); want \(1,\)"),
    ({"logits": 1.0, "targets": 0}, r"logits: got shape \(\); want \(\.\.\., V\)"),
    ({"logits": np.zeros((1, 0))}, "logits: got shape"),
    ({"reduction": "average"}, "reduction: got 'average'; want one of mean, sum, none"),
    ({"label_smoothing": 1.5}, "label_smoothing: got 1.5; want a number in 0..1"),
    ({"weights": np.array([1.0, -1.0])}, "weights: got numbers from -1.0 to 1.0; want finite numbers >= 0"),
])  # fmt: skip
def test_bad_arguments_are_refused_by_name(given: dict[str, Any], told: str) -> None:
    arguments = {"logits": np.zeros((1, 2)), "targets": [0], "reduction": "mean", **given}
    with pytest.raises(ValueError, match=told):
        cross_entropy(arguments.pop("logits"), arguments.pop("targets"), **arguments)


def test_float_targets_and_integer_logits_are_refused() -> None:
    with pytest.raises(TypeError, match="targets: got dtype float64; want integers"):
        cross_entropy(np.zeros((1, 2)), [0.0], reduction="mean")
    with pytest.raises(TypeError, match="logits: got dtype int64"):
        cross_entropy(np.zeros((1, 2), int), [0], reduction="mean")
    with pytest.raises(ValueError, match=r"shards\[1\]: got shape \(1, 3\); want that of the first, \(1, 2\)"):
        vocab_parallel_cross_entropy([np.zeros((1, 2)), np.zeros((1, 3))], [0], reduction="mean")
    with pytest.raises(ValueError, match=r"dloss: got shape \(\); want \(1,\)"):
        cross_entropy_backward(np.zeros((1, 2)), [0], 1.0, reduction="none")


def test_targets_are_the_tokens_after() -> None:
    assert next_token_targets([[4, 5, 6]]).tolist() == [[5, 6, -100]]
    assert next_token_targets([[3, 4, 5, 6, 7]], prompt_lengths=[3]).tolist() == [[-100, -100, 6, 7, -100]]
    assert next_token_targets([[1, 2, 3, 4]], segments=[[7, 7, 2, 2]]).tolist() == [[2, -100, 4, -100]]
    assert next_token_targets([[1, 2]], prompt_lengths=[0], ignore_index=-1).tolist() == [[2, -1]]
    assert next_token_targets(np.zeros((2, 0), int)).shape == (2, 0)
    with pytest.raises(ValueError, match=r"tokens: got shape \(2,\); want \(B, T\)"):
        next_token_targets([1, 2])


def test_one_row_without_axes_is_a_loss_of_its_own() -> None:
    assert cross_entropy([0.0, 1.0], 1, reduction="none").shape == ()


def test_logits_whose_square_overflows_have_a_finite_loss_without_z_loss() -> None:
    assert cross_entropy([[1e271, 0.0]], [0], reduction="mean") == 0.0
    assert cross_entropy([[1e271, 0.0]], [1], reduction="mean") == 1e271
