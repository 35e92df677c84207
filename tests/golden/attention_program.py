"""A student's attention in NumPy: python attention_program.py IN OUT, with tensor_files.py beside it. It knows nothing of our code."""

import sys

import numpy as np
import tensor_files  # type: ignore[import-not-found]

tensors, types, text = tensor_files.read(sys.argv[1])
q, k, v = (tensors[name].astype(np.float64) for name in "qkv")
(B, Hq, Lq, D), (_, Hkv, Lk, _) = q.shape, k.shape
k, v = (np.repeat(x, Hq // Hkv, axis=1) for x in (k, v))
n_k = tensors["kv_lengths"] if "kv_lengths" in tensors else np.full(B, Lk)
start = np.zeros(B, dtype=int) if text["causal"] == "top_left" else n_k - Lq
p = (np.arange(Lq) + start[:, None])[:, None, :, None]                          # where each query stands: (B, 1, Lq, 1)
j = np.arange(Lk)

s = q @ k.swapaxes(2, 3) * (float(tensors["scale"]) if "scale" in tensors else 1.0 / np.sqrt(D))
if "softcap" in tensors:
    s = float(tensors["softcap"]) * np.tanh(s / float(tensors["softcap"]))
if "alibi_slopes" in tensors:
    s = s - tensors["alibi_slopes"].astype(np.float64)[:, None, None] * np.abs(p - j)
if "bias" in tensors:
    s = s + tensors["bias"].astype(np.float64)

visible = j < n_k[:, None, None, None]
if text["causal"] != "none":
    visible = visible & (j <= p)
if "window" in tensors:
    left, right = (int(side) for side in tensors["window"])
    visible = visible & (j >= p - left if left >= 0 else True) & (j <= p + right if right >= 0 else True)
if "mask" in tensors:
    visible = visible & tensors["mask"]

s = np.where(visible, s, -np.inf)
sinks = np.full((Hq, 1, 1), -np.inf)
if "sinks" in tensors:
    sinks = tensors["sinks"].astype(np.float64)[:, None, None]
m = np.maximum(s.max(axis=-1, keepdims=True, initial=-np.inf), sinks)
m = np.where(np.isneginf(m), 0.0, m)
weight = np.exp(s - m)
l = weight.sum(axis=-1, keepdims=True) + np.exp(sinks - m)
weight = weight / np.where(l == 0.0, 1.0, l)
if "dropout_mask" in tensors:
    weight = weight * tensors["dropout_mask"] / (1.0 - float(tensors["dropout_p"]))
with np.errstate(divide="ignore"):
    lse = (m + np.log(l))[..., 0]
tensor_files.write(sys.argv[2], {"out": weight @ v, "lse": lse}, {"out": types["q"], "lse": "F64" if types["q"] == "F64" else "F32"})
