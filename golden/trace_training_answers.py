"""What the oracles answer to calls on a loss scaler, on master weights and on ZeRO, as plain numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from oracles import reference

from .traces import Trace

Methods = Mapping[str, Callable[..., Any]]


def told(x: Any) -> Any:
    """Arrays and numbers as lists of numbers; those that are not finite as texts."""
    if isinstance(x, Mapping):
        return {name: told(one) for name, one in x.items()}
    if isinstance(x, list | tuple) or np.ndim(x):
        return [told(one) for one in x]
    return int(x) if isinstance(x, int | np.integer) else float(x) if np.isfinite(x) else str(float(x))


def array(numbers: Sequence[Any]) -> Any:
    """The inverse, for a list."""
    return np.array([float(x) for x in numbers], dtype=np.float64)


def loss_scaler(trace: Trace) -> Methods:
    """`step` takes the gradients that were unscaled last, `update` what was found in them."""
    scaler = reference.LossScaler(**trace.arguments)
    last: dict[str, Any] = {"grads": [], "found_inf": False}

    def unscale(grads: Sequence[Sequence[Any]]) -> dict[str, Any]:
        last["grads"], last["found_inf"] = scaler.unscale([array(g) for g in grads])
        return {"grads": told(last["grads"]), "found_inf": last["found_inf"]}

    return {"value": lambda: scaler.value, "scale": lambda loss: float(scaler.scale(loss)), "unscale": unscale,
            "step": lambda: scaler.step(lambda: None, last["grads"]), "update": lambda: scaler.update(last["found_inf"]),
            "state": scaler.state, "load": lambda state: scaler.load(state)}  # fmt: skip


def master_weights(trace: Trace) -> Methods:
    """`resume` goes on from the state that was told as that number, 0 the first."""
    given = dict(trace.arguments)
    masters, states = reference.MasterWeights(array(given.pop("weights")), **given), list[Any]()

    def state() -> Any:
        states.append(masters.state())
        return told(states[-1])

    return {"weights": lambda: told(masters.weights()), "accumulate": lambda grad: masters.accumulate(array(grad)),
            "step": lambda loss_scale: masters.step(loss_scale=loss_scale), "load": lambda weights: masters.load(array(weights)),
            "state": state, "resume": lambda number: masters.resume(states[number])}  # fmt: skip


def zero(trace: Trace) -> Methods:
    """`reload`: what is saved is loaded into another object of that stage and world. `step` tells nothing: its norm is rounded."""
    options = {name: value for name, value in trace.arguments.items() if name not in ("stage", "world")}
    at: dict[str, Any] = {"object": reference.Zero(trace.arguments["stage"], trace.arguments["world"], **options)}

    def attach(params: Sequence[tuple[str, Any]]) -> None:
        at["params"] = {name: array(x) for name, x in params}
        at["object"].attach(at["params"])

    def gradients(grads: Sequence[Any]) -> Any:
        return [[array(g) for g in own] for own in grads]

    def step(grads: Any, tokens: Any = None) -> None:
        at["object"].step(gradients(grads), tokens=tokens)

    def reload(stage: int, world: int) -> None:
        other = reference.Zero(stage, world, **options)
        other.attach(at["params"])
        other.load(at["object"].save())
        at["object"] = other

    return {"attach": attach, "accumulate": lambda grads, tokens=None: at["object"].accumulate(gradients(grads), tokens=tokens),
            "step": step, "params": lambda: told(at["object"].params()), "held": lambda: told(at["object"].held()),
            "reload": reload}  # fmt: skip
