"""The mutants: every report has one, each differs where it says, all die by a law; and the textbook they are made from is right."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles import reference
from oracles.properties import Arithmetic, check, subject
from oracles.properties.comparison import compare
from oracles.properties.operations import operation_named
from oracles.properties.signatures import SIGNATURES
from oracles.properties.zoo import ZOO_MODULES, attention_forward, keeper, masking, textbook, triggers
from oracles.properties.zoo.specimen import Specimen

IDS = {
    "softmax": (
        "sink-dropped-for-multi-row-queries", "empty-partition-lse-plus-inf", "lse-base-2-merged-as-natural", "fully-masked-row-nan",
        "merge-two-empty-states-nan",
    ),
    "masking": (
        "causal-mask-per-group-of-four-rows", "one-sided-window-leaks-future", "packed-segments-ignored",
        "block-diagonal-longer-than-keys-accepted", "mask-plus-causal-silently-drops-one", "window-narrower-than-trained",
        "block-mask-built-for-other-length", "window-right-bound-exclusive", "causal-top-left-in-reference-too",
        "window-negative-left-disables-window", "causal-mask-top-left-when-lengths-differ", "more-queries-than-keys-rows-zero",
    ),
    "attention-forward": (
        "scale-argument-cached", "alibi-sign-flipped", "early-exit-lse-written-to-wrong-slot", "combine-row-stride-mismatch",
        "combine-batch-stride-zero", "split-kv-lse-not-stored", "alibi-row-independent-bias-nonsquare", "dropout-argument-ignored",
        "partial-last-page-scores-unmasked", "softcap-uses-score-as-cap", "alibi-decode-offset-by-one",
    ),
    "attention-backward": (
        "sink-gradient-missing", "ragged-tail-score-mod-nan-grad", "softmax-jacobian-sign-condition",
        "batched-backward-wrong-only-with-batch-2", "dv-column-stride-from-qk-dim",
    ),
    "gqa": (
        "past-length-uniform-over-batch", "gqa-tile-instead-of-repeat", "gqa-grad-not-summed-over-group", "gqa-repeat-on-sequence-axis",
    ),
}  # fmt: skip
CONTROLS = {"alibi-decode-offset-by-one"}

SPECIMENS = {s.id: s for s in keeper.inhabitants(tuple(IDS)) if s.kind != "variant"}
MUTANTS = [s for s in SPECIMENS.values() if s.kind == "mutant"]
each_specimen = pytest.mark.parametrize("specimen", SPECIMENS.values(), ids=list(SPECIMENS))
each_mutant = pytest.mark.parametrize("specimen", MUTANTS, ids=[s.id for s in MUTANTS])


@pytest.mark.parametrize("family", IDS)
def test_every_report_of_a_family_has_one_mutant(family: str) -> None:
    found = [s.id for s in keeper.inhabitants((family,)) if s.kind != "variant"]
    assert sorted(found) == sorted(IDS[family])


def test_equivalent_changes_are_controls() -> None:
    assert {s.id for s in SPECIMENS.values() if s.kind == "control"} == CONTROLS


def test_every_family_has_a_module() -> None:
    assert set(IDS) <= {family for families in ZOO_MODULES.values() for family in families}


@each_specimen
def test_sources_are_addresses(specimen: Specimen) -> None:
    assert all(address.startswith("https://github.com/") for address in specimen.source.split())


@each_specimen
def test_the_fault_is_said_in_a_sentence(specimen: Specimen) -> None:
    assert specimen.fault.endswith(".")


@each_mutant
def test_it_differs_on_its_own_trigger(specimen: Specimen) -> None:
    assert keeper.why_invalid(specimen) == ""


@pytest.mark.parametrize("specimen", SPECIMENS.values(), ids=list(SPECIMENS))
def test_designed_cases_alone_decide(specimen: Specimen) -> None:
    assert keeper.fate_of(specimen, budget="quick").status == ("lives" if specimen.id in CONTROLS else "killed")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
@each_mutant
def test_random_cases_do_not_save_a_mutant(specimen: Specimen, seed: int) -> None:
    assert keeper.fate_of(specimen, budget="default", seed=seed).status == "killed"


# What single mutants claim of themselves --------------------------------------------------------------------------------


def test_a_verifier_that_shares_the_kernels_mask_accepts_it_and_the_oracle_does_not() -> None:
    arguments = triggers.forward(Lq=3, Lk=128, causal="bottom_right")
    mutant = masking.its_own_verifier_agrees(**arguments)
    own = masking.verifier(**arguments)
    case = {name: value for name, value in arguments.items() if name != "causal"}
    bound = _bound(case, causal="top_left")                                     # the mask that both of them mean
    assert not compare("out", mutant[0], own[0], bound["out"]).failed
    assert not compare("lse", mutant[1], own[1], bound["lse"]).failed
    assert compare("out", mutant[0], reference.attention(**arguments)[0], _bound(case, causal="bottom_right")["out"]).failed


def _bound(arrays: dict[str, Any], *, causal: Any) -> dict[str, Any]:
    from oracles.properties.bounds import attention_bound

    arithmetic = Arithmetic().resolve("float32")
    subjects, oracles = (attention_bound(a, **arrays, causal=causal) for a in (arithmetic, arithmetic.widened()))
    return {name: subjects[name] + oracles[name] for name in subjects}


@subject("attention", causal=["bottom_right"])
def alibi_one_off_with_its_lse(q: Any, k: Any, v: Any, *, causal: Any, alibi_slopes: Any = None) -> Any:
    scores = attention_forward._with_bias(attention_forward.one_off)
    return textbook.attention(q, k, v, causal=causal, alibi_slopes=alibi_slopes, scores=scores)


def test_the_alibi_control_would_be_a_mutant_by_its_log_sum_exp() -> None:
    laws = ("out_agrees_with_the_oracle", "lse_agrees_with_the_oracle")
    report = check("attention", alibi_one_off_with_its_lse, budget="quick", laws=laws)
    assert [verdict.status for verdict in report.verdicts] == ["held", "failed"]


def test_what_is_cached_is_the_scale_of_the_first_call() -> None:
    first = triggers.forward(Lk=6, scale=0.25)
    second = {**first, "scale": 2.0}
    answers = [attention_forward.scale_baked_in(**arguments)[0].tobytes() for arguments in (first, second)]
    assert answers[0] == answers[1] == textbook.attention(**first)[0].tobytes()


def test_unsplit_rows_do_not_need_a_stored_sum() -> None:
    arguments = triggers.forward(Lk=attention_forward.LONG - 1)
    assert attention_forward.merge_of_unstored_sums(**arguments).tobytes() == textbook.attention(**arguments)[0].tobytes()


def test_the_oracle_refuses_offsets_past_the_end() -> None:
    with pytest.raises(ValueError, match=r"cu_k: got numbers from 0 to 20; want 0\.\.10"):
        reference.attention_packed(**masking.more_keys_claimed_than_given())


def test_the_mutant_answers_offsets_past_the_end() -> None:
    arguments = masking.more_keys_claimed_than_given()
    out, _ = masking.offsets_past_the_end_accepted(**arguments)
    assert out.shape == arguments["q"].shape


# The textbook -----------------------------------------------------------------------------------------------------------


def textbook_as_subject(operation: str, **declared: Any) -> Any:
    """The textbook's function of that name, declared for it."""
    function = getattr(textbook, operation)

    @functools.wraps(function)
    def wrapped(*args: Any, **options: Any) -> Any:
        return function(*args, **options)

    alignments = {"causal": (None, "bottom_right", "top_left")} if "causal" in SIGNATURES[operation].optional else {}
    return subject(operation, promises=["deterministic"], **alignments, **declared)(wrapped)


# Operations whose textbook is a module of its own, shown to be right in another file.
OTHER_TEXTBOOKS = {**dict.fromkeys(("all_reduce", "reduce_scatter", "all_gather", "bucketed_all_reduce", "accumulate_gradients",
                                    "tied_gradients", "flat_layout", "column_parallel", "row_parallel", "shard_qkv",
                                    "vocab_parallel_embedding", "vocab_parallel_cross_entropy_backward", "norm_backward_sharded",
                                    "clip_grad_norm_sharded"), "test_parallel_zoo.py"),
                   **dict.fromkeys(("kv_bytes", "training_bytes", "model_flops", "token_accuracy"), "test_metrics_zoo.py"),
                   **dict.fromkeys(("filter_probabilities", "apply_penalties", "sample", "speculative_verify", "tree_positions",
                                    "speculative_loop", "mtp_loop", "mtp_loss"), "test_decoding_zoo.py"),
                   **dict.fromkeys(("quantize", "dequantize", "quantized_matmul", "dequantize_blockwise", "prune_magnitude", "prune_2_4",
                                    "gradual_masks"), "test_quantization_zoo.py"),
                   **dict.fromkeys(("next_token_targets", "cross_entropy", "cross_entropy_backward", "vocab_parallel_cross_entropy",
                                    "distillation_loss", "distillation_loss_backward",
                                    "adamw_step", "clip_grad_norm", "master_weight_step"), "test_training_zoo.py"),
                   **dict.fromkeys(("route", "balance_loss", "balance_loss_backward", "moe_layer", "expert_parallel_backward"),
                                   "test_experts_zoo.py"),
                   **dict.fromkeys(("schedule", "pipeline_loss", "pipeline_step", "ring_attention", "ring_attention_backward",
                                    "sharded_cache_attention", "exchanged_norm_backward"), "test_pipeline_and_context_zoo.py"),
                   "paged_attention": "test_caches.py", "mla_attention": "test_caches.py",
                   "rope": "test_rope_zoo.py", "write_kv": "test_rope_zoo.py", "padded_positions": "test_rope_zoo.py"}
IN_THE_TEXTBOOK = [operation for operation in SIGNATURES if operation not in OTHER_TEXTBOOKS]


def test_the_files_of_the_other_textbooks_are_there() -> None:
    assert all((Path(__file__).parent / name).is_file() for name in OTHER_TEXTBOOKS.values())


@pytest.mark.parametrize("operation", IN_THE_TEXTBOOK)
def test_the_textbook_agrees_with_the_oracle(operation: str) -> None:
    agreements = tuple(law.name for law in operation_named(operation).laws if law.name == "answers" or "agrees_with" in law.name)
    report = check(operation, textbook_as_subject(operation), budget="quick", laws=agreements)
    assert report.held
    assert all(verdict.status == "held" for verdict in report.verdicts)
    assert not any(line.startswith(("argument", "causal")) for line in report.not_covered)


@pytest.mark.long
@pytest.mark.parametrize("operation", IN_THE_TEXTBOOK)
def test_the_textbook_keeps_every_law_in_every_format(operation: str) -> None:
    formats = ("float32", "float64", "float16", "bfloat16")
    assert check(operation, textbook_as_subject(operation, dtypes=formats), budget="default").held


def test_the_textbook_shares_nothing_with_the_oracles() -> None:
    assert not any(str(getattr(value, "__module__", "")).startswith("oracles.reference") for value in vars(textbook).values())
    assert np.dtype(textbook.working(np.zeros(1, np.float16))) == np.float32
