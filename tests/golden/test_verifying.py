"""Verification finds what bytes cannot show: values that are off by one unit, answers of traces, draws; each with a consistent manifest."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from oracles.golden import recheck, second_route, store, traces
from oracles.golden.certified import Limbs
from oracles.golden.sets import SETS
from oracles.golden.store import Entry
from oracles.golden.verifying import Verification, _certify, verify
from oracles.properties import safetensors_file

SMALL = ("softmax/pair", "log_sum_exp/near-zero", "merge_attention/near", "attention/bias-and-mask", "attention_backward/nothing-visible",
         "attention_packed/top-left", "attention_packed_backward/top-left", "rope/yarn", "paged_attention/sinks", "mla_attention/lengths",
         "filter_probabilities/all-filters", "mtp_loss/everything", "cross_entropy/everything", "cross_entropy_backward/everything",
         "vocab_parallel_cross_entropy/everything", "distillation_loss/jsd-temperature", "quantize/groups-affine",
         "dequantize/sixteen-bits", "quantized_matmul/float64", "adamw_step/second-step", "clip_grad_norm/clipped",
         "dequantize_blockwise/maxima-quantized-float64", "master_weight_step/clipped", "all_reduce/tree-mean",
         "reduce_scatter/mean-of-three", "all_gather/ragged", "bucketed_all_reduce/two-in-a-bucket", "accumulate_gradients/both",
         "tied_gradients/two-copies", "column_parallel/float64", "row_parallel/float64", "shard_qkv/fewer-key-heads-than-ranks",
         "vocab_parallel_embedding/no-multiple", "vocab_parallel_cross_entropy_backward/everything", "norm_backward_sharded/tokens",
         "clip_grad_norm_sharded/both", "ring_attention/packed-zigzag", "ring_attention_backward/zigzag",
         "sharded_cache_attention/two-at-a-time", "exchanged_norm_backward/two-ranks", "route/bias-chooses",
         "balance_loss/not-distributions", "balance_loss_backward/masked", "moe_layer/few-places-two-choices",
         "expert_parallel_backward/few-places-two-choices", "pipeline_loss/ragged", "pipeline_step/dropout")  # fmt: skip


def entry_of(name: str, folder: Path = store.DATA) -> Entry:
    return next(entry for entry in store.read_manifest(folder) if entry.name == name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the golden folder that may be spoilt."""
    shutil.copytree(store.DATA, tmp_path / "data")
    return tmp_path / "data"


def rewritten(folder: Path, name: str, data: bytes) -> None:
    """Other bytes in a file, and a manifest that agrees with them."""
    changed = entry_of(name, folder)
    (folder / changed.file).write_bytes(data)
    new = replace(changed, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    entries = [new if entry.name == name else entry for entry in store.read_manifest(store.DATA)]
    (folder / store.MANIFEST).write_bytes(store._canonical(entries))


def changed_tensors(folder: Path, name: str, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    tensors, metadata = safetensors_file.read(folder / entry_of(name, folder).file)
    change(tensors)
    rewritten(folder, name, safetensors_file.dumps(tensors, metadata))


def test_the_folder_of_the_package_holds() -> None:
    seen = verify(seconds=1.0)
    assert seen.failed == []
    assert seen.files == len(store.read_manifest())
    assert seen.values == seen.certified > 400_000
    assert 0 < seen.rechecked < seen.values
    assert seen.worst_ratio < 1.0


def test_hi_off_by_a_unit_is_found_by_double_double(folder: Path) -> None:
    def up(tensors: dict[str, np.ndarray]) -> None:
        tensors["p.hi"][1, 1] = np.nextafter(tensors["p.hi"][1, 1], 2.0)

    changed_tensors(folder, "softmax/pair", up)
    (line,) = verify(folder, seconds=1.0).failed
    assert "softmax/pair.safetensors: wrong value: p[1, 1]" in line


@pytest.mark.parametrize("name", SMALL)
def test_every_operation_finds_a_unit_in_each_result(name: str) -> None:
    case, limbs = store.read(entry_of(name))
    assert recheck.recheck(case, limbs).failed == ()
    for result, value in limbs.items():
        at = tuple(np.argwhere((value.hi != 0.0) & np.isfinite(value.hi))[0])
        hi = value.hi.copy()
        hi[at] = np.nextafter(hi[at], np.inf)
        (line,) = recheck.recheck(case, {**limbs, result: Limbs(hi, value.lo)}).failed
        assert line.startswith(f"{result}{[int(i) for i in at]} ")


def test_an_infinity_in_place_of_a_number_is_found() -> None:
    case, limbs = store.read(entry_of("log_sum_exp/near-zero"))
    spoilt = {"lse": Limbs(np.full_like(limbs["lse"].hi, -np.inf), np.zeros_like(limbs["lse"].lo))}
    assert len(recheck.recheck(case, spoilt).failed) == limbs["lse"].hi.size


def test_what_has_no_bound_is_counted_and_nowhere_but_beyond_its_range() -> None:
    left = {}
    for entry in store.read_manifest():
        if not entry.is_trace and entry.bytes < 20_000:
            found = recheck.recheck(*store.read(entry))
            left |= {entry.name: found.left_out} if found.left_out else {}
    assert left == {"softmax/largest-numbers": 14, "log_sum_exp/largest-numbers": 3, "merge_attention/huge": 30}


def test_every_golden_operation_has_a_double_double_and_a_textbook_form() -> None:
    assert [one.operation for one in SETS] == list(recheck.DOUBLE_DOUBLE)
    assert {one.operation for one in SETS} == set(second_route.FORMULAS)


def test_another_answer_of_a_trace_is_found(folder: Path) -> None:
    trace = store.read_trace(entry_of("sample/5-tokens-4-rows"))
    answer = {"token": np.roll(trace.steps[0].answer["token"], 1)}
    rewritten(folder, "sample/5-tokens-4-rows", traces.dumps(replace(trace, steps=(replace(trace.steps[0], answer=answer),))))
    (line,) = verify(folder, seconds=0.0).failed
    assert line == "sample/5-tokens-4-rows.json: wrong answer: call 0, sample: the oracle answers otherwise"


def test_a_call_that_there_is_not_is_found(folder: Path) -> None:
    name = "block_allocator/empty-pool"
    trace = store.read_trace(entry_of(name), store.DATA)
    rewritten(folder, name, traces.dumps(replace(trace, steps=(replace(trace.steps[0], call="nonsense"), *trace.steps[1:]))))
    (line,) = verify(folder, seconds=0.0).failed
    assert f"{name}.json: wrong answer: the oracle cannot play it: AttributeError" in line


def test_other_draws_are_found(folder: Path) -> None:
    changed_tensors(folder, "mtp_loss/one-word", lambda tensors: tensors.update(logits=tensors["logits"] * np.float32(2.0)))
    (line,) = verify(folder, seconds=0.0).failed
    assert line == "mtp_loss/one-word.safetensors: stale manifest: its inputs are others than those drawn today"


def test_a_surplus_file_and_a_missing_one_are_found(folder: Path) -> None:
    (folder / "more").write_bytes(b"")
    (folder / "rope" / "half.safetensors").unlink()
    failed = verify(folder, seconds=0.0).failed
    assert [line.split(": ")[:2] for line in failed] == [["more", "surplus file"], ["rope/half.safetensors", "missing file"]]


def test_a_folder_without_a_manifest_fails(tmp_path: Path) -> None:
    assert verify(tmp_path).failed[0].startswith("manifest.json: missing file")


@pytest.mark.certify
@pytest.mark.parametrize("name", SMALL)
def test_the_second_route_agrees_and_finds_the_last_bit_of_lo(name: str) -> None:
    case, limbs = store.read(entry_of(name))
    places = second_route.sample(case, limbs)
    assert len(places) >= len(limbs)
    assert second_route.disagreements(case, limbs, places) == []
    result, at = next(((n, i) for n, i in places if limbs[n].lo[i] != 0.0), places[0])                    # what is only moved has lo = 0
    lo = limbs[result].lo.copy()
    lo[at] = np.nextafter(lo[at], np.inf)
    (line,) = second_route.disagreements(case, {**limbs, result: Limbs(limbs[result].hi, lo)}, places)
    assert line.startswith(f"{result}{list(at)} is ")


@pytest.mark.certify
def test_ball_arithmetic_finds_the_last_bit_of_lo(folder: Path) -> None:
    """Below what double-double can see."""
    def up(tensors: dict[str, np.ndarray]) -> None:
        tensors["p.lo"][1, 1] = np.nextafter(tensors["p.lo"][1, 1], 1.0)

    changed_tensors(folder, "softmax/pair", up)
    entry, seen = entry_of("softmax/pair", folder), Verification()
    _certify([(entry, *store.read(entry, folder))], seen, lambda stage, name: None)
    assert "p[1, 1] is" in seen.failed[0]
    assert "ball arithmetic proves" in seen.failed[0]


@pytest.mark.certify
def test_make_writes_the_committed_bytes_again(tmp_path: Path) -> None:
    """Under another version of the prover the files are the same, and the manifest but for `certified`."""
    store.make(tmp_path / "data")
    ours, again = store.read_manifest(), store.read_manifest(tmp_path / "data")
    assert [entry.name for entry in ours if (store.DATA / entry.file).read_bytes() != (tmp_path / "data" / entry.file).read_bytes()] == []
    assert [replace(entry, certified={}) for entry in ours] == [replace(entry, certified={}) for entry in again]
    recorded = {entry.certified["prover"] for entry in ours if not entry.is_trace}
    if recorded == {store.prover()}:
        assert (store.DATA / store.MANIFEST).read_bytes() == (tmp_path / "data" / store.MANIFEST).read_bytes()
