"""Speculative generation: drafts, one pass of the target, verification, caches rolled back; with a second model or the target's own heads.

The models are the caller's; what a verification decides is left to speculative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from . import arguments, distributions
from .arguments import Array, Float64, Int64
from .sampling import sample
from .speculative import speculative_verify


class CachedModel(Protocol):
    """A model with a cache. `len()` is the number of tokens it was fed and keeps."""

    def extend(self, tokens: Sequence[int]) -> ArrayLike:
        """Feed tokens; the law of the token after each of them: (n, V)."""

    def crop(self, n: int) -> None:
        """Keep the first n tokens fed, forget the others."""

    def __len__(self) -> int: ...


class CachedModelWithHidden(Protocol):
    """As `CachedModel`, and `extend` also returns the hidden state at each token: (n, V), (n, D)."""

    def extend(self, tokens: Sequence[int]) -> tuple[ArrayLike, Sequence[Array] | Array]: ...

    def crop(self, n: int) -> None: ...

    def __len__(self) -> int: ...


Head = Callable[[Array, int], tuple[ArrayLike, Array]]                          # hidden state, next token -> law, hidden state
Process = Callable[[Sequence[int], Float64], ArrayLike]                         # all tokens so far, law of the next -> law
Verify = Callable[..., tuple[Int64, Int64]]                                     # as `speculative_verify`


def speculative_generate(draft: CachedModel, target: CachedModel, prompt: Sequence[int], *, k: int, length: int, uniforms: ArrayLike,
                         eos: int | None = None, process: Process | None = None, verify: Verify | None = None) -> tuple[Int64, Int64]:
    """Generate with a draft model: the law of the target alone, in fewer passes of it.

        until there are enough tokens, or eos:
            k drafts, each drawn from the draft after all tokens so far
            one pass of the target over the last token and the drafts: k + 1 laws
            verify; both caches keep what was emitted, without its last token

    uniforms (passes, 2 k + 1) in [0, 1): k to draw drafts, k to accept, 1 for the token after them; as many rows as passes
    are needed, `length` always suffice. process changes every law, of draft and target alike, that is drawn from or compared:
    filters, penalties, masks; it is given all tokens up to that place, drafts of this round included. verify is
    `speculative_verify` (None) or `verify_block`.

    >>> class Same:                                                             # after any token, one token or the other
    ...     fed = 0
    ...     def extend(self, tokens): self.fed += len(tokens); return np.full((len(tokens), 2), 0.5)
    ...     def crop(self, n): self.fed = n
    ...     def __len__(self): return self.fed
    >>> speculative_generate(Same(), Same(), [0], k=2, length=4, uniforms=np.full((2, 5), 0.75))
    (array([1, 1, 1, 1]), array([2, 2]))

    Returns the new tokens, at most `length` and none behind eos, and the number accepted in each pass.
    Raises ValueError for an empty prompt, a model fed more than it, too few uniforms, or a k below 0.
    Source: Leviathan et al. 2023 (arXiv 2211.17192), section 2; Chen et al. 2023 (arXiv 2302.01318), algorithm 2.
    """
    k, length = arguments.whole_number("k", k, least=0), arguments.whole_number("length", length, least=0)
    tokens, rows = _start(prompt, uniforms, k)
    for name, model in (("draft", draft), ("target", target)):
        if len(model) >= len(tokens):
            raise ValueError(f"{name}: got a model fed {len(model)} tokens; want fewer than the prompt's {len(tokens)}")
    end = len(tokens) + length
    accepted: list[int] = []
    while len(tokens) < end and eos not in tokens[len(prompt):]:
        u = _next_row(rows, len(accepted))
        x: list[int] = []
        q: list[ArrayLike] = []
        for j in range(k):
            so_far = [*tokens, *x]
            law = np.asarray(draft.extend(so_far[len(draft):]))[-1]             # the bonus and its predecessor too: vllm-project/vllm#9730
            q.append(_processed(so_far, law, process))
            x.append(int(sample(q[-1], u[j])))
        p = np.asarray(target.extend([*tokens, *x][len(target):]))[-(k + 1):]
        accepted.append(_verified(tokens, x, q, p, u[k:], process, verify))
        for model in (target, draft):
            model.crop(min(len(model), len(tokens) - 1))
    return _finished(tokens[len(prompt):end], eos), np.array(accepted, dtype=np.int64)


def self_speculate(model: CachedModelWithHidden, heads: Sequence[Head], prompt: Sequence[int], *, length: int, uniforms: ArrayLike,
                   eos: int | None = None, process: Process | None = None, verify: Verify | None = None) -> tuple[Int64, Int64]:
    """Generate with the model's own multi-token prediction heads as the draft: the law of the model alone, in fewer passes.

        h_0 = the model's hidden state before its last token t_0
        q_j, h_j = head_j(h_{j-1}, t_{j-1}),   t_j drawn from q_j,   j = 1 … K
        one pass of the model over t_0 … t_K, verify, crop; then h_0 is the state at the last accepted token

    K = len(heads); head_j takes the state of head_{j-1}, not the model's again (vllm-project/vllm#36531). The first pass reads
    the prompt and drafts nothing. uniforms (passes, 2 K + 1), eos, process, verify and results as in `speculative_generate`.

    >>> class Same:
    ...     fed = 0
    ...     def extend(self, tokens): self.fed += len(tokens); return np.full((len(tokens), 2), 0.5), np.zeros((len(tokens), 1))
    ...     def crop(self, n): self.fed = n
    ...     def __len__(self): return self.fed
    >>> head = lambda h, token: ([0.5, 0.5], h)
    >>> self_speculate(Same(), [head, head], [0], length=4, uniforms=np.full((2, 5), 0.75))
    (array([1, 1, 1, 1]), array([0, 2]))

    Raises as `speculative_generate`. Source: DeepSeek-V3 (arXiv 2412.19437), section 2.2.
    """
    K, length = len(heads), arguments.whole_number("length", length, least=0)
    tokens, rows = _start(prompt, uniforms, K)
    if len(model) >= len(tokens):
        raise ValueError(f"model: got a model fed {len(model)} tokens; want fewer than the prompt's {len(tokens)}")
    end = len(tokens) + length
    accepted: list[int] = []
    state: Array | None = None
    while len(tokens) < end and eos not in tokens[len(prompt):]:
        u = _next_row(rows, len(accepted))
        x: list[int] = []
        q: list[ArrayLike] = []
        h = state
        for j, head in enumerate(heads):
            if h is None:                                                       # the prompt is not read yet
                break
            law, h = head(h, (tokens + x)[-1])
            q.append(_processed([*tokens, *x], law, process))                   # the token just drawn is in: ml-explore/mlx-lm#990
            x.append(int(sample(q[-1], u[j])))
        laws, hidden = model.extend([*tokens, *x][len(model):])
        p = np.asarray(laws)[-(len(x) + 1):]
        n = _verified(tokens, x, q, p, np.append(u[K : K + len(x)], u[2 * K]), process, verify)
        accepted.append(n)
        state = hidden[n - len(x) - 1]                                                       # of the row that was accepted: antirez/ds4#750
        model.crop(len(tokens) - 1)
    return _finished(tokens[len(prompt):end], eos), np.array(accepted, dtype=np.int64)


def _start(prompt: Sequence[int], uniforms: ArrayLike, k: int) -> tuple[list[int], Float64]:
    tokens = [arguments.whole_number("prompt", token, least=0) for token in prompt]
    if not tokens:
        raise ValueError("prompt: got no tokens; want at least one")
    rows = distributions.uniforms("uniforms", uniforms)
    if rows.ndim != 2 or rows.shape[1] != 2 * k + 1:
        raise ValueError(f"uniforms: got shape {rows.shape}; want (passes, {2 * k + 1})")
    return tokens, rows


def _next_row(rows: Float64, used: int) -> Float64:
    if used == len(rows):
        raise ValueError(f"uniforms: got {used} rows and want more; as many as tokens asked for always suffice")
    return np.asarray(rows[used])


def _verified(tokens: list[int], x: list[int], q: list[ArrayLike], p: Array, u: Float64, process: Process | None,
              verify: Verify | None) -> int:
    """Append what one verification emits to the tokens; how many drafts it accepted. u: one for each draft, one for the last token."""
    k = len(x)
    laws = np.stack([_processed([*tokens, *x[:j]], p[j], process) for j in range(k + 1)])         # (k + 1, V)
    drafts = np.array(x, dtype=np.int64)
    draft_laws = np.reshape(np.array(q), (1, k, laws.shape[1]))
    emitted, n = (verify or speculative_verify)(drafts[None], draft_laws, laws[None], u[None, :k], u[k:])
    tokens += emitted[0, : n[0] + 1].tolist()
    return int(n[0])


def _processed(tokens: Sequence[int], law: ArrayLike, process: Process | None) -> Array:
    return np.asarray(law if process is None else process(tokens, np.asarray(law)))


def _finished(tokens: list[int], eos: int | None) -> Int64:
    end = tokens.index(eos) + 1 if eos in tokens else len(tokens)
    return np.array(tokens[:end], dtype=np.int64)
