"""Golden cases of optimizers: first and late steps, moments at 0, gradients of every size, no decay, no momentum;
steps on master weights from the gradient of a scaled loss, clipped or not, spoilt or not; and lists of gradients clipped by their norm."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles.properties.array_lists import spread
from oracles.properties.case import Case

from . import draws
from .draws import Array

_ADAM: dict[str, Any] = {"step": 1, "lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}

# name: (format, shape, options that are others than these, how the moments lie, exponent of the gradients)
ADAM: dict[str, tuple[str, tuple[int, ...], dict[str, Any], str, int]] = {
    "smallest": ("float64", (1,), {}, "zero", 0),
    "no-parameters": ("float32", (0,), {}, "zero", 0),
    "no-axes": ("float32", (), {"step": 2}, "drawn", 0),
    "first-step": ("float32", (5, 7), {}, "zero", 0),
    "second-step": ("float32", (5, 7), {"step": 2}, "drawn", 0),
    "step-1000": ("float32", (4, 9), {"step": 1000}, "drawn", 0),
    "step-1000000": ("float64", (4, 9), {"step": 10**6}, "drawn", 0),
    "bfloat16": ("bfloat16", (3, 17), {"step": 10}, "drawn", 0),
    "float16": ("float16", (3, 17), {"step": 10}, "drawn", 0),
    "no-decay": ("float32", (9,), {"step": 3, "weight_decay": 0.0}, "drawn", 0),
    "large-decay": ("float32", (9,), {"step": 3, "lr": 0.5, "weight_decay": 0.25}, "drawn", 0),
    "lr-zero": ("float32", (9,), {"step": 3, "lr": 0.0}, "drawn", 0),
    "no-momentum": ("float64", (9,), {"step": 3, "beta1": 0.0, "beta2": 0.0}, "drawn", 0),
    "beta2-near-one": ("float64", (9,), {"step": 7, "beta2": 0.999999}, "drawn", 0),
    "large-eps": ("float32", (9,), {"step": 3, "eps": 1.0}, "drawn", 0),
    "gradients-of-zero": ("float32", (9,), {"step": 4}, "coasting", 0),
    "nothing-moves": ("float32", (9,), {}, "still", 0),
    "eps-zero": ("float32", (9,), {"step": 2, "eps": 0.0}, "some still", 0),
    "small-gradients": ("float32", (9,), {"step": 2, "eps": 1e-12}, "drawn", -40),
    "large-gradients": ("float32", (9,), {"step": 2}, "drawn", 30),
    "dyadic": ("float64", (5,), {"lr": 0.125, "beta1": 0.5, "beta2": 0.75, "eps": 0.0, "weight_decay": 0.5}, "dyadic", 0),
}  # fmt: skip

_MASTER: dict[str, Any] = {**_ADAM, "step": 3, "loss_scale": 1024.0, "max_norm": None, "fmt": "bfloat16"}

# name: (format of the gradient, shape, options that are others than these, how the state lies, exponent of the gradients)
MASTER: dict[str, tuple[str, tuple[int, ...], dict[str, Any], str, int]] = {
    "smallest": ("float32", (1,), {"step": 1}, "zero", 10),
    "no-parameters": ("float32", (0,), {}, "zero", 10),
    "first-step": ("bfloat16", (5, 7), {"step": 1}, "zero", 10),
    "bfloat16": ("bfloat16", (33,), {}, "drawn", 10),
    "float16": ("float16", (33,), {"fmt": "float16"}, "drawn", 10),
    "float64": ("float64", (17,), {"fmt": "float16"}, "drawn", 10),
    "scale-of-one": ("float32", (17,), {"loss_scale": 1.0}, "drawn", 0),
    "scale-no-power-of-two": ("float32", (17,), {"loss_scale": 1000.0}, "drawn", 10),
    "clipped": ("float32", (17,), {"max_norm": 1.0}, "drawn", 10),
    "clipped-float16": ("float16", (17,), {"max_norm": 0.3, "fmt": "float16"}, "drawn", 8),
    "within-the-norm": ("float32", (17,), {"max_norm": 100.0}, "drawn", 10),
    "below-a-unit-of-the-weight": ("float32", (17,), {"lr": 1e-6, "weight_decay": 0.0}, "drawn", 10),
    "gradient-of-zero": ("float32", (9,), {"max_norm": 1.0}, "coasting", 10),
    "a-gradient-of-inf": ("float32", (9,), {"max_norm": 1.0, "fmt": "float16"}, "inf", 10),
    "a-gradient-of-nan": ("float32", (9,), {}, "nan", 10),
    "small-weights": ("float32", (17,), {"fmt": "float16", "lr": 1e-8}, "small", 10),
}  # fmt: skip

# name: (format, shapes of the gradients, max_norm, how they lie, exponent)
CLIP: dict[str, tuple[str, tuple[tuple[int, ...], ...], float, str, int]] = {
    "smallest": ("float64", ((1,),), 0.5, "drawn", 0),
    "no-axes": ("float32", ((), ()), 0.25, "drawn", 0),
    "clipped": ("float32", ((5, 7), (9,), (3,)), 1.0, "drawn", 0),
    "within-the-norm": ("float32", ((5, 7), (9,), (3,)), 100.0, "drawn", 0),
    "at-the-norm": ("float64", ((1,), (2,)), 5.0, "three-four-five", 0),
    "just-beyond-the-norm": ("float64", ((1,), (2,)), 5.0 - 2.0**-50, "three-four-five", 0),
    "empty-among-others": ("float32", ((0,), (4,), (2, 0)), 1.0, "drawn", 0),
    "nothing": ("float32", ((0,),), 1.0, "drawn", 0),
    "limit-of-zero": ("float32", ((4,), (3,)), 0.0, "drawn", 0),
    "gradients-of-zero": ("float32", ((4,), (3,)), 1.0, "zeros", 0),
    "one-outweighs": ("float32", ((33,), (65,)), 1.0, "outlier", 0),
    "float64": ("float64", ((17,), (3, 5)), 0.3, "drawn", 0),
    "bfloat16": ("bfloat16", ((33,), (4, 4)), 1.0, "drawn", 0),
    "float16": ("float16", ((33,), (4, 4)), 0.3, "drawn", 0),
    "tile-border": ("float32", ((257,), (129, 2)), 1.0, "drawn", 0),
    "many": ("float32", ((2,),) * 6, 1.0, "drawn", 0),
    "large": ("float64", ((5,), (4,)), 2.0**190, "drawn", 200),                 # further out squares may overflow, and nothing is promised
    "small": ("float64", ((5,), (4,)), 2.0**-210, "drawn", -200),
    "large-float32": ("float32", ((5,), (4,)), 1.0, "drawn", 50),
}  # fmt: skip


def clip_grad_norm_cases() -> list[Case]:
    """The cases of `CLIP`."""
    cases = []
    for name, (dtype, shapes, limit, how, exponent) in CLIP.items():
        grads = [np.asarray(draws.normal(f"clip {name} {i}", shape, dtype, exponent=exponent)) for i, shape in enumerate(shapes)]
        if how == "zeros":
            grads = [np.zeros_like(g) for g in grads]
        if how == "three-four-five":
            grads = [np.array([3.0]), np.array([0.0, -4.0])]
        if how == "outlier":
            grads[0][7] = 2.0**12
        cases.append(Case("clip_grad_norm", spread("grads", grads), {"max_norm": limit}, origin=name))
    return cases


def adamw_step_cases() -> list[Case]:
    """The cases of `ADAM`: moments of the size of the gradients, in their format."""
    cases = []
    for name, (dtype, shape, options, how, exponent) in ADAM.items():
        drawn: dict[str, Array] = {}
        for letter, size in (("param", 0), ("grad", exponent), ("m", exponent - 1), ("v", exponent)):
            drawn[letter] = np.asarray(draws.normal(f"adam {name} {letter}", shape, dtype, exponent=size))
        drawn["v"] = np.asarray(drawn["v"] * drawn["v"])
        if how in ("zero", "still", "dyadic"):
            drawn["m"], drawn["v"] = np.zeros_like(drawn["m"]), np.zeros_like(drawn["v"])
        if how in ("still", "coasting"):
            drawn["grad"] = np.zeros_like(drawn["grad"])
        if how == "some still":                                                 # 0 / 0 in every third element, which counts as 0
            for letter in ("grad", "m", "v"):
                drawn[letter][::3] = 0
        if how == "dyadic":                                                     # every move is one lr, exactly
            drawn["param"], drawn["grad"] = (np.ldexp(draws.whole(f"adam {name} whole {letter}", shape, 1, 64).astype(np.float64), -3)
                                             for letter in ("param", "grad"))  # fmt: skip
        cases.append(Case("adamw_step", drawn, {**_ADAM, **options}, origin=name))
    return cases


def master_weight_step_cases() -> list[Case]:
    """The cases of `MASTER`: a scaled gradient in a format of its own, the state in float32, or float64 beside such a gradient."""
    cases = []
    for name, (dtype, shape, options, how, exponent) in MASTER.items():
        key, wide = f"master {name}", "float64" if dtype == "float64" else "float32"
        grad = np.asarray(draws.normal(f"{key} grad", shape, dtype, exponent=exponent))
        master = draws.normal(f"{key} master", shape, wide, exponent=-20 if how == "small" else 0)
        m, root = (draws.normal(f"{key} {letter}", shape, wide, exponent=-1) for letter in ("m", "v"))
        if how == "zero":
            m, root = np.zeros_like(m), np.zeros_like(root)
        if how == "coasting":
            grad = np.zeros_like(grad)
        if how in ("inf", "nan"):                                               # one of them, and nothing changes
            grad[4] = float(how)
        arrays = {"grad": grad, "master": master, "m": m, "v": root * root}
        cases.append(Case("master_weight_step", arrays, {**_MASTER, **options}, origin=name))
    return cases
