"""ONNX Runtime's two attention operators on NumPy arrays, each a model of one node, on the CPU.

Nothing but NumPy, onnx and onnxruntime is imported, so that this file runs alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np


def standard(q: Any, k: Any, v: Any, *, causal: Any, window: Any = None, scale: Any = None, softcap: Any = None, bias: Any = None,
             mask: Any = None, kv_lengths: Any = None) -> Any:
    """out of ai.onnx Attention: opset 24, or 25 for a window.

    A query stands at i + nonpad_kv_seqlen - Lq where that input is given, and at i where it is not: the lower right alignment
    gives it, the upper left one does not and so has no kv_lengths.
    """
    B, _, Lq, _ = q.shape
    Lk = k.shape[2]
    if causal == "top_left" and kv_lengths is not None:
        raise NotImplementedError("nonpad_kv_seqlen moves the causal diagonal to the lower right")
    if kv_lengths is None and causal != "top_left" and (causal or window):
        kv_lengths = np.full(B, Lk)
    left, right = (-1 if side is None else side for side in window or (None, None))
    attributes = {"is_causal": int(causal is not None), "scale": scale, "softcap": softcap}
    if window is not None:
        attributes |= {"left_window_size": left, "right_window_size": right}
    seen = _attention_mask(bias, mask, Lq)
    lengths = None if kv_lengths is None else np.asarray(kv_lengths, np.int64)
    return _run("Attention", "", 24 if window is None else 25, (q, k, v, seen, None, None, lengths), attributes, outputs=1)[0]


def grouped_query(q: Any, k: Any, v: Any, *, causal: Any, window: Any = None, scale: Any = None, softcap: Any = None,
                  kv_lengths: Any = None, sinks: Any = None) -> Any:
    """out of com.microsoft GroupQueryAttention without a bias."""
    return grouped_query_bias(q, k, v, causal=causal, window=window, scale=scale, softcap=softcap, kv_lengths=kv_lengths, sinks=sinks)


def grouped_query_bias(q: Any, k: Any, v: Any, *, causal: Any, window: Any = None, scale: Any = None, softcap: Any = None,
                       bias: Any = None, kv_lengths: Any = None, sinks: Any = None) -> Any:
    """out of com.microsoft GroupQueryAttention: the last Lq keys of each sequence are new, those before them its cache.

    local_window_size counts the current key; query_seqlens is what lets several sequences of several new tokens have a cache.
    """
    (B, Hq, Lq, D), (_, Hkv, Lk, _) = q.shape, k.shape
    lengths = np.full(B, Lk) if kv_lengths is None else np.asarray(kv_lengths)
    if Lq > lengths.min(initial=Lk):
        raise NotImplementedError("every query is itself a key: no fewer keys than queries")
    if causal is None and window is not None:
        raise NotImplementedError("local_window_size must be -1 where causal is 0")
    if causal is None and B > 1 and 1 < Lq < Lk:
        raise NotImplementedError("query_seqlens, which a batch of several new tokens needs, requires causal = 1")
    new = (lengths - Lq)[:, None] + np.arange(Lq)                               # (B, Lq): where the new keys stand
    items = np.arange(B)[:, None]
    fresh = [np.ascontiguousarray(x.swapaxes(1, 2)[items, new]).reshape(B, Lq, Hkv * D) for x in (k, v)]
    cached = [np.ascontiguousarray(x[:, :, : Lk - Lq]) for x in (k, v)]
    if bias is not None:
        bias = np.broadcast_to(bias, (*bias.shape[:2], Lq, bias.shape[3]))
    attributes = {
        "num_heads": Hq, "kv_num_heads": Hkv, "causal": int(causal is not None), "scale": scale, "softcap": softcap,
        "local_window_size": -1 if window is None or window[0] is None else window[0] + 1,
    }  # fmt: skip
    counts = np.full(B, Lq, np.int32) if causal is not None else None
    inputs = (
        np.ascontiguousarray(q.swapaxes(1, 2)).reshape(B, Lq, Hq * D), *fresh, *cached, lengths.astype(np.int32) - 1,
        np.array(Lk, np.int32), None, None, None, bias, sinks, None, None, None, None, counts,
    )  # fmt: skip
    out = _run("GroupQueryAttention", "com.microsoft", 24, inputs, attributes, outputs=3)[0]
    return np.ascontiguousarray(out.reshape(B, Lq, Hq, D).swapaxes(1, 2))


def _attention_mask(bias: Any, mask: Any, Lq: int) -> Any:
    """attn_mask of as many rows as there are queries: ONNX Runtime does not broadcast that axis."""
    if bias is None and mask is None:
        return None
    if bias is not None:
        mask = bias if mask is None else np.where(mask, bias, np.array(-np.inf, bias.dtype))
    return np.ascontiguousarray(np.broadcast_to(mask, (*mask.shape[:2], Lq, mask.shape[3])))


def _run(operator: str, domain: str, opset: int, inputs: tuple[Any, ...], attributes: dict[str, Any], *, outputs: int) -> list[Any]:
    """One run of a node; attributes that are None keep their defaults."""
    given = tuple((array.dtype.name, array.ndim) if array is not None else None for array in inputs)
    options = tuple((name, value) for name, value in attributes.items() if value is not None)
    session = _session(operator, domain, opset, given, options, outputs)
    return list(session.run(None, {f"input_{i}": np.ascontiguousarray(array) for i, array in enumerate(inputs) if array is not None}))


@lru_cache(maxsize=512)
def _session(operator: str, domain: str, opset: int, inputs: tuple[Any, ...], attributes: tuple[tuple[str, Any], ...], outputs: int) -> Any:
    import onnx
    import onnxruntime
    from onnx import helper

    types = {"float32": "FLOAT", "float16": "FLOAT16", "float64": "DOUBLE", "int32": "INT32", "int64": "INT64", "bool": "BOOL"}
    names = [f"input_{i}" if given is not None else "" for i, given in enumerate(inputs)]
    results = [f"output_{i}" for i in range(outputs)]
    node = helper.make_node(operator, names, results, domain=domain, **dict(attributes))
    infos = [helper.make_tensor_value_info(name, getattr(onnx.TensorProto, types[given[0]]), [None] * given[1])
             for name, given in zip(names, inputs) if given is not None]  # fmt: skip
    graph = helper.make_graph([node], operator, infos, [helper.make_empty_tensor_value_info(name) for name in results])
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
