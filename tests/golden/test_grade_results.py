"""The judge on what is spread over ranks, experts and stages: one wrong element in one array of a list costs that array's point alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from oracles.golden.grade import grade
from oracles.properties import safetensors_file

from .submissions import answer, losses

# case -> the call that is answered otherwise, and the answer.
CALLS = {"loss_scaler/grows": (3, 9.0), "loss_scaler/nan": (1, True), "master_weights/checkpoint": (2, [0.25]), "zero/stage-2": (1, []),
         "kv_cache/beams": (5, {"k": [], "v": []})}  # fmt: skip

# case -> the result that is spoilt: arrays of lists, experts, places, times.
WRONG = {
    "all_reduce/mean-of-three": "out.2", "reduce_scatter/mean-of-three": "out.1", "all_gather/ragged": "out.2",
    "bucketed_all_reduce/many": "grads.7", "accumulate_gradients/both": "grads", "tied_gradients/two-copies": "grads",
    "flat_layout/aligned": "offsets", "column_parallel/two-ranks": "out.1", "row_parallel/two-ranks": "out.1",
    "shard_qkv/fewer-key-heads-than-ranks": "k.3", "vocab_parallel_embedding/no-multiple": "out.3",
    "vocab_parallel_cross_entropy_backward/two-shards": "dshards", "norm_backward_sharded/tokens": "dweight.1",
    "clip_grad_norm_sharded/both": "grads.2", "ring_attention/zigzag": "out.1", "ring_attention_backward/zigzag": "dk.1",
    "sharded_cache_attention/in-turn": "lse", "exchanged_norm_backward/two-ranks": "dx.1", "route/bias-chooses": "ids",
    "balance_loss/masked": "loss", "balance_loss_backward/masked": "dprobs", "moe_layer/few-places": "slots",
    "expert_parallel_backward/two-ranks": "dlogits", "pipeline_loss/ragged": "loss", "pipeline_step/two-stages": "dweights.1",
    "schedule_timeline/1f1b": "ends",
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_one_wrong_element_costs_the_point_of_its_result(name: str, tmp_path: Path) -> None:
    operation = name.partition("/")[0]
    path = answer(tmp_path, [operation]) / "answers" / f"{name}.safetensors"
    tensors, _ = safetensors_file.read(path)
    tensors[WRONG[name]].reshape(-1)[-1] += 1
    safetensors_file.write(path, tensors)
    (one,) = grade([tmp_path], [operation])
    assert list(losses(one)) == [name]
    assert losses(one)[name].startswith((f"{WRONG[name]}[", f"{WRONG[name]} is "))              # a number has no place
    assert one.max_score - one.score == 1


def with_calls(folder: Path, name: str, change: Any) -> Any:
    """The grade of right answers about an operation, after a change to the calls of one case."""
    operation = name.partition("/")[0]
    path = answer(folder, [operation]) / "answers" / f"{name}.json"
    content = json.loads(path.read_text())
    change(content["calls"])
    path.write_text(json.dumps(content))
    (one,) = grade([folder], [operation])
    return one


@pytest.mark.parametrize("name", CALLS)
def test_one_call_answered_otherwise_costs_the_point_of_its_case(name: str, tmp_path: Path) -> None:
    number, other = CALLS[name]
    one = with_calls(tmp_path, name, lambda calls: calls[number].update(answer=other))
    assert list(losses(one)) == [name]
    assert losses(one)[name].startswith(f"call {number}, ")


def test_a_whole_number_may_be_written_without_a_point_but_is_no_truth(tmp_path: Path) -> None:
    """JavaScript has no other way to write 8.0."""
    assert with_calls(tmp_path / "whole", "loss_scaler/grows", lambda calls: calls[3].update(answer=8)).full
    assert not with_calls(tmp_path / "true", "loss_scaler/grows-with-every-step", lambda calls: calls[2].update(answer=1)).full
    assert not with_calls(tmp_path / "count", "loss_scaler/as-made", lambda calls: calls[2]["answer"].update(run=0.0)).full
