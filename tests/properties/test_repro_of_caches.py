"""Repros of caches written in place, of bits that no number shows, of options that are records: red alone, green when mended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oracles.properties import check, checker
from oracles.properties.case import Case

from .test_counterexample import alone

WRITER = '''
import numpy as np

def write(k_cache, v_cache, k, v, slots):
    for token, slot in enumerate(slots):
        if slot >= 0:
            k_cache[slot], v_cache[slot] = k[token], v[token]

def new(k_cache, v_cache, k, v, slots):
    k_cache, v_cache = k_cache.copy(), v_cache.copy()
    write(k_cache, v_cache, k, v, slots)
    return k_cache, v_cache
'''
TURNER = '''
import numpy as np

def turn(x, positions, *, pairing, scaling=None):
    R = x.shape[-1]
    t = positions.astype(float)[..., None] * 10000.0 ** (-np.arange(0, R, 2) / R) / (scaling["factor"] if scaling else 1)
    a, b = (slice(0, R // 2), slice(R // 2, R)) if pairing == "half" else (slice(0, R, 2), slice(1, R, 2))
    out = np.array(x)
    out[..., a], out[..., b] = x[..., a] * np.cos(t) - x[..., b] * np.sin(t), x[..., b] * np.cos(t) + x[..., a] * np.sin(t)
    return out
'''
IN_PLACE = {"in_place": ["k_cache", "v_cache"], "dtypes": ["float32"]}
# what is broken: (operation, source, function, what it is replaced with, law, declared)
FAULTS: dict[str, tuple[str, str, str, tuple[str, str], str, dict[str, Any]]] = {
    "a wrong value in place": (
        "write_kv", WRITER, "write", ("v[token]", "k[token]"), "v_cache_agrees_with_the_oracle", {**IN_PLACE, "refuses": ["value_dim"]}),
    "-1 names the last slot, in place": (
        "write_kv", WRITER, "write", ("if slot >= 0", "if len(k_cache)"), "skipped_tokens_write_nothing", IN_PLACE),
    "an input scribbled on, in place": (
        "write_kv", WRITER, "write", ("k[token], v[token]", "k[token], v[token]; k[token] = 0"), "inputs_stay_untouched", IN_PLACE),
    "the payload of NaN lost": (
        "write_kv", WRITER, "new", ("return k_cache, v_cache", "return np.where(np.isnan(k_cache), np.float32(np.nan), k_cache), v_cache"),
        "other_slots_keep_their_bits", {"dtypes": ["float32"]}),
    "the sign of a zero lost": (
        "write_kv", WRITER, "new", ("    write(k_cache, v_cache, k,", "    write(k_cache, v_cache, k + np.float32(0),"),
        "tokens_are_copied_bit_for_bit", {"dtypes": ["float32"]}),
    "a record ignored": (
        "rope", TURNER, "turn", ('scaling["factor"] if scaling', "1 if scaling"), "out_agrees_with_the_oracle",
        {"dtypes": ["float32"], "only": {"scaling": ["linear"]}}),
    "one pairing for the other": (
        "rope", TURNER, "turn", ('pairing == "half"', "True"), "one_pairing_is_the_other_permuted",
        {"dtypes": ["float32"], "only": {"scaling": ["none", "linear"]}}),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_the_repro_fails_alone_and_passes_with_the_mended_kernel(fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "SHRINK_SECONDS", 1.0)
    operation, source, function, (text, other), law, declared = FAULTS[fault]
    assert source.count(text) >= 1
    (tmp_path / "faulty.py").write_text(source.replace(text, other))
    (tmp_path / "sound.py").write_text(source)
    report = check(operation, f"{tmp_path / 'faulty.py'}:{function}", budget="quick", in_process=True, laws=(law,),
                   failures=tmp_path / "failures", declared=declared)  # fmt: skip
    (verdict,) = report.verdicts
    assert verdict.status == "failed"
    wrong = alone(f"{verdict.counterexample}/repro.py")
    assert (wrong.returncode, wrong.stdout.startswith(f"{law}: FAILS: ")) == (1, True), wrong.stdout + wrong.stderr
    mended = alone(f"{verdict.counterexample}/repro.py", f"{tmp_path / 'sound.py'}:{function}")
    assert (mended.returncode, mended.stdout) == (0, f"{law}: holds on this case\n"), mended.stdout + mended.stderr
    case, _ = Case.load(Path(f"{verdict.counterexample}/case.safetensors"))
    assert case.operation == operation


ADDS = WRITER.replace("k_cache[slot], v_cache[slot] = k[token], v[token]", "k_cache[slot] += k[token]")
SOMETIMES = ADDS + """
calls = []

def adds_sometimes(k_cache, v_cache, k, v, slots):
    calls.append(1)
    write(k_cache, v_cache, k if len(calls) % 2 else 2 * k, v, slots)
"""


def test_every_run_in_place_starts_from_the_case_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that adds instead of writing repeats itself only if every run gets fresh caches, in the check and in the repro."""
    monkeypatch.setattr(checker, "SHRINK_SECONDS", 1.0)
    (tmp_path / "adds.py").write_text(ADDS)
    (tmp_path / "sometimes.py").write_text(SOMETIMES)
    law, told = "repeats_give_the_same_bits", {**IN_PLACE, "promises": ["deterministic"]}
    reports = [check("write_kv", f"{tmp_path}/{kernel}", budget="quick", in_process=True, laws=(law,), failures=tmp_path, declared=told)
               for kernel in ("adds.py:write", "sometimes.py:adds_sometimes")]  # fmt: skip
    assert [report.verdicts[0].status for report in reports] == ["held", "failed"]
    repro = f"{reports[1].verdicts[0].counterexample}/repro.py"
    assert alone(repro).stdout.startswith(f"{law}: FAILS: ")
    again = alone(repro, f"{tmp_path}/adds.py:write")
    assert "other bits" not in again.stdout, again.stdout
