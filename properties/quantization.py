"""The operations of quantization: numbers to codes and back, products of codes, and values of a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from oracles import reference
from oracles.reference.quantization import spread_over

from . import bounds
from .arithmetic import ResolvedArithmetic
from .bounds.quantization import range_of, rounded
from .case import Case
from .comparison import Float64
from .laws.quantization import QUANTIZE_LAWS
from .laws.quantized_products import BLOCKWISE_LAWS, DEQUANTIZE_LAWS, MATMUL_LAWS
from .operation import Operation, as_float64

# The conventions that decide a code, and the oracle's own.
CODE_CONVENTIONS = {"code_ties": "even", "symmetric_codes": "narrow"}


def _quantize_cases() -> Any:
    from .cases.quantization import QUANTIZE_CASES

    return QUANTIZE_CASES


def _dequantize_cases() -> Any:
    from .cases.quantized_products import DEQUANTIZE_CASES

    return DEQUANTIZE_CASES


def _matmul_cases() -> Any:
    from .cases.quantized_products import MATMUL_CASES

    return MATMUL_CASES


def _blockwise_cases() -> Any:
    from .cases.quantized_products import BLOCKWISE_CASES

    return BLOCKWISE_CASES


def quantize_answer(case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    """The oracle's codes, scale and zero point, halves and range as the subject declares them."""
    given = case.arguments()
    q, scale, zero = reference.quantize(**given)
    if any(conventions[name] not in (own, "any") for name, own in CODE_CONVENTIONS.items()):
        x, form = np.asarray(given["x"], np.float64), {name: given.get(name) for name in ("axis", "group")}
        limits = range_of(given["bits"], given.get("symmetric", True), conventions)
        with np.errstate(over="ignore"):
            t = np.clip(x / spread_over(scale, x.shape, **form), -(2.0**100), 2.0**100)
        codes = rounded(t, spread_over(zero, x.shape, **form).astype(np.float64), conventions["code_ties"])
        return as_float64({"q": np.clip(codes, *limits), "scale": scale, "zero": zero})
    return as_float64({"q": q, "scale": scale, "zero": zero})


def quantize_allowed(arithmetic: ResolvedArithmetic, case: Case, conventions: Mapping[str, str]) -> dict[str, Float64]:
    """The bound of the scale; 0 for codes and zero points that no rounding turns, else inf."""
    return bounds.quantize_bound(arithmetic, **case.arguments(), conventions=conventions)


QUANTIZE = Operation(
    name="quantize",
    summary="Numbers as codes of a few bits and a scale, symmetric or affine, for a tensor, an axis or groups.",
    oracle=reference.quantize,
    answer=quantize_answer,
    bound=quantize_allowed,
    cases=_quantize_cases,
    laws=QUANTIZE_LAWS,
    source="Jacob et al. 2018 (arXiv 1712.05877), section 2.1",
)

DEQUANTIZE = Operation(
    name="dequantize",
    summary="Codes as numbers again: (q - zero) scale.",
    oracle=reference.dequantize,
    answer=lambda case, conventions: as_float64({"out": reference.dequantize(**case.arguments())}),
    bound=lambda arithmetic, case, conventions: bounds.dequantize_bound(arithmetic, **case.arguments()),
    cases=_dequantize_cases,
    laws=DEQUANTIZE_LAWS,
    source="Jacob et al. 2018 (arXiv 1712.05877), equation 1",
)

QUANTIZED_MATMUL = Operation(
    name="quantized_matmul",
    summary="The product of two matrices of 8-bit codes, added up in int32, scaled, with a bias in floating point.",
    oracle=reference.quantized_matmul,
    answer=lambda case, conventions: as_float64({"out": reference.quantized_matmul(**case.arguments())}),
    bound=lambda arithmetic, case, conventions: bounds.quantized_matmul_bound(arithmetic, **case.arguments()),
    cases=_matmul_cases,
    laws=MATMUL_LAWS,
    source="Jacob et al. 2018 (arXiv 1712.05877), section 2.2; Dettmers et al. 2022 (arXiv 2208.07339)",
)

DEQUANTIZE_BLOCKWISE = Operation(
    name="dequantize_blockwise",
    summary="Indices into a table of values, times the absolute maximum of their block, which may be a code itself.",
    oracle=reference.dequantize_blockwise,
    answer=lambda case, conventions: as_float64({"out": reference.dequantize_blockwise(**case.arguments())}),
    bound=lambda arithmetic, case, conventions: bounds.dequantize_blockwise_bound(arithmetic, **case.arguments()),
    cases=_blockwise_cases,
    laws=BLOCKWISE_LAWS,
    source="Dettmers et al. 2023 (arXiv 2305.14314), section 3 and equation 6",
)
