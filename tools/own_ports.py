"""Our own fast implementations, which `oracles check` without a subject holds to the oracles."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles import reference
from oracles.properties import Arithmetic, subject

FLOAT64 = Arithmetic(out="float64", accumulate="float64", elementwise="float64", lse="float64")
FORMATS = ("float32", "float64", "float16", "bfloat16")
ALIGNMENTS = (None, "bottom_right", "top_left")


@subject("softmax", arithmetic=FLOAT64, dtypes=FORMATS, promises=["deterministic"])
def softmax_in_one_pass(x: Any, *, axis: int = -1) -> Any:
    """The online softmax, along any axis, in blocks of 32."""
    return np.moveaxis(reference.online_softmax(np.moveaxis(x, axis, -1), block=32), -1, axis)


@subject("log_sum_exp", arithmetic=FLOAT64, dtypes=FORMATS, promises=["deterministic"])
def log_sum_exp_by_halves(x: Any, *, axis: int = -1) -> Any:
    """The log-sum-exp of two halves of the axis, merged as two partial attention results are."""
    x = np.moveaxis(np.asarray(x, np.float64), axis, -1)
    halves = (x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :])
    parts = [(np.zeros((*x.shape[:-1], 1)), reference.log_sum_exp(half)) for half in halves]
    return reference.merge_attention(*parts[0], *parts[1])[1]


@subject("attention", dtypes=FORMATS, causal=ALIGNMENTS, conventions={"nonfinite_behind_mask": "ignored"},
         promises=["deterministic", "batch_invariant", "validates_input"])
def tiled_attention(q: Any, k: Any, v: Any, *, causal: Any, **options: Any) -> Any:
    """`flash_attention` with its default tiles."""
    return reference.flash_attention(q, k, v, causal=causal, **options)


@subject("attention_backward", dtypes=FORMATS, causal=ALIGNMENTS, promises=["deterministic"])
def tiled_attention_backward(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, **options: Any) -> Any:
    """`flash_attention_backward` with its default tiles."""
    return reference.flash_attention_backward(q, k, v, out, lse, dout, causal=causal, **options)


OWN_PORTS: tuple[tuple[str, str], ...] = (
    ("softmax", "oracles.tools.own_ports:softmax_in_one_pass"),
    ("log_sum_exp", "oracles.tools.own_ports:log_sum_exp_by_halves"),
    ("attention", "oracles.tools.own_ports:tiled_attention"),
    ("attention_backward", "oracles.tools.own_ports:tiled_attention_backward"),
    ("rope", "oracles.tools.rotary_ports:rope_on_the_unit_circle"),
    ("write_kv", "oracles.tools.rotary_ports:write_kv_by_gathering"),
    ("paged_attention", "oracles.tools.cache_ports:paged_attention_page_by_page"),
    ("mla_attention", "oracles.tools.cache_ports:mla_attention_over_latents"),
)
