"""Objects under the checker: worker, verdicts, shrinking, the folder of a failure and its repro, alone in the world."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles.properties import check
from oracles.properties.declaration import UsageError
from oracles.properties.report import FAILED, NOT_COVERED
from oracles.properties.stateful import allocator_laws
from oracles.properties.stateful.allocator_sequences import allocate, designed_sequences, fork, free, new
from oracles.properties.stateful.block_allocator import BLOCK_ALLOCATOR
from oracles.properties.stateful.checker import check_object
from oracles.properties.stateful.names import STATEFUL_NAMES
from oracles.properties.stateful.operations import STATEFUL_OPERATIONS
from oracles.properties.stateful.run import begin, draw_sequences
from oracles.properties.stateful.sequence import RETURNED, Answer, Call, Floats, from_json, perform, to_json
from oracles.properties.stateful.shrinking import STARTS, breaks, hunted, shortest, size
from oracles.properties.stateful.subjects import ObjectInProcess
from oracles.properties.zoo.paged_allocator import ReadersThatDoNotHold
from oracles.properties.zoo.textbook_pool import Pool
from oracles.reference import BlockAllocator, paged_attention

POOLS = '''
import os, time
class OutOfBlocks(Exception):
    pass

class Right:
    def __init__(self, num_blocks, block_size):
        self.blocks, self.size, self.tables, self.lengths = list(range(num_blocks)), block_size, {}, {}

    def allocate(self, seq, tokens):
        need = -(-len(tokens) // self.size)
        if seq in self.tables:
            raise ValueError(seq)
        if need > len(self.blocks):
            raise OutOfBlocks
        self.tables[seq], self.lengths[seq] = [self.blocks.pop() for _ in range(need)], len(tokens)

    def table(self, seq):
        if seq not in self.tables:
            raise ValueError(seq)
        return self.tables[seq]

    def free(self, seq):
        self.blocks += self.table(seq)
        del self.tables[seq]

class FreesTwice(Right):
    def free(self, seq):
        self.blocks += self.table(seq)
        super().free(seq)

class Kills(Right):
    def free(self, seq):
        os.kill(os.getpid(), 9)

class Hangs(Right):
    def free(self, seq):
        time.sleep(1000)

class Refuses(Right):
    def free(self, seq):
        raise NotImplementedError("nothing is ever freed")

class NoPool:
    def __init__(self, num_blocks, block_size):
        pass
'''
THE_REPAIR = "class FreesTwice(Right):\n    pass\n"


@pytest.fixture
def pools(tmp_path: Path) -> Path:
    file = tmp_path / "pools.py"
    file.write_text(POOLS)
    return file


def verdict(report: Any, law: str) -> Any:
    return next(v for v in report.verdicts if v.law == law)


def test_the_oracle_holds_in_a_worker() -> None:
    report = check("block_allocator", "oracles.reference:BlockAllocator", budget=5)
    assert report.held
    assert report.not_covered == ()
    assert all(v.compared > 0 for v in report.verdicts)


def test_names_are_those_of_the_operations() -> None:
    assert tuple(operation.name for operation in STATEFUL_OPERATIONS) == STATEFUL_NAMES


def test_what_a_subject_lacks_is_not_covered_and_not_passed(pools: Path) -> None:
    report = check_object("block_allocator", f"{pools}:Right", budget=5)
    assert report.held
    assert "fork: the subject has no such method" in report.not_covered
    assert verdict(report, "published_only_by_commit").status == NOT_COVERED
    assert verdict(report, "what_was_committed_is_found").status == NOT_COVERED


def test_a_broken_law_is_shrunk_to_the_shortest_calls(pools: Path) -> None:
    broken = verdict(check_object("block_allocator", f"{pools}:FreesTwice", budget=0), "no_block_is_owned_twice")
    assert broken.status == FAILED
    assert broken.case == "x = SUBJECT(1, 1); x.allocate('a', [0]); x.free('a'); x.allocate('e', [0, 0])"


def test_a_process_that_is_killed_is_a_verdict(pools: Path) -> None:
    report = check_object("block_allocator", f"{pools}:Kills", budget=0, laws=("answers",))
    assert "x.free('a'): the process killed by SIGKILL" in verdict(report, "answers").reason
    assert not report.held


def test_a_hang_is_a_verdict_and_ends_the_run(pools: Path) -> None:
    report = check_object("block_allocator", f"{pools}:Hangs", budget=0, call_seconds=1.0)
    assert "did not return within 1 s" in verdict(report, "answers").reason
    assert "the subject hung" in report.stopped


def test_notimplemented_is_not_covered(pools: Path) -> None:
    report = check_object("block_allocator", f"{pools}:Refuses", budget=0)
    assert verdict(report, "answers").status != FAILED
    assert any("ended with NotImplementedError" in line for line in report.not_covered)


@pytest.mark.parametrize(("name", "message"), [
    ("NoPool", "makes an object without allocate, free, table; want allocate, free, table"),
    ("Nobody", "has no 'Nobody'"),
    ("time", "is module; want a function"),
])  # fmt: skip
def test_no_subject_is_bad_usage(pools: Path, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_object("block_allocator", f"{pools}:{name}")


def test_an_unknown_law_is_bad_usage() -> None:
    with pytest.raises(UsageError, match="block_allocator has no gravity"):
        check_object("block_allocator", BlockAllocator, laws=("gravity",))


def run_alone(folder: Path, world: Path) -> subprocess.CompletedProcess[str]:
    """A repro where importing oracles fails."""
    (world / "oracles").mkdir(exist_ok=True)
    (world / "oracles" / "__init__.py").write_text("raise ImportError('a repro must not need us')\n")
    command = [sys.executable, str(folder / "repro.py")]
    return subprocess.run(command, env={"PYTHONPATH": str(world)}, cwd=world, capture_output=True, text=True)


def test_the_repro_fails_alone_while_the_bug_lives_and_passes_when_it_is_gone(pools: Path, tmp_path: Path) -> None:
    report = check_object("block_allocator", f"{pools}:FreesTwice", budget=0, failures=tmp_path / "failures",
                          laws=("no_block_is_owned_twice",))  # fmt: skip
    folder = Path(report.verdicts[0].counterexample or "")
    lives = run_alone(folder, tmp_path)
    assert lives.returncode == 1, lives.stderr
    assert lives.stdout.splitlines() == [f"no_block_is_owned_twice: {report.verdicts[0].reason}"]
    text = pools.read_text()
    pools.write_text(text[: text.index("class FreesTwice")] + THE_REPAIR)
    gone = run_alone(folder, tmp_path)
    assert (gone.returncode, gone.stdout) == (0, "no_block_is_owned_twice: holds on these calls\n"), gone.stderr


def test_the_repro_of_a_crash_is_exit_1(pools: Path, tmp_path: Path) -> None:
    report = check_object("block_allocator", f"{pools}:Kills", budget=0, failures=tmp_path / "failures", laws=("answers",))
    ended = run_alone(Path(report.verdicts[0].counterexample or ""), tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "answers: a call kills its process by signal 9\n")


def test_what_a_repro_carries_needs_nothing_of_ours(tmp_path: Path) -> None:
    for operation in STATEFUL_OPERATIONS:
        assert {operation.model_name.split(":")[0], operation.laws_name.split(":")[0]} <= set(operation.carried)


# Random sequences ------------------------------------------------------------------------------------------------------


def drawn(seed: int, count: int = 6) -> list[tuple[Call, ...]]:
    run = begin(BLOCK_ALLOCATOR, ObjectInProcess(BlockAllocator, BLOCK_ALLOCATOR))
    found: list[tuple[Call, ...]] = []
    draw_sequences(run, count, seed, lambda session, ended: found.append(tuple(session.play.performed)) if ended else None)
    return found


def test_a_seed_gives_the_same_sequences_and_another_seed_others() -> None:
    assert drawn(3) == drawn(3) != drawn(4)


def test_random_sequences_are_long_and_of_all_methods() -> None:
    sequences = drawn(0, 40)
    assert {call.method for calls in sequences for call in calls} >= {"new", *BLOCK_ALLOCATOR.weights}
    assert max(map(len, sequences)) > 20


def test_nothing_is_left_where_the_user_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    drawn(0)
    assert list(tmp_path.iterdir()) == []


def test_random_sequences_find_it_and_shrink_without_any_designed_one() -> None:
    run = begin(BLOCK_ALLOCATOR, ObjectInProcess(ReadersThatDoNotHold, BLOCK_ALLOCATOR))
    law = next(law for law in BLOCK_ALLOCATOR.laws if law.name == "no_block_is_owned_twice")
    found = hunted(run, law, count=80, seed=0, seconds=600)                     # far more than it takes
    assert 1 < len(found) <= STARTS

    def fails(calls: tuple[Call, ...]) -> bool:
        return bool(breaks(BLOCK_ALLOCATOR, run.subject, run.abilities, law, calls))

    assert all(map(fails, found))
    least = min((shortest(calls, fails, BLOCK_ALLOCATOR.in_bounds, seconds=120) for calls in found), key=size)
    assert fails(least)
    assert not any(fails(least[:i] + least[i + 1 :]) for i in range(1, len(least)))              # every call of it is needed


def test_shrinking_keeps_the_law_and_the_bounds() -> None:
    calls = (new(7, 3), allocate("a", 5, 6, 7), fork("a", "b"), free("a"), free("b"), allocate("c", 9, 9))

    def fails(candidate: tuple[Call, ...]) -> bool:
        return [call.method for call in candidate].count("free") > 1

    small = shortest(calls, fails, BLOCK_ALLOCATOR.in_bounds, seconds=10)
    assert small == (new(0, 1), free("a"), free("b"))
    assert size(small) < size(calls)


# Data ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [
    Call("allocate", ("a", (1, 2)), (("salt", b"\0x"),)), Answer(RETURNED, [1, [2, 3], {"used": 4}, None]), Floats((1, 2), 3, -1), (), b"",
    0.5, True,
])  # fmt: skip
def test_calls_and_answers_travel_unchanged(value: Any) -> None:
    assert from_json(json.loads(json.dumps(to_json(value)))) == value


def test_arrays_travel_unchanged() -> None:
    array = np.array([[1.5, np.nan]], np.float32)
    back = from_json(json.loads(json.dumps(to_json(array))))
    assert back.dtype == array.dtype
    assert np.array_equal(back, array, equal_nan=True)


def test_what_is_no_plain_data_is_malformed() -> None:
    answer, _ = perform(Pool(1, 1), Call("record", ("a",)))
    assert answer.raised("ValueError")
    assert perform(type("Odd", (), {"table": lambda self: object()})(), Call("table"))[0].kind == "malformed"


def test_every_designed_sequence_is_about_something_else() -> None:
    sequences = designed_sequences()
    assert len(set(sequences.values())) == len(sequences)


def test_attention_in_the_law_is_paged_attention() -> None:
    """The laws carry their own attention, so that a repro needs NumPy alone: it is the oracle's, but for the order of its sums."""
    contents = [(b"x", tuple(range(t + 1))) for t in range(7)]
    kv = np.array([allocator_laws._keys_and_values(content) for content in contents])
    k, v = np.split(np.vstack([kv, np.full((1, 8), np.nan)]), 2, axis=1)
    pages = [array.reshape(4, 2, 1, 4)[[2, 0, 3, 1]] for array in (k, v)]       # token t stands in block table[t // 2]
    q, table, length = allocator_laws.QUERY[None, None, None], np.array([[1, 3, 0, 2]]), np.array([7])
    wanted, _ = paged_attention(q, *pages, table, length, causal=None, scale=1.0)
    # 7 terms up to 8, each product, sum and exponential rounded: 32 roundings of numbers up to 8, on both sides.
    assert np.abs(allocator_laws._attention(list(contents)) - wanted.ravel()).max() <= 2 * 32 * 8 * np.finfo(np.float64).eps
