"""The ports of losses and optimizers: what the cases of a check do not reach, bad input refused, and each planted fault found by a law.

ORACLES_BACKEND=cuda runs the first two parts on a device. Orders of threads, races and barriers: test_dropped_barriers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from oracles import reference
from oracles.gpu.adamw import adamw_step, master_weight_step
from oracles.gpu.cross_entropy import cross_entropy, cross_entropy_backward, cross_entropy_with_gradient
from oracles.properties import Arithmetic, bounds

from .planted_faults import status_with_fault

pytestmark = pytest.mark.gpu

BACKEND = os.environ.get("ORACLES_BACKEND", "emulated")
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
V = 3000                                                                        # 8 warps, several chunks each
NUMBERS: dict[str, Any] = {"step": 3, "lr": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1}
MASTER: dict[str, Any] = {**NUMBERS, "loss_scale": 8.0, "max_norm": None, "fmt": "bfloat16"}


def draw(*shape: int, dtype: str = "float32", seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(DTYPES[dtype])


def arithmetic(dtype: str) -> Any:
    return Arithmetic(tile_min=32).resolve(dtype)


LOSSES: dict[str, dict[str, Any]] = {
    "a mean": {"reduction": "mean"},
    "a weighted mean of smoothed labels": {"reduction": "mean", "label_smoothing": 0.2, "weights": True},
    "a sum that keeps the log-sum-exp small": {"reduction": "sum", "z_loss": 0.01},
}


def loss_case(dtype: str, form: str) -> tuple[Any, Any, dict[str, Any]]:
    """Rows of a long vocabulary, one of them ignored, and the options of a form."""
    options = dict(LOSSES[form])
    if options.pop("weights", False):
        options["weights"] = np.abs(draw(V, dtype=dtype, seed=1))
    return draw(2, 2, V, dtype=dtype) * DTYPES[dtype](3), np.array([[7, -100], [V - 1, 0]]), options


@pytest.mark.parametrize("form", LOSSES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_losses_over_a_long_vocabulary_are_within_their_bound(dtype: str, form: str) -> None:
    logits, targets, options = loss_case(dtype, form)
    loss, dlogits = cross_entropy_with_gradient(logits, targets, 0.5, **options, backend=BACKEND)
    assert loss.dtype == dlogits.dtype == DTYPES[dtype]
    exact = reference.cross_entropy(logits, targets, **options)
    assert abs(float(loss) - exact) <= bounds.cross_entropy_bound(arithmetic(dtype), logits, targets, **options)["loss"]
    exact = reference.cross_entropy_backward(logits, targets, 0.5, **options)
    allowed = bounds.cross_entropy_backward_bound(arithmetic(dtype), logits, targets, 0.5, **options)["dlogits"]
    assert (np.abs(dlogits.astype(np.float64) - exact) <= allowed).all()


@pytest.mark.parametrize("form", LOSSES)
def test_one_launch_gives_the_bits_of_two(form: str) -> None:
    logits, targets, options = loss_case("float32", form)
    loss, dlogits = cross_entropy_with_gradient(logits, targets, 0.5, **options, backend=BACKEND)
    assert loss.tobytes() == cross_entropy(logits, targets, **options, backend=BACKEND).tobytes()
    assert dlogits.tobytes() == cross_entropy_backward(logits, targets, 0.5, **options, backend=BACKEND).tobytes()


NAN, INF = float("nan"), float("inf")
ROWS: dict[str, tuple[list[float], int, dict[str, Any], float, list[float]]] = {
    "a class of probability 0": ([0.0, -INF], 0, {}, 0.0, [0.0, 0.0]),
    "a target of probability 0": ([0.0, -INF], 1, {}, INF, [1.0, -1.0]),
    "a smoothed class of probability 0": ([0.0, -INF], 0, {"label_smoothing": 0.5}, INF, [0.25, -0.25]),
    "one without weight": ([0.0, -INF], 0, {"label_smoothing": 0.5, "weights": np.array([1, 0], np.float32)}, 0.0, [0.0, 0.0]),
    "nothing but minus infinity": ([-INF, -INF], 0, {}, NAN, [NAN, NAN]),
    "a NaN": ([NAN, 0.0], 1, {}, NAN, [NAN, NAN]),
    "an infinity": ([INF, 0.0], 0, {}, NAN, [NAN, NAN]),
    "a NaN in a row that is ignored": ([NAN, 0.0], -100, {}, 0.0, [0.0, 0.0]),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_rows_that_are_no_numbers(row: str) -> None:
    z, y, options, loss, gradient = ROWS[row]
    got, dz = cross_entropy_with_gradient(np.array([z], np.float32), [y], np.ones(1, np.float32), **options, reduction="none",
                                          backend=BACKEND)  # fmt: skip
    np.testing.assert_array_equal(got, [loss])
    np.testing.assert_array_equal(dz, [gradient])
    np.testing.assert_array_equal(reference.cross_entropy([z], [y], **options, reduction="none"), [loss])


def test_a_mean_of_nothing_is_0_and_so_is_its_gradient() -> None:
    loss, dz = cross_entropy_with_gradient(draw(2, 3), [-100, -100], 1.0, reduction="mean", backend=BACKEND)
    assert (float(loss), np.abs(dz).max()) == (0.0, 0.0)
    loss, dz = cross_entropy_with_gradient(draw(0, 3), np.zeros(0, np.int64), 1.0, reduction="sum", backend=BACKEND)
    assert (float(loss), dz.shape) == (0.0, (0, 3))


@pytest.mark.parametrize("dtype", DTYPES)
def test_steps_over_many_blocks_are_within_their_bound(dtype: str) -> None:
    p, g = draw(2, 5, 131, dtype=dtype)
    m, v = draw(2, 5, 131, seed=1)
    got = adamw_step(p, g, m, np.abs(v), **NUMBERS, backend=BACKEND)
    allowed = bounds.adamw_step_bound(Arithmetic(moments="float32").resolve(dtype), p, g, m, np.abs(v), **NUMBERS)
    for name, mine, exact in zip(("param", "m", "v"), got, reference.adamw_step(p, g, m, np.abs(v), **NUMBERS)):
        assert mine.dtype == (DTYPES[dtype] if name == "param" else np.float32)
        assert (np.abs(mine.astype(np.float64) - exact) <= allowed[name]).all(), name


def test_a_moment_of_0_moves_nothing_even_over_0() -> None:
    one, zero = np.ones(3, np.float32), np.zeros(3, np.float32)
    param, m, v = adamw_step(one, zero, zero, zero, **{**NUMBERS, "eps": 0.0, "lr": 0.5, "weight_decay": 0.5}, backend=BACKEND)
    assert (param.tolist(), m.tolist(), v.tolist()) == ([0.75] * 3, [0.0] * 3, [0.0] * 3)


N = 256 * 256 + 700                                                             # more than one gradient a thread is surveyed


@pytest.mark.parametrize("max_norm", [None, 3.0])
def test_fused_steps_over_every_survey_are_within_their_bound(max_norm: float | None) -> None:
    g, p, m, v = draw(4, N)
    given = {**MASTER, "max_norm": max_norm}
    got = master_weight_step(g, p, m, np.abs(v), **given, backend=BACKEND)
    assert got[0].dtype == ml_dtypes.bfloat16
    allowed = bounds.master_weight_step_bound(Arithmetic().resolve("float32"), g, p, m, np.abs(v), **given)
    for name, mine, exact in zip(allowed, got, reference.master_weight_step(g, p, m, np.abs(v), **given)):
        assert (np.abs(mine.astype(np.float64) - exact) <= allowed[name]).all(), name
    np.testing.assert_array_equal(got[0], got[1].astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("place", [0, 300, N - 1])
def test_one_number_that_is_none_stops_every_block(place: int, bad: float) -> None:
    g, p, m, v = draw(4, N)
    g[place] = bad
    weights, *state = master_weight_step(g, p, m, v, **MASTER, backend=BACKEND)
    assert [x.tobytes() for x in state] == [x.tobytes() for x in (p, m, v)]
    np.testing.assert_array_equal(weights, p.astype(ml_dtypes.bfloat16))


def test_squares_that_float32_does_not_hold_stop_nothing() -> None:
    g, zero = np.full(2, 3e38, np.float32), np.zeros(2, np.float32)
    given = {**MASTER, "loss_scale": 2.0**100, "max_norm": 1.0}
    _, _, m, _ = master_weight_step(g, zero, zero, zero, **given, backend=BACKEND)
    allowed = bounds.master_weight_step_bound(Arithmetic().resolve("float32"), g, zero, zero, zero, **given)["m"]
    exact = (1.0 - MASTER["beta1"]) / np.sqrt(2.0)                              # over the root of two equal gradients
    assert (allowed < exact).all()                                              # 0, which an overflow leaves, is outside
    assert (np.abs(m.astype(np.float64) - exact) <= allowed).all()


# Refusals ----------------------------------------------------------------------------------------------------------------------

Z, Y, P = draw(2, 5), np.array([0, 1]), draw(4)
LOSS = {"logits": Z, "targets": Y, "reduction": "mean"}
STEP = {"param": P, "grad": P, "m": P, "v": P, **NUMBERS}
FUSED = {"grad": P, "master": P, "m": P, "v": P, **MASTER}
REFUSED: dict[str, tuple[Callable[..., Any], dict[str, Any], type[Exception], str]] = {
    "no vocabulary": (cross_entropy, {**LOSS, "logits": draw(2, 0)}, ValueError, "logits: got shape (2, 0)"),
    "float64": (cross_entropy, {**LOSS, "logits": Z.astype(np.float64)}, NotImplementedError, "logits: got dtype float64"),
    "a class too many": (cross_entropy, {**LOSS, "targets": [0, 5]}, ValueError, "targets: got 5; want 0..4 or ignore_index = -100"),
    "a class below 0": (cross_entropy, {**LOSS, "targets": [0, -1]}, ValueError, "targets: got -1"),
    "targets of another shape": (cross_entropy, {**LOSS, "targets": [0]}, ValueError, "targets: got shape (1,); want (2,)"),
    "targets of floats": (cross_entropy, {**LOSS, "targets": np.zeros(2)}, TypeError, "targets: got dtype float64; want integers"),
    "another reduction": (cross_entropy, {**LOSS, "reduction": "max"}, ValueError, "reduction: got 'max'"),
    "too much smoothing": (cross_entropy, {**LOSS, "label_smoothing": 1.5}, ValueError, "label_smoothing: got 1.5"),
    "weights below 0": (cross_entropy, {**LOSS, "weights": np.full(5, -1, np.float32)}, ValueError, "weights: got numbers from -1.0"),
    "weights of another format": (cross_entropy, {**LOSS, "weights": np.ones(5, np.float16)}, NotImplementedError,
        "weights: got dtype float16 beside float32"),
    "one dloss for rows": (cross_entropy_backward, {**LOSS, "reduction": "none", "dloss": 1.0}, ValueError, "dloss: got shape ()"),
    "a whole dloss": (cross_entropy_backward, {**LOSS, "dloss": np.int64(1)}, TypeError, "dloss: got dtype int64"),
    "a gradient of another shape": (adamw_step, {**STEP, "grad": draw(3)}, ValueError, "grad: got shape (3,); want (4,)"),
    "moments of 16 bits": (adamw_step, {**STEP, "m": P.astype(np.float16)}, NotImplementedError, "m: got dtype float16"),
    "step 0": (adamw_step, {**STEP, "step": 0}, ValueError, "step: got 0; want a whole number >= 1"),
    "a beta of 1": (adamw_step, {**STEP, "beta2": 1.0}, ValueError, "beta2: got 1.0; want a number in [0, 1)"),
    "a rate below 0": (adamw_step, {**STEP, "lr": -0.1}, ValueError, "lr: got -0.1; want a finite number >= 0"),
    "a scale of 0": (master_weight_step, {**FUSED, "loss_scale": 0.0}, ValueError, "loss_scale: got 0.0; want a finite number > 0"),
    "a norm below 0": (master_weight_step, {**FUSED, "max_norm": -1.0}, ValueError, "max_norm: got -1.0"),
    "weights of float32": (master_weight_step, {**FUSED, "fmt": "float32"}, ValueError, "fmt: got 'float32'; want one of float16,"),
}  # fmt: skip


@pytest.mark.parametrize("fault", REFUSED)
def test_bad_input_is_refused_by_name(fault: str) -> None:
    port, given, error, message = REFUSED[fault]
    with pytest.raises(error, match=re.escape(message)):
        port(**given, backend=BACKEND)


# Planted faults ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planted:
    """A text of a kernel and what it becomes: the fault, the operation, and a law of it that has to find it."""

    fault: str
    file: str
    was: str
    becomes: str
    operation: str
    law: str


LOSS_FORWARD, LOSS_BACKWARD, MASTERS = "cross_entropy", "cross_entropy_backward", "master_weight_step"
FAULTS = (
    Planted("the largest is not taken off", "cross_entropy.cu", "(top - widen(z[y]))", "(-widen(z[y]))", LOSS_FORWARD,
            "adding_one_number_to_all_logits_changes_nothing"),
    Planted("what was summed is not rescaled", "cross_entropy.cu", "l *= rescaling(m, m_new);", "", LOSS_FORWARD,
            "loss_agrees_with_the_oracle"),
    Planted("ignored rows are read", "cross_entropy.cu", "const bool counts = y != ignored,", "const bool counts = true,", LOSS_FORWARD,
            "ignored_rows_never_matter"),
    Planted("a label is smoothed over one class too few", "cross_entropy.cu", "share = smoothing / V;", "share = smoothing / (V - 1);",
            LOSS_FORWARD, "equal_logits_cost_the_logarithm_of_their_number"),
    Planted("ignored targets count in the mean", "cross_entropy.cu", "if (targets[row] != ignored) w +=",
            "if (targets[row] != ignored || weights == nullptr) w +=", LOSS_FORWARD, "a_mean_is_the_sum_over_the_weight"),
    Planted("a mean of nothing is NaN", "cross_entropy.cu", "narrow(over > 0. ? (float)(sum / over) : 0.f, loss)",
            "narrow((float)(sum / over), loss)", LOSS_FORWARD, "nothing_to_score_is_no_loss"),
    Planted("the label is taken off twice", "cross_entropy.cu", "(i == y ? a + own : own)", "(i == y ? a + a + own : own)", LOSS_BACKWARD,
            "a_row_of_the_gradient_adds_up_to_nothing"),
    Planted("dloss is left out", "cross_entropy.cu", "(double)dloss[row * dloss_step] / over", "1. / over", LOSS_BACKWARD,
            "twice_the_loss_has_twice_the_gradient"),
    Planted("the gradient of ignored rows is not written", "cross_entropy.cu", "if (dlogits == nullptr) return;",
            "if (dlogits == nullptr || !counts) return;", LOSS_BACKWARD, "ignored_rows_never_matter"),
    Planted("the sign is lost", "cross_entropy.cu", "dz = g * (", "dz = -g * (", LOSS_BACKWARD,
            "a_step_against_the_gradient_moves_the_target_up"),
    Planted("z_loss has half a gradient", "cross_entropy.cu", "2.f * z_loss * w_y * lse", "z_loss * w_y * lse", LOSS_BACKWARD,
            "a_row_of_the_gradient_adds_up_to_nothing"),
    Planted("eps stands in the root", "adamw.cu", "(sqrtf(*v / x.c2) + x.eps)", "sqrtf(*v / x.c2 + x.eps)", "adamw_step",
            "the_first_step_moves_by_the_learning_rate"),
    Planted("what moved decays", "adamw.cu", "p * x.kept - x.rate * move", "(p - x.rate * move) * x.kept", "adamw_step",
            "powers_of_two_step_exactly"),
    Planted("the second moment is not corrected", "adamw.cu", "sqrtf(*v / x.c2)", "sqrtf(*v)", "adamw_step",
            "param_agrees_with_the_oracle"),
    Planted("a moment of 0 is divided by 0", "adamw.cu", "*m == 0.f ? 0.f :", "", "adamw_step", "nothing_over_nothing_moves_nothing"),
    Planted("the moments are those of the step before", "adamw.cu", "new_m[i] = own_m, new_v[i] = own_v;\n}\n\ntemplate",
            "new_m[i] = m[i], new_v[i] = own_v;\n}\n\ntemplate", "adamw_step", "m_agrees_with_the_oracle"),
    Planted("inf is not looked for", "adamw.cu", "taken = sum < CUDART_INF", "taken = true", MASTERS,
            "a_gradient_that_overflowed_changes_nothing"),
    Planted("only NaN is looked for", "adamw.cu", "taken = sum < CUDART_INF", "taken = sum == sum", MASTERS,
            "a_gradient_that_overflowed_changes_nothing"),
    Planted("the gradient stays scaled", "adamw.cu", "(float)(norm > max_norm ? unscale * (max_norm / norm) : unscale)",
            "(float)(norm > max_norm ? unscale * (max_norm / norm) : 1.)", MASTERS, "the_scale_of_the_loss_cancels"),
    Planted("the norm is that of the scaled gradient", "adamw.cu", "sqrt(sum) * unscale", "sqrt(sum)", MASTERS,
            "the_scale_of_the_loss_cancels"),
    Planted("weights are cut off", "adamw.cu", "narrow(p, &weights[i]);",
            "narrow(__uint_as_float(__float_as_uint(p) & 0xffffe000u), &weights[i]);", MASTERS, "weights_are_the_master_rounded_once"),
    Planted("the weight is stepped, not the master", "adamw.cu", "float p = master[i],",
            "T held; narrow(master[i], &held); float p = widen(held),", MASTERS, "no_update_is_lost"),
)  # fmt: skip
PORTS = {LOSS_FORWARD: cross_entropy, LOSS_BACKWARD: cross_entropy_backward, "adamw_step": adamw_step, MASTERS: master_weight_step}


@pytest.mark.parametrize("planted", FAULTS, ids=lambda planted: planted.fault)
def test_a_planted_fault_is_found_by_its_law(planted: Planted, tmp_path: Path) -> None:
    def widened(results: Any) -> Any:
        return (results[0].astype(np.float32), *results[1:]) if planted.operation == MASTERS else results

    assert status_with_fault(tmp_path, planted.file, planted.was, planted.becomes, port=PORTS[planted.operation],
                             operation=planted.operation, law=planted.law, results=widened) == "failed"  # fmt: skip
