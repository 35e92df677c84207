"""Steps of AdamW, plain and fused with unscaling, the search for inf, the clip and float32 masters (kernels/adamw.cu)."""

from __future__ import annotations

import math
from typing import Any

from . import arguments
from .launching import Backend, Launcher, ceil_div, cpp_type

THREADS, MOST_SURVEYS = 256, 256
NARROW = {"float16": "__half", "bfloat16": "__nv_bfloat16"}


def adamw_step(
    param: Any, grad: Any, m: Any, v: Any, *, step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float,
    backend: str | Backend = "cuda",
) -> tuple[Any, Any, Any]:  # fmt: skip
    """One step of Adam with decoupled weight decay: new arrays param in its format, m and v in float32.

        m' = b1 m + (1 - b1) g,   v' = b2 v + (1 - b2) g^2,   param' = param (1 - lr wd) - lr (m' / c1) / (sqrt(v' / c2) + eps)

    c = 1 - beta^step. param and grad of one shape in float32, float16 or bfloat16, m and v in float32, in which all is computed.

    >>> numbers = {"step": 1, "lr": 0.125, "beta1": 0.5, "beta2": 0.75, "eps": 0.0, "weight_decay": 0.5}
    >>> one, half, zero = (np.array([x], np.float32) for x in (1, 0.5, 0))
    >>> adamw_step(one, half, zero, zero, **numbers, backend="emulated")[0]
    array([0.8125], dtype=float32)

    Raises ValueError or TypeError that names the argument, RuntimeError where there is no device.
    Error bound: `properties.bounds.adamw_step_bound` under Arithmetic(moments="float32").
    Source: Loshchilov and Hutter 2019 (arXiv 1711.05101), algorithm 2 without the schedule.
    """
    param = arguments.floats("param", param)
    grad = arguments.floats("grad", grad, tuple(param.shape), like=param)
    m, v = (_float32(name, x, param.shape) for name, x in (("m", m), ("v", v)))
    numbers = _numbers(step, lr, beta1, beta2, eps, weight_decay)
    run, n, dtype = Launcher(backend, param=param, grad=grad, m=m, v=v), math.prod(param.shape), param.dtype.name
    news = [run.new(param.shape, dtype), run.new(param.shape, "float32"), run.new(param.shape, "float32")]
    run.launch("adamw.cu", f"adamw<{cpp_type(param)}>", (ceil_div(n, THREADS),), (THREADS,),
               [*map(run.take, (param, grad, m, v)), *news, n, *numbers], outputs=("new_param", "new_m", "new_v"))
    return run.give(news[0], dtype), run.give(news[1], "float32"), run.give(news[2], "float32")


def master_weight_step(
    grad: Any, master: Any, m: Any, v: Any, *, loss_scale: float, max_norm: float | None, step: int, lr: float, beta1: float, beta2: float,
    eps: float, weight_decay: float, fmt: str, backend: str | Backend = "cuda",
) -> tuple[Any, Any, Any, Any]:  # fmt: skip
    """A step of AdamW on float32 masters from the gradient of a scaled loss: new arrays weights in fmt, master, m, v in float32.

        g = grad / loss_scale      g' = g min(1, max_norm / |g|)      master', m', v' = AdamW(master, g', m, v)
        weights = master' rounded once to fmt, "float16" or "bfloat16"

    A NaN or inf in the gradient changes nothing, decided on the device: the host waits for nothing. max_norm None: no clip.

    >>> numbers = {"step": 1, "lr": 2.0**-10, "beta1": 0.0, "beta2": 0.0, "eps": 0.0, "weight_decay": 0.0, "max_norm": None}
    >>> one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    >>> weights, master, m, v = master_weight_step(one, one, zero, zero, loss_scale=4, fmt="bfloat16", **numbers, backend="emulated")
    >>> float(weights[0]), float(master[0]), float(m[0])
    (1.0, 0.9990234375, 0.25)

    As `adamw_step`. Error bound: `properties.bounds.master_weight_step_bound` under the default Arithmetic.
    Source: Micikevicius et al. 2018 (arXiv 1710.03740), sections 3.1 and 3.2.
    """
    if fmt not in NARROW:
        raise ValueError(f"fmt: got {fmt!r}; want one of {', '.join(NARROW)}")
    grad = arguments.floats("grad", grad)
    grad, master, m, v = (_float32(name, x, grad.shape) for name, x in (("grad", grad), ("master", master), ("m", m), ("v", v)))
    scale, limit = arguments.real_number("loss_scale", loss_scale, positive=True), math.inf
    if max_norm is not None:
        limit = _not_negative("max_norm", max_norm)
    numbers = _numbers(step, lr, beta1, beta2, eps, weight_decay)
    run, n = Launcher(backend, grad=grad, master=master, m=m, v=v), math.prod(grad.shape)
    surveys = min(MOST_SURVEYS, ceil_div(n, THREADS))
    given, sums = run.take(grad), run.new((surveys,), "float64")
    run.launch("adamw.cu", "survey", (surveys,), (THREADS,), [given, sums, n], outputs=("sums",))
    news = [run.new(grad.shape, fmt), *(run.new(grad.shape, "float32") for _ in range(3))]
    run.launch("adamw.cu", f"master_step<{NARROW[fmt]}>", (ceil_div(n, THREADS),), (THREADS,),
               [given, *map(run.take, (master, m, v)), sums, surveys, *news, n, 1.0 / scale, limit, *numbers],
               outputs=("weights", "new_master", "new_m", "new_v"))
    weights, *others = news
    return run.give(weights, fmt), *(run.give(x, "float32") for x in others)


def _numbers(step: int, lr: float, beta1: float, beta2: float, eps: float, weight_decay: float) -> list[float]:
    """Learning rate, what the decay leaves, both betas and what they leave, both corrections, eps: as the kernels take them."""
    t = arguments.whole_number("step", step, least=1)
    lr, eps, decay = (_not_negative(name, x) for name, x in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)))
    b1, b2 = (_not_negative(name, x) for name, x in (("beta1", beta1), ("beta2", beta2)))
    for name, b in (("beta1", b1), ("beta2", b2)):
        if b >= 1.0:
            raise ValueError(f"{name}: got {b}; want a number in [0, 1)")
    return [lr, 1.0 - lr * decay, b1, 1.0 - b1, b2, 1.0 - b2, 1.0 - b1**t, 1.0 - b2**t, eps]


def _not_negative(name: str, x: float) -> float:
    number = arguments.real_number(name, x)
    if number < 0.0:
        raise ValueError(f"{name}: got {number}; want a finite number >= 0")
    return number


def _float32(name: str, x: Any, shape: tuple[int, ...]) -> Any:
    x = arguments.floats(name, x, tuple(shape))
    if x.dtype.name != "float32":
        raise NotImplementedError(f"{name}: got dtype {x.dtype.name}; the kernels take float32")
    return x
