"""The textbook formulas of a step of AdamW, by itself and on master weights, and of clipping, one element at a time, in mpmath."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .textbook_attention import mp

Element = Callable[[str, tuple[int, ...]], Any]


def adamw_step(arguments: Mapping[str, Any]) -> Element:
    """theta - lr (m^ / (sqrt v^ + eps) + weight_decay theta): the decay from the parameter as it was."""
    arrays = {name: np.asarray(arguments[name]).astype(np.float64) for name in ("param", "grad", "m", "v")}
    return _step(arguments, lambda letter, index: mp().mpf(float(arrays[letter][index])))


def _step(arguments: Mapping[str, Any], number: Callable[[str, tuple[int, ...]], Any]) -> Element:
    b1, b2, lr, eps, decay = (mp().mpf(float(arguments[name])) for name in ("beta1", "beta2", "lr", "eps", "weight_decay"))
    t = int(arguments["step"])

    def element(name: str, index: tuple[int, ...]) -> Any:
        theta, g, m, v = (number(letter, index) for letter in ("param", "grad", "m", "v"))
        m, v = m + (1 - b1) * (g - m), v + (1 - b2) * (g * g - v)
        if name != "param":
            return m if name == "m" else v
        move = m / (1 - b1**t) / (mp().sqrt(v / (1 - b2**t)) + eps) if m else m
        return theta - lr * (move + decay * theta)

    return element


def clip_grad_norm(arguments: Mapping[str, Any]) -> Element:
    """g over max(1, norm / max_norm)."""
    grads = [np.asarray(g).astype(np.float64) for g in arguments["grads"]]
    norm = mp().sqrt(mp().fsum(mp().mpf(x) ** 2 for g in grads for x in g.reshape(-1).tolist()))
    limit = mp().mpf(float(arguments["max_norm"]))

    def element(name: str, index: tuple[int, ...]) -> Any:
        if name == "norm":
            return norm
        x = mp().mpf(float(grads[int(name.partition(".")[2])][index]))
        return x if norm <= limit else x * limit / norm

    return element


# Bits of the significand, and the least exponent of a normal number.
FORMATS = {"bfloat16": (8, -126), "float16": (11, -14)}


def master_weight_step(arguments: Mapping[str, Any]) -> Element:
    """The step with the gradient over its scale, and over its norm where that is too long; a weight is a whole number of quanta."""
    arrays = {name: np.asarray(arguments[name]).astype(np.float64) for name in ("grad", "master", "m", "v")}
    finite = bool(np.isfinite(arrays["grad"]).all())
    scale, limit = mp().mpf(float(arguments["loss_scale"])), arguments["max_norm"]
    norm = mp().sqrt(mp().fsum((mp().mpf(x) / scale) ** 2 for x in arrays["grad"].reshape(-1).tolist())) if finite else mp().mpf(0)
    divisor = scale if limit is None or norm <= limit else scale * norm / mp().mpf(float(limit))

    def number(letter: str, index: tuple[int, ...]) -> Any:
        x = mp().mpf(float(arrays["master" if letter == "param" else letter][index]))
        return x / divisor if letter == "grad" else x

    step = _step(arguments, number)

    def element(name: str, index: tuple[int, ...]) -> Any:
        letter = "param" if name in ("weights", "master") else name
        x = step(letter, index) if finite else number(letter, index)
        return _rounded(x, *FORMATS[arguments["fmt"]]) if name == "weights" else x

    return element


def _rounded(x: Any, bits: int, least: int) -> Any:
    if not x:
        return x
    exponent = max(int(mp().floor(mp().log(abs(x), 2))), least)
    quantum = mp().mpf(2) ** (exponent - bits + 1)
    return mp().nint(x / quantum) * quantum
