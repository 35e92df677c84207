"""Loss scaler sequences: the designed ones, at least one for each known kind of fault, and how random calls are chosen."""

from __future__ import annotations

from itertools import chain
from typing import Any

from .scaler_model import OPEN, SMALLEST, UNSCALED, ScalerModel, new_scaler
from .sequence import NEW, Call, Numbers, Sequence

STEP, UPDATE, STATE = Call("step"), Call("update"), Call("state")


def scale(loss: int) -> Call:
    return Call("scale", (loss,))


def unscale(*grads: tuple[Any, ...]) -> Call:
    """Arrays of gradients: whole numbers, and the texts inf, -inf, nan."""
    return Call("unscale", grads)


def load(number: int) -> Call:
    return Call("load", (number,))


def iteration(*grads: tuple[Any, ...]) -> Sequence:
    """A whole iteration, its step left to the scaler."""
    return scale(1), unscale(*grads), STEP, UPDATE


def left_out(*grads: tuple[Any, ...]) -> Sequence:
    """An iteration whose step the caller leaves out."""
    return scale(1), unscale(*grads), UPDATE


def _all(*parts: Sequence) -> Sequence:
    return tuple(chain.from_iterable(parts))


CLEAN, OVERFLOW = iteration((8, -2)), iteration((8, "inf"))

# What it is about: the calls.
DESIGNED: dict[str, Sequence] = {
    "one step": (new_scaler(8), *CLEAN),
    "the defaults": (new_scaler(), *iteration((3, 1), (2,)), *OVERFLOW, *CLEAN),
    "an overflow at the first step": (new_scaler(16), *OVERFLOW, *CLEAN, *CLEAN),
    "an overflow between steps": (new_scaler(16, growth_interval=2), *CLEAN, *OVERFLOW, *CLEAN, *CLEAN, *CLEAN),
    "overflows of every kind and place": (new_scaler(1024), *iteration(("nan",)), *iteration(("-inf", 1)), *iteration((1, "inf", 2)),
                                          *iteration((1,), (2, "nan")), *iteration(("inf", 3), (1,)), *iteration((1,), (), (3,))),
    "finite, but not their sum": (new_scaler(1), *iteration((2**127, 2**127)), *iteration((2**127,), (2**127,)), *iteration((1,))),
    "growth": (new_scaler(2, growth_interval=3, growth_factor=4), *_all(*[CLEAN] * 7), *OVERFLOW, *_all(*[CLEAN] * 4)),
    "growth at every update": (new_scaler(2, growth_interval=1), *_all(*[CLEAN] * 4)),
    "the run starts again": (new_scaler(64, growth_interval=2, backoff_factor=0.25), *CLEAN, *OVERFLOW, *CLEAN, *OVERFLOW, *CLEAN, *CLEAN),
    "steps that the caller leaves out": (new_scaler(8, growth_interval=2), *left_out((8, 16)), *iteration((8, 16)), *left_out((4,)),
                                         *left_out((4,)), *iteration((32,)), *iteration((64,))),
    "an overflow whose step is left out": (new_scaler(8), *left_out(("inf",)), *iteration((8,)), *left_out(("nan", 1)), *iteration((8,))),
    "nothing to unscale": (new_scaler(4), *iteration(), *iteration(()), *iteration((4,))),
    "scaled twice": (new_scaler(4), scale(3), *iteration((4,)), scale(-2), scale(0), *OVERFLOW, scale(1)),
    "near the largest": (new_scaler(2.0**125, growth_interval=1), *_all(*[CLEAN] * 4), *OVERFLOW, *CLEAN),
    "far past the largest": (new_scaler(2.0**100, growth_interval=1, growth_factor=2.0**20), *_all(*[CLEAN] * 3)),
    "near the smallest": (new_scaler(2.0**-124), *_all(*[OVERFLOW] * 4), *iteration((1,))),
    "far past the smallest": (new_scaler(2.0**-100, backoff_factor=2.0**-20), *_all(*[OVERFLOW] * 4), *iteration((1,))),
    "saved and loaded": (new_scaler(8, growth_interval=3), *CLEAN, *CLEAN, STATE, load(0), *CLEAN, *CLEAN, STATE, *OVERFLOW, load(1),
                         *CLEAN, *CLEAN),
    "loaded after an overflow": (new_scaler(8), *OVERFLOW, STATE, *OVERFLOW, load(0), *CLEAN, load(0)),
    "loaded before the first step": (new_scaler(8, growth_interval=1), STATE, *CLEAN, load(0), *CLEAN),
}  # fmt: skip


def designed_sequences() -> dict[str, Sequence]:
    """All designed sequences by what they are about."""
    return DESIGNED


WEIGHTS = {"scale": 1, "unscale": 3, "step": 3, "update": 3, "state": 1, "load": 1}
LONE = ("inf", "-inf", "nan")


def drawn_new(numbers: Numbers, abilities: frozenset[str]) -> Call:
    """A scaler of 2^0 to 2^15, or near either end; factors that are powers of two; growth after 1 to 4 updates."""
    which, amount, rest = numbers
    exponent = (which % 16, 126, -124)[max(0, rest % 20 - 17)]
    return new_scaler(2.0**exponent, growth_interval=1 + amount % 4, growth_factor=2.0 ** (1 + amount // 4 % 3),
                      backoff_factor=2.0 ** -(1 + amount // 16 % 3))  # fmt: skip


def drawn_call(method: str, numbers: Numbers, model: ScalerModel, abilities: frozenset[str]) -> Call:
    """A call of a method, or the one that the iteration has come to. numbers choose; 0 is the plainest."""
    if method == "scale":
        return scale(numbers[0] % 4)
    if model.place != OPEN:
        return STEP if method == "step" and model.place == UNSCALED else UPDATE
    if method == "state":
        return STATE
    if method == "load" and model.saved:
        return load(numbers[0] % len(model.saved))
    return _unscale(numbers)


def _unscale(numbers: Numbers) -> Call:
    """One or two arrays of up to three small whole numbers; in a third of all calls one of them is none."""
    which, amount, rest = numbers
    arrays = [[(which >> 2 * j + i) % 4 for j in range((amount >> 2 * i) % 4)] for i in range(1 + amount // 16 % 2)]
    if rest % 3 == 2 and arrays[-1]:
        arrays[-1][which % len(arrays[-1])] = LONE[rest // 3 % 3]  # type: ignore[call-overload]  # text among numbers
    return unscale(*map(tuple, arrays))


def in_bounds(call: Call) -> bool:
    """Whether a call is one that the contract speaks of: a shrunk sequence must be."""
    if call.method != NEW:
        return True
    least = {"init_scale": SMALLEST, "growth_factor": 1, "backoff_factor": 0, "growth_interval": 1}
    return all(value >= least[name] and (name != "backoff_factor" or value > 0) for name, value in call.named)
