"""Quantization of ONNX Runtime and PyTorch on a CPU.

Addresses: https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html, https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html,
https://onnx.ai/onnx/operators/onnx__DynamicQuantizeLinear.html, https://onnx.ai/onnx/operators/onnx__MatMulInteger.html,
https://docs.pytorch.org/docs/stable/generated/torch.quantize_per_tensor.html,
https://docs.pytorch.org/docs/stable/generated/torch.fake_quantize_per_tensor_affine.html,
https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/quantized/cpu/QuantUtils.h (of dynamic scales)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..declaration import subject
from .calls import quantization
from .installed import copy_of, library_version, versions_text

# Both saturate symmetric codes at -128, as their pages say. ONNX: "it's rounding to the nearest ties to even", then the zero point.
# PyTorch rounds after it has added the zero point in quantize_per_tensor and quantize_per_channel, whose pages give no formula, and before
# that in fake quantization, whose page says nearby_int(input / scale) + zero_point: one code apart on halves of odd zero points, whatever
# the number of elements, as measured. Each is what it says, so that it is a convention; pytorch/pytorch#37188 meant to make them one.
# PyTorch's dynamic quantization has the scale 0.1 for zeros, and where the reciprocal of its scale overflows.
FULL = {"symmetric_codes": "full"}
INT8: dict[str, Any] = {"only": {"bits": ["8"]}, "dtypes": ("float32",)}
Declared = tuple[str, Callable[..., Any], dict[str, Any]]

# name: (library and extra, framework, (operation, the function in `calls`, what it declares) ...)
PEERS: dict[str, tuple[str, str, tuple[Declared, ...]]] = {
    "onnxruntime": ("onnxruntime", "numpy", (
        ("quantize", quantization.onnxruntime_quantize, {**INT8, "conventions": FULL}),
        ("dequantize", quantization.onnxruntime_dequantize, {"dtypes": ("float32",)}),
        ("quantized_matmul", quantization.onnxruntime_matmul, {"dtypes": ("float32",)}),
    )),
    "onnxruntime_dynamic": ("onnxruntime", "numpy", (
        ("quantize", quantization.onnxruntime_dynamic, {**INT8, "only": {"bits": ["8"], "symmetric": ["no"]}}),
    )),
    "torch_quantize": ("torch", "torch", (
        ("quantize", quantization.torch_quantize, {**INT8, "conventions": {**FULL, "code_ties": "even_with_zero"}}),
        ("dequantize", quantization.torch_dequantize, {"dtypes": ("float32",)}),
        ("quantized_matmul", quantization.torch_int_mm, {"dtypes": ("float32", "float64")}),
    )),
    "torch_dynamic": ("torch", "torch", (
        ("quantize", quantization.torch_dynamic, {**INT8, "only": {"bits": ["8"], "symmetric": ["no"]}, "refuses": ("empty",),
                                                  "conventions": {"code_ties": "even_with_zero", "zero_scale": "any"}}),
    )),
    "torch_fake_quantize": ("torch", "torch", (
        ("quantize", quantization.torch_fake_quantize, {**INT8, "conventions": FULL}),
    )),
}  # fmt: skip


def library_versions(name: str) -> dict[str, str]:
    """The version of the library; of onnx too, which writes the models of ONNX Runtime."""
    extra = PEERS[name][0]
    return {library: library_version(library, extra=extra) for library in ((extra, "onnx") if extra == "onnxruntime" else (extra,))}


@lru_cache
def subjects(name: str) -> tuple[Callable[..., Any], ...]:
    """The operations of one peer, declared. Raises UsageError where the library is missing."""
    version = versions_text(library_versions(name))
    _, framework, declared = PEERS[name]
    return tuple(subject(operation, name=name, version=version, framework=framework, **told)(copy_of(function))
                 for operation, function, told in declared)  # fmt: skip
