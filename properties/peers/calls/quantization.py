"""Quantization by ONNX Runtime and PyTorch on a CPU, each on its own arrays.

Nothing but NumPy and the libraries is imported, these inside the functions, so that this file runs alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np


def onnxruntime_quantize(
    x: Any, *, axis: Any = None, group: Any = None, symmetric: bool = True, scale: Any = None, zero: Any = None
) -> Any:  # fmt: skip
    """The operator QuantizeLinear, opset 21: int8 with zero point 0, or uint8; scales are given to it."""
    if scale is None:
        raise NotImplementedError("QuantizeLinear makes no scale of its own")
    code = np.int8 if symmetric else np.uint8
    z = np.zeros(scale.shape, code) if zero is None else zero.astype(code)
    attributes = {"axis": x.ndim - 1, "block_size": group} if group is not None else {"axis": axis} if axis is not None else {}
    scale, z = (scale, z) if attributes else (scale[0], z[0])
    return _session("QuantizeLinear", tuple(attributes.items())).run(None, {"x": np.ascontiguousarray(x), "scale": np.asarray(scale),
                                                                             "zero": np.asarray(z)})[0]  # fmt: skip


def onnxruntime_dynamic(x: Any, *, symmetric: bool = False) -> dict[str, Any]:
    """The operator DynamicQuantizeLinear, opset 11: uint8, one scale for all, its own."""
    if symmetric:
        raise NotImplementedError("DynamicQuantizeLinear is affine")
    q, scale, zero = _session("DynamicQuantizeLinear", ()).run(None, {"x": np.ascontiguousarray(x)})
    return {"q": q, "scale": scale[None], "zero": zero[None]}


def onnxruntime_dequantize(q: Any, scale: Any, zero: Any = 0, *, axis: Any = None, group: Any = None) -> Any:
    """The operator DequantizeLinear, opset 21, on int8 or uint8 codes."""
    codes = (q.min(initial=0), max(q.max(initial=0), zero.max(initial=0)))
    if codes[0] < 0 and codes[1] > 127:
        raise NotImplementedError("codes of more than 8 bits")
    code = np.int8 if codes[1] <= 127 else np.uint8
    attributes = {"axis": q.ndim - 1, "block_size": group} if group is not None else {"axis": axis} if axis is not None else {}
    scale, z = (scale, zero.astype(code)) if attributes else (scale[0], zero.astype(code)[0])
    return _session("DequantizeLinear", tuple(attributes.items())).run(None, {"x": q.astype(code), "scale": np.asarray(scale),
                                                                               "zero": np.asarray(z)})[0]  # fmt: skip


def onnxruntime_matmul(x: Any, q: Any, scale: Any, *, x_scale: Any, bias: Any = None) -> Any:
    """The operator MatMulInteger, then Cast, Mul by the scales, Add of the bias, in one graph."""
    given = {"x": np.ascontiguousarray(x), "q": np.ascontiguousarray(q), "scale": scale.reshape(1, -1),
             "x_scale": np.asarray(x_scale).reshape(-1, 1)}  # fmt: skip
    given |= {} if bias is None else {"bias": bias}
    return _session("MatMulInteger", (), bias is not None).run(None, given)[0]


def torch_quantize(x: Any, *, axis: Any = None, symmetric: bool = True, scale: Any = None, zero: Any = None) -> Any:
    """torch.quantize_per_tensor and torch.quantize_per_channel: qint8 or quint8; scales are given to them."""
    import torch

    if scale is None:
        raise NotImplementedError("quantize_per_tensor makes no scale of its own")
    dtype = torch.qint8 if symmetric else torch.quint8
    z = torch.zeros(scale.shape, dtype=torch.int64) if zero is None else zero
    if axis is None:
        return torch.quantize_per_tensor(x, float(scale[0]), int(z[0]), dtype).int_repr()
    return torch.quantize_per_channel(x, scale.double(), z, axis % x.ndim, dtype).int_repr()


def torch_fake_quantize(x: Any, *, axis: Any = None, symmetric: bool = True, scale: Any = None, zero: Any = None) -> Any:
    """torch.fake_quantize_per_tensor_affine and _per_channel_affine, their numbers divided by the scale to have the codes again."""
    import torch

    if scale is None:
        raise NotImplementedError("fake quantization makes no scale of its own")
    low, high = (-128, 127) if symmetric else (0, 255)
    z = torch.zeros(scale.shape, dtype=torch.int32) if zero is None else zero.to(torch.int32)
    if axis is None:
        out = torch.fake_quantize_per_tensor_affine(x, float(scale[0]), int(z[0]), low, high)
        s = scale[0]
    else:
        out = torch.fake_quantize_per_channel_affine(x, scale, z, axis % x.ndim, low, high)
        shape = [-1 if i == axis % x.ndim else 1 for i in range(x.ndim)]
        s, z = scale.reshape(shape), z.reshape(shape)
    return (out.double() / s.double()).round().to(torch.int32) + z


def torch_dynamic(x: Any, *, symmetric: bool = False) -> dict[str, Any]:
    """torch.quantize_per_tensor_dynamic to quint8: one scale for all, its own. It fails on an empty tensor."""
    import torch

    if symmetric or not x.numel():
        raise NotImplementedError("quantize_per_tensor_dynamic is affine, and takes no empty tensor")
    q = torch.quantize_per_tensor_dynamic(x, torch.quint8, False)
    return {"q": q.int_repr(), "scale": torch.tensor([q.q_scale()]), "zero": torch.tensor([q.q_zero_point()])}


def torch_dequantize(q: Any, scale: Any, zero: Any = 0, *, axis: Any = None) -> Any:
    """A quantized tensor made of codes, scales and zero points, and its dequantize()."""
    import torch

    low, high = (int(q.min()), max(int(q.max()), int(zero.max()))) if q.numel() else (0, 0)
    if not q.numel() or (low < 0 and high > 127):
        raise NotImplementedError("no codes, or codes of more than 8 bits")
    code = torch.int8 if high <= 127 else torch.uint8
    if axis is None:
        return torch._make_per_tensor_quantized_tensor(q.to(code), float(scale[0]), int(zero[0])).dequantize()
    return torch._make_per_channel_quantized_tensor(q.to(code), scale.double(), zero, axis % q.ndim).dequantize()


def torch_int_mm(x: Any, q: Any, scale: Any, *, x_scale: Any, bias: Any = None) -> Any:
    """torch._int_mm, then the scales and the bias in float32."""
    import torch

    out = torch._int_mm(x.contiguous(), q.contiguous()).to(scale.dtype) * (x_scale.reshape(-1, 1) * scale.reshape(1, -1))
    return out if bias is None else out + bias


@lru_cache(maxsize=64)
def _session(operator: str, attributes: tuple[tuple[str, int], ...], bias: bool = False) -> Any:
    import onnxruntime
    from onnx import TensorProto, defs, helper

    inputs = {"QuantizeLinear": ("x", "scale", "zero"), "DequantizeLinear": ("x", "scale", "zero"), "DynamicQuantizeLinear": ("x",),
              "MatMulInteger": ("x", "q")}[operator]  # fmt: skip
    outputs = ["q_out", "scale_out", "zero_out"] if operator == "DynamicQuantizeLinear" else ["out"]
    nodes = [helper.make_node(operator, list(inputs), outputs, **dict(attributes))]
    if operator == "MatMulInteger":
        nodes += [helper.make_node("Cast", ["out"], ["sum"], to=TensorProto.FLOAT),
                  helper.make_node("Mul", ["scale", "x_scale"], ["scales"]), helper.make_node("Mul", ["sum", "scales"], ["scaled"])]
        nodes += [helper.make_node("Add", ["scaled", "bias"], ["biased"])] if bias else []
        inputs, outputs = (*inputs, "scale", "x_scale", *(("bias",) if bias else ())), ["biased" if bias else "scaled"]
    assert defs.has(operator)
    return _Sessions(nodes, inputs, outputs, onnxruntime)


class _Sessions:
    """A graph whose element types follow from the first arrays of each kind it is run on."""

    def __init__(self, nodes: Any, inputs: Any, outputs: Any, onnxruntime: Any) -> None:
        self.nodes, self.inputs, self.outputs, self.onnxruntime = nodes, inputs, outputs, onnxruntime
        self.made: dict[Any, Any] = {}

    def run(self, names: None, given: dict[str, Any]) -> Any:
        from onnx import helper

        kinds = tuple((name, given[name].dtype.name, given[name].ndim) for name in self.inputs)
        if kinds not in self.made:
            values = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), [None] * ndim)
                      for name, kind, ndim in kinds]  # fmt: skip
            graph = helper.make_graph(self.nodes, "quantization", values, [helper.make_empty_tensor_value_info(o) for o in self.outputs])
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
            settings = self.onnxruntime.SessionOptions()
            settings.log_severity_level, settings.intra_op_num_threads = 4, 1
            self.made[kinds] = self.onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
        return self.made[kinds].run(names, given)
