"""Exact traces: read back as they were, answered alike by two routes, far from every tie, and a changed answer is seen."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from oracles import reference
from oracles.golden import store, trace_answers
from oracles.golden.questions import CHECKED
from oracles.golden.sets import trace_questions
from oracles.golden.trace_answers import answers
from oracles.golden.trace_second_route import second_answers
from oracles.golden.traces import Step, Trace, dumps, loads
from oracles.properties.arithmetic import Arithmetic
from oracles.properties.case import Case
from oracles.properties.conventions import declared

QUESTIONS = trace_questions()
OPERATIONS = sorted({trace.operation for trace in QUESTIONS})


def of(operation: str) -> list[Trace]:
    return [trace for trace in QUESTIONS if trace.operation == operation]


def differing(traces: list[Trace]) -> list[str]:
    """The cases that the two routes answer differently; the second reads its questions from bytes."""
    return [trace.case for trace in traces
            if dumps(trace.answered(answers)) != dumps(loads(dumps(trace)).answered(second_answers))]  # fmt: skip


def test_there_are_a_dozen_cases_of_each_operation_and_their_names_are_their_own() -> None:
    names = [(trace.operation, trace.case) for trace in QUESTIONS]
    assert len(set(names)) == len(names)
    assert min(Counter(operation for operation, _ in names).values()) >= 12


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_second_route_answers_alike(operation: str) -> None:
    assert differing(of(operation)) == []


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_folder_holds_what_both_routes_answer(operation: str) -> None:
    entries = [entry for entry in store.read_manifest() if entry.is_trace and entry.operation == operation]
    assert len(entries) == len(of(operation))
    for entry in entries:
        trace = store.read_trace(entry)
        assert dumps(trace) == dumps(trace.questions.answered(second_answers)) == dumps(trace.questions.answered(answers))


def one_more(function, name: str):
    """An oracle with a fault: one of its results is one more than it is."""
    def call(**arguments):
        results = function(**arguments)
        return {**results, name: np.asarray(results[name] + 1)}

    return call


FAULTS = {
    "write_kv": "k_cache", "sample": "token", "speculative_verify": "n_accepted", "verify_tree": "nodes", "tree_positions": "positions",
    "apply_penalties": "logits", "visible_keys": "visible", "slot_mapping": "slots", "paging_waste": "tokens",
    "prune_magnitude": "masks", "prune_2_4": "mask", "prune_units": "mask", "gradual_masks": "masks", "padded_positions": "positions",
    "next_token_targets": "targets", "token_accuracy": "right", "kv_bytes": "bytes", "model_flops": "flops", "training_bytes": "bytes",
    "speculative_loop": "tokens", "mtp_loop": "n_accepted", "flat_layout": "offsets", "schedule_timeline": "starts",
}  # fmt: skip


@pytest.mark.parametrize("operation", FAULTS)
def test_an_oracle_that_answers_otherwise_is_seen(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = trace_answers.FUNCTIONS[operation]
    monkeypatch.setitem(trace_answers.FUNCTIONS, operation, one_more(right, FAULTS[operation]))
    assert differing(of(operation)) != []


def test_a_pool_that_gives_cached_blocks_first_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(self: reference.BlockAllocator) -> int:
        block = self._drop_oldest(give=False) if self._cached else self._free.popleft()
        self._references[block] = 1
        return block

    monkeypatch.setattr(reference.BlockAllocator, "_take", take)
    assert differing(of("block_allocator")) != []


def test_a_guide_that_ignores_dead_ends_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = reference.compile_regex
    monkeypatch.setattr(reference, "compile_regex", lambda *given, eos: right(*given, eos=eos, dead_ends="characters"))
    assert differing(of("token_mask")) == ["no-way-on", "eos-as-text"]


def test_a_stream_without_fused_multiply_adds_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a few numbers none may be another then; of 81,920 some are."""
    def plain(a, b, c):
        return (a * b + c).astype(np.float32)

    monkeypatch.setattr("oracles.reference.torch_stream._fma", plain)
    assert differing(of("torch_stream")) == ["the-int8-table"]


def test_a_stream_that_drops_the_second_of_a_pair_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = reference.TorchStream._one

    def dropping(self):
        self._second = None
        return right(self)

    monkeypatch.setattr(reference.TorchStream, "_one", dropping)
    assert "the-second-of-a-pair-is-kept" in differing(of("torch_stream"))


def test_a_scaler_whose_run_an_overflow_does_not_end_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def update(self: reference.LossScaler, found_inf: bool) -> None:
        self._run += not found_inf
        if found_inf or self._run >= self._interval:
            self._run = self._run if found_inf else 0
            self._move(self._backoff if found_inf else self._growth)

    monkeypatch.setattr(reference.LossScaler, "update", update)
    assert "an-overflow-ends-the-run" in differing(of("loss_scaler"))


def test_masters_whose_schedule_counts_steps_left_out_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = reference.MasterWeights.step

    def step(self: reference.MasterWeights, *, loss_scale: float) -> bool:
        taken = right(self, loss_scale=loss_scale)
        self._step += not taken
        return taken

    monkeypatch.setattr(reference.MasterWeights, "step", step)
    assert differing(of("master_weights")) == ["an-overflow-is-left-out", "rates-of-steps-taken"]


def test_a_cache_that_forgets_what_fell_out_of_its_window_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right until drafts are rolled back."""
    right = reference.KVCache.append

    def append(self: reference.KVCache, k: np.ndarray, v: np.ndarray) -> None:
        right(self, k, v)
        if self.window is not None and len(self) > self.window:
            k, v = self._all()
            gone = np.arange(k.shape[2]) < k.shape[2] - self.window
            self._kept = np.where(gone[:, None], 0.0, k), np.where(gone[:, None], 0.0, v)

    monkeypatch.setattr(reference.KVCache, "append", append)
    assert differing(of("kv_cache")) == ["a-window-after-rolling-back", "beams-in-a-window"]


def test_a_mean_of_means_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = reference.Zero.accumulate

    def accumulate(self: reference.Zero, grads: list, *, tokens: list | None = None) -> None:
        shares = [1] * len(grads) if tokens is None else [max(n, 1) for n in tokens]
        right(self, [[g / n for g in own] for own, n in zip(grads, shares)])

    monkeypatch.setattr(reference.Zero, "accumulate", accumulate)
    assert differing(of("zero")) == ["tokens"]


def test_the_draws_of_the_published_table_are_those_pytorch_gave() -> None:
    """SHA-256 of torch.manual_seed(0), randn(256, 256), randn(256, 64) under PyTorch 2.13.0 on a CPU with AVX2."""
    (trace,) = (t.answered(second_answers) for t in of("torch_stream") if t.case == "the-int8-table")
    assert [step.answer["sha256"].hex() for step in trace.steps] == [
        "33e5e1492edd7110d7f1a65492cbc485924cb2dc9343099bd01121af5e47a0e7",
        "b8e48953087f7427ab20f8b2d5880039a662bd6b3351f4523c928d91d6836379",
    ]  # fmt: skip


def test_every_kind_of_value_is_read_back() -> None:
    given = {"array": np.float32([[0.1, np.inf], [-0.0, 2.0**-149]]), "narrow": reference.FloatFormat("bfloat16").cast([1.5]),
             "flags": np.asarray([True, False]), "number": 0.1, "whole": 3, "none": None, "bytes": b"\0x", "list": [1, None, "a"],
             "record": {"hex": 1}}  # fmt: skip
    back = loads(dumps(Trace("operation", "case", given, (Step("call", given, [1, 2]), Step("call", {}, raises="ValueError")))))
    for again in (back.arguments, back.steps[0].arguments):
        assert {name: type(value) for name, value in again.items()} == {name: type(value) for name, value in given.items()}
        for name, value in given.items():
            if isinstance(value, np.ndarray):
                assert (again[name].dtype, again[name].tobytes()) == (value.dtype, value.tobytes())
            else:
                assert again[name] == value
    assert (back.steps[0].answer, back.steps[1].raises) == ([1, 2], "ValueError")


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"operation": "a", "case": "b", "arguments": {}, "calls": [1]}', b"\xff"])
def test_bytes_that_are_no_trace_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"want a trace|Expecting value|codec"):
        loads(data)


def test_no_verification_stands_near_a_tie() -> None:
    """u q(x) and p(x) of every draft token differ by 2^-17 at least: far beyond float32's rounding of either."""
    apart = []
    for trace in of("speculative_verify"):
        given = trace.steps[0].arguments
        for b, j in np.ndindex(*given["draft_tokens"].shape):
            x = given["draft_tokens"][b, j]
            u, q, p = (Fraction(float(n)) for n in (given["accept_u"][b, j], given["draft_probs"][b, j, x], given["target_probs"][b, j, x]))
            apart.append(abs(u * q - p))
    assert min(apart) >= Fraction(1, 2**17)


def open_places(trace: Trace) -> int:
    """Elements of an answer that the rounding of float32 may turn, as the checker's bound has it."""
    given = trace.steps[0].arguments
    arrays = {name: value for name, value in given.items() if isinstance(value, np.ndarray)}
    case = Case(trace.operation, arrays, {name: value for name, value in given.items() if name not in arrays})
    bounds = CHECKED[trace.operation].bound(Arithmetic().resolve("float32"), case, declared({}, trace.operation))
    return sum(int((~np.isfinite(bound)).sum()) for bound in bounds.values())


@pytest.mark.parametrize("operation", [name for name in OPERATIONS if name in CHECKED])
def test_no_answer_stands_so_near_a_tie_that_float32_may_turn_it(operation: str) -> None:
    assert [trace.case for trace in of(operation) if open_places(trace)] == []


def test_an_answer_near_a_tie_is_seen() -> None:
    """29 of 100 go, or 28 where the share is rounded first: one weight is open."""
    weights = np.arange(1.0, 101.0)[None]
    arguments = {"weights": weights, "sparsity": 0.29, "scope": "layer"}
    assert open_places(Trace("prune_magnitude", "near", {}, (Step("prune_magnitude", arguments),))) == 1


def test_a_trace_with_another_answer_is_another_file() -> None:
    trace = of("sample")[0].answered(answers)
    other = replace(trace, steps=(replace(trace.steps[0], answer={"token": trace.steps[0].answer["token"] + 1}),))
    assert dumps(other) != dumps(trace)
