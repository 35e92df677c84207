"""Golden cases of quantization: codes with their scales, numbers made of codes and of places in a table, products of codes.

No code and no zero point stands within rounding of a half, in float64; in narrower arithmetic some may, and are left open there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles.properties.case import Case
from oracles.reference import NF4, FloatFormat

from . import draws
from .draws import Array

# name: (format, shape, options, how the numbers lie, exponent)
QUANTIZE: dict[str, tuple[str, tuple[int, ...], dict[str, Any], str, int]] = {
    "smallest": ("float64", (1,), {"bits": 8}, "normal", 0),
    "nothing": ("float32", (0,), {"bits": 8}, "normal", 0),
    "no-rows": ("float32", (0, 5), {"bits": 4, "axis": 0}, "normal", 0),
    "tensor": ("float32", (5, 9), {"bits": 8}, "normal", 0),
    "tensor-affine": ("float32", (5, 9), {"bits": 8, "symmetric": False}, "normal", 0),
    "rows": ("bfloat16", (5, 17), {"bits": 8, "axis": 0}, "normal", 0),
    "columns-affine": ("float16", (9, 6), {"bits": 4, "axis": 1, "symmetric": False}, "normal", 0),
    "last-axis": ("float32", (2, 3, 5), {"bits": 4, "axis": -1}, "normal", 0),
    "groups": ("float32", (3, 64), {"bits": 4, "group": 16}, "normal", 0),
    "groups-affine": ("bfloat16", (2, 64), {"bits": 4, "group": 32, "symmetric": False}, "normal", 0),
    "short-last-group": ("float32", (2, 19), {"bits": 4, "group": 8, "symmetric": False}, "normal", 0),
    "two-bits": ("float64", (4, 16), {"bits": 2, "group": 4}, "normal", 0),
    "two-bits-affine": ("float64", (4, 16), {"bits": 2, "group": 8, "symmetric": False}, "normal", 0),
    "positive-affine": ("float32", (33,), {"bits": 8, "symmetric": False}, "positive", 0),
    "negative-affine": ("float32", (33,), {"bits": 8, "symmetric": False}, "negative", 0),
    "zeros": ("float32", (3, 8), {"bits": 8, "axis": 0}, "zeros", 0),
    "outlier": ("float32", (2, 65), {"bits": 8, "axis": 0}, "outlier", 0),
    "tiny": ("float64", (3, 9), {"bits": 8, "axis": 0}, "normal", -500),
    "huge": ("float64", (3, 9), {"bits": 8, "axis": 0, "symmetric": False}, "normal", 490),
    "tile-border": ("bfloat16", (1, 257), {"bits": 8, "group": 128}, "normal", 0),
    "scale-given": ("float32", (4, 9), {"bits": 4, "axis": 0}, "given", 0),
    "scale-and-zero-given": ("float32", (4, 9), {"bits": 4, "axis": 0, "symmetric": False}, "given", 0),
}  # fmt: skip

# name: (range of the codes, shape, format of the scales, their shape, options, whether there is a zero point)
DEQUANTIZE: dict[str, tuple[tuple[int, int], tuple[int, ...], str, tuple[int, ...], dict[str, Any], bool]] = {
    "smallest": ((-127, 128), (1,), "float64", (1,), {}, False),
    "nothing": ((-7, 8), (0,), "float32", (1,), {}, False),
    "tensor": ((-127, 128), (5, 9), "float32", (1,), {}, False),
    "tensor-affine": ((0, 256), (5, 9), "float32", (1,), {}, True),
    "rows": ((-127, 128), (5, 17), "bfloat16", (5,), {"axis": 0}, False),
    "columns-affine": ((0, 16), (9, 6), "float16", (6,), {"axis": 1}, True),
    "last-axis": ((-7, 8), (2, 3, 5), "float64", (5,), {"axis": -1}, False),
    "groups": ((-7, 8), (3, 64), "float32", (3, 4), {"group": 16}, False),
    "groups-affine": ((0, 16), (3, 64), "float16", (3, 2), {"group": 32}, True),
    "short-last-group": ((0, 16), (2, 19), "float32", (2, 3), {"group": 8}, True),
    "two-bits": ((0, 4), (4, 16), "float64", (4, 4), {"group": 4}, True),
    "sixteen-bits": ((0, 65536), (33,), "float64", (1,), {}, True),
    "tile-border": ((-127, 128), (2, 257), "float32", (2, 3), {"group": 128}, False),
}  # fmt: skip

# name: (shape of the codes, block, numbers in the table, format, whether the maxima of blocks are codes themselves). 16: the table of NF4.
BLOCKWISE: dict[str, tuple[tuple[int, ...], int, int, str, bool]] = {
    "smallest": ((1,), 1, 16, "float64", False),
    "nothing": ((0,), 4, 16, "float32", False),
    "no-rows": ((0, 5), 4, 16, "float32", False),
    "one-block": ((64,), 64, 16, "float32", False),
    "blocks": ((3, 64), 16, 16, "float32", False),
    "short-last-block": ((2, 19), 8, 16, "float32", False),
    "block-larger-than-the-row": ((3, 5), 64, 16, "float32", False),
    "table-of-two": ((33,), 4, 2, "float32", False),
    "table-of-256": ((2, 130), 32, 256, "float32", False),
    "bfloat16": ((3, 40), 8, 16, "bfloat16", False),
    "float16": ((3, 40), 8, 16, "float16", False),
    "float64": ((2, 3, 17), 5, 16, "float64", False),
    "maxima-quantized": ((3, 64), 16, 16, "float32", True),
    "maxima-quantized-float64": ((2, 19), 8, 16, "float64", True),
    "maxima-quantized-bfloat16": ((2, 40), 8, 16, "bfloat16", True),
    "tile-border": ((1, 257), 64, 16, "bfloat16", False),
}  # fmt: skip
OFFSET = 1.5                                                                    # of maxima that are quantized

# name: (shape (N, C, M), format of scales and bias, shape of scale, shape of x_scale, whether there is a bias, largest code)
PRODUCTS: dict[str, tuple[tuple[int, int, int], str, tuple[int, ...], tuple[int, ...], bool, int]] = {
    "smallest": ((1, 1, 1), "float64", (), (), False, 127),
    "no-rows": ((0, 3, 2), "float32", (), (), False, 127),
    "no-columns": ((3, 0, 2), "float32", (2,), (3,), True, 127),
    "tensor": ((4, 16, 5), "float32", (), (), False, 127),
    "bias": ((4, 16, 5), "float32", (), (), True, 127),
    "column-scales": ((4, 16, 5), "float32", (5,), (), False, 127),
    "row-scales": ((4, 16, 5), "bfloat16", (), (4,), False, 127),
    "rows-and-columns": ((7, 33, 9), "float32", (9,), (7,), True, 127),
    "rows-and-columns-float16": ((7, 33, 9), "float16", (9,), (7,), True, 127),
    "float64": ((3, 17, 4), "float64", (4,), (3,), True, 127),
    "four-bits": ((5, 64, 6), "float32", (6,), (5,), False, 7),
    "tile-border": ((9, 257, 17), "bfloat16", (17,), (9,), True, 127),
    "long": ((2, 4099, 3), "float32", (3,), (2,), True, 127),
}  # fmt: skip


def quantize_cases() -> list[Case]:
    """The cases of `QUANTIZE`."""
    cases = []
    for name, (dtype, shape, options, how, exponent) in QUANTIZE.items():
        x = draws.normal(f"quantize {name} x", shape, dtype, exponent=exponent)
        if how in ("positive", "negative"):
            x = np.abs(x) if how == "positive" else -np.abs(x)
        if how == "zeros":                                                      # one row of zeros among others
            x[1] = 0
        if how == "outlier":
            x[:, 7] = 100
        arrays: dict[str, Array] = {"x": x}
        if how == "given":                                                      # so that some codes are clipped
            arrays["scale"] = np.abs(draws.normal(f"quantize {name} scale", (shape[0],), "float64", exponent=-3))
            if not options.get("symmetric", True):
                arrays["zero"] = draws.whole(f"quantize {name} zero", (shape[0],), 0, 2 ** options["bits"])
        cases.append(Case("quantize", arrays, options, origin=name))
    return cases


def dequantize_cases() -> list[Case]:
    """The cases of `DEQUANTIZE`."""
    cases = []
    for name, ((low, high), shape, dtype, scales, options, affine) in DEQUANTIZE.items():
        arrays: dict[str, Array] = {"q": draws.whole(f"dequantize {name} q", shape, low, high).astype(np.int32)}
        arrays["scale"] = np.abs(draws.normal(f"dequantize {name} scale", scales, dtype, exponent=-4))
        arrays["zero"] = draws.whole(f"dequantize {name} zero", scales, 0, high) if affine else np.zeros(scales, dtype=np.int64)
        cases.append(Case("dequantize", arrays, options, origin=name))
    return cases


def dequantize_blockwise_cases() -> list[Case]:
    """The cases of `BLOCKWISE`: a table and maxima of one format, or codes of maxima with a scale and an offset."""
    cases = []
    for name, (shape, block, size, dtype, nested) in BLOCKWISE.items():
        key, blocks = f"blockwise {name}", (*shape[:-1], -(-shape[-1] // block))
        table = FloatFormat(dtype).cast(NF4) if size == len(NF4) else np.sort(draws.normal(f"{key} table", (size,), dtype, exponent=-1))
        arrays: dict[str, Array] = {"codes": draws.whole(f"{key} codes", shape, 0, size), "codebook": np.asarray(table)}
        options: dict[str, Any] = {"block": block}
        if nested:
            arrays["absmax"] = FloatFormat(dtype).cast(draws.whole(f"{key} absmax", blocks, -8, 9).astype(np.float64))
            arrays["absmax_scale"] = np.abs(draws.normal(f"{key} scale", (), dtype, exponent=-4))
            options["absmax_offset"] = OFFSET
        else:
            arrays["absmax"] = np.abs(draws.normal(f"{key} absmax", blocks, dtype))
        cases.append(Case("dequantize_blockwise", {letter: np.asarray(x) for letter, x in arrays.items()}, options, origin=name))
    return cases


def quantized_matmul_cases() -> list[Case]:
    """The cases of `PRODUCTS`."""
    cases = []
    for name, ((N, C, M), dtype, scale, x_scale, biased, most) in PRODUCTS.items():
        key = f"quantized matmul {name}"
        arrays: dict[str, Array] = {
            "x": draws.whole(f"{key} x", (N, C), -most, most + 1).astype(np.int8),
            "q": draws.whole(f"{key} q", (C, M), -most, most + 1).astype(np.int8),
            "scale": np.abs(draws.normal(f"{key} scale", scale, dtype, exponent=-6)),
            "x_scale": np.abs(draws.normal(f"{key} x scale", x_scale, dtype, exponent=-6)),
        }
        if biased:
            arrays["bias"] = draws.normal(f"{key} bias", (M,), dtype)
        cases.append(Case("quantized_matmul", {letter: np.asarray(x) for letter, x in arrays.items()}, {}, origin=name))
    return cases
