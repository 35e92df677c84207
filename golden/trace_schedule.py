"""The second route of timelines: when an action ends is asked of what it waits for, and so on back to the first."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

FORWARD, BACKWARD, WEIGHT = 0, 1, 2


def schedule_timeline(actions: Any, chunks: int, split: bool, durations: Any) -> dict[str, Any]:
    stages, n, _ = actions.shape
    where = {}                                                                  # (op, micro-batch, piece) -> stage and place
    for s in range(stages):
        for i in range(n):
            op, batch, chunk = actions[s, i].tolist()
            where[op, batch, chunk * stages + s] = (s, i)

    @cache
    def end(s: int, i: int) -> int:
        return start(s, i) + int(durations[actions[s, i, 0]])

    def start(s: int, i: int) -> int:
        op, batch, chunk = actions[s, i].tolist()
        piece, waits = chunk * stages + s, [(s, i - 1)] if i else []
        before = {FORWARD: [(FORWARD, piece - 1)], BACKWARD: [(FORWARD, piece), (BACKWARD, piece + 1)], WEIGHT: [(BACKWARD, piece)]}[op]
        waits += [where[kind, batch, other] for kind, other in before if 0 <= other < chunks * stages]
        return max((end(*one) for one in waits), default=0)

    times = np.asarray([[(start(s, i), end(s, i)) for i in range(n)] for s in range(stages)], dtype=np.int64).reshape(stages, n, 2)
    peaks = []
    for row in actions[:, :, 0].tolist():
        freeing = WEIGHT if split else BACKWARD
        peaks.append(max((row[: i + 1].count(FORWARD) - row[: i + 1].count(freeing) for i in range(n)), default=0))
    return {"starts": times[..., 0], "ends": times[..., 1], "peak": np.asarray(peaks, dtype=np.int64)}
