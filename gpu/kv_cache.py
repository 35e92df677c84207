"""Keys and values of new tokens written into the slots of a cache (kernels/write_kv.cu)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import arguments
from .launching import Backend, Launcher, ceil_div

MOST_TOKENS = 2**31 - 1


def write_kv(k_cache: Any, v_cache: Any, k: Any, v: Any, slots: Any, *, backend: str | Backend = "cuda") -> tuple[Any, Any]:
    """The caches, written in place: token t stands in slot slots[t].

        k_cache[slots[t]] = k[t],   v_cache[slots[t]] = v[t]   for t = 0, 1, …

    k_cache (S, Hkv, D), v_cache (S, Hkv, Dv), k (T, Hkv, D), v (T, Hkv, Dv), slots (T,) in -1 .. S - 1. A slot of -1 skips its token;
    a slot given twice holds the last of its tokens, the same each time; all other slots keep their bits. Caches that are not
    contiguous are copied and written back. float32, float16 or bfloat16, one for all.

    >>> cache = np.zeros((3, 1, 1), np.float32)
    >>> k = np.array([1, 2, 3], np.float32).reshape(3, 1, 1)
    >>> write_kv(cache, cache.copy(), k, -k, [2, -1, 2], backend="emulated")[0] is cache, cache.ravel()
    (True, array([0., 0., 3.], dtype=float32))

    Raises ValueError or TypeError that names the argument, RuntimeError where there is no device.
    Exact. Source: reshape_and_cache of vLLM (Kwon et al. 2023, arXiv 2309.06180, section 5.1).
    """
    k_cache, v_cache = (arguments.floats(name, x, ndim=3) for name, x in (("k_cache", k_cache), ("v_cache", v_cache)))
    S, Hkv, D = k_cache.shape
    v_cache = arguments.floats("v_cache", v_cache, (S, Hkv, v_cache.shape[2]), like=k_cache)
    k = arguments.floats("k", k, ndim=3, like=k_cache)
    T = k.shape[0]
    k = arguments.floats("k", k, (T, Hkv, D))
    v = arguments.floats("v", v, (T, Hkv, v_cache.shape[2]), like=k_cache)
    if T > MOST_TOKENS:
        raise NotImplementedError(f"k: got {T} tokens; the kernel takes at most {MOST_TOKENS}")
    run = Launcher(backend, k_cache=k_cache, v_cache=v_cache, k=k, v=v)
    where = run.take(arguments.integers("slots", slots, least=-1, most=S - 1, shape=(T,)), "int64")
    owner = run.new((S,), "int32", fill=-1)
    run.launch("write_kv.cu", "claim_slots", (ceil_div(T, 128),), (128,), [where, owner, T])
    bits, word = ("uint32", "unsigned") if k_cache.dtype.itemsize == 4 else ("uint16", "unsigned short")
    caches = [_taken(run, x, bits) for x in (k_cache, v_cache)]
    words = [math.prod(x.shape[1:]) for x in (k_cache, v_cache)]
    run.launch("write_kv.cu", f"write_kv<{word}>", (T,), (128,), [*caches, *(_taken(run, x, bits) for x in (k, v)), where, owner, *words])
    for cache, written in zip((k_cache, v_cache), caches):
        if written is not cache and not _is_view(written, cache):
            cache[...] = (written.get() if run.library is not np and isinstance(cache, np.ndarray) else written).view(cache.dtype)
    return k_cache, v_cache


def _taken(run: Launcher, x: Any, bits: str) -> Any:
    """x where the kernels run, contiguous, as words of its size; a view of it where it is all that already."""
    taken = run.take(x)
    return taken if taken.dtype == bits else taken.view(bits)


def _is_view(written: Any, cache: Any) -> bool:
    """Whether what was written to is the memory of the cache itself."""
    return isinstance(written, np.ndarray) == isinstance(cache, np.ndarray) and _address(written) == _address(cache)


def _address(x: Any) -> int:
    return int(x.ctypes.data if isinstance(x, np.ndarray) else x.data.ptr)
