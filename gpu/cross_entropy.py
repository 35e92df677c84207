"""Cross-entropy and its gradient, alone or both from one launch (kernels/cross_entropy.cu)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import arguments
from .launching import Backend, Launcher, cpp_type

LONG_ROW, THREADS = 1024, 256                                                   # from LONG_ROW on 8 warps share a row
REDUCTIONS = ("mean", "sum", "none")


def cross_entropy(
    logits: Any, targets: Any, *, weights: Any = None, ignore_index: int = -100, label_smoothing: float = 0.0, z_loss: float = 0.0,
    reduction: str, backend: str | Backend = "cuda",
) -> Any:  # fmt: skip
    """The cross-entropy of rows of logits (..., V) and targets (...), in the format of the logits: (), or (...) for "none".

        loss_i = sum_c a_c (lse - z_c) + z_loss w_y lse^2,   a_c = w_c ((1 - e) [c = y] + e / V),   e = label_smoothing
        "sum": sum_i loss_i     "mean": sum_i loss_i / sum_i w_y, 0 where that is 0     "none": loss_i

    Rows whose target is ignore_index count nowhere and are not read. weights (V,) in the logits' format, 1 each where None.
    float32, float16 or bfloat16, computed in float32, rows added up in float64.

    >>> float(cross_entropy(np.array([[0, 1, 2, 3]], np.float32), [3], reduction="sum", backend="emulated"))
    0.44018...

    Raises ValueError or TypeError that names the argument, RuntimeError where there is no device.
    Error bound: `properties.bounds.cross_entropy_bound` under the default Arithmetic.
    Source: Milakov and Gimelshein 2018 (arXiv 1805.02867), algorithm 3; Szegedy et al. 2016 (arXiv 1512.00567), section 7.
    """
    return _run(logits, targets, None, weights, ignore_index, label_smoothing, z_loss, reduction, backend)[0]


def cross_entropy_backward(
    logits: Any, targets: Any, dloss: Any, *, weights: Any = None, ignore_index: int = -100, label_smoothing: float = 0.0,
    z_loss: float = 0.0, reduction: str, backend: str | Backend = "cuda",
) -> Any:  # fmt: skip
    """dloss times the derivative of `cross_entropy`, in the format and shape of the logits. dloss: a number, or (...) for "none".

        dz_c = g (p_c (sum_c a_c + 2 z_loss w_y lse) - a_c),   g = dloss, over sum_i w_y for "mean"

    >>> cross_entropy_backward(np.zeros((1, 2), np.float32), [1], 1.0, reduction="mean", backend="emulated")
    array([[ 0.5, -0.5]], dtype=float32)

    As `cross_entropy`; ValueError for another shape of dloss. Error bound: `properties.bounds.cross_entropy_backward_bound`.
    """
    return _run(logits, targets, dloss, weights, ignore_index, label_smoothing, z_loss, reduction, backend, loss=False)[1]


def cross_entropy_with_gradient(
    logits: Any, targets: Any, dloss: Any, *, weights: Any = None, ignore_index: int = -100, label_smoothing: float = 0.0,
    z_loss: float = 0.0, reduction: str, backend: str | Backend = "cuda",
) -> tuple[Any, Any]:  # fmt: skip
    """`cross_entropy` and `cross_entropy_backward` from one launch: the same bits as of the two.

    >>> loss, dlogits = cross_entropy_with_gradient(np.zeros((1, 1), np.float32), [0], 1.0, reduction="sum", backend="emulated")
    >>> float(loss), dlogits.tolist()
    (0.0, [[0.0]])
    """
    return _run(logits, targets, dloss, weights, ignore_index, label_smoothing, z_loss, reduction, backend)


def _run(
    logits: Any, targets: Any, dloss: Any, weights: Any, ignore_index: int, label_smoothing: float, z_loss: float, reduction: str,
    backend: str | Backend, *, loss: bool = True,
) -> tuple[Any, Any]:  # fmt: skip
    """Loss and gradient, each None where it is not wanted: no gradient without dloss."""
    logits = arguments.floats("logits", logits)
    if logits.ndim == 0 or logits.shape[-1] == 0:
        raise ValueError(f"logits: got shape {tuple(logits.shape)}; want (..., V) with a vocabulary of at least 1")
    *shape, V = logits.shape
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction: got {reduction!r}; want one of {', '.join(REDUCTIONS)}")
    smoothing = arguments.real_number("label_smoothing", label_smoothing)
    if not 0.0 <= smoothing <= 1.0:
        raise ValueError(f"label_smoothing: got {smoothing}; want a number in 0..1")
    ignored = arguments.whole_number("ignore_index", ignore_index, least=-(2**63))
    y = _targets(targets, tuple(shape), V, ignored)
    given = {"logits": logits} | ({} if weights is None else {"weights": _weights(weights, V, logits)})
    run, rows, dtype, cpp = Launcher(backend, **given), math.prod(shape), logits.dtype.name, cpp_type(logits)
    each = reduction == "none"
    y, w = run.take(y), None if weights is None else run.take(given["weights"])
    dz = None if dloss is None else run.new((*shape, V), dtype)
    step, g = (0, None) if dloss is None else _dloss(run, dloss, tuple(shape) if each else ())
    total = run.new((1,), "float64") if reduction == "mean" else None
    if total is not None:
        run.launch("cross_entropy.cu", f"count<{cpp}>", (1,), (THREADS,), [y, w, total, rows, ignored], outputs=("total",))
    losses = run.new(shape, dtype) if loss and each else None
    sums = run.new((rows,), "float32") if loss and not each else None
    outputs = [name for name, x in (("losses", losses), ("row_losses", sums), ("dlogits", dz)) if x is not None]
    run.launch("cross_entropy.cu", f"cross_entropy<{cpp}, {8 if V >= LONG_ROW else 1}>", (rows,), (32, 8 if V >= LONG_ROW else 1),
               [run.take(logits), y, w, total, g, step, losses, sums, dz, V, ignored, smoothing, arguments.real_number("z_loss", z_loss)],
               outputs=outputs)
    if sums is not None:
        losses = run.new((), dtype)
        run.launch("cross_entropy.cu", f"mean<{cpp}>", (1,), (THREADS,), [sums, total, losses, rows], outputs=("loss",))
    return None if losses is None else run.give(losses, dtype), None if dz is None else run.give(dz, dtype)


def _targets(targets: Any, shape: tuple[int, ...], V: int, ignored: int) -> Any:
    """The classes on the host, int64, all of them 0..V - 1 or ignored."""
    y = np.asarray(targets.get() if hasattr(targets, "get") else targets)
    if y.size == 0 and y.dtype.kind == "f":
        y = y.astype(np.int64)                                                  # an empty list arrives as float64
    if y.dtype.kind not in "iu":
        raise TypeError(f"targets: got dtype {y.dtype}; want integers")
    if y.shape != shape:
        raise ValueError(f"targets: got shape {y.shape}; want {shape}, that of the logits without the last axis")
    bad = y[(y != ignored) & ((y < 0) | (y >= V))]
    if bad.size:
        raise ValueError(f"targets: got {bad.flat[0]}; want 0..{V - 1} or ignore_index = {ignored}")
    return y.astype(np.int64)


def _weights(weights: Any, V: int, logits: Any) -> Any:
    weights = arguments.floats("weights", weights, (V,), like=logits)
    host = np.asarray(weights.get() if hasattr(weights, "get") else weights, np.float64)
    if not ((host >= 0.0) & np.isfinite(host)).all():
        raise ValueError(f"weights: got numbers from {host.min()} to {host.max()}; want finite numbers >= 0")
    return weights


def _dloss(run: Launcher, dloss: Any, shape: tuple[int, ...]) -> tuple[int, Any]:
    """Elements of dloss between two rows, 0 or 1, and dloss where the kernels run, float32."""
    dloss = dloss if hasattr(dloss, "dtype") else np.asarray(dloss, np.float32)
    if dloss.dtype.kind not in "f" and dloss.dtype.name != "bfloat16":
        raise TypeError(f"dloss: got dtype {dloss.dtype}; want floats")
    if tuple(dloss.shape) != shape:
        raise ValueError(f"dloss: got shape {tuple(dloss.shape)}; want {shape}")
    return int(bool(shape)), run.take(dloss, "float32")
