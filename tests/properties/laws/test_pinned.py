"""A broken relation leaves evidence that outlives the bug: the oracle's answer to the call that is wrong, not the other call's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from oracles.properties import check

# Wrong for an even number of keys only, so that either call of a relation may be the wrong one.
BROKEN = '''
import numpy as np

def attention(q, k, v, *, causal=None, scale=None):
    B, Hq, Lq, D = q.shape
    k, v = (np.repeat(x, Hq // x.shape[1], axis=1).astype(np.float64) for x in (k, v))
    s = q.astype(np.float64) @ k.swapaxes(-1, -2) * (D**-0.5 if scale is None else scale)
    Lk = k.shape[2]
    if causal:
        s = np.where(np.arange(Lk) <= np.arange(Lq)[:, None] + Lk - Lq, s, -np.inf)
    m = s.max(-1, keepdims=True, initial=-np.inf)
    p = np.exp(s - np.where(np.isneginf(m), 0, m))
    l = p.sum(-1, keepdims=True)
    out = p @ v / np.where(l == 0, 1, l)
    with np.errstate(divide="ignore"):
        lse = (np.where(np.isneginf(m), 0, m) + np.log(l))[..., 0]
    return (out * FACTOR).astype(q.dtype), lse.astype(q.dtype)
'''
RELATIONS = [
    "two_parts_merge_into_the_whole",
    "outputs_lie_among_the_values",
    "the_last_queries_alone_are_the_same",
    "each_item_of_a_batch_stands_alone",
    "every_key_twice_weighs_the_same",
    "the_order_of_keys_does_not_matter",
]
FACTORS = {
    "the_last_queries_alone_are_the_same": "(1.5 if Lq % 2 else 1)",
    "each_item_of_a_batch_stands_alone": "(1.5 if B > 1 else 1)",
    "the_order_of_keys_does_not_matter": "(1.5 if k[..., :1, :].sum() > 0 else 1)",
}


def kernel(folder: Path, name: str, factor: str) -> Path:
    path = folder / f"{name}.py"
    path.write_text(BROKEN.replace("FACTOR", factor))
    return path


def repro(folder: str, *arguments: Any) -> int:
    return subprocess.run([sys.executable, f"{folder}/repro.py", *map(str, arguments)], capture_output=True, check=False).returncode


@pytest.mark.parametrize("law", RELATIONS)
def test_the_repro_of_a_relation_fails_until_the_kernel_is_right(tmp_path: Path, law: str) -> None:
    broken = kernel(tmp_path, "broken", FACTORS.get(law, "(1.5 if Lk % 2 == 0 else 1)"))
    report = check("attention", f"{broken}:attention", budget=0, laws=(law,), failures=tmp_path / "failures")
    (verdict,) = report.verdicts
    assert verdict.status == "failed", verdict
    assert verdict.counterexample is not None
    assert repro(verdict.counterexample) == 1
    assert repro(verdict.counterexample, f"{kernel(tmp_path, 'right', '1')}:attention") == 0
