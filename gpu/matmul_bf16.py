"""A matrix product on bfloat16 tensor cores: the proof that such kernels run under the emulator too (kernels/matmul_bf16.cu)."""

from __future__ import annotations

from typing import Any

from .launching import Backend, Launcher, ceil_div

TILE, BK = 64, 32
CHUNK = 8                                                                       # bfloat16 numbers in the 16 bytes of one copy


def matmul_bf16(a: Any, b: Any, *, backend: str | Backend = "cuda") -> Any:
    """c = a b^T in float32, a (M, K) and b (N, K) bfloat16, K a multiple of 8.

    >>> import ml_dtypes
    >>> a = np.eye(2, 8).astype(ml_dtypes.bfloat16)
    >>> matmul_bf16(a, 3 * a, backend="emulated")
    array([[3., 0.],
           [0., 3.]], dtype=float32)

    Raises ValueError for shapes that do not fit, TypeError for another format, RuntimeError where there is no device.
    Error bound: K sums of exact products in float32, in any order, each of which may truncate: 2 K u |a| |b|^T, u = 2^-24.
    Source: PTX ISA, mma.m16n8k16.
    """
    for name, x in (("a", a), ("b", b)):
        if getattr(getattr(x, "dtype", None), "name", None) != "bfloat16":
            raise TypeError(f"{name}: got {getattr(x, 'dtype', type(x).__name__)}; want an array of bfloat16")
        if x.ndim != 2 or x.shape[1] % CHUNK:
            raise ValueError(f"{name}: got shape {tuple(x.shape)}; want two axes, the second a multiple of {CHUNK}")
    (M, K), N = a.shape, b.shape[0]
    if b.shape[1] != K:
        raise ValueError(f"b: got shape {tuple(b.shape)} beside a {tuple(a.shape)}; want (N, {K})")
    run = Launcher(backend, a=a, b=b)
    c = run.new((M, N), "float32")
    run.launch("matmul_bf16.cu", f"matmul_bf16<{BK}>", (ceil_div(N, TILE), ceil_div(M, TILE)), (128,),
               [run.take(a), run.take(b), c, M, N, K], shared_mem=2 * 2 * TILE * (BK + 8) * 2, outputs=("c",))
    return run.give(c, "float32")
