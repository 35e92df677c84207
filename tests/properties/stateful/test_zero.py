"""The laws of ZeRO: the oracle and other layouts keep them, and each is broken by an object that does what it forbids."""

from __future__ import annotations

import doctest
from typing import Any

import numpy as np
import pytest

from oracles.properties.stateful import zero_walker
from oracles.properties.stateful.checker import check_object
from oracles.properties.stateful.run import begin, put
from oracles.properties.stateful.sequence import NEW, RETURNED, Answer, Call, Floats
from oracles.properties.stateful.subjects import ObjectInProcess
from oracles.properties.stateful.zero import ZERO
from oracles.properties.stateful.zero_laws import ZERO_LAWS
from oracles.properties.stateful.zero_model import ADAM, ZeroModel, new_zero
from oracles.properties.stateful.zero_sequences import DESIGNED, ODD, attach, drawn_call, drawn_new, in_bounds, step
from oracles.properties.zoo.textbook_zero import TextbookZero
from oracles.reference import Traffic, Zero, adamw_step


def broken_laws(factory: Any) -> set[str]:
    """The laws that the designed sequences show an object to break."""
    run = begin(ZERO, ObjectInProcess(factory, ZERO))
    for calls in ZERO.designed_for(run.abilities):
        put(run, calls)
    assert not any(tally.error for tally in run.tallies)
    return {tally.law.name for tally in run.tallies if tally.failure}


class Malformed(Zero):
    def step(self, grads: Any, *, tokens: Any = None) -> Any:
        super().step(grads, tokens=tokens)


class TakesAnything(Zero):
    """Gradients of ranks that are not there are left out."""

    def accumulate(self, grads: Any, *, tokens: Any = None) -> None:
        super().accumulate([*grads, *grads][: self.world] if len(grads) != self.world else grads, tokens=tokens)


class HalfDone(Zero):
    """The step is counted and the parameters decayed before the gradients are looked at."""

    def accumulate(self, grads: Any, *, tokens: Any = None) -> None:
        if self._buffer is not None and len(grads) != self.world:
            for rank in self._ranks:
                rank.weights = rank.weights * 0.5
        super().accumulate(grads, tokens=tokens)


class Flattened(Zero):
    def params(self) -> Any:
        return {name: x.reshape(-1) for name, x in super().params().items()}


class SumOfRanks(Zero):
    """The gradients of the ranks are added, not averaged."""

    def accumulate(self, grads: Any, *, tokens: Any = None) -> None:
        super().accumulate([[np.asarray(g) * self.world for g in own] for own in grads], tokens=tokens)


class StepsEarly(Zero):
    def accumulate(self, grads: Any, *, tokens: Any = None) -> None:
        super().accumulate(grads, tokens=tokens)
        for rank in self._ranks:
            rank.weights = rank.weights - 2.0**-10


class NormOfOneShard(TextbookZero):
    def norms(self, slices: Any) -> list[float]:
        return [float(np.sqrt(sum(float((g * g).sum()) for g in own))) for own in slices]


class HoldsAll(Zero):
    """Says, and has, whole moments whatever the stage."""

    def held(self) -> Any:
        return [{**own, "first moment": own["weights"]} for own in super().held()]


class SendsTwice(Zero):
    def moved(self) -> Any:
        moved = super().moved()
        return {**moved, "buffers": moved["buffers"] + Traffic(0, (8,) * self.world, (8,) * self.world)}


BREAKERS: dict[str, Any] = {
    "answers": Malformed,
    "a_wrong_call_is_refused": TakesAnything,
    "what_raises_changes_nothing": HalfDone,
    "parameters_have_their_names_and_shapes": Flattened,
    "parameters_follow_the_step_of_one_rank": SumOfRanks,
    "nothing_moves_between_steps": StepsEarly,
    "the_norm_is_that_of_the_whole_gradient": NormOfOneShard,
    "every_rank_holds_its_share": HoldsAll,
    "every_rank_sends_its_share": SendsTwice,
}


@pytest.mark.parametrize("law", BREAKERS)
def test_the_law_rejects_what_breaks_it(law: str) -> None:
    assert law in broken_laws(BREAKERS[law])


@pytest.mark.parametrize(("call", "wrong"), [
    (Call("step", (((Floats((2,)),), (Floats((2,)),)),), (("tokens", (0, 0, 0)),)), "tokens of 3 ranks are given to 2"),
    (Call("step", (((Floats((2,)),),),)), "gradients of 1 ranks are given to 2"),
    (Call(NEW, (4, 1)), "there is no stage 4"),
    (Call(NEW, (0, 0)), "0 ranks are none"),
])  # fmt: skip
def test_what_is_wrong_with_a_call_is_said(call: Call, wrong: str) -> None:
    model = ZeroModel(new_zero(0, 2), frozenset())
    model.follow(Call("attach", ((("p", Floats((2,))),),)), Answer(RETURNED), [Answer(RETURNED, {"p": np.zeros(2)})])
    assert model.follow(call, Answer(RETURNED), []).wrong_call == wrong


def test_a_call_is_written_as_python_on_one_line() -> None:
    call = Call("step", (((Floats((2, 3), 1),), (Floats((2, 3), 8, -1),)),), (("tokens", (0, 2)),))
    heard = eval(str(call), {"np": np, "x": type("X", (), {"step": staticmethod(lambda grads, tokens: (grads, tokens))})})
    assert "\n" not in str(call)
    assert ([[g.tolist() for g in own] for own in heard[0]], heard[1]) == ([[[[1, 2, 3], [4, 5, 6]]], [[[8, 7, 6], [5, 4, 3]]]], [0, 2])


def test_no_law_is_left_out() -> None:
    assert {law.name for law in ZERO_LAWS} == set(BREAKERS)


@pytest.mark.parametrize("factory", [Zero, TextbookZero])
def test_no_law_accuses_it(factory: Any) -> None:
    assert broken_laws(factory) == set()


def test_the_oracle_holds_under_the_checker_with_nothing_left_out() -> None:
    report = check_object("zero", Zero, budget=10)
    assert report.held
    assert report.not_covered == ()
    assert all(verdict.compared for verdict in report.verdicts)


def test_every_designed_sequence_is_put_to_who_can_do_everything() -> None:
    abilities = begin(ZERO, ObjectInProcess(Zero, ZERO)).abilities
    assert len(ZERO.designed_for(abilities)) == len(set(DESIGNED.values()))


def test_an_object_without_saving_is_not_asked_to_reload() -> None:
    class Unsaved:
        def __init__(self, stage: int, world: int, *, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float) -> None:
            self._zero = Zero(stage, world, lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay)
            self.attach, self.step, self.params = self._zero.attach, self._zero.step, self._zero.params

    abilities = begin(ZERO, ObjectInProcess(Unsaved, ZERO)).abilities
    assert not {"reload", "accumulate", "held", "moved", "new.max_norm"} & abilities
    assert broken_laws(Unsaved) == set()


def followed(calls: list[Call]) -> ZeroModel:
    model = ZeroModel(calls[0], frozenset())
    for call in calls[1:]:
        model.follow(call, Answer(RETURNED, value=0.0), [])
    return model


def test_the_model_takes_the_step_of_the_oracle() -> None:
    """AdamW of the model, written anew, against the oracle's, within the roundings of both."""
    model = followed([new_zero(1, 1), attach(ODD), step(1, ODD), step(1, ODD, first=9, sign=-1)])
    want = [(call[1].array().astype(float), 0.0 * call[1].array(), 0.0 * call[1].array()) for call in attach(ODD).args[0]]
    for t, call in enumerate((step(1, ODD), step(1, ODD, first=9, sign=-1)), start=1):
        grads = [g.array().astype(float) for g in call.args[0][0]]
        want = [adamw_step(*x[:1], g, *x[1:], step=t, **ADAM) for x, g in zip(want, grads)]
    model.unit = 2.0**-53
    for (name, state), (p, _, _) in zip(model.states.items(), want):
        assert (np.abs(state.p - p) <= model.allowed(name)).all()


def test_the_bound_of_the_model_is_small() -> None:
    """After three steps of float32 a fault of 2^-16 of a parameter of about 10 is seen."""
    model = followed([new_zero(1, 2), attach(ODD), *(step(2, ODD, first=i) for i in range(1, 4))])
    model.unit = 2.0**-24
    assert max(float(model.allowed(name).max(initial=0.0)) for name in model.states) < 10 * 2.0**-16


def test_drawn_calls_are_ones_that_the_contract_speaks_of() -> None:
    abilities = begin(ZERO, ObjectInProcess(Zero, ZERO)).abilities
    model = followed([new_zero(1, 2), attach(ODD)])
    drawn = [drawn_call(method, (a, b, c), model, abilities) for method in ("attach", "step", "accumulate", "reload")
             for a in (0, 3, 9) for b in (0, 5) for c in (0, 2, 19)]  # fmt: skip
    news = [drawn_new((a, b, c), abilities) for a in range(5) for b in range(5) for c in range(3)]
    assert all(in_bounds(call) for call in (*drawn, *news))
    assert {call.method for call in news} == {NEW}


def test_the_examples_of_the_walker_print_what_they_say() -> None:
    result = doctest.testmod(zero_walker)
    assert (result.failed, result.attempted > 0) == (0, True)
