"""The end of a student's gradients of attention: what follows the lines of attention_program.py before its last, in one program.

No forward pass is handed out with the question, so those lines make it first.
"""
# mypy: disable-error-code="name-defined"
# ruff: noqa: F821

dout, scale = tensors["dout"].astype(np.float64), float(tensors["scale"]) if "scale" in tensors else 1.0 / np.sqrt(D)
p = np.exp(s - m) / np.where(l == 0.0, 1.0, l)                                  # before dropout
kept = np.ones_like(p)
if "dropout_mask" in tensors:
    kept = kept * tensors["dropout_mask"] / (1.0 - float(tensors["dropout_p"]))
dp = (dout @ v.swapaxes(2, 3)) * kept
delta = (p * dp).sum(axis=-1, keepdims=True)
ds = p * (dp - delta)

results = {"dv": (p * kept).swapaxes(2, 3) @ dout}
if "bias" in tensors:
    shape = (1,) * (4 - tensors["bias"].ndim) + tensors["bias"].shape
    results["dbias"] = ds.sum(axis=tuple(i for i in range(4) if shape[i] == 1 < ds.shape[i]), keepdims=True).reshape(tensors["bias"].shape)
if "sinks" in tensors:
    results["dsinks"] = -(np.exp(sinks - m) / np.where(l == 0.0, 1.0, l) * delta).sum(axis=(0, 2, 3))
if "softcap" in tensors:
    cap = float(tensors["softcap"])
    ds = ds * (1.0 - np.tanh(scale * (q @ k.swapaxes(2, 3)) / cap) ** 2)
results |= {"dq": scale * (ds @ k), "dk": scale * (ds.swapaxes(2, 3) @ q)}
for name in ("dk", "dv"):                                                       # the query heads of a key head
    results[name] = results[name].reshape(B, Hkv, Hq // Hkv, *results[name].shape[2:]).sum(axis=2)
tensor_files.write(sys.argv[2], results, dict.fromkeys(results, types["q"]))
