"""Legal variants of attention in 16 and 8 bits: which of scores, P, row sum, output and q are rounded, and to what."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles.reference import FloatFormat

from ..arithmetic import Arithmetic
from . import textbook
from . import variants_steps as steps
from .specimen import variant
from .textbook import Array
from .variants_steps import BINARY, Steps, kernel, online

FAMILY = "attention-forward"
BFLOAT16, FLOAT16 = steps.in_format("bfloat16"), steps.in_format("float16")
P_ROUNDED = Arithmetic(probabilities="input")
SIXTEEN = ("float16", "bfloat16")

wide_inside = variant("attention", id="sixteen-bit-float32-inside", family=FAMILY, dtypes=SIXTEEN)(
    kernel(Steps(tile=64), "16-bit inputs, float32 inside, the output alone rounded.")
)  # fmt: skip
p_in_bfloat16 = variant("attention", id="p-in-bfloat16", family=FAMILY, dtypes=["bfloat16"], arithmetic=P_ROUNDED)(
    kernel(Steps(tile=64, stored=BFLOAT16), "P is rounded to bfloat16 for the product with V; the row sum takes it unrounded.")
)  # fmt: skip
p_in_float16 = variant("attention", id="p-in-float16", family=FAMILY, dtypes=["float16"], arithmetic=P_ROUNDED)(
    kernel(Steps(tile=32, stored=FLOAT16, base=BINARY), "P is rounded to float16 for the product with V, from powers of 2.")
)  # fmt: skip
p_in_float8 = variant(
    "attention", id="p-in-float8", family=FAMILY, dtypes=["bfloat16"], arithmetic=Arithmetic(probabilities="float8_e4m3fn"),
)(
    kernel(Steps(tile=64, stored=steps.in_format("float8_e4m3fn")), "P is rounded to float8_e4m3fn for the product with V, and says so.")
)  # fmt: skip
p_of_float32_in_bfloat16 = variant(
    "attention", id="float32-with-p-in-bfloat16", family=FAMILY, dtypes=["float32"], arithmetic=Arithmetic(probabilities="bfloat16"),
)(
    kernel(Steps(tile=64, stored=BFLOAT16), "float32 inputs, but a product of bfloat16 P with V.")
)  # fmt: skip
sum_of_rounded_p = variant(
    "attention", id="row-sum-of-rounded-p", family=FAMILY, dtypes=["bfloat16"],
    arithmetic=Arithmetic(probabilities="input", row_sum_rounded=True),
)(
    kernel(Steps(tile=64, stored=BFLOAT16, summed=BFLOAT16), "The row sum adds the same rounded P that multiplies V, so weights sum to 1.")
)  # fmt: skip
tensor_cores = variant("attention", id="flash-on-tensor-cores", family=FAMILY, dtypes=["bfloat16"], arithmetic="flash_gpu")(
    kernel(Steps(tile=64, stored=BFLOAT16, base=BINARY, scores=steps.scores_by(steps.truncating_product),
                 product=steps.truncating_product),
           "FlashAttention as tensor cores run it: bfloat16 P, truncating accumulation in float32, powers of 2.")
)  # fmt: skip
tensor_cores_float16 = variant("attention", id="flash-on-tensor-cores-float16", family=FAMILY, dtypes=["float16"], arithmetic="flash_gpu")(
    kernel(Steps(tile=128, order=steps.backwards, stored=FLOAT16, scores=steps.scores_by(steps.truncating_product),
                 product=steps.truncating_product),
           "The same in float16, from the last tile to the first.")
)  # fmt: skip
q_scaled_in_bfloat16 = variant(
    "attention", id="q-scaled-in-bfloat16", family=FAMILY, dtypes=["bfloat16"],
    arithmetic=Arithmetic(probabilities="input", scaled_q=True),
)(
    kernel(Steps(tile=64, stored=BFLOAT16, scores=steps.scores_of_scaled_q(BFLOAT16)),
           "q is multiplied by scale and rounded to bfloat16 before the product.")
)  # fmt: skip
q_scaled_in_float16 = variant(
    "attention", id="q-scaled-in-float16", family=FAMILY, dtypes=["float16"], arithmetic=Arithmetic(scaled_q=True),
)(
    kernel(Steps(tile=32, scores=steps.scores_of_scaled_q(FLOAT16)), "q is multiplied by scale and rounded to float16 before the product.")
)  # fmt: skip
split_in_bfloat16 = variant(
    "attention", id="split-3-in-bfloat16", family=FAMILY, dtypes=["bfloat16"],
    arithmetic=Arithmetic(probabilities="input", merges_lse=True),
)(
    kernel(Steps(tile=16, parts=3, stored=BFLOAT16), "bfloat16 P, three parts in float32 merged through their log-sum-exp.")
)  # fmt: skip
scores_in_bfloat16 = variant(
    "attention", id="scores-in-bfloat16", family=FAMILY, dtypes=["bfloat16"],
    arithmetic=Arithmetic(scores="input", probabilities="input"),
)(
    kernel(Steps(tile=32, stored=BFLOAT16, scores=steps.scores_by(np.matmul, BFLOAT16)),
           "Scores are stored in bfloat16 after every stage, and so is P.")
)  # fmt: skip


def _eager(stored: Any, q: Any, k: Any, v: Any, **options: Any) -> tuple[Array, Array]:
    """One array operation after another, each result stored in the format of the inputs; the softmax itself in float32."""
    with np.errstate(all="ignore"):
        call = textbook.prepared(q, k, v, **options)
        s = steps.scores_by(np.matmul, stored)(call)
        p, lse = textbook.weights(s, textbook.visible(call), call.sinks)
        p = stored(p)
        p = p if isinstance(call.keep, float) else stored(p * call.keep)
        return (p @ call.v).astype(q.dtype), lse


@variant("attention", id="eager-bfloat16", family=FAMILY, dtypes=["bfloat16"], arithmetic="eager")
def eager_in_bfloat16(q: Any, k: Any, v: Any, *, causal: Any, **options: Any) -> tuple[Array, Array]:
    """A chain of framework operations in bfloat16: product, scale, mask, softmax, product, each stored."""
    return _eager(BFLOAT16, q, k, v, causal=causal, **options)


@variant("attention", id="eager-float16", family=FAMILY, dtypes=["float16"], arithmetic="eager")
def eager_in_float16(q: Any, k: Any, v: Any, *, causal: Any, **options: Any) -> tuple[Array, Array]:
    """The same chain in float16, where scores may overflow."""
    return _eager(FLOAT16, q, k, v, causal=causal, **options)


@variant("attention", id="float32-out-of-bfloat16", family=FAMILY, dtypes=["bfloat16"], arithmetic=Arithmetic(out="float32"))
def float32_out_of_bfloat16(q: Any, k: Any, v: Any, *, causal: Any, **options: Any) -> tuple[Array, Array]:
    """bfloat16 inputs and an output in float32."""
    return online(Steps(tile=64), *(x.astype(np.float32) for x in (q, k, v)), causal=causal, **options)


@variant("attention", id="float8-inputs", family=FAMILY, dtypes=["float8_e4m3fn"],
         arithmetic=Arithmetic(out="bfloat16", probabilities="bfloat16"))  # fmt: skip
def of_float8(q: Any, k: Any, v: Any, *, causal: Any, window: Any = None, softcap: Any = None) -> tuple[Array, Array]:
    """float8 inputs, P and the output in bfloat16."""
    wide = (x.astype(np.float32) for x in (q, k, v))
    out, lse = online(Steps(tile=64, stored=BFLOAT16), *wide, causal=causal, window=window, softcap=softcap)
    return BFLOAT16(out).astype(FloatFormat("bfloat16").dtype), lse


@variant("attention", id="log-sum-exp-in-bfloat16", family=FAMILY, dtypes=["bfloat16"], arithmetic=Arithmetic(lse="bfloat16"))
def log_sum_exp_in_bfloat16(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, mask: Any = None) -> tuple[Array, Array]:
    """The log-sum-exp too is returned in bfloat16."""
    out, lse = online(Steps(tile=64), q, k, v, causal=causal, scale=scale, mask=mask)
    return out, lse.astype(q.dtype)


@variant("attention", id="out-only-in-bfloat16", family=FAMILY, dtypes=["bfloat16"], arithmetic=P_ROUNDED, causal=[None, "top_left"])
def out_alone_in_bfloat16(q: Any, k: Any, v: Any, *, causal: Any, **options: Any) -> Array:
    """bfloat16 P, top-left causal masks, and no log-sum-exp."""
    return online(Steps(tile=32, stored=BFLOAT16), q, k, v, causal=causal, **options)[0]
