"""Decoding steps of Hugging Face transformers and of PyTorch, each on its own arrays.

Nothing but NumPy and the libraries is imported, these inside the functions, so that this file runs alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np


@contextmanager
def _one_thread() -> Iterator[None]:
    """PyTorch on one thread: for a row of a few numbers a second one costs more to wake than the row takes, 11 ms on a busy machine."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def transformers_filters(logits: Any, *, temperature: Any = 1.0, top_k: Any = None, top_p: Any = None, min_p: Any = None) -> Any:
    """The warpers that `generate` puts together, in its order: temperature, top-k, top-p (below 1), min-p; then the softmax.

    The parameters are one number for all rows, and temperature is above 0: `generate` takes the argmax where it does not sample.
    """
    from transformers.generation import logits_process

    for name, value in (("temperature", temperature), ("top_k", top_k), ("top_p", top_p), ("min_p", min_p)):
        if value is not None and np.ndim(value):
            raise NotImplementedError(f"{name}: one number for all rows")
    if temperature == 0:
        raise NotImplementedError("temperature 0")
    warpers = [logits_process.TemperatureLogitsWarper(float(temperature))] if temperature != 1 else []
    warpers += [] if top_k is None else [logits_process.TopKLogitsWarper(int(top_k))]
    warpers += [] if top_p is None or top_p >= 1 else [logits_process.TopPLogitsWarper(float(top_p))]
    warpers += [] if min_p is None else [logits_process.MinPLogitsWarper(float(min_p))]
    for warper in warpers:
        logits = warper(None, logits)
    return logits.softmax(dim=-1)


def transformers_repetition(logits: Any, tokens: Any, *, repetition: Any = 1.0) -> Any:
    """RepetitionPenaltyLogitsProcessor, one penalty for all rows, histories of one length."""
    from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

    if np.ndim(repetition) or bool((tokens < 0).any()) or tokens.numel() == 0:
        raise NotImplementedError("one penalty for all rows, and histories of one length, not empty")
    return RepetitionPenaltyLogitsProcessor(float(repetition))(tokens, logits.clone())


def transformers_speculative(
    draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None
) -> Any:  # fmt: skip
    """`_speculative_sampling` of each row, on the logarithms of the probabilities in float64.

    Its two draws are led by the uniforms handed in: `torch.rand_like` gives them, and `torch.multinomial` takes the first token whose
    sum exceeds its uniform. Nothing else is changed. It is never called without a draft, nor with one the draft could not draw.
    """
    import torch
    from transformers.generation import utils

    B, K = draft_tokens.shape
    tokens, accepted = np.full((B, K + 1), -1, dtype=np.int64), np.zeros(B, dtype=np.int64)
    for b in range(B):
        n = next((j for j in range(K) if draft_tokens[b, j] < 0), K)
        n = n if draft_lengths is None else min(n, int(draft_lengths[b]))
        if n == 0 or bool((draft_probs[b, :n].gather(1, draft_tokens[b, :n, None]) == 0).any()):
            raise NotImplementedError("no draft, or one of probability 0")
        q, p = draft_probs[b : b + 1, :n].double().log(), target_probs[b : b + 1, : n + 1].double().log()

        def rand_like(x: Any, u: Any = accept_u[b, :n]) -> Any:
            return u.to(x.dtype).reshape(x.shape)

        def multinomial(x: Any, num_samples: int, u: Any = sample_u[b]) -> Any:
            return (x.cumsum(-1) <= u.to(x.dtype) * x.sum(-1, keepdim=True)).sum(-1, keepdim=True)

        with mock.patch.object(torch, "rand_like", rand_like), mock.patch.object(torch, "multinomial", multinomial), _one_thread():
            row, m = utils._speculative_sampling(draft_tokens[b : b + 1, :n], q, n, p)
        tokens[b, : row.shape[1]], accepted[b] = row[0].numpy(), int(m)
    return tokens, accepted


def transformers_speculative_own(
    draft_tokens: Any, draft_probs: Any, target_probs: Any, accept_u: Any, sample_u: Any, *, draft_lengths: Any = None
) -> Any:  # fmt: skip
    """`_speculative_sampling` of each row as it is, with the generator of PyTorch."""
    from transformers.generation import utils

    B, K = draft_tokens.shape
    tokens, accepted = np.full((B, K + 1), -1, dtype=np.int64), np.zeros(B, dtype=np.int64)
    for b in range(B):
        n = next((j for j in range(K) if draft_tokens[b, j] < 0), K)
        n = n if draft_lengths is None else min(n, int(draft_lengths[b]))
        if n == 0 or bool((draft_probs[b, :n].gather(1, draft_tokens[b, :n, None]) == 0).any()):
            raise NotImplementedError("no draft, or one of probability 0")
        q, p = draft_probs[b : b + 1, :n].double().log(), target_probs[b : b + 1, : n + 1].double().log()
        with _one_thread():
            row, m = utils._speculative_sampling(draft_tokens[b : b + 1, :n], q, n, p)
        tokens[b, : row.shape[1]], accepted[b] = row[0].numpy(), int(m)
    return tokens, accepted


def transformers_mtp_loss(logits: Any, tokens: Any) -> Any:
    """The sum over heads of `ForCausalLMLoss`, the labels of each shifted as `MtpModel.forward` shifts those of its layers.

    A head that is scored on no token is the mean over nothing, NaN.
    """
    import torch
    from transformers.loss.loss_utils import ForCausalLMLoss

    K, _, V = logits.shape
    loss = torch.zeros(())
    for j in range(1, K + 1):
        shifted = torch.nn.functional.pad(tokens, (0, j), value=-100)[..., j:].contiguous()
        if bool((shifted == -100).all()):
            raise NotImplementedError("a head that is scored on no token")
        loss = loss + ForCausalLMLoss(logits[j - 1], tokens, vocab_size=V, shift_labels=shifted)
    return loss


def torch_multinomial(probabilities: Any, u: Any) -> Any:
    """torch.multinomial, one draw a row; the uniforms are left unread."""
    import torch

    if len(probabilities) == 0:
        raise NotImplementedError("no rows")
    return torch.multinomial(probabilities, 1)[:, 0]


def torch_categorical(probabilities: Any, u: Any) -> Any:
    """torch.distributions.Categorical, one draw a row; the uniforms are left unread."""
    import torch

    if len(probabilities) == 0:
        raise NotImplementedError("no rows")
    return torch.distributions.Categorical(probs=probabilities).sample()
