"""`suite` in a test file: one test a law, from one run of the checker."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from oracles.properties.pytest_suite import conclude, explanation, suite
from oracles.properties.report import ERROR, FAILED, HELD, NOT_COVERED, Verdict
from oracles.properties.softmax import SOFTMAX
from oracles.properties.stateful.block_allocator import BLOCK_ALLOCATOR

LAWS = [law.name for law in SOFTMAX.laws]
TEST_FILE = """
import numpy as np
from oracles.properties import suite
from oracles import reference

calls = []

def softmax(x, *, axis=-1):
    calls.append(1)
    return (FACTOR * reference.softmax(x, axis=axis)).astype(x.dtype)

test_softmax = suite("softmax", softmax, budget="quick")

def test_the_checker_ran_once():
    print("calls:", len(calls))
"""

OBJECT_FILE = """
from oracles.properties import suite
from oracles.reference import BlockAllocator

class Pool(BlockAllocator):
    def stats(self):
        return {**super().stats(), "hits": HITS}

test_pool = suite("block_allocator", Pool, budget=0)
"""


def run(folder: Path, factor: int) -> subprocess.CompletedProcess[str]:
    (folder / "test_kernels.py").write_text(TEST_FILE.replace("FACTOR", str(factor)))
    return pytest_on(folder)


def pytest_on(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:benchmark", "-v", "-s"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def outcomes(output: str) -> dict[str, str]:
    return dict(re.findall(r"::test_softmax\[(\w+)\] (PASSED|FAILED|SKIPPED|ERROR)", output))


def test_a_right_subject_passes(tmp_path: Path) -> None:
    ended = run(tmp_path, 1)
    assert ended.returncode == 0, ended.stdout
    assert list(outcomes(ended.stdout)) == LAWS
    assert set(outcomes(ended.stdout).values()) == {"PASSED", "SKIPPED"}
    assert not (tmp_path / "failures").exists()


def test_a_broken_subject_fails_with_the_place_and_the_way_to_see_it_again(tmp_path: Path) -> None:
    ended = run(tmp_path, 3)
    assert ended.returncode == 1
    assert list(outcomes(ended.stdout)) == LAWS
    assert outcomes(ended.stdout)["p_agrees_with_the_oracle"] == "FAILED"
    assert outcomes(ended.stdout)["inputs_stay_untouched"] == "PASSED"
    assert re.search(r"p_agrees_with_the_oracle: failed\n.*p\[0,.*of what is allowed", ended.stdout)
    repro = re.search(r"again: python (\S+/repro\.py)", ended.stdout)
    assert repro is not None
    assert (tmp_path / repro[1]).is_file()


def test_the_checker_runs_once_for_all_laws(tmp_path: Path) -> None:
    (calls,) = re.findall(r"calls: (\d+)", run(tmp_path, 1).stdout)
    assert 40 < int(calls) < 400


def test_an_object_has_one_test_a_law(tmp_path: Path) -> None:
    laws = [law.name for law in BLOCK_ALLOCATOR.laws]
    for hits, broken in (("super().stats()['hits']", []), ("0", ["hits_and_evictions_are_counted"])):
        (tmp_path / "test_pools.py").write_text(OBJECT_FILE.replace("HITS", hits))
        found = dict(re.findall(r"::test_pool\[(\w+)\] (PASSED|FAILED|SKIPPED|ERROR)", pytest_on(tmp_path).stdout))
        assert list(found) == laws
        assert [law for law in laws if found[law] == "FAILED"] == broken
        assert set(found.values()) <= {"PASSED", "FAILED"}


def test_an_unknown_operation_is_refused_where_the_suite_is_written() -> None:
    with pytest.raises(ValueError, match="OPERATION: got 'sofmax'; want one of `oracles list`, such as softmax"):
        suite("sofmax", len)


def test_held_passes() -> None:
    conclude(Verdict("a_law", HELD, compared=1))


def test_not_covered_skips_and_says_why() -> None:
    with pytest.raises(pytest.skip.Exception, match="not covered: the subject takes no scale"):
        conclude(Verdict("a_law", NOT_COVERED, "the subject takes no scale"))


@pytest.mark.parametrize("status", [FAILED, ERROR])
def test_failed_and_error_fail(status: str) -> None:
    with pytest.raises(pytest.fail.Exception, match=f"a_law: {status}\nout is wrong"):
        conclude(Verdict("a_law", status, "out is wrong"))


def test_an_explanation_names_the_case_and_the_folder() -> None:
    verdict = Verdict("a_law", FAILED, "out is wrong", counterexample="failures/x", case="q 1x1")
    assert explanation(verdict).splitlines() == [
        "a_law: failed", "out is wrong", "case: q 1x1", "again: python failures/x/repro.py, or oracles replay failures/x"]  # fmt: skip
