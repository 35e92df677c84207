"""Rotary embedding of Hugging Face's transformers and of ONNX, on a CPU.

Addresses: https://github.com/huggingface/transformers/blob/main/src/transformers/modeling_rope_utils.py and the modeling files of llama,
gpt_neox, glm and deepseek_v3 beside it; https://onnx.ai/onnx/operators/onnx__RotaryEmbedding.html,
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.RotaryEmbedding
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..arithmetic import Arithmetic
from ..declaration import subject
from .calls import rope as calls
from .installed import copy_of, library_version, versions_text

# The modeling files make frequencies, angles, sines and cosines in float32 whatever the model's format, cast these to it, and multiply
# and add in it. "dynamic" is ntk with the factor by which a sequence is longer.
HALF: dict[str, Any] = {
    "dtypes": ("float32", "float64", "float16", "bfloat16"), "framework": "torch",
    "arithmetic": Arithmetic(elementwise="input", phases="float32"), "only": {"pairing": ["half"]},
}  # fmt: skip
INTERLEAVED = {**HALF, "only": {"pairing": ["interleaved"]}}

# Of ONNX the tables are the caller's, here made in float64 and rounded to the input's format, as all steps after them are.
# Refused by ONNX Runtime: float64, and empty tensors, which its pages do not speak of.
TABLES: dict[str, Any] = {"refuses": ("empty",), "arithmetic": Arithmetic(elementwise="input", phases="float64")}

# name: (library and extra, the function in `calls`, what it declares)
PEERS: dict[str, tuple[str, Callable[..., Any], dict[str, Any]]] = {
    "transformers_llama": ("transformers", calls.llama, HALF),
    "transformers_gpt_neox": ("transformers", calls.gpt_neox, HALF),
    "transformers_glm": ("transformers", calls.glm, INTERLEAVED),
    "transformers_deepseek_v3": ("transformers", calls.deepseek_v3, INTERLEAVED),
    "onnxruntime_rope": ("onnxruntime", calls.onnxruntime_contrib, {**TABLES, "dtypes": ("float32", "float16")}),
    "onnxruntime_rope_standard": ("onnxruntime", calls.onnxruntime_standard, {**TABLES, "dtypes": ("float32", "float16")}),
    "onnx_reference_rope": ("onnx", calls.onnx_reference, {**TABLES, "dtypes": ("float32", "float64", "float16")}),
}  # fmt: skip

BESIDE = {"transformers": ("torch",), "onnxruntime": ("onnx",), "onnx": ()}     # libraries that work with it


def library_versions(name: str) -> dict[str, str]:
    """The versions of the library and of those that it works on."""
    library = PEERS[name][0]
    extra = "onnxruntime" if library == "onnx" else library
    return {one: library_version(one, extra=extra) for one in (library, *BESIDE[library])}


@lru_cache
def subjects(name: str) -> tuple[Callable[..., Any], ...]:
    """The rotation, declared. Raises UsageError where a library is missing."""
    version = versions_text(library_versions(name))
    _, function, declared = PEERS[name]
    return (subject("rope", name=name, version=version, **declared)(copy_of(function)),)
