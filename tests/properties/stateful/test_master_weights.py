"""Masters over many steps as objects: every law can fail, the oracle and what is legal hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oracles.properties import UsageError
from oracles.properties.report import FAILED, HELD
from oracles.properties.stateful.checker import check_object
from oracles.properties.stateful.master_weights import MASTER_WEIGHTS
from oracles.properties.stateful.masters_laws import MASTERS_LAWS
from oracles.properties.stateful.masters_model import new_masters, rounded
from oracles.properties.stateful.masters_sequences import accumulate, drawn_call, in_bounds, load, resume, step
from oracles.properties.stateful.masters_walker import MastersWalker
from oracles.properties.stateful.run import Session, begin, put
from oracles.properties.stateful.subjects import ObjectInProcess
from oracles.properties.zoo.textbook_masters import F, Masters
from oracles.reference import FloatFormat, MasterWeights

from .law_alone import broken_alone


class SaysNothing(Masters):
    def step(self, *, loss_scale: float) -> Any:
        super().step(loss_scale=loss_scale)


class SaysThatItStepped(Masters):
    def step(self, *, loss_scale: float) -> bool:
        super().step(loss_scale=loss_scale)
        return True


class CountsSkippedSteps(Masters):
    """The schedule and the count go on by themselves (huggingface/accelerate#4242)."""

    def step(self, *, loss_scale: float) -> bool:
        taken = super().step(loss_scale=loss_scale)
        self.t += not taken
        return taken


class ForgetsTheMoments(Masters):
    def step(self, *, loss_scale: float) -> bool:
        taken = super().step(loss_scale=loss_scale)
        self.m = self.m if taken else np.zeros_like(self.m)
        return taken


class ForgetsToClear(Masters):
    def step(self, *, loss_scale: float) -> bool:
        kept = self.gathered
        taken = super().step(loss_scale=loss_scale)
        self.gathered = kept if taken else self.gathered
        return taken


class UnscalesTwice(Masters):
    def step(self, *, loss_scale: float) -> bool:
        return super().step(loss_scale=loss_scale * loss_scale)


class KeepsTheLastAlone(Masters):
    def accumulate(self, grad: Any) -> None:
        self.gathered = np.asarray(grad, F)


class MastersInTheFormatOfTheWeights(Masters):
    def copy_to_the_weights(self) -> None:
        self.master = self.master.astype(self.narrow).astype(F)
        super().copy_to_the_weights()


class WeightsCutOff(Masters):
    def copy_to_the_weights(self) -> None:
        self.narrow_weights = (self.master.view(np.uint32) & np.uint32(0xFFFF0000)).view(F)


class FirstRateForAll(Masters):
    def update(self, g: Any) -> None:
        self.rates = self.rates[:1]
        super().update(g)


class LoadsTheWeightsAlone(Masters):
    def load(self, weights: Any) -> None:
        self.narrow_weights = np.array(weights, F).astype(self.narrow)


class ResumesFromTheWeights(Masters):
    """TensorAuto/OpenTau#185."""

    def state(self) -> Any:
        return {**super().state(), "weights": self.narrow_weights}

    def resume(self, state: Any) -> None:
        super().resume({**state, "master": state["weights"].astype(F)})


class ResumesAtStep0(Masters):
    def resume(self, state: Any) -> None:
        super().resume({**state, "step": 0})


def unseen(masters: type[Any]) -> type[Any]:
    """The same without a state that could be looked at: what it does wrong shows in the weights alone, some steps later."""

    class Unseen:
        def __init__(self, weights: Any, **options: Any) -> None:
            inner = masters(weights, **options)
            self.weights, self.accumulate, self.step, self.load = inner.weights, inner.accumulate, inner.step, inner.load

    Unseen.__name__ = f"Unseen{masters.__name__}"
    return Unseen


BROKEN: list[tuple[str, type[Any]]] = [
    ("answers", SaysNothing),
    ("an_overflow_skips_the_step", SaysThatItStepped),
    ("a_skipped_step_changes_nothing", CountsSkippedSteps),
    ("a_skipped_step_changes_nothing", ForgetsTheMoments),
    ("gradients_are_added_up_wide", ForgetsToClear),
    ("gradients_are_added_up_wide", UnscalesTwice),
    ("gradients_are_added_up_wide", KeepsTheLastAlone),
    ("a_step_moves_the_masters_by_the_rate_of_its_number", FirstRateForAll),
    ("a_step_moves_the_masters_by_the_rate_of_its_number", MastersInTheFormatOfTheWeights),
    ("loaded_weights_are_stepped_from", LoadsTheWeightsAlone),
    ("a_resumed_run_goes_on_bit_for_bit", ResumesFromTheWeights),
    ("a_resumed_run_goes_on_bit_for_bit", ResumesAtStep0),
    ("weights_are_the_masters_rounded", WeightsCutOff),
    ("weights_are_the_masters_rounded", unseen(MastersInTheFormatOfTheWeights)),
    ("weights_are_the_masters_rounded", unseen(CountsSkippedSteps)),
]


def test_there_is_a_breaker_of_every_law() -> None:
    assert list(dict.fromkeys(law for law, _ in BROKEN)) == [law.name for law in MASTERS_LAWS]


@pytest.mark.parametrize(("law", "masters"), BROKEN, ids=[f"{law}-{masters.__name__}" for law, masters in BROKEN])
def test_the_law_can_fail(law: str, masters: type[Any]) -> None:
    assert broken_alone(MASTER_WEIGHTS, law, masters) != ""


@pytest.mark.parametrize("law", [law.name for law in MASTERS_LAWS])
def test_the_law_holds_of_right_masters(law: str) -> None:
    assert broken_alone(MASTER_WEIGHTS, law, Masters) == ""


def test_the_oracle_keeps_every_law() -> None:
    report = check_object("master_weights", MasterWeights, budget=25)
    assert {verdict.law: verdict.status for verdict in report.verdicts} == dict.fromkeys((law.name for law in MASTERS_LAWS), HELD)
    assert report.not_covered == ()


def test_an_object_without_the_methods_is_refused() -> None:
    with pytest.raises(UsageError, match=r"the object has no weights, accumulate, step, load; want"):
        check_object("master_weights", lambda weights, **options: object())


def test_a_failure_is_small() -> None:
    (verdict,) = check_object("master_weights", LoadsTheWeightsAlone, budget=20, laws=("loaded_weights_are_stepped_from",)).verdicts
    assert verdict.status == FAILED
    assert verdict.case.count(";") <= 2, verdict.case
    assert "x.load(" in verdict.case


def test_rounding_in_the_model_is_that_of_the_formats() -> None:
    """The model carries its own rounding, so that a repro needs NumPy alone: it is the oracle's, ties included."""
    x = np.random.default_rng(0).standard_normal(4000).astype(np.float32)
    x[:2000] = np.round(x[:2000] * 2.0**9) * 2.0**-9                            # many ties of bfloat16
    for fmt in ("bfloat16", "float16"):
        assert np.array_equal(rounded(x.astype(np.float64), fmt), FloatFormat(fmt).round(x))


def test_calls_out_of_order_are_not_judged() -> None:
    run = begin(MASTER_WEIGHTS, ObjectInProcess(Masters, MASTER_WEIGHTS))
    for calls in ((step(),), (accumulate(1, 2), step()), (accumulate(1), load(1)), (resume(0),), (accumulate("nan", 1), resume(0))):
        put(run, (new_masters(1), *calls))
    assert [tally.law.name for tally in run.tallies if tally.failure or tally.error] == []


def test_drawn_calls_reach_every_method() -> None:
    r, run = np.random.default_rng(0), begin(MASTER_WEIGHTS, ObjectInProcess(Masters, MASTER_WEIGHTS))
    session, met = Session(run, new_masters(1, 2)), set()
    for method in r.choice(list(MASTER_WEIGHTS.weights), 200):
        which, amount, rest = (int(x) for x in r.integers(0, 2**12, 3))
        call = drawn_call(str(method), (which, amount, rest), session.play.model, run.abilities)  # type: ignore[arg-type]
        met.add(call.method)
        session.do(call)
    assert met == set(MASTER_WEIGHTS.weights)
    assert not session.over


def test_a_state_that_there_is_not_can_not_be_resumed() -> None:
    walker = MastersWalker(Masters, (1,), "float16", (0.5,))
    with pytest.raises(LookupError, match=r"no state 0; 0 were given"):
        walker.resume(0)


@pytest.mark.parametrize(("call", "legal"), [
    (new_masters(1), True), (new_masters(1, lr=()), False), (step(0), False), (step(0.5), True), (load(1), True),
])  # fmt: skip
def test_shrinking_stays_in_the_contract(call: Any, legal: bool) -> None:
    assert in_bounds(call) == legal
