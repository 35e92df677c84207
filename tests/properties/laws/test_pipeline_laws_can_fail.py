"""Every law of schedules, pipeline losses and pipeline steps turns red on what breaks it, and on no oracle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles import reference
from oracles.properties import check, subject
from oracles.properties.operations import operation_named
from oracles.properties.report import FAILED

from .test_decoding_laws_can_fail import failure

Given = dict[str, Any]
Function = Callable[[Given], Any]
S, L, P = "schedule", "pipeline_loss", "pipeline_step"


def actions(given: Given) -> Any:
    return reference.schedule(**given).actions


def loss(given: Given) -> Any:
    return reference.pipeline_loss(**given)


def step(given: Given) -> Any:
    return reference.pipeline_step(**given)


RIGHT: dict[str, Function] = {S: actions, L: loss, P: step}


def twice(given: Given) -> Any:
    """The first action of the last stage takes the place of its last."""
    found = actions(given).copy()
    found[-1, -1:] = found[-1, :1]
    return found


def backward_first(given: Given) -> Any:
    return actions(given)[:, ::-1]


def one_by_one(given: Given) -> Any:
    """Every micro-batch goes all the way before the next begins; chunks up in the forward pass, down in the backward pass."""
    def key(action: Any) -> tuple[int, int, int]:
        op, microbatch, chunk = action
        return microbatch, op, chunk if op == 0 else -chunk

    return np.array([sorted(row.tolist(), key=key) for row in actions(given)], dtype=np.int64).reshape(actions(given).shape)


def all_forward_first(given: Given) -> Any:
    """GPipe's order whatever the kind: as fast, but every activation is held."""
    return np.stack([row[np.argsort(row[:, 0], kind="stable")] for row in actions(given)])


def mean_of_means(given: Given) -> Any:
    size, lengths = given["microbatch_size"], np.asarray(given["lengths"])
    parts = [(given["token_losses"][i : i + size], lengths[i : i + size]) for i in range(0, len(lengths), size)]
    means = [float(loss({**given, "token_losses": x, "lengths": n})) for x, n in parts if n.sum()]
    return np.asarray(np.mean(means) if means else 0.0)


def padding_too(given: Given) -> Any:
    """The first loss behind a length counts a little."""
    behind = np.arange(given["token_losses"].shape[1]) >= np.asarray(given["lengths"])[:, None]
    return loss(given) * (1.0 + 1e-15 * np.abs(np.where(behind, np.asarray(given["token_losses"], np.float64), 0.0)).sum())


def changing(dx: Any = lambda x, given: x, dweights: Any = lambda w, given: w, loss: Any = lambda n, given: n) -> Function:
    """The oracle's step with a result changed."""
    def broken(given: Given) -> Any:
        n, x, w = step(given)
        return loss(n, given), dx(x, given), dweights(w, given)

    return broken


def microbatches(given: Given) -> int:
    return max(1, -(-len(given["x"]) // given["microbatch_size"]))


BREAKERS: dict[str, dict[str, tuple[dict[str, Any], Function]]] = {
    S: {
        "answers": ({}, lambda given: actions(given)[:, :, :2]),
        "every_action_is_done_once": ({}, twice),
        "no_stage_waits_for_ever": ({}, backward_first),
        "no_stage_idles_longer_than_in_its_kind": ({}, one_by_one),
        "no_stage_holds_more_than_in_its_kind": ({}, all_forward_first),
    },
    L: {
        "answers": ({}, lambda given: loss(given)[None]),
        "loss_agrees_with_the_oracle": ({}, lambda given: loss(given) * (1 + 1e-9)),
        "no_cut_changes_the_loss": ({}, mean_of_means),
        "whole_losses_of_a_power_of_two_are_exact": ({}, lambda given: np.nextafter(loss(given), 9.0)),
        "padding_does_not_count": ({}, padding_too),
        "buffers_are_fully_written": ({"buffers": ("loss",)}, lambda given: None),
    },
    P: {
        "answers": ({}, lambda given: step(given)[0][None]),
        "loss_agrees_with_the_oracle": ({}, changing(loss=lambda n, given: n * (1 + 1e-9))),
        "dx_agrees_with_the_oracle": ({}, changing(dx=lambda x, given: x * (1 + 1e-9))),
        "dweights_agrees_with_the_oracle": ({}, changing(dweights=lambda w, given: w[:-1])),
        "no_cut_changes_the_step": ({}, changing(dweights=lambda w, given: [one / microbatches(given) for one in w])),
        "a_piece_without_weights_is_exact": ({}, changing(dweights=lambda w, given: [np.nextafter(one, 9.0) for one in w])),
        "tokens_behind_a_length_do_not_count": ({}, changing(dx=lambda x, given: x + 1.0)),
    },
}  # fmt: skip
# One object for all operations: shown to fail on the filters of decoding, and of attention.
SHARED = {"inputs_stay_untouched", "repeats_give_the_same_bits", "strides_are_respected"}
ALL = [(operation, law) for operation, laws in BREAKERS.items() for law in laws]


@pytest.mark.parametrize(("operation", "law"), ALL, ids=[f"{operation}-{law}" for operation, law in ALL])
def test_the_law_rejects_what_breaks_it(operation: str, law: str) -> None:
    declared, function = BREAKERS[operation][law]
    assert failure(operation, law, function, declared), f"{law} accepts an implementation that breaks it"


@pytest.mark.parametrize(("operation", "law"), [(o, law) for o, law in ALL if not BREAKERS[o][law][0]])
def test_the_law_accepts_the_oracle(operation: str, law: str) -> None:
    assert failure(operation, law, RIGHT[operation], {}) == ""


@pytest.mark.parametrize("operation", BREAKERS)
def test_no_law_is_left_out(operation: str) -> None:
    assert {law.name for law in operation_named(operation).laws} <= set(BREAKERS[operation]) | SHARED


def test_inputs_behind_a_length_show_in_the_bits() -> None:
    def looks_behind(given: Given) -> Any:
        n, x, w = step(given)
        return n * (1.0 + 1e-15 * np.abs(np.asarray(given["x"], np.float64)).sum()), x, w

    assert failure(P, "tokens_behind_a_length_do_not_count", looks_behind, {})


def test_what_waits_for_ever_is_told_by_its_law_and_by_no_other() -> None:
    for law in ("no_stage_idles_longer_than_in_its_kind", "every_action_is_done_once"):
        assert failure(S, law, lambda given: actions(given)[:, ::-1] if given["stages"] > 1 else actions(given), {}) == ""


# What a user sees -------------------------------------------------------------------------------------------------------


def gpipe_for_all(kind: str, *, stages: int, microbatches: int) -> Any:
    """GPipe's order under the name of 1F1B."""
    return reference.schedule("gpipe", stages=stages, microbatches=microbatches).actions


def test_a_schedule_of_another_kind_is_told_with_its_sizes_and_comes_with_a_repro(tmp_path: Path) -> None:
    declared = subject("schedule", only={"kind": ["1f1b"]})(gpipe_for_all)
    report = check("schedule", declared, budget="quick", failures=tmp_path)
    failed = [verdict for verdict in report.verdicts if verdict.status == FAILED]
    assert [verdict.law for verdict in failed] == ["no_stage_holds_more_than_in_its_kind"]
    assert failed[0].reason == "stage 0 holds 2 activations at once, at most 1 wanted"
    assert failed[0].case == "kind='1f1b', stages=1, microbatches=2"
    assert not any(line.startswith("inputs in") for line in report.not_covered)
    assert "wanted" in (Path(failed[0].counterexample or "") / "report.json").read_text()


def test_the_power_of_a_run_speaks_of_lists_of_results() -> None:
    errors = check(P, as_float, budget="quick").power["float32"]["relative_error"]
    assert 0.0 < errors["dweights"] < 2.0**-16


@subject(P)
def as_float(
    x: Any, targets: Any, lengths: Any, weights: Any, *, kind: str, microbatch_size: int, chunks: int = 1, accumulation: int = 1,
    dropout_mask: Any = None, dropout_p: float = 0.0,
) -> Any:  # fmt: skip
    """The oracle's step in the format of its inputs."""
    total, dx, dweights = reference.pipeline_step(x, targets, lengths, weights, kind=kind, microbatch_size=microbatch_size, chunks=chunks,
                                                  accumulation=accumulation, dropout_mask=dropout_mask, dropout_p=dropout_p)
    return total.astype(x.dtype), dx.astype(x.dtype), [one.astype(x.dtype) for one in dweights]
