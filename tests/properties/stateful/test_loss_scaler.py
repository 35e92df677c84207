"""Loss scalers as objects: every law can fail, the oracle and what is legal hold, a failure is small and replays alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles.properties import UsageError
from oracles.properties.report import FAILED, HELD
from oracles.properties.stateful.checker import check_object
from oracles.properties.stateful.loss_scaler import LOSS_SCALER
from oracles.properties.stateful.run import Session, begin, put
from oracles.properties.stateful.scaler_laws import SCALER_LAWS
from oracles.properties.stateful.scaler_model import new_scaler
from oracles.properties.stateful.scaler_sequences import LONE, STEP, UPDATE, drawn_call, drawn_new, in_bounds, iteration, load, unscale
from oracles.properties.stateful.scaler_walker import ScalerWalker, stepped
from oracles.properties.stateful.subjects import ObjectInProcess
from oracles.properties.zoo.textbook_scaler import Scaler
from oracles.reference import LossScaler

from .law_alone import broken_alone


class GradientsAlone(Scaler):
    def unscale(self, grads: Any) -> Any:
        return super().unscale(grads)[0]


class GrowsWithoutEnd(Scaler):
    def move(self, factor: Any) -> None:
        with np.errstate(over="ignore", under="ignore"):
            self.value = self.value * factor


class GrowsInScale(Scaler):
    def scale(self, loss: Any) -> Any:
        scaled = super().scale(loss)
        self.value = self.value * np.float32(2)
        return scaled


class ScalesTheFirstLossAlone(Scaler):
    scaled = False

    def scale(self, loss: Any) -> Any:
        scaled, self.scaled = self.scaled, True
        return loss if scaled else super().scale(loss)


class DividesTwice(Scaler):
    def unscale(self, grads: Any) -> Any:
        return [g / self.value for g in super().unscale(grads)[0]], self.found(grads)


class LooksAtTheFirstArray(Scaler):
    def found(self, grads: Any) -> bool:
        return super().found(grads[:1])


class LooksForNaNInTheSum(Scaler):
    def found(self, grads: Any) -> bool:
        return bool(np.isnan(sum(g.sum() for g in grads)))


class SaysNothingOfOverflow(Scaler):
    def step(self, update: Any, grads: Any) -> bool:
        super().step(update, grads)
        return True


class StepsAnyway(Scaler):
    def step(self, update: Any, grads: Any) -> bool:
        update()
        return not self.found(grads)


class StepsTwice(Scaler):
    def step(self, update: Any, grads: Any) -> bool:
        if not self.found(grads):
            update()
        return super().step(update, grads)


class StaysAfterAnOverflow(Scaler):
    def update(self, found_inf: bool) -> None:
        value = self.value
        super().update(found_inf)
        self.value = value if found_inf else self.value


class OneUpdateTooLate(Scaler):
    def update(self, found_inf: bool) -> None:
        if not found_inf and self.clean == self.interval:
            self.clean = 0
            self.move(self.growth)
        else:
            self.clean = 0 if found_inf else self.clean + 1
            if found_inf:
                self.move(self.backoff)


class TheRunIsNeverBroken(Scaler):
    def update(self, found_inf: bool) -> None:
        clean = self.clean
        super().update(found_inf)
        self.clean = clean if found_inf else self.clean


class LoadsTheScaleAlone(Scaler):
    def load(self, state: Any) -> None:
        self.value = state["value"]


class LoadsTheRunAlone(Scaler):
    def load(self, state: Any) -> None:
        self.clean = state["clean"]


BROKEN: list[tuple[str, type[Any]]] = [
    ("answers", GradientsAlone),
    ("the_scale_stays_finite_and_positive", GrowsWithoutEnd),
    ("only_update_moves_the_scale", GrowsInScale),
    ("the_loss_is_multiplied_by_the_scale", ScalesTheFirstLossAlone),
    ("gradients_are_divided_by_the_scale_once", DividesTwice),
    ("found_inf_tells_of_nan_and_inf", LooksAtTheFirstArray),
    ("found_inf_tells_of_nan_and_inf", LooksForNaNInTheSum),
    ("an_overflow_skips_the_step", SaysNothingOfOverflow),
    ("a_skipped_step_changes_nothing", StepsAnyway),
    ("a_skipped_step_changes_nothing", SaysNothingOfOverflow),
    ("a_step_is_made_by_step_alone_and_once", StepsTwice),
    ("an_overflow_backs_the_scale_off", StaysAfterAnOverflow),
    ("the_scale_grows_after_growth_interval_clean_updates", OneUpdateTooLate),
    ("the_scale_grows_after_growth_interval_clean_updates", TheRunIsNeverBroken),
    ("a_loaded_scaler_goes_on_as_the_saved_one", LoadsTheScaleAlone),
    ("a_loaded_scaler_goes_on_as_the_saved_one", LoadsTheRunAlone),
]


def test_there_is_a_breaker_of_every_law() -> None:
    assert list(dict.fromkeys(law for law, _ in BROKEN)) == [law.name for law in SCALER_LAWS]


@pytest.mark.parametrize(("law", "scaler"), BROKEN, ids=[f"{law}-{scaler.__name__}" for law, scaler in BROKEN])
def test_the_law_can_fail(law: str, scaler: type[Any]) -> None:
    assert broken_alone(LOSS_SCALER, law, scaler) != ""


@pytest.mark.parametrize("law", [law.name for law in SCALER_LAWS])
def test_the_law_holds_of_a_right_scaler(law: str) -> None:
    assert broken_alone(LOSS_SCALER, law, Scaler) == ""


def test_gradients_that_are_finite_while_their_sum_is_not_are_no_overflow() -> None:
    class LooksAtTheSum(Scaler):
        def unscale(self, grads: Any) -> Any:
            with np.errstate(over="ignore", invalid="ignore"):
                total = np.sum([np.sum(g, dtype=np.float32) for g in grads], dtype=np.float32)
            return super().unscale(grads)[0], not np.isfinite(total)

    (verdict,) = check_object("loss_scaler", LooksAtTheSum, budget=0, laws=("found_inf_tells_of_nan_and_inf",)).verdicts
    assert verdict.status == FAILED


def test_the_oracle_keeps_every_law() -> None:
    report = check_object("loss_scaler", LossScaler, budget=25)
    assert {verdict.law: verdict.status for verdict in report.verdicts} == dict.fromkeys((law.name for law in SCALER_LAWS), HELD)
    assert report.not_covered == ()


class HandsOver(LossScaler):
    """Calls update(grads); of_what: which gradients these are."""

    def of_what(self, grads: Any) -> Any:
        return grads

    def step(self, update: Any, grads: Any) -> bool:
        return super().step(lambda: update(self.of_what(grads)), grads)


class HandsOverScaledOnes(HandsOver):
    def of_what(self, grads: Any) -> Any:
        return [np.asarray(g) * self.value for g in grads]


def test_the_step_may_be_handed_its_gradients() -> None:
    assert check_object("loss_scaler", HandsOver, budget=0).held
    (verdict,) = check_object("loss_scaler", HandsOverScaledOnes, budget=0, laws=("a_step_is_made_by_step_alone_and_once",)).verdicts
    assert verdict.status == FAILED


def test_a_step_that_is_handed_more_is_told_what_it_takes() -> None:
    class TooMuch(LossScaler):
        def step(self, update: Any, grads: Any) -> bool:
            return super().step(lambda: update(grads, self.value), grads)

    (verdict,) = check_object("loss_scaler", TooMuch, budget=0, laws=("answers",)).verdicts
    assert "TypeError: update: called with 2 arguments; want update(), or update(grads)" in verdict.reason


def test_without_a_state_loading_is_not_covered() -> None:
    class Forgets:
        def __init__(self, **options: Any) -> None:
            inner = Scaler(**options)
            self.inner, self.scale, self.unscale, self.step, self.update = inner, inner.scale, inner.unscale, inner.step, inner.update

        @property
        def value(self) -> Any:
            return self.inner.value

    report = check_object("loss_scaler", Forgets, budget="quick")
    assert report.held
    assert report.not_covered == ("state: the subject has no such method", "load: the subject has no such method")


def test_an_argument_that_the_constructor_does_not_take_is_not_covered() -> None:
    class Fixed(Scaler):
        def __init__(self, *, init_scale: float = 2.0**16, growth_interval: int = 2000) -> None:
            super().__init__(init_scale=init_scale, growth_interval=growth_interval)

    report = check_object("loss_scaler", Fixed, budget="quick")
    assert report.held
    assert report.not_covered == tuple(f"argument {name} of the constructor: the subject does not take it"
                                       for name in ("growth_factor", "backoff_factor"))  # fmt: skip


def test_an_object_that_is_no_scaler_is_refused() -> None:
    with pytest.raises(UsageError, match=r"the scaler has no value, scale, unscale, step, update; want"):
        check_object("loss_scaler", lambda: object())


def test_calls_out_of_the_order_of_an_iteration_are_not_judged() -> None:
    """A shrunk sequence may lack the call that made another legal: two times unscaled breaks no law, and ends the play."""
    run = begin(LOSS_SCALER, ObjectInProcess(Scaler, LOSS_SCALER))
    for calls in ((unscale((8,)), unscale((8,)), STEP), (STEP,), (UPDATE,), (load(0),)):
        put(run, (new_scaler(8), *calls))
    assert [tally.law.name for tally in run.tallies if tally.failure or tally.error] == []


def test_the_smallest_failure_of_an_overflow_is_one_iteration() -> None:
    (verdict,) = check_object("loss_scaler", StaysAfterAnOverflow, budget=20, laws=("an_overflow_backs_the_scale_off",)).verdicts
    assert verdict.status == FAILED
    assert verdict.case == "x = SUBJECT(); x.unscale(['inf']); x.update()"
    assert verdict.reason == "value is 65536 after x.update(); want 32768: it was 65536, an overflow"


SUBJECT = """
class Scaler:
    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.value = init_scale

    def scale(self, loss):
        return loss * self.value

    def unscale(self, grads):
        return [g / self.value for g in grads], False

    def step(self, update, grads):
        update()
        return True

    def update(self, found_inf):
        pass
"""


def test_a_repro_runs_on_its_own(tmp_path: Path) -> None:
    (tmp_path / "scaler.py").write_text(SUBJECT)
    law = "found_inf_tells_of_nan_and_inf"
    report = check_object("loss_scaler", f"{tmp_path / 'scaler.py'}:Scaler", budget="quick", failures=tmp_path / "failures", laws=(law,))
    (verdict,) = report.verdicts
    assert verdict.counterexample is not None
    unloadable = ("import runpy, sys; sys.modules['oracles'] = None; del sys.argv[:1]; "
                  "runpy.run_path(sys.argv[0], run_name='__main__')")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", unloadable, f"{verdict.counterexample}/repro.py"], capture_output=True, text=True,
                          cwd=tmp_path, check=False)  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith(f"{law}: x.unscale(")


def test_the_loop_steps_by_both_moments() -> None:
    walker = ScalerWalker(LossScaler, init_scale=4)
    for _ in range(2):
        walker.unscale([8], [16.0])
        walker.step()
        walker.update()
    once = stepped({"param": 1.0, "m": 0.0, "v": 0.0, "steps": 0, "schedule": 0}, 6.0)
    assert once == {"param": -2.0, "m": 3.0, "v": 9.0, "steps": 1, "schedule": 0}
    assert walker.training() == {**stepped({**once, "schedule": 1}, 6.0), "schedule": 2}
    with pytest.raises(LookupError, match=r"no state 0; 0 were saved"):
        walker.load(0)


def test_drawn_calls_keep_the_order_and_reach_every_method() -> None:
    r = np.random.default_rng(0)
    abilities = frozenset({"state", "load"})
    new = drawn_new((3, 6, 19), abilities)
    assert in_bounds(new)
    met = set()
    run = begin(LOSS_SCALER, ObjectInProcess(Scaler, LOSS_SCALER))
    session = Session(run, new)
    for method in r.choice(list(LOSS_SCALER.weights), 300):
        call = drawn_call(str(method), tuple(int(x) for x in r.integers(0, 2**12, 3)), session.play.model, abilities)  # type: ignore[arg-type]
        met.add(call.method)
        session.do(call)
    assert met == set(LOSS_SCALER.weights)
    assert not session.over


@pytest.mark.parametrize(("call", "legal"), [
    (new_scaler(8.0), True), (new_scaler(0), False), (new_scaler(8, growth_factor=0), False), (new_scaler(8, backoff_factor=0), False),
    (new_scaler(8, growth_interval=0), False), (unscale(LONE), True),
])  # fmt: skip
def test_shrinking_stays_in_the_contract(call: Any, legal: bool) -> None:
    assert in_bounds(call) == legal


def test_every_designed_sequence_is_of_whole_iterations() -> None:
    assert iteration((1,))[-1] == UPDATE
    assert all(calls[0].method == "new" for calls in LOSS_SCALER.designed().values())
