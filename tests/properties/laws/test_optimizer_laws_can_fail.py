"""Every law of AdamW turns red on an implementation that breaks what it states, and none on the oracle itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracles.properties import Arithmetic, check, subject
from oracles.properties.operations import operation_named
from oracles.properties.report import FAILED
from oracles.reference import FloatFormat, adamw_step

from .test_decoding_laws_can_fail import failure

Given = dict[str, Any]
Function = Callable[[Given], Any]
A = "adamw_step"


def right(given: Given) -> Any:
    return adamw_step(**given)


def given_other(**changes: Callable[[Given], Any]) -> Function:
    """The oracle on changed arguments."""
    return lambda given: right({**given, **{name: change(given) for name, change in changes.items()}})


def changing(which: int, change: Callable[[Any, Given], Any]) -> Function:
    """The oracle, one of its results changed."""
    def broken(given: Given) -> Any:
        results = list(right(given))
        results[which] = change(results[which], given)
        return tuple(results)

    return broken


def without_correction(given: Given) -> Any:
    return right({**given, "step": 2**62})


def backwards(given: Given) -> Any:
    return given["grad"] if given["grad"].flags.c_contiguous else np.ascontiguousarray(given["grad"])[..., ::-1]


BREAKERS: dict[str, Function] = {
    "answers": lambda given: right(given)[0].reshape(-1, 1, 1),
    "param_agrees_with_the_oracle": changing(0, lambda x, given: x * (1 + 1e-9)),
    "m_agrees_with_the_oracle": changing(1, lambda x, given: x * (1 + 1e-9)),
    "v_agrees_with_the_oracle": changing(2, lambda x, given: x * (1 + 1e-9)),
    "the_first_step_moves_by_the_learning_rate": without_correction,
    "without_a_gradient_only_the_decay_is_left": given_other(
        grad=lambda given: given["grad"].astype(np.float64) + given["weight_decay"] * given["param"].astype(np.float64),
        weight_decay=lambda given: 0.0),
    "nothing_over_nothing_moves_nothing": lambda given: (
        np.where((given["grad"] == 0) & (given["v"] == 0) & (given["eps"] == 0), np.nan, right(given)[0]), *right(given)[1:]),
    "a_learning_rate_of_0_moves_nothing": given_other(lr=lambda given: max(given["lr"], 1e-6)),
    "powers_of_two_step_exactly": given_other(eps=lambda given: max(given["eps"], 1e-12)),
    "a_nan_makes_its_own_element_nan": given_other(grad=lambda given: np.nan_to_num(given["grad"])),
    "elements_do_not_know_each_other": given_other(
        grad=lambda given: given["grad"].astype(np.float64) * (1 + 1e-6 * np.arange(given["grad"].size).reshape(given["grad"].shape))),
    "strides_are_respected": given_other(grad=backwards),
}  # fmt: skip
# One object for all operations: shown to fail on the filters of decoding.
SHARED = {"inputs_stay_untouched", "buffers_are_fully_written", "repeats_give_the_same_bits"}


@pytest.mark.parametrize("law", BREAKERS)
def test_the_law_rejects_what_breaks_it(law: str) -> None:
    assert failure(A, law, BREAKERS[law], {}), f"{law} accepts an implementation that breaks it"


@pytest.mark.parametrize("law", BREAKERS)
def test_the_law_accepts_the_oracle(law: str) -> None:
    assert failure(A, law, right, {}) == ""


def test_no_law_is_left_out() -> None:
    assert {law.name for law in operation_named(A).laws} <= set(BREAKERS) | SHARED


def test_a_step_without_correction_is_judged_as_declared() -> None:
    declared = {"conventions": {"bias_correction": "off"}}
    assert failure(A, "param_agrees_with_the_oracle", without_correction, declared) == ""
    assert failure(A, "param_agrees_with_the_oracle", right, declared)


def test_a_kernel_that_decays_matrices_alone_is_seen() -> None:
    matrices = given_other(weight_decay=lambda given: given["weight_decay"] if np.ndim(given["param"]) > 1 else 0.0)
    assert "param" in failure(A, "param_agrees_with_the_oracle", matrices, {})


@pytest.mark.parametrize("chunk", [1024, 2**16])
def test_elements_beyond_a_chunk_are_seen(chunk: int) -> None:
    def first_chunk(param: Any, given: Given) -> Any:
        i = np.arange(param.size).reshape(param.shape)
        return np.where(i < chunk, param, given["param"])

    assert failure(A, "param_agrees_with_the_oracle", changing(0, first_chunk), {})


def test_a_clamp_of_large_gradients_is_seen() -> None:
    clamped = given_other(grad=lambda given: np.clip(given["grad"], -1e3, 1e3))
    assert "m[" in failure(A, "m_agrees_with_the_oracle", clamped, {})


def of_16_bits(kept: str) -> Any:
    """Parameters of bfloat16 stepped in float32, the moments kept in one format and returned in float32."""

    @subject(A, dtypes=["bfloat16"], arithmetic=Arithmetic(moments="float32"))
    def stepped(
        param: Any, grad: Any, m: Any, v: Any, *, step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float
    ) -> Any:  # fmt: skip
        assert (param.dtype, grad.dtype, m.dtype, v.dtype) == (param.dtype, param.dtype, np.dtype("float32"), np.dtype("float32"))
        new, *moments = right({"param": param, "grad": grad, "m": m, "v": v, "step": step, "lr": lr, "beta1": beta1, "beta2": beta2,
                               "eps": eps, "weight_decay": weight_decay})  # fmt: skip
        return FloatFormat("bfloat16").cast(new), *(FloatFormat(kept).round(x).astype(np.float32) for x in moments)

    return stepped


def test_moments_of_float32_beside_parameters_of_16_bits_are_held_to_float32() -> None:
    assert check(A, of_16_bits("float32"), budget="quick").held
    report = check(A, of_16_bits("bfloat16"), budget="quick", laws=("m_agrees_with_the_oracle", "v_agrees_with_the_oracle"))
    assert [verdict.status for verdict in report.verdicts] == [FAILED, FAILED]


def test_moments_of_another_format_than_declared_are_a_defect() -> None:
    @subject(A, dtypes=["bfloat16"])
    def stepped(
        param: Any, grad: Any, m: Any, v: Any, *, step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float
    ) -> Any:  # fmt: skip
        results = right({"param": param, "grad": grad, "m": m, "v": v, "step": step, "lr": lr, "beta1": beta1, "beta2": beta2,
                         "eps": eps, "weight_decay": weight_decay})  # fmt: skip
        return FloatFormat("bfloat16").cast(results[0]), *(x.astype(np.float32) for x in results[1:])

    (verdict,) = check(A, stepped, budget="quick", laws=("answers",)).verdicts
    assert verdict.status == FAILED
    assert "m: got dtype float32; want bfloat16" in verdict.reason
