"""Softmax and log-sum-exp of PyTorch, JAX and ONNX Runtime, each on its own arrays.

Nothing but NumPy and the libraries is imported, these inside the functions, so that this file runs alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np


def torch_softmax(x: Any, *, axis: int = -1) -> Any:
    """torch.softmax."""
    import torch

    return torch.softmax(x, axis)


def torch_log_sum_exp(x: Any, *, axis: int = -1) -> Any:
    """torch.logsumexp."""
    import torch

    return torch.logsumexp(x, axis)


def jax_softmax(x: Any, *, axis: int = -1) -> Any:
    """jax.nn.softmax."""
    import jax

    return jax.nn.softmax(x, axis=axis)


def jax_log_sum_exp(x: Any, *, axis: int = -1) -> Any:
    """jax.nn.logsumexp."""
    import jax

    return jax.nn.logsumexp(x, axis=axis)


def onnxruntime_softmax(x: Any, *, axis: int = -1) -> Any:
    """The operator Softmax, opset 13."""
    return _session("Softmax", x.dtype.name, x.ndim, axis).run(None, {"x": np.ascontiguousarray(x)})[0]


def onnxruntime_log_sum_exp(x: Any, *, axis: int = -1) -> Any:
    """The operator ReduceLogSumExp, opset 18."""
    return _session("ReduceLogSumExp", x.dtype.name, x.ndim, axis).run(None, {"x": np.ascontiguousarray(x)})[0]


@lru_cache(maxsize=64)
def _session(operator: str, dtype: str, ndim: int, axis: int) -> Any:
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    element = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "float16": TensorProto.FLOAT16}[dtype]
    if operator == "Softmax":
        node, constants = helper.make_node(operator, ["x"], ["y"], axis=axis), []
    else:
        node = helper.make_node(operator, ["x", "axes"], ["y"], keepdims=0)
        constants = [numpy_helper.from_array(np.array([axis]), "axes")]
    x, y = helper.make_tensor_value_info("x", element, [None] * ndim), helper.make_empty_tensor_value_info("y")
    graph = helper.make_graph([node], operator, [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
