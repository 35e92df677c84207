"""Our own generation loops for a batch in step keep every law, and differ from a loop of one text in nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from oracles import reference
from oracles.properties import check
from oracles.properties.report import HELD
from oracles.tools.loop_ports import mtp_loop_in_step, speculative_loop_in_step

PORTS = {"speculative_loop": speculative_loop_in_step, "mtp_loop": mtp_loop_in_step}


@pytest.mark.parametrize("operation", PORTS)
def test_every_law_holds(operation: str) -> None:
    report = check(operation, PORTS[operation], budget="quick")
    assert report.held
    silent = {verdict.law for verdict in report.verdicts if verdict.status != HELD}
    assert silent == {"emissions_pass_the_test_of_their_law", "buffers_are_fully_written"}


@pytest.mark.parametrize("operation", PORTS)
def test_a_text_that_has_ended_is_carried_along_unchanged(operation: str) -> None:
    """Texts of very different numbers of passes, beside each other here and alone in the oracle."""
    port: Callable[..., Any] = PORTS[operation]
    p = np.array([[[0.5, 0.25, 0.25], [0.0, 0.5, 0.5], [0.25, 0.25, 0.5]]] * 3)
    q = p[::-1, ::-1].copy()
    drafts, u = (q[None] if operation == "mtp_loop" else q), np.random.default_rng(0).random((6, 9, 3))
    prompt = np.arange(6)[:, None] % 3
    tokens, n = port(p, drafts, prompt, u, eos=1)
    assert len(set((tokens != -1).sum(axis=1).tolist())) > 1
    for b in range(6):
        alone = getattr(reference, operation)(p, drafts, prompt[b : b + 1], u[b : b + 1], eos=1)
        assert (alone[0][0].tolist(), alone[1][0].tolist()) == (tokens[b].tolist(), n[b].tolist())
