"""Softmax and log-sum-exp of PyTorch, JAX and ONNX Runtime on a CPU.

Addresses: https://docs.pytorch.org/docs/stable/generated/torch.softmax.html, https://docs.pytorch.org/docs/stable/generated/torch.logsumexp.html,
https://docs.jax.dev/en/latest/_autosummary/jax.nn.softmax.html, https://docs.jax.dev/en/latest/_autosummary/jax.nn.logsumexp.html,
https://onnx.ai/onnx/operators/onnx__Softmax.html, https://onnx.ai/onnx/operators/onnx__ReduceLogSumExp.html
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ..arithmetic import Arithmetic
from ..declaration import subject
from .calls import softmax as calls
from .installed import copy_of, library_version, quick_compilation, versions_text

# All three answer in the format of the input, the log-sum-exp too. PyTorch widens 16 bits to float32, but along an axis that is not the
# last it stores the exponentials in 16 bits (aten/src/ATen/native/cpu/SoftMaxKernel.cpp; docs/findings.md,
# torch-softmax-off-the-last-axis);
# JAX takes every step in the input's format (jax/_src/nn/functions.py, _softmax), and XLA's CPU code flushes subnormal numbers, as does
# ONNX Runtime's exponential. A row of nothing but -inf is NaN in softmax of all three, on which their pages are silent.
WIDE = Arithmetic(lse="input")
NARROW = Arithmetic(elementwise="input", lse="input")
FLUSHED = Arithmetic(lse="input", flush_to_zero=True)
NARROW_FLUSHED = Arithmetic(elementwise="input", lse="input", flush_to_zero=True)

# name: (library and extra, framework, the two functions in `calls`, what they declare)
PEERS: dict[str, tuple[str, str, tuple[Callable[..., Any], Callable[..., Any]], dict[str, Any]]] = {
    "torch_softmax": ("torch", "torch", (calls.torch_softmax, calls.torch_log_sum_exp), {
        "dtypes": ("float32", "float64"), "arithmetic": WIDE}),
    "torch_softmax_16bit": ("torch", "torch", (calls.torch_softmax, calls.torch_log_sum_exp), {
        "dtypes": ("float16", "bfloat16"), "arithmetic": NARROW}),
    "jax_softmax": ("jax", "jax", (calls.jax_softmax, calls.jax_log_sum_exp), {
        "dtypes": ("float32", "float64", "float16", "bfloat16"), "arithmetic": NARROW_FLUSHED}),
    "onnxruntime_softmax": ("onnxruntime", "numpy", (calls.onnxruntime_softmax, calls.onnxruntime_log_sum_exp), {
        "dtypes": ("float32", "float64"), "arithmetic": FLUSHED}),
}  # fmt: skip


def library_versions(name: str) -> dict[str, str]:
    """The version of the library; of onnx too, which writes the models of ONNX Runtime."""
    extra = PEERS[name][0]
    return {library: library_version(library, extra=extra) for library in ((extra, "onnx") if extra == "onnxruntime" else (extra,))}


@lru_cache
def subjects(name: str) -> tuple[Callable[..., Any], ...]:
    """Softmax and log-sum-exp, declared. Raises UsageError where the library is missing."""
    quick_compilation()
    version = versions_text(library_versions(name))
    _, framework, functions, declared = PEERS[name]
    common = {"name": name, "framework": framework, "version": version, **declared}
    conventions = {"softmax": {"empty_rows": "nan"}, "log_sum_exp": {}}
    return tuple(subject(operation, conventions=conventions[operation], **common)(copy_of(function))
                 for operation, function in zip(conventions, functions))  # fmt: skip
