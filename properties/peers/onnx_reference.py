"""ONNX's own reference evaluator: Attention of opset 25, in NumPy.

Address: https://onnx.ai/onnx/operators/onnx__Attention.html
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..arithmetic import Arithmetic
from ..declaration import subject
from .calls import onnx_reference as calls
from .installed import copy_of, library_version, versions_text

# onnx/reference/ops/op_attention.py of 1.23: every step is a NumPy operation in the input's format, Q and K are each multiplied by
# sqrt(scale) in it, which is NaN for a negative scale. NumPy adds up float16 in float32. Not declared: bfloat16, which ml_dtypes
# adds up in bfloat16, so that a long sum stands still. A length of 0: "zero-size array to reduction operation maximum".
# What is masked has weight 0 and is summed all the same: 0 times NaN.
DECLARED: dict[str, Any] = {
    "causal": (None, "bottom_right", "top_left"), "refuses": ("empty", "negative_scale"),
    "arithmetic": Arithmetic(elementwise="input", scores="input", probabilities="input"),
    "conventions": {"nonfinite_behind_mask": "spread"},
}  # fmt: skip

# name: input formats. float64 stands apart because it is wrong: docs/findings.md, onnx-reference-float64-scale.
PEERS: dict[str, tuple[str, ...]] = {"onnx_reference": ("float32", "float16"), "onnx_reference_float64": ("float64",)}


def library_versions(name: str) -> dict[str, str]:
    """The version of onnx."""
    return {"onnx": library_version("onnx", extra="onnxruntime")}


@lru_cache
def subjects(name: str) -> tuple[Callable[..., Any], ...]:
    """The forward pass, declared; there is no backward. Raises UsageError where onnx is missing."""
    version = versions_text(library_versions(name))
    return (subject("attention", name=name, version=version, dtypes=PEERS[name], **DECLARED)(copy_of(calls.attention)),)
