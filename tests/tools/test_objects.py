"""The command line on objects: check, replay, list, show; exit codes, JSON, JUnit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from .test_schemas import schema

POOL = '''
class OutOfBlocks(Exception):
    pass

class Pool:
    def __init__(self, num_blocks, block_size):
        self.blocks, self.size, self.tables = list(range(num_blocks)), block_size, {}

    def allocate(self, seq, tokens):
        need = -(-len(tokens) // self.size)
        if seq in self.tables:
            raise ValueError(seq)
        if need > len(self.blocks):
            raise OutOfBlocks
        self.tables[seq] = [self.blocks.pop() for _ in range(need)]

    def table(self, seq):
        if seq not in self.tables:
            raise ValueError(seq)
        return self.tables[seq]

    def free(self, seq):
        self.blocks += self.table(seq)
        del self.tables[seq]

class Leaks(Pool):
    def free(self, seq):
        self.blocks += self.table(seq)[1:]
        del self.tables[seq]
'''


@pytest.fixture
def pools(oracles: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    (tmp_path / "pools.py").write_text(POOL)
    return oracles


def test_a_right_pool_is_exit_0(pools: Callable[..., Any]) -> None:
    ended = pools("check", "block_allocator", "pools.py:Pool", "--budget", "2", "--json")
    assert ended.code == 0, ended.err
    assert ended.data["held"] is True
    jsonschema.validate(ended.data, schema("check"))


def test_a_leak_is_exit_1_with_a_folder_that_replays(pools: Callable[..., Any], tmp_path: Path) -> None:
    ended = pools("check", "block_allocator", "pools.py:Leaks", "--budget", "2", "--json", "--junit", "out.xml", "--law",
                  "everything_freed_is_the_initial_state")  # fmt: skip
    assert ended.code == 1
    jsonschema.validate(ended.data, schema("check"))
    (broken,) = ended.data["verdicts"]
    assert broken["status"] == "failed"
    assert broken["worst_ratio_infinite"]
    assert ElementTree.parse(tmp_path / "out.xml").getroot().find("testsuite/testcase/failure") is not None
    again = pools("replay", broken["counterexample"], "--json")
    assert (again.code, again.data["failed"], again.data["reason"]) == (1, True, broken["reason"])
    assert [call["call"] for call in again.data["calls"]] == broken["case"].split("; ")
    healed = pools("replay", broken["counterexample"], "--subject", "pools.py:Pool")
    assert healed.code == 0
    assert "holds now" in healed.out


def test_without_a_subject_our_own_is_checked(pools: Callable[..., Any]) -> None:
    ended = pools("check", "kv_cache", "--budget", "0", "--json")
    assert (ended.code, ended.data["subject"]) == (0, "oracles.reference.kv_cache:KVCache")


def test_an_object_declares_nothing(pools: Callable[..., Any]) -> None:
    ended = pools("check", "block_allocator", "pools.py:Pool", "--dtype", "float32")
    assert ended.code == 2
    assert "dtypes: block_allocator is an object, which declares nothing" in ended.err


def test_objects_are_listed_and_shown(pools: Callable[..., Any]) -> None:
    listed = {entry["operation"]: entry for entry in pools("list", "--json").data}
    assert "fork" in listed["block_allocator"]["methods"]
    assert "kv_cache" in pools("list").out
    shown = pools("show", "block_allocator")
    assert "**no_block_is_owned_twice**" in shown.out
    assert pools("show", "kv_cache", "--json").data["required"] == ["append", "view", "__len__"]


def test_a_spoilt_folder_is_bad_usage(pools: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "spoilt").mkdir()
    (tmp_path / "spoilt" / "sequence.json").write_text("{}")
    ended = pools("replay", "spoilt")
    assert ended.code == 2
    assert "want a folder that a check has written" in ended.err
