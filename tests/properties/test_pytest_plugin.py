"""`pytest --oracles-subject` runs one test a law; what is broken fails under the law's name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from oracles.properties.softmax import SOFTMAX
from oracles.properties.stateful.block_allocator import BLOCK_ALLOCATOR

LAWS = [law.name for law in SOFTMAX.laws]
KERNEL = """
import numpy as np

def softmax(x, *, axis=-1):
    m = x.max(axis=axis, keepdims=True, initial=-np.inf)
    p = np.exp(x - np.where(np.isneginf(m), 0, m))
    l = p.sum(axis=axis, keepdims=True)
    return p / np.where(l == 0, 1, l).astype(x.dtype)

def unnormalized(x, *, axis=-1):
    return 2 * softmax(x, axis=axis)
"""

POOL = """
from oracles.reference import BlockAllocator

class Miscounts(BlockAllocator):
    def stats(self):
        return {**super().stats(), "hits": 0}

block_allocator = BlockAllocator
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kernels.py").write_text(KERNEL)
    (tmp_path / "pools.py").write_text(POOL)
    declared = "rows = subject('softmax', dtypes=['float32'])(softmax)\n"
    (tmp_path / "declared.py").write_text(f"from oracles.properties import subject\nfrom kernels import softmax\n\n{declared}")
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:benchmark", "-v", "-rs", "--oracles-budget", "quick"]
    return subprocess.run([*command, *arguments], cwd=folder, capture_output=True, text=True, check=False)


def outcomes(output: str) -> dict[str, str]:
    return dict(re.findall(r"^\S*\[(\w+)\] (PASSED|FAILED|SKIPPED|ERROR)", output, re.MULTILINE))


def test_a_right_subject_passes_one_test_a_law_and_skips_what_does_not_bind_it(folder: Path) -> None:
    ended = run(folder, "--oracles-subject", "kernels.py:softmax")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = outcomes(ended.stdout)
    assert list(found) == LAWS
    skipped = [name for name, outcome in found.items() if outcome == "SKIPPED"]
    assert skipped == ["buffers_are_fully_written", "repeats_give_the_same_bits"]
    assert {found[name] for name in LAWS if name not in skipped} == {"PASSED"}
    assert "not covered: the subject takes no output buffers" in ended.stdout


def test_a_broken_subject_fails_under_the_names_of_its_laws(folder: Path) -> None:
    ended = run(folder, "--oracles-subject", "kernels.py:unnormalized", "--oracles-operation", "softmax")
    assert ended.returncode == 1
    found = outcomes(ended.stdout)
    assert list(found) == LAWS
    assert [name for name, outcome in found.items() if outcome == "FAILED"] == [
        "p_agrees_with_the_oracle", "equal_entries_share_exactly", "one_finite_entry_takes_all", "a_nan_makes_its_row_nan",
        "strides_are_respected"]  # fmt: skip
    assert "p_agrees_with_the_oracle: failed" in ended.stdout
    repro = re.search(r"again: python (\S+/repro\.py)", ended.stdout)
    assert repro is not None
    assert (folder / repro[1]).is_file()


def test_the_operation_may_be_declared_by_the_subject(folder: Path) -> None:
    ended = run(folder, "--oracles-subject", "declared.py:rows")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert list(outcomes(ended.stdout)) == LAWS


OBJECTS = {
    ("--oracles-subject", "pools.py:block_allocator"): [],
    ("--oracles-subject", "pools.py:Miscounts", "--oracles-operation", "block_allocator"): ["hits_and_evictions_are_counted"],
}


@pytest.mark.parametrize("arguments", OBJECTS, ids=lambda arguments: arguments[1])
def test_an_object_has_one_test_a_law(arguments: tuple[str, ...], folder: Path) -> None:
    found = outcomes(run(folder, *arguments, "--oracles-budget", "0").stdout)
    assert list(found) == [law.name for law in BLOCK_ALLOCATOR.laws]
    assert [law for law, outcome in found.items() if outcome == "FAILED"] == OBJECTS[arguments]
    assert set(found.values()) <= {"PASSED", "FAILED"}


def test_one_law_can_be_chosen_by_its_name(folder: Path) -> None:
    ended = run(folder, "--oracles-subject", "kernels.py:softmax", "-k", "equal_entries")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert outcomes(ended.stdout) == {"equal_entries_share_exactly": "PASSED"}


# arguments: words of the message
BAD_USAGE = {
    ("--oracles-subject", "kernels.py:softmax", "--oracles-operation", "sofmax"):
        "OPERATION: got 'sofmax'; want one of `oracles list`, such as softmax",
    ("--oracles-subject", "kernels.py:unnormalized"): "OPERATION: not given, and unnormalized declares none; want one of `oracles list`",
    ("--oracles-subject", "nowhere.py:rows"): "SUBJECT: no file nowhere.py; want an existing Python file",
}


@pytest.mark.parametrize("arguments", BAD_USAGE, ids=lambda arguments: arguments[-1])
def test_bad_usage_is_pytests_usage_error(arguments: tuple[str, ...], folder: Path) -> None:
    ended = run(folder, *arguments)
    assert ended.returncode == int(pytest.ExitCode.USAGE_ERROR), ended.stdout + ended.stderr
    assert BAD_USAGE[arguments] in ended.stderr + ended.stdout
    assert "Traceback" not in ended.stderr


def test_a_subject_that_cannot_be_imported_fails_with_the_reason(folder: Path) -> None:
    (folder / "broken.py").write_text("raise RuntimeError('no GPU here')\n")
    ended = run(folder, "--oracles-subject", "broken.py:softmax")
    assert ended.returncode == 1
    assert "broken.py:softmax fails on import: RuntimeError: no GPU here" in ended.stdout


def test_without_a_subject_the_plugin_adds_nothing(folder: Path) -> None:
    (folder / "test_nothing.py").write_text("def test_nothing(): pass\n")
    ended = run(folder)
    assert ended.returncode == 0
    assert "1 passed" in ended.stdout
