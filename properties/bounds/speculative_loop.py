"""Up to where legal rounding leaves a generation loop one way to go: the first decision within its error of a tie opens all behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from oracles.properties.arithmetic import ResolvedArithmetic
from oracles.reference import arguments, self_speculate, speculative_generate
from oracles.reference.arguments import Array, Float64, Int64
from oracles.reference.speculative import speculative_verify
from oracles.reference.speculative_generate import Process
from oracles.reference.speculative_tables import TableModel, TableModelWithHidden, forbidding, head_of

from .sampling import U64
from .speculative import admissible_draws, admissible_outcomes
from .sums import g, roundings

Loop = Callable[[list[int], Float64, Process | None, "_Witness"], Any]


class _Witness:
    """A verification that also notes, pass by pass, whether any decision of the pass is open, and how many tokens it emits."""

    def __init__(self, arithmetic: ResolvedArithmetic, row_error: float, uniforms: Float64) -> None:
        self.arithmetic, self.row_error, self.uniforms = arithmetic, row_error, uniforms
        self.open: list[bool] = []
        self.emitted: list[int] = []

    def __call__(self, x: Int64, q: Array, p: Array, u: Float64, last: Float64) -> tuple[Int64, Int64]:
        draws = self.uniforms[len(self.open)]
        outcomes = admissible_outcomes(self.arithmetic, x, q, p, u, last, row_error=self.row_error)
        drawn = [admissible_draws(self.arithmetic, q[0, j], self.row_error, float(draws[j])) for j in range(x.shape[1])]
        tokens, n = speculative_verify(x, q, p, u, last)
        self.open.append(any(len(choice) != 1 for choice in (*outcomes, *drawn)))
        self.emitted.append(int(n[0]) + 1)
        return tokens, n


def speculative_loop_bound(
    arithmetic: ResolvedArithmetic, target: ArrayLike, draft: ArrayLike, prompt: ArrayLike, uniforms: ArrayLike, *,
    eos: int | None = None, forbidden: ArrayLike | None = None,
) -> dict[str, Float64]:  # fmt: skip
    """Where legal rounding leaves a loop one way to go: {"tokens", "n_accepted"}, 0 up to the first open pass and inf from it on.

    A pass is open where a draw of a draft, a test or the draw of the last token may go either way: as `sample_bound` and
    `speculative_verify_bound` have it, each row of a law off by

        e = max |sum of a row - 1|,  and  g(V + 2, u_accumulate) + 2 u  more where tokens are forbidden and the rest renormalised

    >>> from oracles.properties import Arithmetic
    >>> half, float32 = np.full((2, 2, 2), 0.5), Arithmetic().resolve("float32")
    >>> speculative_loop_bound(float32, half, half, [[0]], [[[0.25, 0.25, 0.25], [0.5, 0.25, 0.25]]])["tokens"]
    array([[0., 0.]])
    >>> speculative_loop_bound(float32, half, half, [[0]], [[[0.25, 0.25, 0.25]] + 3 * [[0.5, 0.25, 0.25]]])["tokens"]
    array([[ 0.,  0., inf, inf]])
    """
    p, q = arguments.widen("target", target), arguments.widen("draft", draft)

    def loop(text: list[int], u: Float64, process: Process | None, witness: _Witness) -> Any:
        return speculative_generate(TableModel(_unit(q)), TableModel(_unit(p)), text, k=(u.shape[1] - 1) // 2, length=len(u), uniforms=u,
                                    eos=eos, process=process, verify=witness)

    return _opened(loop, arithmetic, [p, q], prompt, uniforms, forbidden)


def mtp_loop_bound(
    arithmetic: ResolvedArithmetic, target: ArrayLike, heads: ArrayLike, prompt: ArrayLike, uniforms: ArrayLike, *,
    eos: int | None = None, forbidden: ArrayLike | None = None,
) -> dict[str, Float64]:  # fmt: skip
    """Where legal rounding leaves a loop one way to go: {"tokens", "n_accepted"}, 0 up to the first open pass and inf from it on.

    As `speculative_loop_bound`: a pass is open where a draw of a head, a test or the draw of the last token may go either way,
    each row of a law off by max |sum of a row - 1|, and by g(V + 2, u_accumulate) + 2 u more where tokens are forbidden.
    """
    p, tables = arguments.widen("target", target), [*arguments.widen("heads", heads)]

    def loop(text: list[int], u: Float64, process: Process | None, witness: _Witness) -> Any:
        return self_speculate(TableModelWithHidden(_unit(p)), [head_of(_unit(table)) for table in tables], text, length=len(u),
                              uniforms=u, eos=eos, process=process, verify=witness)

    return _opened(loop, arithmetic, [p, *tables], prompt, uniforms, forbidden)


def _unit(table: Float64) -> Float64:
    return np.asarray(table / table.sum(axis=-1, keepdims=True))


def _opened(loop: Loop, arithmetic: ResolvedArithmetic, tables: list[Float64], prompt: ArrayLike, uniforms: ArrayLike,
            forbidden: ArrayLike | None) -> dict[str, Float64]:
    """Each row of the batch followed through its passes."""
    r, V = roundings(arithmetic), len(tables[0])
    error = max(float(np.abs(table.sum(axis=-1) - 1.0).max()) for table in tables)
    process = None
    if forbidden is not None:
        process = forbidding(np.asarray(forbidden, dtype=bool))
        error += float(g(V + 2.0, r.accumulate.u + U64)) + 2.0 * (r.elementwise.u + U64)
    u = arguments.widen("uniforms", uniforms)
    tokens, n_accepted = np.zeros(u.shape[:2]), np.zeros(u.shape[:2])
    for b, text in enumerate(np.asarray(prompt).tolist()):
        witness = _Witness(arithmetic, error, u[b])
        loop(text, u[b], process, witness)
        first = next((i for i, open_ in enumerate(witness.open) if open_), None)
        if first is not None:
            tokens[b, sum(witness.emitted[:first]) :] = np.inf
            n_accepted[b, first:] = np.inf
    return {"tokens": tokens, "n_accepted": n_accepted}
