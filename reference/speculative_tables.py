"""Speculative generation by models that are tables: the loops as functions of arrays alone, so that any implementation can be checked.

The loops themselves are left to speculative_generate; here are the models, their caches, and what becomes of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from . import arguments, distributions
from .arguments import Array, Bool, Float64, Int64
from .speculative_generate import Head, Process, self_speculate, speculative_generate


class TableModel:
    """A model whose law of the next token is a table of the last two: table (V, V, V), the token before the first being 0.

    >>> model = TableModel(np.eye(2)[[[0, 1], [1, 0]]])                         # the sum of the last two, modulo 2
    >>> model.extend([1, 1]).argmax(axis=-1)
    array([1, 0])
    """

    def __init__(self, table: Array) -> None:
        self.table, self.fed = table, [0]

    def extend(self, tokens: Sequence[int]) -> Array:
        """Feed tokens; the law of the token after each of them: (n, V)."""
        start = len(self.fed)
        self.fed += tokens
        return np.array([self.table[self.fed[i - 1], self.fed[i]] for i in range(start, len(self.fed))])

    def crop(self, n: int) -> None:
        """Keep the first n tokens fed."""
        del self.fed[n + 1 :]

    def __len__(self) -> int:
        return len(self.fed) - 1


class TableModelWithHidden:
    """A `TableModel` that also tells its hidden state at each token: the token itself, as an array ()."""

    def __init__(self, table: Array) -> None:
        self.model = TableModel(table)

    def extend(self, tokens: Sequence[int]) -> tuple[Array, Array]:
        """Feed tokens; the law after each of them (n, V) and the states at them (n,)."""
        return self.model.extend(tokens), np.array(tokens)

    def crop(self, n: int) -> None:
        """Keep the first n tokens fed."""
        self.model.crop(n)

    def __len__(self) -> int:
        return len(self.model)


def speculative_loop(target: ArrayLike, draft: ArrayLike, prompt: ArrayLike, uniforms: ArrayLike, *, eos: int | None = None,
                     forbidden: ArrayLike | None = None) -> tuple[Int64, Int64]:
    """`speculative_generate` for models that are tables: new tokens (B, N) and the number accepted in each pass (B, N), padded -1.

        the law of the next token = target[a, b] or draft[a, b],   a, b the last two tokens, a = 0 before the first

    target, draft (V, V, V), rows that sum to 1; prompt (B, P), P >= 1; uniforms (B, N, 2 k + 1): for each of at most N passes k
    to draw drafts, k to accept them, 1 for the token after them. N tokens are wanted, k drafts made in every pass: those past the
    end or behind eos count as accepted where they are. forbidden (V, V): True at [t, x] where x may not follow t, at any place,
    for draft and target alike; what is left is renormalised, and where nothing is left the law stays as it is.

    >>> half, u = np.full((2, 2, 2), 0.5), np.full((1, 4, 5), 0.75)
    >>> speculative_loop(half, half, [[0]], u)
    (array([[1, 1, 1, 1]]), array([[ 2,  2, -1, -1]]))
    >>> speculative_loop(half, half, [[0]], u, forbidden=np.eye(2, dtype=bool))
    (array([[1, 0, 1, 0]]), array([[ 2,  2, -1, -1]]))

    N = 0 gives arrays of no columns, k = 0 draws token after token. A cache that keeps the wrong rows shows in the number
    accepted (vllm-project/vllm#9730). Raises ValueError or TypeError that names the argument, what came and what is wanted.
    Error bound: tokens and numbers are exact up to the first decision within rounding of a tie.
    Source: Leviathan, Kalman and Matias 2023 (arXiv 2211.17192), section 2; Chen et al. 2023 (arXiv 2302.01318), algorithm 2.
    """
    p = _table("target", target)
    q = _table("draft", draft, V=len(p))

    def generate(text: list[int], u: Float64, process: Process | None) -> tuple[Int64, Int64]:
        return speculative_generate(TableModel(q), TableModel(p), text, k=(u.shape[1] - 1) // 2, length=len(u), uniforms=u, eos=eos,
                                    process=process)

    return _of_batch(generate, prompt, uniforms, V=len(p), forbidden=forbidden)


def mtp_loop(target: ArrayLike, heads: ArrayLike, prompt: ArrayLike, uniforms: ArrayLike, *, eos: int | None = None,
             forbidden: ArrayLike | None = None) -> tuple[Int64, Int64]:
    """`self_speculate` for tables: new tokens (B, N) and the number accepted in each pass (B, N), padded -1.

        p = target[a, b],   a, b the last two tokens, a = 0 before the first; the hidden state at a token is that token
        q_j = heads[j - 1, h_{j-1}, t_{j-1}],   h_j = t_{j-1},   t_j drawn from q_j,   j = 1 … K

    heads (K, V, V, V); t_0 the last token, h_0 the state at the one before it. The first pass reads the prompt and drafts nothing:
    it accepts 0. Head j takes the state of head j - 1, never h_0 again (vllm-project/vllm#36531). uniforms (B, N, 2 K + 1).
    All else is as in `speculative_loop`.

    >>> half, u = np.full((2, 2, 2), 0.5), np.full((1, 4, 5), 0.75)
    >>> mtp_loop(half, [half, half], [[0]], u)
    (array([[1, 1, 1, 1]]), array([[ 0,  2, -1, -1]]))

    Raises ValueError or TypeError that names the argument, what came and what is wanted.
    Error bound: tokens and numbers are exact up to the first decision within rounding of a tie.
    Source: DeepSeek-V3 (arXiv 2412.19437), section 2.2.
    """
    p = _table("target", target)
    given = arguments.float_array("heads", heads, ndim=4)
    tables = [_table("heads", head, V=len(p)) for head in given]
    K = len(tables)
    u = np.asarray(uniforms)
    if u.ndim == 3 and u.shape[2] != 2 * K + 1:
        raise ValueError(f"uniforms: got shape {u.shape}; want (B, N, {2 * K + 1}) for {K} heads")

    def generate(text: list[int], u: Float64, process: Process | None) -> tuple[Int64, Int64]:
        return self_speculate(TableModelWithHidden(p), [head_of(table) for table in tables], text, length=len(u), uniforms=u, eos=eos,
                              process=process)

    return _of_batch(generate, prompt, uniforms, V=len(p), forbidden=forbidden)


Generate = Callable[[list[int], Float64, Process | None], tuple[Int64, Int64]]


def _of_batch(generate: Generate, prompt: ArrayLike, uniforms: ArrayLike, *, V: int, forbidden: ArrayLike | None) -> tuple[Int64, Int64]:
    """Every row of a batch by itself, what it gives padded with -1."""
    texts = arguments.integers("prompt", prompt, least=0, most=V - 1)
    if texts.ndim != 2 or texts.shape[1] == 0:
        raise ValueError(f"prompt: got shape {texts.shape}; want (B, P) with P of at least 1")
    B = len(texts)
    u = distributions.uniforms("uniforms", uniforms)
    if u.ndim != 3 or u.shape[0] != B or u.shape[2] % 2 == 0:
        raise ValueError(f"uniforms: got shape {u.shape}; want ({B}, N, 2 k + 1)")
    process = None if forbidden is None else forbidding(arguments.boolean_mask("forbidden", np.asarray(forbidden), (V, V)))
    tokens, n_accepted = (np.full(u.shape[:2], -1, dtype=np.int64) for _ in range(2))
    for b in range(B):
        new, accepted = generate(texts[b].tolist(), u[b], process)
        tokens[b, : len(new)], n_accepted[b, : len(accepted)] = new, accepted
    return tokens, n_accepted


def forbidding(forbidden: Bool) -> Process:
    """A process that takes from every law the tokens that may not follow the last one.

    >>> forbidding(np.eye(2, dtype=bool))([0], np.array([0.5, 0.5]))
    array([0., 1.])
    """
    def process(tokens: Sequence[int], law: Float64) -> Float64:
        left = np.where(forbidden[tokens[-1]], 0.0, law)
        return np.asarray(left / left.sum() if left.any() else law)

    return process


def head_of(table: Array) -> Head:
    """A head whose law is a table (V, V, V) of its hidden state and the token it is given, which is its next state."""
    return lambda h, token: (table[int(h), token], np.asarray(token))


def _table(name: str, table: ArrayLike, V: int | None = None) -> Float64:
    """A table of laws (V, V, V) in float64, each divided by its sum."""
    shape = arguments.float_array(name, table, ndim=3).shape
    V = shape[0] if V is None else V
    if shape != (V, V, V) or V == 0:
        raise ValueError(f"{name}: got {shape}; want {(V, V, V) if V else 'a table (V, V, V) of at least one token'}")
    return distributions.normalised(name, table)
