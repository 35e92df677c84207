"""ONNX Runtime's attention operators on NumPy arrays, each a model of one node, on the CPU.

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
    attributes = {"is_causal": int(causal is not None), "scale": scale, "softcap": softcap, **_window_sizes(window)}
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


def standard_cache(q: Any, k: Any, v: Any, *, causal: Any, window: Any = None, scale: Any = None, softcap: Any = None, bias: Any = None,
                   mask: Any = None) -> Any:
    """out of ai.onnx Attention whose first Lk - Lq keys are past_key and past_value: a query stands at i + past length."""
    past = k.shape[2] - q.shape[2]
    if past < 1:
        raise NotImplementedError("a past of at least one key: no fewer keys than queries, and one more")
    attributes = {"is_causal": int(causal is not None), "scale": scale, "softcap": softcap, **_window_sizes(window)}
    seen = _attention_mask(bias, mask, q.shape[2])
    inputs = (q, k[:, :, past:], v[:, :, past:], seen, k[:, :, :past], v[:, :, :past])
    out, present_key, present_value = _run("Attention", "", 24 if window is None else 25, inputs, attributes, outputs=3)
    if not (np.array_equal(present_key, k, equal_nan=True) and np.array_equal(present_value, v, equal_nan=True)):
        raise ValueError("present_key, present_value: got other values; want past and new ones, one after the other")
    return out


def standard_scores(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, softcap: Any = None, bias: Any = None,
                    mask: Any = None) -> Any:
    """out of ai.onnx Attention, and lse from qk_matmul_output in mode 2, the scores with softcap and mask.

    What is masked there has the lowest number of the format added, not -inf: a row that sees nothing has a finite lse.
    """
    if causal == "bottom_right" and q.shape[2] != k.shape[2]:
        raise NotImplementedError("nonpad_kv_seqlen and past_key, which move the diagonal, are left to the other calls")
    attributes = {"is_causal": int(causal is not None), "scale": scale, "softcap": softcap, "qk_matmul_output_mode": 2}
    out, _, _, s = _run("Attention", "", 23, (q, k, v, _attention_mask(bias, mask, q.shape[2])), attributes, outputs=4)
    return out, np.logaddexp.reduce(s.astype(np.float64), axis=-1).astype(np.float64 if s.dtype == np.float64 else np.float32)


def multi_head(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None) -> Any:
    """out of com.microsoft MultiHeadAttention with nothing but its attribute unidirectional.

    That puts query i at i + past length: the lower right alignment makes the first Lk - Lq keys past ones.
    """
    past = k.shape[2] - q.shape[2] if causal == "bottom_right" else 0
    if past < 0:
        raise NotImplementedError("every query is itself a key: no fewer keys than queries")
    return _multi_head(q, k, v, past, {"unidirectional": int(causal is not None), "scale": scale})


def multi_head_bias(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, bias: Any = None, mask: Any = None) -> Any:
    """out of com.microsoft MultiHeadAttention, bias and mask as attention_bias."""
    seen = _attention_mask(bias, mask, q.shape[2])
    if seen is not None and seen.dtype == bool:
        seen = np.where(seen, 0, -np.inf).astype(q.dtype)
    return _multi_head(q, k, v, 0, {"unidirectional": int(causal is not None), "scale": scale}, attention_bias=seen)


def multi_head_padding(q: Any, k: Any, v: Any, *, causal: Any, scale: Any = None, mask: Any = None, kv_lengths: Any = None) -> Any:
    """out of com.microsoft MultiHeadAttention, lengths or mask as key_padding_mask, which adds mask_filter_value to the scores."""
    if mask is not None and kv_lengths is not None:
        raise NotImplementedError("one key_padding_mask")
    padding = None if kv_lengths is None else np.asarray(kv_lengths, np.int32)
    if mask is not None:
        if mask.shape[1] > 1:
            raise NotImplementedError("key_padding_mask has no axis of heads")
        padding = np.broadcast_to(mask[:, 0], (q.shape[0], q.shape[2], k.shape[2])).astype(np.int32)
    attributes = {"unidirectional": int(causal is not None), "scale": scale, "mask_filter_value": float(np.finfo(np.float32).min)}
    return _multi_head(q, k, v, 0, attributes, padding=padding)


def _multi_head(q: Any, k: Any, v: Any, past: int, attributes: dict[str, Any], *, padding: Any = None, attention_bias: Any = None) -> Any:
    (B, H, Lq, _), Dv = q.shape, v.shape[3]
    packed = [np.ascontiguousarray(x.swapaxes(1, 2)).reshape(B, x.shape[2], H * x.shape[3]) for x in (q, k[:, :, past:], v[:, :, past:])]
    cached = (k[:, :, :past], v[:, :, :past]) if past else (None, None)
    inputs = (*packed, None, padding, attention_bias, *cached)
    out = _run("MultiHeadAttention", "com.microsoft", 24, inputs, {"num_heads": H, **attributes}, outputs=3 if past else 1)[0]
    return np.ascontiguousarray(out.reshape(B, Lq, H, Dv).swapaxes(1, 2))


def _window_sizes(window: Any) -> dict[str, int]:
    if window is None:
        return {}
    left, right = (-1 if side is None else side for side in window)
    return {"left_window_size": left, "right_window_size": right}


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
