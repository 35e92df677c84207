"""Attention that is broken in one plain way each, and what misbehaves without computing: subjects that the checker must tell apart."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import numpy as np
from short_attention import attention as right


class Lazy:
    """An array that has not been computed; it never becomes one for NumPy unasked."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        return np.zeros(3)


class Unreadable:
    """Something that says it is an array and fails when it is read."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **_: Any) -> Any:
        raise RuntimeError("the graph was not executed")


def returns_nan(q: Any, k: Any, v: Any, *, causal: Any = None, scale: Any = None) -> Any:
    out, lse = right(q, k, v, causal=causal, scale=scale)
    return np.full_like(out, np.nan), lse


def returns_nan_log_sum_exp(q: Any, k: Any, v: Any, *, causal: Any = None, scale: Any = None) -> Any:
    out, lse = right(q, k, v, causal=causal, scale=scale)
    return out, np.full_like(lse, np.nan)


def returns_zeros(q: Any, k: Any, v: Any, *, causal: Any = None, scale: Any = None) -> Any:
    return tuple(np.zeros_like(x) for x in right(q, k, v, causal=causal, scale=scale))


def returns_the_mean(q: Any, k: Any, v: Any, *, causal: Any = None, scale: Any = None) -> Any:
    out, lse = right(q, k, v, causal=causal, scale=scale)
    mean = v.sum(axis=2, keepdims=True) / v.dtype.type(max(v.shape[2], 1))
    return np.broadcast_to(np.repeat(mean, q.shape[1] // k.shape[1], axis=1), out.shape).copy(), lse


def returns_its_input(q: Any, k: Any, v: Any, *, causal: Any = None, scale: Any = None) -> Any:
    return q


def returns_a_view(q: Any, k: Any, v: Any, *, causal: Any = None, scale: Any = None) -> Any:
    """The right numbers, written into the memory of q where they fit."""
    out, lse = right(q, k, v, causal=causal, scale=scale)
    if q.shape != out.shape:
        return out, lse
    q[...] = out
    return q[...], lse


def returns_a_wrong_shape(q: Any, k: Any, v: Any, *, causal: Any = None, scale: Any = None) -> Any:
    return right(q, k, v, causal=causal, scale=scale)[0][..., None]


def returns_a_wrong_dtype(q: Any, k: Any, v: Any, *, causal: Any = None, scale: Any = None) -> Any:
    return right(q, k, v, causal=causal, scale=scale)[0].astype(np.float16)


def returns_objects(q: Any, k: Any, v: Any, *, causal: Any = None, scale: Any = None) -> Any:
    return right(q, k, v, causal=causal, scale=scale)[0].astype(object)


def returns_something_lazy(q: Any, k: Any, v: Any, *, causal: Any = None, scale: Any = None) -> Any:
    return Lazy()


def returns_something_unreadable(q: Any, k: Any, v: Any, *, causal: Any = None, scale: Any = None) -> Any:
    return Unreadable()


def returns_nothing(q: Any, k: Any, v: Any, *, causal: Any = None, scale: Any = None) -> Any:
    right(q, k, v, causal=causal, scale=scale)


def returns_too_much(q: Any, k: Any, v: Any, *, causal: Any = None, scale: Any = None) -> Any:
    out, lse = right(q, k, v, causal=causal, scale=scale)
    return out, lse, lse


def returns_a_number(q: Any, k: Any, v: Any, *, causal: Any = None, scale: Any = None) -> Any:
    return 0.5


def returns_other_names(q: Any, k: Any, v: Any, *, causal: Any = None, scale: Any = None) -> Any:
    return {"output": right(q, k, v, causal=causal, scale=scale)[0]}


def raises(q: Any, k: Any, v: Any, *, causal: Any = None, scale: Any = None) -> Any:
    raise ZeroDivisionError("a tile of no rows")


def leaves_by_sys_exit(q: Any, k: Any, v: Any, *, causal: Any = None, scale: Any = None) -> Any:
    sys.exit(0)


def changes_its_inputs(q: Any, k: Any, v: Any, *, causal: Any = None, scale: Any = None) -> Any:
    results = right(q, k, v, causal=causal, scale=scale)
    k *= 2
    return results


def refuses_everything(q: Any, k: Any, v: Any, *, causal: Any = None, scale: Any = None) -> Any:
    raise NotImplementedError("attention of any kind")


def never_returns(q: Any, k: Any, v: Any, *, causal: Any = None, scale: Any = None) -> Any:
    while True:
        time.sleep(0.01)


def kills_its_process(q: Any, k: Any, v: Any, *, causal: Any = None, scale: Any = None) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def ends_its_process(q: Any, k: Any, v: Any, *, causal: Any = None, scale: Any = None) -> Any:
    print("out of tiles", file=sys.stderr, flush=True)
    os._exit(3)


def ends_its_process_quietly(q: Any, k: Any, v: Any, *, causal: Any = None, scale: Any = None) -> Any:
    os._exit(0)


def closes_all_files_and_waits(q: Any, k: Any, v: Any, *, causal: Any = None, scale: Any = None) -> Any:
    os.closerange(3, 256)
    time.sleep(600)


def prints_a_lot(q: Any, k: Any, v: Any, *, causal: Any = None, scale: Any = None) -> Any:
    print("row after row " * 5000)
    os.write(1, b"\0\1\2" * 1000)
    return right(q, k, v, causal=causal, scale=scale)


def differs_every_time(q: Any, k: Any, v: Any, *, causal: Any = None, scale: Any = None) -> Any:
    """A few last bits away from what it answered the last six times."""
    out, lse = right(q, k, v, causal=causal, scale=scale)
    differs_every_time.calls = getattr(differs_every_time, "calls", 0) + 1     # type: ignore[attr-defined]
    for _ in range(differs_every_time.calls % 7):                               # type: ignore[attr-defined]
        out = np.nextafter(out, out.dtype.type(np.inf))
    return out, lse


def is_wrong_now_and_then(q: Any, k: Any, v: Any, *, causal: Any = None, scale: Any = None) -> Any:
    """Wrong once, at the fifth call, and never again."""
    out, lse = right(q, k, v, causal=causal, scale=scale)
    is_wrong_now_and_then.calls = getattr(is_wrong_now_and_then, "calls", 0) + 1   # type: ignore[attr-defined]
    return out + (1 if is_wrong_now_and_then.calls == 5 else 0) * np.ones_like(out), lse
