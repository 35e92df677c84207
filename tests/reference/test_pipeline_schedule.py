"""Pipeline schedules: each action once, none before what it needs, idle shares and activations as the formulas say."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from oracles.reference import pipeline_bubble, schedule, schedule_limits
from oracles.reference.pipeline_schedule import BACKWARD, FORWARD, WEIGHT, Schedule

# kind, stages, micro-batches, chunks: every size up to 7 stages and 15 micro-batches
SIZES = [(kind, p, m, v) for kind in ("gpipe", "1f1b", "zero_bubble", "interleaved") for p in range(1, 8) for m in range(16)
         for v in ((1, 2, 3) if kind == "interleaved" else (1,)) if kind != "interleaved" or m % p == 0]  # fmt: skip


def sized(kind: str, p: int, m: int, v: int) -> Schedule:
    return schedule(kind, stages=p, microbatches=m, chunks=v)


def test_every_action_is_done_once_on_its_stage() -> None:
    for kind, p, m, v in SIZES:
        ops = (FORWARD, BACKWARD, WEIGHT) if kind == "zero_bubble" else (FORWARD, BACKWARD)
        want = Counter((op, i, c) for op in ops for i in range(m) for c in range(v))
        assert all(Counter(map(tuple, row.tolist())) == want for row in sized(kind, p, m, v).actions), (kind, p, m, v)


def test_no_action_starts_before_what_it_needs_has_ended() -> None:
    for kind, p, m, v in SIZES:
        order = sized(kind, p, m, v)
        starts, ends = order.timeline((1.0, 2.0, 1.5))
        when = {(*map(int, order.actions[s, n]), s): (starts[s, n], ends[s, n]) for s, n in np.ndindex(*starts.shape)}
        for (op, i, c, s), (start, _) in when.items():
            piece = c * p + s
            before = {FORWARD: [(FORWARD, piece - 1)], WEIGHT: [(BACKWARD, piece)], BACKWARD: [(FORWARD, piece), (BACKWARD, piece + 1)]}[op]
            needed = [(o, i, other // p, other % p) for o, other in before if 0 <= other < p * v]
            assert all(when[key][1] <= start for key in needed), (kind, p, m, v)
        assert (np.diff(starts, axis=1) > 0).all()


def test_idle_share_and_activations_are_those_of_the_formulas() -> None:
    for kind, p, m, v in SIZES:
        order = sized(kind, p, m, v)
        idle, held = schedule_limits(kind, stages=p, microbatches=m, chunks=v)
        assert order.bubble() == pytest.approx(idle, abs=2.0**-50), (kind, p, m, v)
        assert order.peak_activations().tolist() == held.tolist(), (kind, p, m, v)


@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 8), (4, 8), (8, 64)])
def test_the_formula_of_gpipe_and_1f1b_is_that_of_costs(p: int, m: int) -> None:
    limits = [schedule_limits(kind, stages=p, microbatches=m)[0] for kind in ("gpipe", "1f1b")]
    assert [Fraction(x).limit_denominator(1000) for x in limits] == [pipeline_bubble(p, m)] * 2


def test_a_backward_pass_of_any_length_leaves_the_idle_share_of_gpipe_and_1f1b() -> None:
    for kind in ("gpipe", "1f1b"):
        idle = [schedule(kind, stages=4, microbatches=8).bubble((1.0, b, 0.0)) for b in (0.5, 1.0, 2.0, 3.0)]
        assert idle == pytest.approx([3 / 11] * 4, abs=2.0**-50)


def test_interleaving_divides_the_waiting_by_the_chunks() -> None:
    def waiting(chunks: int) -> float:
        idle = schedule("interleaved", stages=4, microbatches=8, chunks=chunks).bubble()
        return idle / (1.0 - idle)

    assert waiting(1) == pytest.approx(2 * waiting(2), abs=2.0**-48) == pytest.approx(3 * waiting(3), abs=2.0**-48)


def test_zero_bubble_waits_a_third_of_1f1b_in_the_same_units() -> None:
    """1f1b with the split backward pass counted as one of two units: 3 (p - 1) idle units against p - 1."""
    one, zero = schedule("1f1b", stages=4, microbatches=8), schedule("zero_bubble", stages=4, microbatches=8)
    assert one.timeline((1.0, 2.0, 0.0))[1].max() == 3 * 8 + 3 * 3
    assert zero.timeline((1.0, 1.0, 1.0))[1].max() == 3 * 8 + 3


def test_what_waits_for_ever_is_named() -> None:
    order = schedule("1f1b", stages=2, microbatches=2)
    actions = order.actions.copy()
    actions[1] = actions[1][::-1]
    with pytest.raises(ValueError, match=r"stage 0 waits for ever with action 2, B of micro-batch 0 \(chunk 0\); want what it needs"):
        Schedule(actions).timeline()


@pytest.mark.parametrize(("arguments", "message"), [
    ({"kind": "dualpipe", "stages": 2, "microbatches": 2}, "kind: got 'dualpipe'; want one of gpipe, 1f1b, interleaved, zero_bubble"),
    ({"kind": "1f1b", "stages": 0, "microbatches": 2}, "stages: got 0; want a whole number >= 1"),
    ({"kind": "1f1b", "stages": 2, "microbatches": -1}, "microbatches: got -1; want a whole number >= 0"),
    ({"kind": "1f1b", "stages": 2, "microbatches": 2, "chunks": 2}, "chunks: got 2 for kind '1f1b'; want 1, or kind 'interleaved'"),
    ({"kind": "interleaved", "stages": 4, "microbatches": 6}, "microbatches: got 6 for 4 stages; want a multiple of 4"),
])  # fmt: skip
def test_bad_input_is_refused_by_name(arguments, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        schedule(**arguments)
