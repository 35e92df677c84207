"""DeepSpeed's ZeRO 0 to 3 on two gloo ranks: laws, what its configuration means, the bytes a rank holds. -m more_peers -k deepspeed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from oracles.properties import Arithmetic
from oracles.properties.bounds import adamw_step_bound
from oracles.properties.peers.deepspeed import STARTING, Engines, Sharded
from oracles.properties.peers.gloo_ranks import SECONDS, RankError
from oracles.properties.report import HELD, NOT_COVERED
from oracles.properties.stateful.checker import check_object
from oracles.properties.stateful.zero_model import ADAM
from oracles.reference import adamw_step

pytestmark = pytest.mark.more_peers

STAGES = (0, 1, 2, 3)
SIZES = (5, 7, 3)
NO_LAW_OF = {"every_rank_holds_its_share", "every_rank_sends_its_share"}
FLOAT32 = Arithmetic().resolve("float32")


def test_four_stages_take_the_step_of_one_rank() -> None:
    report = check_object("zero", "peers:deepspeed", budget=0, call_seconds=STARTING + SECONDS)
    held = {verdict.law: verdict.compared for verdict in report.verdicts if verdict.status == HELD}
    assert {verdict.law for verdict in report.verdicts if verdict.status == NOT_COVERED} == NO_LAW_OF
    assert len(held) == len(report.verdicts) - len(NO_LAW_OF)
    assert held["parameters_follow_the_step_of_one_rank"] > 500
    assert held["the_norm_is_that_of_the_whole_gradient"] > 20


def attached(stage: int, params: list[Any], **options: Any) -> Sharded:
    zero = Sharded(stage, 2, **{**ADAM, **options})
    zero.attach({f"p{k}": np.asarray(x, np.float32) for k, x in enumerate(params)})
    return zero


def after_one_step(stage: int, param: Any, grad: Any, **options: Any) -> Any:
    """One parameter after one step in which both ranks have that gradient."""
    zero = attached(stage, [param], **options)
    zero.step([[np.asarray(grad, np.float32)]] * 2)
    return zero.params()["p0"].astype(np.float64)


def allowed(param: Any, grad: Any, roundings: float = 0.0, **options: Any) -> tuple[Any, Any]:
    """The parameter after AdamW's first step, and how far a legal one is from it, its gradient having been rounded that often."""
    zeros, adam = np.zeros(np.shape(param)), {**ADAM, **options}
    bound = adamw_step_bound(FLOAT32, param, grad, zeros, zeros, step=1, grad_error=roundings * 2.0**-24, **adam)["param"]
    return adamw_step(param, grad, zeros, zeros, step=1, **adam)[0], bound


@pytest.mark.parametrize("stage", STAGES)
def test_the_limit_of_the_norm_is_divided_by_the_norm_and_a_millionth(stage: int) -> None:
    """The norm is 2^-7 5, so that the 1e-6 in the denominator is 430 roundings of the clipped gradient, and the parameters are 0."""
    grad, zeros, limit = np.array([3.0, 0.0, 4.0]) / 128, np.zeros(3), 2.0**-8
    got = after_one_step(stage, zeros, grad, max_norm=limit, weight_decay=0.0)
    norm = float(np.linalg.norm(grad))
    want, bound = allowed(zeros, grad * (limit / (norm + 1e-6)), roundings=16, weight_decay=0.0)
    without, _ = allowed(zeros, grad * (limit / norm), weight_decay=0.0)
    assert (np.abs(got - want) <= bound).all()
    assert (np.abs(without - got)[grad > 0] > bound[grad > 0]).all()            # a limit over the norm alone would be seen


@pytest.mark.parametrize("stage", STAGES)
def test_a_norm_within_the_limit_changes_no_gradient(stage: int) -> None:
    param, grad = np.array([1.0, -2.0, 0.5]), np.array([3.0, 0.0, 4.0])
    np.testing.assert_array_equal(after_one_step(stage, param, grad, max_norm=8.0), after_one_step(stage, param, grad))


@pytest.mark.parametrize(("configured", "decoupled"), [
    ({"type": "AdamW"}, True), ({"type": "AdamW", "adam_w_mode": False}, True),
    ({"type": "Adam"}, True), ({"type": "Adam", "adam_w_mode": False}, False),
])  # fmt: skip
def test_adam_decays_weights_apart_from_gradients_unless_it_is_told_not_to(configured: dict[str, Any], decoupled: bool) -> None:
    """Type "Adam" is AdamW (adam_w_mode is true by default); told false it adds weight_decay p to the gradient. "AdamW" is not told."""
    param, grad = np.array([1.0, -2.0, 0.5]), np.array([3.0, 0.0, 4.0])
    got = after_one_step(1, param, grad, **configured)
    apart = allowed(param, grad)
    added = allowed(param, grad + ADAM["weight_decay"] * param, roundings=8, weight_decay=0.0)
    right, other = (apart, added) if decoupled else (added, apart)
    assert (np.abs(got - right[0]) <= right[1]).all()
    assert (np.abs(got - other[0]) > other[1]).any()


@pytest.mark.parametrize("stage", STAGES)
def test_eps_is_added_to_the_root_of_the_corrected_moment(stage: int) -> None:
    """eps of the size of the gradient: inside the root, or added before the moment is corrected, it would be seen."""
    zeros, grad, eps = np.zeros(2), np.array([2.0**-10, 2.0**-12]), 2.0**-10
    options = {"eps": eps, "weight_decay": 0.0, "beta2": 0.75}
    got, (want, bound) = after_one_step(stage, zeros, grad, **options), allowed(zeros, grad, **options)
    inside = -ADAM["lr"] * grad / np.sqrt(grad * grad + eps)
    before = -ADAM["lr"] * grad / (grad + eps / 0.5)                            # sqrt(1 - beta2) = 1/2
    assert (np.abs(got - want) <= bound).all()
    assert (np.abs(got - inside) > bound).all()
    assert (np.abs(got - before) > bound).all()


def touched(first: int, end: int) -> int:
    """Elements of whole parameters that have a part in the slice [first, end) of the flat buffer."""
    ends = np.cumsum(SIZES)
    return sum(n for n, e in zip(SIZES, ends) if e - n < end and e > first)


@pytest.mark.parametrize("stage", STAGES)
def test_each_rank_holds_what_the_stage_says_filled_up(stage: int) -> None:
    """Float32: 15 elements fill up to 16 in stages 1 and 2, whose slices are of 8; stage 3 cuts each parameter into halves, 3 + 4 + 2 = 9.

    A float32 copy of the slice is held beside the weights though these are float32 already. Gradients of stages 1 and 2 are kept as
    parts of whole parameters' gradients: each one that the slice touches is held whole, and 4 bytes that fill up the last.
    """
    zero = attached(stage, [np.ones(n) for n in SIZES])
    zero.step([[np.ones(n, np.float32) for n in SIZES]] * 2)
    S, own, N = 8, 9, sum(SIZES)
    of_slices = [touched(0, S), touched(S, 2 * S) + 1]
    rows = {0: (N, [N, N], 0, 2 * N), 1: (2 * S, of_slices, S, 2 * S), 2: (2 * S, of_slices, S, 2 * S), 3: (own, [own, own], own, 2 * own)}
    weights, gradients, masters, moments = rows[stage]
    for r, held in enumerate(zero.bytes_of_ranks()):
        assert held == {"weights": 4 * weights, "gradients": 4 * gradients[r], "masters": 4 * masters, "moments": 4 * moments}


@pytest.fixture
def two() -> Iterator[Engines]:
    group = Engines()
    yield group
    group.close()


def test_a_rank_that_dies_in_a_step_is_named_and_others_take_its_place(two: Engines) -> None:
    one, grads = {"0": np.ones(3, np.float32)}, {"0.0": np.ones(3, np.float32)}
    options = {"stage": 2, **ADAM}
    two.ask("attach", [one, one], options)
    began = time.monotonic()
    with pytest.raises(RankError, match=r"^rank 1 of 2 in ends: the process exited with status 17"):
        two.ask("ends", [grads, grads], {"micro_batches": 1, "doomed": 1})
    assert time.monotonic() - began < SECONDS
    two.ask("attach", [one, one], options)
    assert two.ask("step", [grads, grads], {"micro_batches": 1})[1]["norm"] == np.float32(np.sqrt(3.0))


def test_what_no_rank_would_notice_is_refused() -> None:
    with pytest.raises(ValueError, match="stage, world: got 4, 2"):
        Sharded(4, 2, **ADAM)
    with pytest.raises(NotImplementedError, match="3 ranks; two processes"):
        Sharded(1, 3, **ADAM).attach({})
    with pytest.raises(ValueError, match="want arrays of shapes"):
        Sharded(1, 2, **ADAM).step([[np.ones(1)], [np.ones(1)]])


def test_deepspeed_empty_parameter(two: Engines) -> None:
    arrays = [np.zeros((0, 2), np.float32), np.ones(3, np.float32)]
    params, grads = ({f"{before}{k}": x for k, x in enumerate(arrays)} for before in ("", "0."))
    for stage in (0, 1, 2):
        two.ask("attach", [params] * 2, {"stage": stage, **ADAM})
        assert two.ask("step", [grads] * 2, {"micro_batches": 1})[0]["norm"] == np.float32(np.sqrt(3.0))
    two.ask("attach", [params] * 2, {"stage": 3, **ADAM})
    with pytest.raises(RankError, match=r"rank 0 of 2 in step: AssertionError: .*'NOT_AVAILABLE'.*'ds_numel': 0"):
        two.ask("step", [grads] * 2, {"micro_batches": 1})
    with pytest.raises(NotImplementedError, match="an empty parameter"):
        attached(3, [np.zeros((0, 2)), np.ones(3)])
