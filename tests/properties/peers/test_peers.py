"""Released libraries held to the laws: what should hold does, and missing libraries and repros are what they should be."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from oracles.properties import check
from oracles.properties.declaration import ATTRIBUTE, UsageError
from oracles.properties.loading import load
from oracles.properties.peers import PEER_MODULES
from oracles.properties.report import FAILED, HELD
from oracles.properties.stateful.subjects import version_of

pytestmark = pytest.mark.peers

# Every machine meets the same cases: all that are designed; where a call takes a compilation of its own, or an interpreter runs the
# kernel, so many.
COMPILED, COMPILED_CASES = ("torch_flex", "jax_pallas", "jax_attention"), 12
FORWARD = ("answers", "out_agrees_with_the_oracle", "one_hot_values_show_the_weights", "heads_read_their_own_keys", "inputs_stay_untouched")
BACKWARD = ("answers", "dq_agrees_with_the_oracle", "dk_agrees_with_the_oracle", "dv_agrees_with_the_oracle", "hidden_keys_get_no_gradient")
WITH_BIAS = (*BACKWARD, "dbias_agrees_with_the_oracle")
COSTLY = ("answers", "out_agrees_with_the_oracle")
ROWS = ("answers", "p_agrees_with_the_oracle", "equal_entries_share_exactly", "one_finite_entry_takes_all",
        "nothing_but_minus_infinity_is_empty")  # fmt: skip
LOG_SUM_EXP = ("answers", "lse_agrees_with_the_oracle", "nothing_but_minus_infinity_is_empty")

HOLDING = {
    ("torch_sdpa", "attention"): (*FORWARD, "hidden_keys_have_no_weight_beside_low_scores"),
    ("torch_sdpa_16bit", "attention"): FORWARD,
    ("torch_sdpa_math", "attention"): FORWARD,
    ("torch_sdpa_flash", "attention"): FORWARD,
    ("torch_sdpa_flash_16bit", "attention"): FORWARD,
    ("onnxruntime_attention", "attention"): FORWARD,
    ("onnxruntime_attention_cache", "attention"): FORWARD,
    ("onnxruntime_attention_scores", "attention"): (*FORWARD, "lse_agrees_with_the_oracle"),
    ("onnxruntime_gqa", "attention"): FORWARD,
    ("onnxruntime_mha", "attention"): FORWARD,
    ("onnxruntime_mha_bias", "attention"): FORWARD,
    ("onnxruntime_mha_padding", "attention"): FORWARD,
    ("onnx_reference", "attention"): (*FORWARD, "lse_agrees_with_the_oracle"),
    ("torch_flex", "attention"): (*COSTLY, "lse_agrees_with_the_oracle"),
    ("torch_flex_compiled", "attention"): COSTLY,
    ("jax_pallas_mha", "attention"): (*COSTLY, "lse_agrees_with_the_oracle"),
    ("jax_pallas_mha", "attention_backward"): BACKWARD[:4],
    ("jax_pallas_decode", "attention"): (*COSTLY, "lse_agrees_with_the_oracle"),
    ("jax_pallas_tpu_flash", "attention"): COSTLY,
    ("jax_splash", "attention"): (*COSTLY, "lse_agrees_with_the_oracle"),
    ("torch_softmax", "softmax"): ROWS,
    ("torch_softmax_16bit", "softmax"): ROWS,
    ("jax_softmax", "softmax"): ROWS,
    ("onnxruntime_softmax", "softmax"): ROWS,
    ("torch_softmax", "log_sum_exp"): LOG_SUM_EXP,
    ("torch_softmax_16bit", "log_sum_exp"): LOG_SUM_EXP,
    ("jax_softmax", "log_sum_exp"): LOG_SUM_EXP,
    ("onnxruntime_softmax", "log_sum_exp"): LOG_SUM_EXP,
    ("jax", "attention"): (*FORWARD, "lse_agrees_with_the_oracle"),
    ("torch_sdpa", "attention_backward"): WITH_BIAS,
    ("torch_sdpa_16bit", "attention_backward"): WITH_BIAS,
    ("torch_sdpa_math", "attention_backward"): WITH_BIAS,
    ("torch_sdpa_flash", "attention_backward"): BACKWARD,
    ("torch_sdpa_flash_16bit", "attention_backward"): BACKWARD,
}


@pytest.mark.parametrize(("peer", "operation"), HOLDING)
def test_a_released_library_keeps_the_laws(peer: str, operation: str) -> None:
    laws = HOLDING[peer, operation]
    most = COMPILED_CASES if PEER_MODULES[peer] in COMPILED else None
    report = check(operation, f"peers:{peer}", budget="quick", laws=laws, max_cases=most)
    assert not report.stopped
    assert {verdict.law for verdict in report.verdicts} == set(laws)
    for verdict in report.verdicts:
        assert verdict.status == HELD, f"{verdict.law}: {verdict.reason} {verdict.case}"
        assert verdict.compared > 0
        assert verdict.worst_ratio <= 1


# Modules whose libraries -m peers does not ask for.
NEED_MORE = ("mlx_sdpa", "tinygrad", "triton_flash", "vllm_allocator", "sglang_allocator", "guided", "bitsandbytes_blocks",
             "deepspeed")  # fmt: skip


@pytest.mark.parametrize("peer", [peer for peer, module in PEER_MODULES.items() if module not in NEED_MORE])
def test_a_peer_says_which_version_it_is(peer: str) -> None:
    functions = import_module(f"oracles.properties.peers.{PEER_MODULES[peer]}").subjects(peer)
    declared = [getattr(function, ATTRIBUTE)[-1] for function in functions]
    assert all(declaration.name == peer for declaration in declared)
    told = [declaration.version for declaration in declared] or [version_of(f"peers:{peer}")]    # the maker of an object declares nothing
    assert all(any(character.isdigit() for character in version) for version in told)


def test_two_peers_of_one_call_keep_their_own_declarations() -> None:
    wide, narrow = (load(f"peers:{peer}", "attention")[1] for peer in ("torch_sdpa", "torch_sdpa_16bit"))
    assert load("peers:torch_sdpa", "attention")[1] == wide
    assert wide.arithmetic != narrow.arithmetic


def test_a_peer_without_a_backward_says_so() -> None:
    with pytest.raises(UsageError, match="peers:onnxruntime_gqa has no attention_backward"):
        load("peers:onnxruntime_gqa", "attention_backward")


@pytest.mark.parametrize(
    ("peer", "library", "extra"),
    [("torch_sdpa", "torch", "torch"), ("onnxruntime_gqa", "onnxruntime", "onnxruntime"), ("onnxruntime_attention", "onnx", "onnxruntime"),
     ("jax", "jax", "jax")],
)  # fmt: skip
def test_a_missing_library_names_the_extra_to_install(peer: str, library: str, extra: str) -> None:
    code = (
        f"import sys; sys.modules[{library!r}] = None\n"
        "from oracles.properties.loading import load\n"
        f"try: load('peers:{peer}', 'attention')\n"
        "except ValueError as error: print(type(error).__name__, error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.startswith(f"UsageError SUBJECT: {library} cannot be imported")
    assert f"pip install 'oracles[{extra}]'" in said


def test_the_calls_import_nothing_of_ours() -> None:
    import oracles.properties.peers.calls as calls

    folder = Path(next(iter(calls.__path__)))
    files = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert len(files) >= len(set(PEER_MODULES.values()))
    for path in files:
        assert "oracles" not in path.read_text(), path
        assert "from ." not in path.read_text(), path


def test_the_repro_of_a_peer_runs_without_this_project(tmp_path: Path) -> None:
    report = check("attention", "peers:torch_sdpa_flash", budget="quick", laws=("lse_agrees_with_the_oracle",), failures=tmp_path)
    (verdict,) = report.verdicts
    assert verdict.status == FAILED
    assert verdict.counterexample is not None
    repro = Path(verdict.counterexample) / "repro.py"
    alone = f"import runpy, sys; sys.modules['oracles'] = None; sys.argv = ['']; runpy.run_path({str(repro)!r}, run_name='__main__')"
    run = subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert run.returncode == 1, run.stderr
    assert "lse_agrees_with_the_oracle: FAILS: lse" in run.stdout
