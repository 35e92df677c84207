"""Verification of speculative drafts on a GPU, a batch at once (kernels/speculative_verify.cu)."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import arguments, row_arguments
from .launching import Backend, Launcher
from .sampling import shift_of, warps_of


def speculative_verify(draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None,
                       backend: str | Backend = "cuda") -> tuple[Any, Any]:
    """Keep a prefix of each draft and add one token, so that what comes out has the law of the target alone.

        accept x_j while u_j q_j(x_j) < p_j(x_j);   first rejection, at j: one token from [p_j - q_j]+;   all accepted: one from p_n

    draft_tokens (B, K), draft_probs q (B, K, V), target_probs p (B, K + 1, V) in float32, accept_u (B, K) and sample_u (B,) in [0, 1).
    n = draft_lengths[b], else K; a token of -1 ends its row's draft; what stands behind never matters. tokens (B, K + 1) int64 padded
    with -1, n_accepted (B,) int64 without the bonus. Rows of p and q are taken to sum to 1 within V roundings and are not divided by
    their sum; read are the probabilities of the draft's tokens and the rows that a token is drawn from.

    >>> p, q = np.array([[[0.5, 0.5], [0, 1]]], np.float32), np.array([[[1, 0]]], np.float32)
    >>> speculative_verify([[0]], q, p, np.array([[0.25]]), np.array([0.0]), backend="emulated")
    (array([[0, 1]]), array([1]))

    Raises ValueError or TypeError that names the argument, ValueError where what is read is no probability, NotImplementedError for a
    format the kernel is not built for, RuntimeError where there is no device.
    Error bound: `properties.bounds.speculative_verify_bound` under the default Arithmetic.
    Source: Leviathan, Kalman and Matias 2023 (arXiv 2211.17192), algorithm 1; Chen et al. 2023 (arXiv 2302.01318), algorithm 2.
    """
    p = arguments.floats("target_probs", target_probs, ndim=3)
    B, K, V = p.shape[0], p.shape[1] - 1, p.shape[2]
    if K < 0 or V == 0:
        raise ValueError(f"target_probs: got shape {tuple(p.shape)}; want (B, K + 1, V), K at least 0 and V at least 1")
    if p.dtype.name != "float32":
        raise NotImplementedError(f"target_probs: got dtype {p.dtype.name}; the kernel is built for float32")
    q = arguments.floats("draft_probs", draft_probs, (B, K, V), like=p)
    x = arguments.integers("draft_tokens", draft_tokens, least=-1, most=V - 1, shape=(B, K))
    n = arguments.integers("draft_lengths", np.full(B, K) if draft_lengths is None else draft_lengths, least=0, most=K, shape=(B,))
    u, last = row_arguments.uniforms("accept_u", accept_u, (B, K)), row_arguments.uniforms("sample_u", sample_u, (B,))
    run = Launcher(backend, draft_probs=q, target_probs=p)
    tokens, n_accepted = run.new((B, K + 1), "int64"), run.new((B,), "int64")
    run.launch("speculative_verify.cu", f"speculative_verify<{warps_of(V)}>", (B,), (32, warps_of(V)),
               [run.take(x, "int64"), run.take(q), run.take(p), run.take(u, "float64"), run.take(last, "float64"), run.take(n),
                tokens, n_accepted, K, V, shift_of(2 * V)], outputs=("tokens", "n_accepted"))
    if bool((n_accepted < 0).any()):
        raise ValueError("target_probs, draft_probs: got a NaN, a negative number, one of 2 or more, or a row of zeros; want probabilities")
    return run.give(tokens, "int64"), run.give(n_accepted, "int64")
