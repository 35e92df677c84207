"""ONNX Runtime on a CPU: the standard operator Attention, and its own GroupQueryAttention and MultiHeadAttention.

Addresses: https://onnx.ai/onnx/operators/onnx__Attention.html and
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.GroupQueryAttention,
#com.microsoft.MultiHeadAttention
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..arithmetic import Arithmetic
from ..declaration import subject
from .calls import onnxruntime_attention as calls
from .installed import copy_of, library_version, versions_text

SPREAD = {"nonfinite_behind_mask": "spread"}
# What is_causal, unidirectional, a boolean mask or key_padding_mask hides gets the least number of the format added to its score, up to
# opset 24 and not in float64: docs/findings.md, onnxruntime-finite-mask. Declared so that the rest can be judged.
FINITE = {**SPREAD, "hidden_weight": "finite_mask"}

# Attention. Alignment: the offset-aware rule of the page. Order of softcap and mask, the zero row where nothing is seen: same page.
# Q and K are each multiplied by sqrt(scale) and rounded; "if softmax precision is not provided, the same precision as the input of
# softmax is used", so in float16 every step is. Refused by the library: lengths of 0, a scale of 0 or less, bfloat16.
# NaN beyond nonpad_kv_seqlen spreads, as measured: docs/findings.md, onnxruntime-nan-in-padding.
STANDARD: dict[str, Any] = {
    "causal": (None, "bottom_right", "top_left"), "refuses": ("empty", "negative_scale"),
    "arithmetic": Arithmetic(elementwise="input", scores="input", probabilities="input"),
    "conventions": FINITE,
}  # fmt: skip

# GroupQueryAttention. Causal aligned to the lower right, by seqlens_k. Refused by the library: float64, bfloat16, "head_size must be
# a multiple of 8", Dv other than D, lengths of 0.
GROUPED_QUERY: dict[str, Any] = {
    "dtypes": ("float32", "float16"), "causal": (None, "bottom_right"), "refuses": ("empty", "value_dim"),
    "head_dims": (8, 16, 32, 40, 64, 80, 128), "arithmetic": Arithmetic(),
}  # fmt: skip

# MultiHeadAttention. The page says of unidirectional that "every token can only attend to previous tokens"; of rows that see nothing it
# does not speak: a bias of -inf makes them NaN; key_padding_mask adds mask_filter_value, here the lowest number, and so gives the
# mean of all values. Refused by the library: float64, Dv other than D beside a past, lengths of 0. Without grouped heads by definition.
# What is masked has weight 0 and is summed all the same: 0 times NaN.
MULTI_HEAD: dict[str, Any] = {"dtypes": ("float32", "float16"), "refuses": ("empty", "grouped"), "conventions": FINITE}

# name: (the function in `calls`, what it declares). Three stand apart because they are wrong: docs/findings.md,
# onnxruntime-float64-attention, onnxruntime-gqa-blind-row and onnxruntime-mha-last-query.
PEERS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "onnxruntime_attention": (calls.standard, {"dtypes": ("float32", "float16"), **STANDARD}),
    "onnxruntime_attention_float64": (calls.standard, {"dtypes": ("float64",), **STANDARD, "conventions": SPREAD}),
    "onnxruntime_attention_cache": (
        calls.standard_cache, {"dtypes": ("float32", "float16"), **STANDARD, "causal": (None, "bottom_right")}),
    "onnxruntime_attention_scores": (
        calls.standard_scores, {"dtypes": ("float32", "float16"), **STANDARD, "conventions": {**FINITE, "empty_lse": "any"}}),
    "onnxruntime_mha": (
        calls.multi_head, {**MULTI_HEAD, "causal": (None, "bottom_right"), "refuses": ("empty", "grouped", "value_dim")}),
    "onnxruntime_mha_top_left": (calls.multi_head, {**MULTI_HEAD, "causal": (None, "top_left")}),
    "onnxruntime_mha_bias": (calls.multi_head_bias, {
        **MULTI_HEAD, "causal": (None,), "conventions": {**SPREAD, "empty_rows": "nan"}}),
    "onnxruntime_mha_padding": (calls.multi_head_padding, {
        **MULTI_HEAD, "causal": (None,), "conventions": {**FINITE, "empty_rows": "mean_v"}}),
    "onnxruntime_gqa": (calls.grouped_query, GROUPED_QUERY),
    "onnxruntime_gqa_bias": (calls.grouped_query_bias, GROUPED_QUERY),
}


def library_versions(name: str) -> dict[str, str]:
    """The versions of onnxruntime, which computes, and of onnx, which writes the model."""
    return {library: library_version(library, extra="onnxruntime") for library in ("onnxruntime", "onnx")}


@lru_cache
def subjects(name: str) -> tuple[Callable[..., Any], ...]:
    """The forward pass of one operator, declared; there is no backward. Raises UsageError where a library is missing."""
    version = versions_text(library_versions(name))
    function, declared = PEERS[name]
    return (subject("attention", name=name, version=version, **declared)(copy_of(function)),)
