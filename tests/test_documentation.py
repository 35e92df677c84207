"""The pages say what the code does: signatures, commands, files they speak of."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from oracles import reference
from oracles.properties.conventions import CONVENTIONS
from oracles.properties.operations import OPERATIONS
from oracles.properties.stateful.names import STATEFUL_NAMES
from oracles.properties.stateful.operations import stateful_named
from oracles.tools import showing_objects
from oracles.tools.showing import page

TOP = Path(__file__).parent.parent
CONTRACT = (TOP / "docs" / "operations.md").read_text()
README = (TOP / "README.md").read_text()
DECODING = ["filter_probabilities", "apply_penalties", "sample", "speculative_verify", "verify_block", "verify_tree", "typical_acceptance",
            "mtp_loss", "acceptance_rate", "expected_tokens", "speed_up", "tree_mask", "tree_positions", "mtp_positions",
            "speculative_generate", "self_speculate", "compile_regex", "compile_json_schema", "token_mask", "advance", "draft_masks",
            "forced_tokens", "guided_process"]
COMPRESSION = ["nf4_quantize", "fp8_quantize", "pack_int4", "unpack_int4", "matmul_with_outliers", "quantization_errors", "prune_units",
               "pack_2_4", "unpack_2_4", "QuantizedKVCache", "distilled_student"]
CACHES = ["rope", "rope_frequencies", "yarn_mscale", "group_heads", "repeat_heads", "write_kv", "KVCache", "padded_positions",
          "BlockAllocator", "prefix_salt", "paging_waste", "paged_attention", "slot_mapping", "mla_compress", "mla_attention",
          "mla_attention_absorbed", "mla_scale", "rms_norm", "swiglu", "ContiguousCache", "PagePool", "PagedCache", "transformer_forward",
          "transformer_generate"]
COSTS = ["parameter_count", "training_parts", "lora_bytes", "lora_parameters", "activation_bytes", "kv_elements", "largest_batch",
         "attention_pairs", "utilisation", "ridge_point", "attainable_flops", "matmul_intensity", "decode_steps", "queue_wait", "latency",
         "steady_batch", "training_flops", "chinchilla_loss", "chinchilla_tokens", "chinchilla_split", "kaplan_ratio", "words",
         "pipeline_bubble", "zero_traffic", "in_unit", "of_unit", "show_bytes", "bootstrap_interval", "paired_permutation_test",
         "two_sample_law_test"]
EXPERTS = ["expert_slots", "dispatch", "combine", "moe_layer_backward", "expert_parallel_layer", "route_backward", "balance_bias",
           "expert_counts", "moe_swiglu", "moe_swiglu_backward", "moe_balance", "transformer_backward", "rms_norm_backward",
           "swiglu_backward", "rope_backward", "embedding_backward", "decoder_loss", "decoder_gradients", "train_step"]
RANKS = ["all_to_all", "exchange", "broadcast", "shard_fused_qkv", "vocab_shards", "vocab_parallel_embedding_backward",
         "vocab_parallel_head", "vocab_parallel_head_backward", "DataParallel"]
PIPELINES = ["all_to_all_attention", "all_to_all_attention_backward", "cache_place", "schedule_limits", "shard_positions"]
BESIDE = [*PIPELINES, *RANKS, *EXPERTS, *CACHES, *DECODING, *COMPRESSION, *COSTS, "online_softmax", "memory_traffic"]


def signature_in_the_contract(name: str) -> str:
    found = re.search(rf"`({name}\([^`]*\))`", CONTRACT)
    assert found, f"docs/operations.md has no signature of {name}"
    return found.group(1)


def signature_in_the_code(name: str) -> str:
    parameters = [p.replace(annotation=p.empty) for p in inspect.signature(getattr(reference, name)).parameters.values()]
    return f"{name}{inspect.Signature(parameters)}"


@pytest.mark.parametrize("name", [operation.name for operation in OPERATIONS] + BESIDE)
def test_the_contract_has_the_signature_of_the_oracle(name: str) -> None:
    assert signature_in_the_contract(name) == signature_in_the_code(name)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
def test_the_declared_signature_is_that_of_the_oracle(operation) -> None:
    parameters = inspect.signature(operation.oracle).parameters
    assert list(operation.signature.arguments) == list(parameters)
    assert [n for n in operation.signature.required] == [n for n, p in parameters.items() if p.kind is not p.KEYWORD_ONLY]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
def test_every_law_says_what_holds_and_what_is_allowed(operation) -> None:
    assert all(len(law.statement) > 40 for law in operation.laws)
    assert len({law.name for law in operation.laws}) == len(operation.laws)


def test_the_page_of_an_operation_shows_its_laws_and_conventions() -> None:
    shown = page("attention")
    assert all(law.name in shown for law in next(o for o in OPERATIONS if o.name == "attention").laws)
    assert all(name in shown for name, convention in CONVENTIONS.items() if "attention" in convention.operations)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
def test_the_page_of_an_operation_is_up_to_date(operation) -> None:
    """After a change: for each operation, `oracles show NAME > docs/operations/NAME.md`."""
    assert (TOP / "docs" / "operations" / f"{operation.name}.md").read_text() == page(operation.name) + "\n"


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
def test_the_page_of_an_operation_has_all_its_parts(operation) -> None:
    parts = ["## Bound", "## Laws", "## How libraries differ", "## Source"]
    assert [part for part in parts if part not in page(operation.name)] == []


@pytest.mark.parametrize("name", STATEFUL_NAMES)
def test_the_page_of_an_object_is_up_to_date(name: str) -> None:
    """After a change: for each object, `oracles show NAME > docs/operations/NAME.md`."""
    assert (TOP / "docs" / "operations" / f"{name}.md").read_text() == showing_objects.page(name) + "\n"


@pytest.mark.parametrize("name", STATEFUL_NAMES)
def test_the_page_of_an_object_has_its_methods_laws_and_source(name: str) -> None:
    operation, shown = stateful_named(name), showing_objects.page(name)
    assert [part for part in ("## Laws", "## Source", operation.source) if part not in shown] == []
    assert [method for method in (*operation.required, *operation.optional) if f"`{method}`" not in shown] == []
    assert [name for name in operation.arguments if f"- `{name.partition('.')[2]}=` of " not in shown] == []
    assert [law.name for law in operation.laws if f"**{law.name}** {inspect.cleandoc(law.statement)}" not in shown] == []


def test_the_page_of_an_object_shows_how_it_is_made_and_called() -> None:
    shown = showing_objects.page("loss_scaler")
    assert "```\nLossScaler(*, init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000)\n    value\n" in shown
    assert "\n    step(update, grads)\n" in shown
    assert "- `growth_interval=` of the constructor" in shown


def test_every_page_is_of_an_operation() -> None:
    names = {operation.name for operation in OPERATIONS} | set(STATEFUL_NAMES)
    assert {path.stem for path in (TOP / "docs" / "operations").glob("*.md")} <= names


def test_the_quick_start_is_two_lines() -> None:
    section = README.split("## Quick start")[1].split("## ")[0]
    block = section.split("```sh")[1].split("```")[0].strip().splitlines()
    assert len(block) == 2
    assert "oracles check" in block[0]
    assert "pytest" in block[1]


def test_the_files_the_readme_points_to_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)", README):
        assert (TOP / target).exists(), target
