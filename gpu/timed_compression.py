"""The calls of the compression family that device_timing times: codes of a weight matrix, their product, two of every four."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from .pruning import pack_2_4, prune_2_4
from .quantization import quantize, quantized_matmul
from .timed_call import Call


def compression_calls(cupy: Any, torch: Any, *, small: bool) -> list[Call]:
    """Quantization with one scale, one a row and one a group; the int8 product; the mask and the packed form of 2:4.

    Of quantization and pruning work is the bytes read and written once: weights are read twice, for their scale and for their codes.
    """
    n = 72 if small else 8192
    w = cupy.random.standard_normal((n, n), dtype=cupy.float32).astype("float16")
    x, q = (cupy.asarray(np.random.default_rng(seed).integers(-127, 128, (n, n)).astype(np.int8)) for seed in range(2))
    scale = cupy.asarray(np.full(n, 2.0**-10, np.float32))
    mask = prune_2_4(w, axis=-1)
    product = None if torch is None else partial(torch._int_mm, torch.from_dlpack(x), torch.from_dlpack(q))
    read_and_written = w.nbytes + w.nbytes // 2
    return [
        Call("quantize int8, one scale", lambda: quantize(w, bits=8), None, read_and_written, "GB/s"),
        Call("quantize int8, a scale a row", lambda: quantize(w, bits=8, axis=0), None, read_and_written, "GB/s"),
        Call("quantize int4 affine, groups of 64", lambda: quantize(w, bits=4, group=64, symmetric=False), None, read_and_written, "GB/s"),
        Call("quantized_matmul int8", lambda: quantized_matmul(x, q, scale, x_scale=scale), product, 2 * n**3, "GFLOP/s"),
        Call("prune_2_4 float16", lambda: prune_2_4(w, axis=-1), None, read_and_written, "GB/s"),
        Call("pack_2_4 float16", lambda: pack_2_4(w, mask), None, 2 * w.nbytes + w.nbytes // 8, "GB/s"),
    ]
