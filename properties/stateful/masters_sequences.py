"""Master weights sequences: the designed ones, at least one for each known kind of fault, and how random calls are chosen."""

from __future__ import annotations

from typing import Any

from .masters_model import MastersModel, new_masters
from .sequence import NEW, Call, Numbers, Sequence

STATE = Call("state")
RATES = (0.25, 0.125, 2.0**-10)
TINY = 2.0**-12


def accumulate(*grad: Any) -> Call:
    """The gradient of a micro-batch: small dyadic numbers, and the texts inf, -inf, nan."""
    return Call("accumulate", (grad,))


def step(loss_scale: float = 1.0) -> Call:
    return Call("step", (loss_scale,))


def load(*weights: Any) -> Call:
    return Call("load", (weights,))


def resume(number: int) -> Call:
    return Call("resume", (number,))


# What it is about: the calls.
DESIGNED: dict[str, Sequence] = {
    "one step": (new_masters(1, -2), accumulate(1, -1), step()),
    "steps below the last place": (new_masters(1, lr=(TINY,)), *(accumulate(1), step()) * 20),
    "the same in float16": (new_masters(1, fmt="float16", lr=(TINY,)), *(accumulate(1), step()) * 6),
    "a gradient in parts": (new_masters(1, 1), accumulate(1, 2), accumulate(0.5, 2), accumulate(0.25, -1), step(4), accumulate(2, 2),
                            step()),
    "many small parts": (new_masters(1), accumulate(1), *(accumulate(2.0**-9),) * 256, step()),
    "many small parts of a scaled loss": (new_masters(1), accumulate(1024), *(accumulate(2),) * 128, step(1024)),
    "an overflow at the first step": (new_masters(1, 1, lr=RATES), accumulate("inf", 1), step(), accumulate(1, 1), step()),
    "overflows between steps": (new_masters(1, lr=RATES), accumulate(1), step(), accumulate("nan"), step(), accumulate("-inf"), step(),
                                accumulate(1), step(), accumulate(1), step(), accumulate(1), step()),
    "an overflow in one part": (new_masters(1, 2), accumulate(1, 1), accumulate("inf", 1), accumulate(1, 1), step(), accumulate(2, 2),
                                step()),
    "loaded before the first step": (new_masters(0, 0, lr=(TINY,)), load(1, -3), accumulate(1, 1), step(), accumulate(1, 1), step()),
    "loaded between steps": (new_masters(1, lr=RATES), accumulate(1), step(), load(4), accumulate(1), step(), load(2), load(1)),
    "loaded, and the step overflows": (new_masters(0), load(2), accumulate("inf"), step(), accumulate(1), step()),
    "masters with more than the weights hold": (new_masters(1 + TINY, 2, lr=(TINY,)), STATE, resume(0), accumulate(1, 1), step()),
    "resumed": (new_masters(1, 1, lr=RATES), accumulate(1, 2), step(), STATE, accumulate(2, 2), step(), STATE, resume(0), accumulate(2, 2),
                step(), resume(1), accumulate(1, 1), step()),
    "resumed after an overflow": (new_masters(1, lr=RATES), accumulate("inf"), step(), STATE, accumulate(1), step(), resume(0),
                                  accumulate(1), step()),
    "nothing to train": (new_masters(), accumulate(), step(), STATE, load()),
}  # fmt: skip


def designed_sequences() -> dict[str, Sequence]:
    """All designed sequences by what they are about."""
    return DESIGNED


WEIGHTS = {"accumulate": 4, "step": 3, "load": 1, "state": 1, "resume": 1}
LONE = ("inf", "-inf", "nan")


def drawn_new(numbers: Numbers, abilities: frozenset[str]) -> Call:
    """One to three weights on a grid that neither format holds, and up to three learning rates."""
    which, amount, rest = numbers
    weights = tuple(((which >> 4 * i) % 16 - 4) / 4 + TINY * (rest % 2) for i in range(1 + amount % 3))
    return new_masters(*weights, fmt=("bfloat16", "float16")[rest // 2 % 2], lr=RATES[amount // 3 % 3 :])


def drawn_call(method: str, numbers: Numbers, model: MastersModel, abilities: frozenset[str]) -> Call:
    """A call of a method, or the one that must come before it. numbers choose; 0 is the plainest."""
    which, amount, rest = numbers
    n = len(model.training.master)
    if method == "step" and model.gathered is not None:
        return step(2.0 ** (amount % 4))
    if method == "load" and model.gathered is None:
        return load(*(((which >> 4 * i) % 16 - 8) / 8 for i in range(n)))
    if method in ("state", "resume") and model.gathered is None and method in abilities:
        return resume(which % len(model.states)) if method == "resume" and model.states else STATE
    grad: list[Any] = [(1 + (which >> 3 * i) % 8) / 8 for i in range(n)]
    if rest % 5 == 4:
        grad[which % n] = LONE[rest // 5 % 3]
    return accumulate(*grad)


def in_bounds(call: Call) -> bool:
    """Whether a call is one that the contract speaks of: a shrunk sequence must be."""
    if call.method == NEW:
        return len(call.args[2]) > 0
    return call.method != "step" or bool(call.args[0] > 0)
