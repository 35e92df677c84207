"""Laws of ZeRO: what holds after every call, whatever stage, world and layout the states have.

They need nothing but NumPy and their neighbours, so that a repro can carry a copy.
"""

from __future__ import annotations

import numpy as np

from .play import SILENT, Found, SequenceLaw, answers, sequence_law
from .sequence import RAISED, RETURNED
from .zero_model import ZeroMoment


@sequence_law()
def a_wrong_call_is_refused(m: ZeroMoment) -> Found:
    """ValueError for a stage or a world that is none, for gradients or tokens of another number of ranks, and for other shapes.

    So for a step before anything is attached, and for a save between micro-batches.
    """
    if not m.wrong_call:
        return SILENT
    return Found(1, f"{m.call} returned, though {m.wrong_call}; want ValueError" if m.answer.kind == RETURNED else "")


@sequence_law()
def what_raises_changes_nothing(m: ZeroMoment) -> Found:
    """After a call that raised, the parameters are what they were before it."""
    if m.answer.kind != RAISED or m.params is None or m.params_before is None:
        return SILENT
    same = m.params.keys() == m.params_before.keys() and all(np.array_equal(a, m.params_before[name]) for name, a in m.params.items())
    return Found(1, "" if same else f"{m.call} raised, and the parameters are others")


@sequence_law()
def parameters_have_their_names_and_shapes(m: ZeroMoment) -> Found:
    """Every parameter comes back under its name in its shape, without what a buffer was filled up with."""
    if m.params is None or not m.model.states:
        return SILENT
    got = {name: tuple(a.shape) for name, a in m.params.items()}
    want = {name: state.p.shape for name, state in m.model.states.items()}
    return Found(len(want), "" if got == want else f"params gives {got} after {m.call}; want {want}")


@sequence_law()
def parameters_follow_the_step_of_one_rank(m: ZeroMoment) -> Found:
    """Parameters are those of AdamW on one rank, with the mean of all ranks' gradients, or the sum over all over the number of tokens.

    Allowed: what legal roundings of sum, moments, root, quotient and move may differ, step after step, in the format of the parameters.
    """
    if m.params is None or not m.model.states:
        return SILENT
    compared = 0
    for name, state in m.model.states.items():
        got = np.asarray(m.params.get(name, np.nan), np.float64)
        if got.shape != state.p.shape:
            continue                                                            # the business of the law before
        compared += got.size
        off = ~(np.abs(got - state.p) <= m.model.allowed(name))
        if off.any():
            at = tuple(int(i) for i in np.argwhere(off)[0])
            return Found(compared, f"{name}{list(at)} is {got[at]:.9g} after {m.call}; want {state.p[at]:.9g} "
                                   f"within {m.model.allowed(name)[at]:.3g}")  # fmt: skip
    return Found(compared)


@sequence_law()
def nothing_moves_between_steps(m: ZeroMoment) -> Found:
    """`accumulate` and `reload` leave every bit of the parameters as it is."""
    if m.call.method not in ("accumulate", "reload") or m.params is None or m.params_before is None:
        return SILENT
    wrong = [name for name, a in m.params.items() if not np.array_equal(a, m.params_before.get(name, np.nan))]
    return Found(len(m.params), f"{wrong[0]} is another one after {m.call}" if wrong else "")


@sequence_law()
def the_norm_is_that_of_the_whole_gradient(m: ZeroMoment) -> Found:
    """`step` returns the norm of the whole averaged gradient, of all shards together, before it was clipped. Allowed: its roundings."""
    if m.norm is None:
        return SILENT
    allowed = m.model.unit * m.model.norm_allowed
    right = abs(m.norm - m.model.norm) <= allowed
    return Found(1, "" if right else f"step returned the norm {m.norm:.9g}; want {m.model.norm:.9g} within {allowed:.3g}, after {m.call}")


@sequence_law("held")
def every_rank_holds_its_share(m: ZeroMoment) -> Found:
    """Bytes a rank holds: e N each of weights, gradients and both moments, e ceil(N / R) of what the stage shares out.

    Stage 1 shares out the moments, 2 the gradients too, 3 the weights too; e bytes of the parameters' format.
    """
    if m.held is None or m.params is None or not m.model.states:
        return SILENT
    e, N, R, stage = next(iter(m.params.values())).dtype.itemsize, m.model.elements, m.model.world, m.model.stage
    S = -(-N // R)
    want = e * ((S if stage >= 3 else N) + (S if stage >= 2 else N) + 2 * (S if stage >= 1 else N))
    got = [sum(own.values()) for own in m.held]
    return Found(R, "" if got == [want] * R else f"the ranks hold {got} bytes after {m.call}; want {want} each, stage {stage}")


@sequence_law("moved")
def every_rank_sends_its_share(m: ZeroMoment) -> Found:
    """Bytes sent in a step, P = R ceil(N / R) elements filled up, A micro-batches, in units of e P (R - 1) / R:

        stage 0 and 1   2             stage 2   A + 1             stage 3   3 A

    Stage 0 reduces arrays that are not filled up: there the sum over all ranks is 2 e N (R - 1).
    """
    if m.call.method != "step" or m.answer.kind != RETURNED or m.moved is None or m.params is None:
        return SILENT
    e, N, R, stage, A = next(iter(m.params.values())).dtype.itemsize, m.model.elements, m.model.world, m.model.stage, m.model.last_pending
    part = e * -(-N // R) * (R - 1)
    if stage == 0:
        right = sum(m.moved) == 2 * e * N * (R - 1)
        return Found(1, "" if right else f"the ranks sent {sum(m.moved)} bytes in all; want {2 * e * N * (R - 1)}")
    want = part * {1: 2, 2: A + 1, 3: 3 * A}[stage]
    return Found(R, "" if list(m.moved) == [want] * R else f"the ranks sent {m.moved} bytes in {m.call}; want {want} each, stage {stage}")


ZERO_LAWS: tuple[SequenceLaw, ...] = (
    answers, a_wrong_call_is_refused, what_raises_changes_nothing, parameters_have_their_names_and_shapes,
    parameters_follow_the_step_of_one_rank, nothing_moves_between_steps, the_norm_is_that_of_the_whole_gradient,
    every_rank_holds_its_share, every_rank_sends_its_share,
)  # fmt: skip
