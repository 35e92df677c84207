"""The gradient of attention in tiles on a GPU, the same bits each time (kernels/flash_backward.cu)."""

from __future__ import annotations

from typing import Any

from . import arguments
from .attention_problem import BLOCK, FLOAT, KEYS_A_BLOCK, QUERIES_A_BLOCK, Problem, batched, packed
from .launching import Backend, Launcher, ceil_div, cpp_type

SOURCE = "flash_backward.cu"


def flash_attention_backward(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, *, causal: Any, window: Any = None,
                             scale: float | None = None, softcap: float | None = None, bias: Any = None, mask: Any = None,
                             kv_lengths: Any = None, sinks: Any = None, alibi_slopes: Any = None, dropout_mask: Any = None,
                             dropout_p: float = 0.0, backend: str | Backend = "cuda") -> dict[str, Any]:
    """The gradients of sum(dout * flash_attention(q, k, v).out): "dq", "dk", "dv", and "dbias", "dsinks" where given.

        delta = rowsum(dout out),  p = e^(s - lse),  ds = p (dout v^T - delta)
        dv = p^T dout,  dq = scale ds k,  dk = scale ds^T q,  dsink = -sum e^(sink - lse) delta
        dbias = ds, summed over the axes along which the bias was broadcast

    out and lse are those of the forward pass and are used. Keys, queries and the bias have a kernel each, none adds with atomics: the
    same bits each time. Each gradient has the shape and format of its argument. What a bias repeats over is passed over by one block
    in a fixed order: the fewer elements it has, the fewer blocks share the work.

    >>> q, k, v = (np.array(x, np.float32).reshape(1, 1, -1, 1) for x in ([0], [0, 0], [1, 3]))
    >>> out, lse = np.full((1, 1, 1, 1), 2, np.float32), np.full((1, 1, 1), np.log(2), np.float32)
    >>> flash_attention_backward(q, k, v, out, lse, np.ones_like(out), causal=None, backend="emulated")["dv"].ravel()
    array([0.5, 0.5], dtype=float32)

    Raises as `flash_attention`. Error bound: `properties.bounds.attention_backward_bound` under the default Arithmetic.
    Source: Dao 2023 (arXiv 2307.08691), algorithm 2.
    """
    problem = batched(q, k, v, causal=causal, window=window, scale=scale, softcap=softcap, bias=bias, mask=mask, kv_lengths=kv_lengths,
                      sinks=sinks, alibi_slopes=alibi_slopes, dropout_mask=dropout_mask, dropout_p=dropout_p, out=out, dout=dout)
    shape = (*q.shape[:3], v.shape[3])
    return _backward(problem, shape, shape[:3], lse, backend)


def flash_attention_packed_backward(q: Any, k: Any, v: Any, out: Any, lse: Any, dout: Any, cu_q: Any, cu_k: Any, *, causal: Any,
                                    window: Any = None, scale: float | None = None, softcap: float | None = None,
                                    backend: str | Backend = "cuda") -> dict[str, Any]:
    """The gradients of `flash_attention_packed`: "dq", "dk", "dv", shaped as q, k, v. Otherwise as `flash_attention_backward`."""
    problem = packed(q, k, v, cu_q, cu_k, causal=causal, window=window, scale=scale, softcap=softcap, out=out, dout=dout)
    Tq, Hq = q.shape[:2]
    return _backward(problem, (Tq, Hq, v.shape[2]), (Hq, Tq), lse, backend)


def _backward(problem: Problem, out_shape: tuple[int, ...], lse_shape: tuple[int, ...], lse: Any, backend: str | Backend) -> dict[str, Any]:
    given = problem.tensors
    for name in ("out", "dout"):
        given[name] = arguments.floats(name, given[name], out_shape, like=given["q"])
    lse = arguments.floats("lse", lse, lse_shape)
    run = Launcher(backend, **given, lse=lse)
    cpp, C, dtype, Lq, (longest_q, longest_k) = cpp_type(given["q"]), problem.padded, problem.dtype, problem.lengths[0], problem.longest
    q, k, v, out, dout = (run.take(given[name]) for name in ("q", "k", "v", "out", "dout"))
    lse, delta = run.take(lse, "float32"), run.new(lse_shape, "float32")
    sinks = None if problem.sinks is None else run.take(problem.sinks, "float32")
    run.launch(SOURCE, f"row_delta<{cpp}>", (ceil_div(problem.rows, 4),), BLOCK,
               [out, dout, lse, sinks, delta, problem.rows, problem.Hq, Lq, out_shape[-1], int(problem.is_packed)], outputs=("delta",))
    dq, dk, dv = (run.new(given[name].shape, dtype) for name in ("q", "k", "v"))
    common = [*problem.arrays(run), *problem.numbers]
    tiles = 32 * C + 64 * (C + 1)                                               # of q, dout, k and v
    run.launch(SOURCE, f"key_gradient<{cpp}, {C}>", (ceil_div(longest_k, KEYS_A_BLOCK), problem.heads[1], problem.sequences), BLOCK,
               [q, k, v, dout, lse, delta, dk, dv, *common], shared_mem=FLOAT * (tiles + 2 * 512 + 16), outputs=("dk", "dv"))
    run.launch(SOURCE, f"query_gradient<{cpp}, {C}>", (ceil_div(longest_q, QUERIES_A_BLOCK), problem.Hq, problem.sequences), BLOCK,
               [q, k, v, dout, lse, delta, dq, *common], shared_mem=FLOAT * (tiles + 512), outputs=("dq",))
    gradients = {"dq": run.give(dq, dtype), "dk": run.give(dk, dtype), "dv": run.give(dv, dtype)}
    if "bias" in problem.broadcast:
        bias = problem.broadcast["bias"][0]
        dbias = run.new(bias.shape, "float32")
        B, Hq, queries, keys = (1,) * (4 - bias.ndim) + tuple(bias.shape)
        run.launch(SOURCE, f"bias_gradient<{cpp}, {C}>", (ceil_div(keys, KEYS_A_BLOCK), ceil_div(queries, QUERIES_A_BLOCK), B * Hq), BLOCK,
                   [q, k, v, dout, lse, delta, dbias, problem.sequences, *common], shared_mem=FLOAT * (tiles + 128), outputs=("dbias",))
        gradients["dbias"] = run.give(dbias, "float32").astype(bias.dtype)
    if sinks is not None:
        dsinks = run.new((problem.Hq,), "float32")
        run.launch(SOURCE, "sink_gradient", (problem.Hq,), BLOCK, [lse, delta, sinks, dsinks, problem.sequences, problem.Hq, Lq],
                   outputs=("dsinks",))
        gradients["dsinks"] = run.give(dsinks, "float32").astype(problem.sinks.dtype)
    return gradients
